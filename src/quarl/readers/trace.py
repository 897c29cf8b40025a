"""Operators of an nn.Module, through torch.export.

An exported graph is evaluated for one observation. `torch_operators` has the rules of its calls, torch itself computes
constants and the places to which views move numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from quarl.errors import UnsupportedError, note_once
from quarl.inert.reading_budget import Budget
from quarl.policy.operators import Op, Shape
from quarl.policy.recurrent import SEEN
from quarl.readers import aten
from quarl.readers.recurrent_values import remembering
from quarl.readers.sb3_network import bare
from quarl.readers.symbolic import Symbolic, Unknown, Value
from quarl.readers.torch_operators import MOVES, NODES, RECURRENT, WEIGHT, operate

BATCH = 2
"""Rows of the example: more than one, so that an operator that mixes rows shows in its output's shape."""


def trace(
    module: nn.Module,
    values: Iterable[tuple[str, Shape]],
    dtype: str = "float32",
    *,
    named_by: nn.Module | None = None,
    scores: bool = False,
    output: int | None = None,
) -> list[Op]:
    """Return the operators that compute `module(x, ...)` for values x [B, *shape] of the given dtype.

    Layers are named after the module that owns their weight ("q_net.q_net.0"), other operators after the value they
    read ("q_net.q_net.0.relu"). The module is traced in evaluation mode and restored afterwards; weights are copied.

    Args:
        module: The network.
        values: (name, shape) of each input.
        dtype: Number type of the inputs.
        named_by: Part of `module` at which names start; None for `module` itself.
        scores: The output scores actions, so a final softmax is left out.
        output: Index of the policy's output among the returned tensors, from 0.

    Raises:
        UnsupportedError: Names the first operator outside the set and the module that calls it.
    """
    names, shapes = zip(*values, strict=True)
    translation = _Translation(module, shapes, dtype, module if named_by is None else named_by, scores=scores)
    sources = [translation.graph.source(name, (1, *shape)) for name, shape in zip(names, shapes, strict=True)]
    return translation.graph.ops(translation.results(sources, output)[0])


def remembered(
    module: nn.Module, shape: Shape, dtype: str, state: Sequence[Any], *, scores: bool, output: int | None
) -> dict[str, Any]:
    """Return the fields of a policy with a memory, and the head's width; nothing if the module has no state.

    The state is the buffers that the module overwrites, and the tensors that it takes after the observation and returns
    after its output.

    Args:
        module: The network.
        shape: Shape of an observation.
        dtype: Its number type.
        state: Further arguments of `forward` at the start of an episode, arrays or tuples of arrays.
        scores: The output scores actions, so a final softmax is left out.
        output: Index of the policy's output among the other returned tensors, from 0.

    Raises:
        UnsupportedError: As `trace` does, or an observation beside a state is not one row of float32.
    """
    starts = [np.asarray(n, np.float32) for part in state for n in (part if isinstance(part, tuple) else (part,))]
    device = _device(module)
    tensors = iter([torch.tensor(start, device=device) for start in starts])
    given = [tuple(next(tensors) for _ in part) if isinstance(part, tuple) else next(tensors) for part in state]
    translation = _Translation(module, [shape], dtype, module, scores=scores, state=given)
    graph, observation = translation.graph, translation.graph.source(SEEN, (1, *shape))
    if not translation.overwritten and not state:
        return {}
    if len(shape) != 1 or dtype != "float32":
        raise UnsupportedError(f"beside a state, an observation is one row of float32, not {dtype} {shape}")
    for name, node in translation.overwritten.items():
        _, start = translation.tensors.pop(node)
        translation.values[node] = graph.state(name, start.to(torch.float32, copy=True).numpy(force=True))
    passed = {f"state.{number}": start for number, start in enumerate(starts)}
    sources = [observation, *(graph.state(name, start) for name, start in passed.items())]
    network, *following = translation.results(sources, output, len(starts))
    carried = dict(zip([*translation.overwritten, *passed], following, strict=True))
    return {**remembering(graph, observation, network, carried), "width": network.size}


def _device(module: nn.Module) -> torch.device:
    """Return the device of the module's first parameter; the CPU if it has none."""
    return next((p.device for p in module.parameters()), torch.device("cpu"))


class _Unlimited(Budget):
    """Costs of a module in memory, which are not counted."""

    def copy(self, count: int) -> None:
        """Accept any number of bytes."""


class _Translation:
    """One evaluation of an exported graph."""

    def __init__(
        self,
        module: nn.Module,
        shapes: Iterable[Shape],
        dtype: str,
        named: nn.Module,
        *,
        scores: bool,
        state: Sequence[Any] | None = None,
    ) -> None:
        device = _device(module)
        self.rows = BATCH if state is None else 1
        inputs = (torch.zeros(self.rows, *shape, dtype=getattr(torch, dtype), device=device) for shape in shapes)
        exported = aten.exported(module, (*inputs, *(state or ())))
        # A shared module has several names and torch.export picks one; its first name is the one for every reader.
        first = {id(tensor): bare(name) for name, tensor in [*named.named_parameters(), *named.named_buffers()]}
        self.nodes = list(exported.graph.nodes)
        self.values: dict[str, Value | tuple[Value, ...]] = {}
        """Values by torch's node names."""
        self.graph, self.scores = Symbolic(_Unlimited("the module")), scores
        signature = exported.graph_signature
        stored: Mapping[str, Any] = {**exported.state_dict, **exported.constants}
        weights = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        targets = {**weights, **signature.inputs_to_lifted_tensor_constants}
        self.tensors = {node: (first.get(id(stored[name]), name), stored[name]) for node, name in targets.items()}
        """(dotted name, tensor) of parameters, buffers, constants and results computed from them, by node name."""
        buffers = {name: node for node, name in signature.inputs_to_buffers.items()}
        self.overwritten = {name: buffers[name] for name in signature.buffers_to_mutate.values()}
        """Nodes of the buffers that the module overwrites, by name, in the order of their new values."""

    def results(self, sources: Iterable[Value], output: int | None, states: int = 0) -> list[Value]:
        """Return the chosen output of the module, the buffers that it overwrites, and the next state that it returns.

        Args:
            sources: Its inputs.
            output: Index of the output among those that are returned.
            states: Number of parts of the next state, which are returned last.
        """
        returned: Any = self.nodes[-1].args[0]
        start, end, inputs = len(self.overwritten), max(len(returned) - states, 0), iter(sources)
        wanted = [aten.chosen(returned[start:end], output), *returned[:start], *returned[end:]]
        used = set(wanted)
        for node in reversed(self.nodes):
            used.update(node.all_input_nodes if node in used else ())
        for node in self.nodes:
            if node.op == "placeholder" and node.name not in {*self.tensors, *self.values}:
                self.values[node.name] = next(inputs)
            elif node.op == "call_function" and node in used:
                self.call(node)
        values = [self.values.get(getattr(each, "name", "")) for each in wanted]
        results = [value for value in values if isinstance(value, Value)]
        if len(results) < len(values):
            raise UnsupportedError("the module returns a constant, not a value of the observation")
        shape = results[0].shape
        if len(shape) > 2 and (self.rows > 1 or shape[-1] < results[0].size):
            raise UnsupportedError(f"the module returns {shape[1:]} for each observation; a policy returns one row")
        return results

    def call(self, node: torch.fx.Node) -> None:
        """Add the operator that `node` calls, or keep the value for folding into one."""
        kind = aten.kind(node)
        if kind.startswith("_assert") or self.computes_constant(node, kind):
            return
        for value in aten.tensors(node):
            # One number per observation has no axis of its own over which a function could go.
            least = 2 if kind in aten.SOFTMAX | {"layer_norm"} else 1
            if not isinstance(value, torch.Tensor) or value.ndim < least or value.shape[0] != self.rows > 1:
                raise aten.refusal(node, "its result is not one row per observation")
        try:
            self.values[node.name] = self.translate(node, kind)
        except UnsupportedError as error:
            raise aten.refusal(node, str(error)) from None

    def computes_constant(self, node: torch.fx.Node, kind: str) -> bool:
        """Return whether the call depends on constants only, and compute it if so.

        Random numbers do not count as constants.
        """
        tags = getattr(node.target, "tags", ())
        inputs = [source.name for source in node.all_input_nodes]
        if torch.Tag.nondeterministic_seeded in tags or any(name not in self.tensors for name in inputs):
            return False
        if not isinstance(node.meta.get("val"), torch.Tensor):
            return False
        given = torch.fx.node.map_arg((node.args, node.kwargs), lambda source: self.tensors[source.name][1].detach())
        self.tensors[node.name] = node.name, node.target(*given[0], **given[1])  # type: ignore[operator]
        return True

    def translate(self, node: torch.fx.Node, kind: str) -> Value | tuple[Value, ...]:
        """Return the result of the call."""
        if kind not in NODES and kind not in MOVES | aten.SOFTMAX | {"getitem", *RECURRENT}:
            raise UnsupportedError(f"it is not in the operator set; {aten.instead(kind)}")
        shape, dtype = ((first := aten.tensors(node)[0]).shape[0] // self.rows, *first.shape[1:]), first.dtype
        axes = len(shape) if kind in aten.ELEMENTWISE and self.rows > 1 else 0
        given: Any = torch.fx.node.map_arg((node.args, node.kwargs), lambda source: self.operand(source, axes))
        args, options = given
        if kind == "getitem":
            return args[0][args[1]] if isinstance(args[0], list | tuple) else args[0]  # type: ignore[no-any-return]
        if kind in MOVES:
            return self.moved(node, args[0])
        if dtype != torch.float32 and kind != "cat" and not (dtype == torch.float64 and kind in aten.IN_DOUBLE):
            raise UnsupportedError(
                f"it computes in {dtype}; {aten.instead(kind, 'convert to float32 before it, or end autocast')}"
            )
        last = self.scores and [user.op for user in node.users] == ["output"]
        if last and kind in aten.SOFTMAX and args[1] in (-1, len(shape) - 1):
            note_once(f"the module's last {kind} is left out: the largest score is the same without")
            return args[0]  # type: ignore[no-any-return]
        stored = [self.tensors[source.name] for source in node.all_input_nodes if source.name in self.tensors]
        name = max(stored, key=lambda entry: entry[1].ndim, default=("", None))[0]
        made = operate(self.graph, kind, WEIGHT.sub("", name), args, options)
        if kind not in RECURRENT and (
            not isinstance(made, Value) or isinstance(made.form, Unknown) or made.shape != shape
        ):
            raise UnsupportedError(f"its result has no counterpart, or mixes observations; {aten.instead(kind)}")
        read_again = len(node.users) > 1 and kind in ("linear", "conv1d", "conv2d")
        if read_again and any(aten.kind(user).removesuffix("_") not in aten.FOLDED for user in node.users):
            self.graph.name(made)  # the layer is read as it is: factors and offsets stay behind it
        return made  # type: ignore[no-any-return]

    def moved(self, node: torch.fx.Node, x: Value) -> Value | tuple[Value, ...]:
        """Return the results of a call that moves numbers: torch itself moves their places in all rows."""
        target: Any = node.target
        made = target(
            torch.arange(self.rows * x.size).reshape(self.rows * x.shape[0], *x.shape[1:]),
            *node.args[1:],
            **node.kwargs,
        )
        split = [np.split(each.numpy(), self.rows) for each in ([made] if isinstance(made, torch.Tensor) else made)]
        if any((rows[-1] != rows[0] + (self.rows - 1) * x.size).any() for rows in split):
            raise UnsupportedError("it mixes observations")
        values = tuple(self.graph.move(x, rows[0]) for rows in split)
        return values[0] if isinstance(made, torch.Tensor) else values

    def operand(self, source: torch.fx.Node, axes: int) -> Any:
        """Return the value, or the constant in float64, that a call reads.

        Args:
            source: The node that computes it.
            axes: Number of axes of the call's result, if those of its operands are aligned from the last one on;
                otherwise 0.

        Raises:
            UnsupportedError: A value has fewer axes, so its observations would be spread over another axis.
        """
        value = self.values.get(source.name)
        if value is None:
            numbers = self.tensors[source.name][1].detach().to("cpu", torch.float64, copy=True).contiguous().numpy()
            repeated = 0 < axes == numbers.ndim and len(numbers) == self.rows and (numbers == numbers[:1]).all()
            return numbers[:1] if repeated else numbers
        if axes and isinstance(value, Value) and len(value.shape) != axes:
            raise UnsupportedError("it mixes observations")
        return value
