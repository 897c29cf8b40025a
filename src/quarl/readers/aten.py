"""Exported graphs of modules and the ATen calls in them: kinds, arguments, shapes and refusals."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import nn

from quarl.arrays import Array
from quarl.errors import QuarlError, UnsupportedError, first_line
from quarl.policy.operators import LEAKY_SLOPE, Shape

PASSING = frozenset(["alias", "clone", "contiguous", "detach", "dropout", "feature_dropout", "identity"])
CASTS = frozenset(["to", "_to_copy", "float"])
RESHAPES = frozenset(["flatten", "unflatten", "view", "reshape", "_unsafe_view", "squeeze", "unsqueeze"])
PARTS = frozenset(["slice", "select", "narrow", "chunk", "split", "split_with_sizes", "unbind", "permute", "transpose"])
CONTEXTS = ("wrap_with_set_grad_enabled", "wrap_with_autocast")
POOLING = frozenset(f"{kind}{axes}d" for kind in ("max_pool", "avg_pool", "adaptive_avg_pool") for axes in (1, 2))
REDUCTIONS = frozenset(["mean", "sum"])
ARITHMETIC = frozenset(["add", "sub", "rsub", "mul", "div"])
IN_DOUBLE = PASSING | CASTS | ARITHMETIC | {"neg", "clamp", "clamp_min", "clamp_max", "clip"}
"""Operators that may compute in float64: constants are folded in it, and statistics keep a mean in two float32
numbers."""
FOLDED = PASSING | RESHAPES | PARTS | REDUCTIONS | ARITHMETIC | {"neg", "batch_norm", "output", "getitem"}
"""Operators that can become part of the layer before them."""
FUNCTIONS = frozenset(["relu", "tanh", "sigmoid", "silu", "mish", "hardswish", "hardsigmoid"])
"""Activations without options."""
SELU = (1.6732632423543772, 1.0507009873554805)
"""alpha and scale of Klambauer et al. 2017."""
BOUNDS = {"hardtanh": ("min_val", "max_val"), "clamp_min": ("min", ""), "clamp_max": ("", "max")}
BOUNDS |= dict.fromkeys(("clamp", "clip"), ("min", "max"))
"""Names of the lower and upper bound in the functions that clip."""
WAYS: Mapping[tuple[str, ...], str] = {
    ("instance_norm", "group_norm", "rms_norm"): "use nn.LayerNorm or nn.BatchNorm",
    ("celu", "log_sigmoid", "shrink", "prelu", "softplus"): "use nn.SiLU, nn.ELU or another activation of torch's",
    ("lstm", ".gru.", "rnn_"): "it is recurrent, and policies with a memory are not supported",
    ("log_softmax",): "leave it out: the largest score is the same without",
    (".argmax.", ".max.", "multinomial", "bernoulli"): "leave it out and return the scores: QuaRL chooses the action",
}
"""Replacement to suggest, by words in the name of an ATen operator."""
OTHERWISE = "use nn.Linear, nn.Conv2d, nn.LayerNorm, nn.Flatten, pooling, and activations such as ReLU, Tanh or SiLU"


def exported(module: nn.Module, examples: tuple[torch.Tensor, ...]) -> torch.export.ExportedProgram:
    """Return the module's graph in evaluation mode."""
    # Gradients are off, so that contexts that turn them off leave no trace.
    with evaluating(module), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.export warns about itself
        try:
            return torch.export.export(module, examples, strict=False)
        except Exception as error:  # its errors have no common base; all of them mean the same here
            reason = first_line(error)[:200]
    fix = (
        "; export it with dynamic_shapes that leave its batch open" if isinstance(module, torch.fx.GraphModule) else ""
    )
    raise UnsupportedError(f"torch.export cannot follow {type(module).__name__}: {reason}{fix}")


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Switch to evaluation mode inside the block (dropout off), and restore the mode of every submodule afterwards.

    The module of an ExportedProgram keeps the mode in which it was exported; its calls name that mode.
    """
    modes = [(child, child.training) for child in module.modules()]
    with suppress(NotImplementedError):
        module.eval()
    for child, _ in modes:
        child.training = False
    try:
        yield
    finally:
        for child, mode in modes:
            child.training = mode


def inlined(module: torch.fx.GraphModule) -> torch.fx.Graph:
    """Return the module's graph with the bodies of contexts (no_grad, disabled autocast) in place of their calls."""
    graph = module.graph
    for node in list(graph.nodes):
        if not kind(node).startswith(CONTEXTS):
            continue
        if kind(node) == "wrap_with_autocast" and node.args[2]:
            raise refusal(node, "autocast rounds the numbers of its layers; use torch.autocast(..., enabled=False)")
        place = next(place for place, given in enumerate(node.args) if getattr(given, "op", "") == "get_attr")
        body = inlined(getattr(module, node.args[place].target))
        inputs = (each for each in body.nodes if each.op == "placeholder")
        with graph.inserting_before(node):
            results: Any = graph.graph_copy(body, dict(zip(inputs, node.args[place + 1 :], strict=True)))
        for user in list(node.users):
            user.replace_all_uses_with(results[user.args[1]])
            graph.erase_node(user)
        graph.erase_node(node)
    return graph


def chosen(nodes: Sequence[torch.fx.Node], output: int | None) -> tuple[Any, set[torch.fx.Node]]:
    """Return the node of the chosen output, and the nodes that contribute to it or overwrite values.

    Args:
        nodes: Nodes of the graph in order; the last one returns the outputs.
        output: Index of the policy's output among the returned tensors, from 0; None for a module with a single output.

    Raises:
        UnsupportedError: The module returns several tensors and no output is chosen.
        QuarlError: There is no output with that index.
    """
    results: Any = nodes[-1].args[0]
    if len(results) != 1 and output is None:
        last = f" to output={len(results) - 1}" if results else ""
        raise UnsupportedError(f"the module returns {len(results)} values: choose the policy's with output=0{last}")
    if not 0 <= (output or 0) < len(results):
        raise QuarlError(f"output={output} is not one of the module's {len(results)} values, counted from 0")
    used = {results[output or 0]} | {node for node in nodes if kind(node).endswith("_")}
    for node in reversed(nodes):
        used.update(node.all_input_nodes if node in used else ())
    return results[output or 0], used


def kind(node: torch.fx.Node) -> str:
    """Return the name of the ATen operator that a node calls."""
    if node.target is operator.getitem:
        return "getitem"
    return str(node.target).removeprefix("aten.").split(".")[0]


def tensors(node: torch.fx.Node) -> list[torch.Tensor]:
    """Return example tensors of the results of a node."""
    results = node.meta["val"]
    return list(results) if isinstance(results, list | tuple) else [results]


def shape(node: Any) -> Shape:
    """Return the shape of a node's value for one observation; the first shape if the node has several values."""
    return tuple(tensors(node)[0].shape[1:])


def arguments(node: torch.fx.Node) -> dict[str, Any]:
    """Return the arguments of a call by name, in order; missing ones have the default of the operator's schema."""
    schema = getattr(node.target, "_schema", None)  # Python's own operators have none
    defaults = {} if schema is None else {argument.name: argument.default_value for argument in schema.arguments}
    return {**defaults, **dict(zip(defaults, node.args, strict=False)), **node.kwargs}


def pair(value: Any) -> tuple[int, int] | None:
    """Return a layer's option as (rows, columns); None if it is not one or two whole numbers."""
    numbers = list(value) if isinstance(value, list | tuple) else [value]
    if not all(isinstance(n, int) for n in numbers) or len(numbers) not in (1, 2):
        return None
    return numbers[0], numbers[-1]


def activation(kind: str, given: Mapping[str, Any], slopes: Array | None) -> tuple[Any, ...] | None:
    """Return kind and settings of the Activation for a call; None if the graph has no such activation.

    Args:
        kind: Name of the ATen operator.
        given: Arguments of the call by name.
        slopes: Weight of a PReLU, if the call has one.
    """
    if kind == "gelu":
        return ("gelu" if given["approximate"] == "none" else "gelu_tanh",)
    if kind in FUNCTIONS or (kind == "softplus" and given["beta"] == 1):
        return (kind,)
    if kind == "selu" or (kind == "elu" and given["input_scale"] == 1):
        settings = SELU if kind == "selu" else (float(given["alpha"]), float(given["scale"]))
        return ("elu",) if settings == (1, 1) else ("selu", settings)
    slope = slopes.item() if slopes is not None and slopes.size == 1 else given.get("negative_slope")
    if slope is None:
        return None
    return ("leaky_relu",) if slope == LEAKY_SLOPE else ("prelu", (float(slope),))


def instead(kind: str, otherwise: str = OTHERWISE) -> str:
    """Return the replacement to suggest for an operator without a counterpart in the graph."""
    return next((way for words, way in WAYS.items() if any(word in f".{kind}." for word in words)), otherwise)


def refusal(node: torch.fx.Node, why: str) -> UnsupportedError:
    """Return an error that names the call and the module that makes it."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path, cls = stack[-1] if stack else ("", "")
    cls = cls if isinstance(cls, str) else getattr(cls, "__name__", "")
    place = f"module {path!r} ({cls.rpartition('.')[2]})" if path else "the module's own code"
    return UnsupportedError(f"{place} calls {node.target}: {why}")


def check_overwrites(node: torch.fx.Node) -> None:
    """Refuse an in-place operator if its input, or the tensor of which it is a view, is read again."""
    overwritten = node.args[0]
    while isinstance(overwritten, torch.fx.Node):
        if len(overwritten.users) > 1:
            raise refusal(node, "it overwrites a value that is read elsewhere; use inplace=False")
        view = kind(overwritten) in RESHAPES | PASSING | CASTS | PARTS
        overwritten = overwritten.args[0] if view else None
