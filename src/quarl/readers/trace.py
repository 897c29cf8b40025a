"""Operators of an nn.Module, through torch.export.

Each ATen call becomes one operator of the closed set, or part of one: constant factors and offsets of a layer's output
go into the layer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from quarl.arrays import Array
from quarl.errors import UnsupportedError, note_once
from quarl.inert.reading_budget import Budget
from quarl.policy.operators import Activation, Dense, Op, Shape
from quarl.readers import aten
from quarl.readers.affine_values import Layer
from quarl.readers.sb3_network import bare
from quarl.readers.symbolic import Operand, Symbolic, Value

BATCH = 2
"""Rows of the example: more than one, so that an operator that mixes rows shows in its output's shape."""
MAX_REDUCED = 2048
"""Largest number of elements whose sum or mean becomes a layer."""


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
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    names, shapes = zip(*values, strict=True)
    examples = tuple(torch.zeros(BATCH, *shape, dtype=getattr(torch, dtype), device=device) for shape in shapes)
    exported = aten.exported(module, examples)
    named = module if named_by is None else named_by
    # A shared module has several names and torch.export picks one; its first name is the one for every reader.
    first = {id(tensor): bare(name) for name, tensor in [*named.named_parameters(), *named.named_buffers()]}
    return _Translation(exported, first, dict(zip(names, shapes, strict=True)), scores=scores).ops(output)


class _Unlimited(Budget):
    """Costs of a module in memory, which are not counted."""

    def copy(self, count: int) -> None:
        """Accept any number of bytes."""


class _Translation:
    """One pass over an exported graph."""

    def __init__(
        self,
        exported: torch.export.ExportedProgram,
        first: Mapping[int, str],
        sources: Mapping[str, Shape],
        *,
        scores: bool,
    ) -> None:
        self.nodes = list(aten.inlined(exported.graph_module).nodes)
        self.values: dict[str, Value | tuple[Value, ...]] = {}
        """Values by torch's node names."""
        self.graph, self.scores = Symbolic(_Unlimited("the module")), scores
        self.sources = iter([self.graph.source(name, (1, *shape)) for name, shape in sources.items()])
        signature = exported.graph_signature
        stored: Mapping[str, Any] = {**exported.state_dict, **exported.constants}
        weights = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        targets = {**weights, **signature.inputs_to_lifted_tensor_constants}
        self.tensors = {node: (first.get(id(stored[name]), name), stored[name]) for node, name in targets.items()}
        """(dotted name, tensor) of parameters, buffers, constants and results computed from them, by node name."""

    def ops(self, chosen: int | None) -> list[Op]:
        """Return the operators on the way to the chosen output of the module, in order."""
        result, used = aten.chosen(self.nodes, chosen)
        for node in self.nodes:
            if node.op == "placeholder" and node.name not in self.tensors:
                self.values[node.name] = next(self.sources)
            elif node.op == "call_function" and node in used:
                self.call(node)
        if getattr(result, "name", None) not in self.values:
            raise UnsupportedError("the module returns a constant, not a value of the observation")
        shape = aten.shape(result)
        if len(shape) > 1:
            raise UnsupportedError(f"the module returns {shape} for each observation; a policy returns one row")
        return self.graph.ops(self.read(result, result))

    def call(self, node: torch.fx.Node) -> None:
        """Add the operator that `node` calls, or keep the value for folding into one."""
        kind = aten.kind(node)
        if kind.startswith("_assert") or self.computes_constant(node, kind):
            return
        results = node.meta.get("val")
        for value in results if isinstance(results, list | tuple) else [results]:
            if not isinstance(value, torch.Tensor) or value.ndim < 1 or value.shape[0] != BATCH:
                raise aten.refusal(node, aten.instead(kind, "its result is not one row per observation"))
        if kind.endswith("_"):
            aten.check_overwrites(node)
            kind = kind[:-1]
        try:
            self.values[node.name] = self.translate(node, kind)
        except UnsupportedError as error:
            raise error if " calls " in str(error) else aten.refusal(node, str(error)) from None

    def computes_constant(self, node: torch.fx.Node, kind: str) -> bool:
        """Return whether the call depends on constants only, and compute it if so.

        Random numbers do not count as constants.
        """
        tags = getattr(node.target, "tags", ())
        inputs = [source.name for source in node.all_input_nodes]
        if torch.Tag.nondeterministic_seeded in tags or any(name not in self.tensors for name in inputs):
            return False
        if not isinstance(node.meta.get("val"), torch.Tensor) or (kind.endswith("_") and kind != "detach_"):
            return False
        given = torch.fx.node.map_arg((node.args, node.kwargs), lambda source: self.tensors[source.name][1].detach())
        self.tensors[node.name] = node.name, node.target(*given[0], **given[1])  # type: ignore[operator]
        return True

    def translate(self, node: torch.fx.Node, kind: str) -> Value | tuple[Value, ...]:
        """Return the result of the call."""
        given, dtype = aten.arguments(node), aten.tensors(node)[0].dtype
        if kind == "getitem":
            pieces: Any = self.values[node.args[0].name]  # type: ignore[union-attr,index]
            return pieces[node.args[1]]  # type: ignore[no-any-return]
        if kind == "cat":
            return self.concat(node, given)
        argument, shape = next(iter(given.values()), None), aten.shape(node)
        if kind in aten.ARITHMETIC and (dtype == torch.float32 or dtype == torch.float64):
            return self.arithmetic(node, kind, given)
        x = self.read(node, argument)
        drops = kind in ("dropout", "feature_dropout") and given["train"]
        exact = dtype == torch.float32 or (dtype == torch.float64 and kind in aten.IN_DOUBLE)
        if (kind in aten.PASSING and not drops) or (kind in aten.CASTS and exact):
            return x
        if kind in aten.RESHAPES:
            return self.shaped(x, shape)
        if not exact:
            raise aten.refusal(node, f"it computes in {dtype}; {aten.instead(kind, 'convert to float32 before it')}")
        if kind in aten.PARTS or kind in aten.REDUCTIONS:
            return self.part(node, kind, x, given)
        if kind == "neg":
            return self.affine(node, x, -1.0)
        if kind == "batch_norm":
            return self.batch_norm(node, x, given)
        if kind in aten.BOUNDS or kind == "relu6":
            return self.clip(node, x, [given.get(name) for name in aten.BOUNDS.get(kind, ())] or [0, 6])
        if kind in ("linear", "conv1d", "conv2d"):
            return self.layer(node, kind, x, given)
        weight = self.tensor(given["weight"]) if kind == "prelu" else None
        if (function := aten.activation(kind, given, None if weight is None else weight[1])) is not None:
            name = self.graph.name(x)
            return Value(x.shape, self.graph.add_ops(Activation(f"{name}.{kind}", (name,), *function)))
        if kind in ("softmax", "log_softmax") and given["dim"] in (-1, len(shape)):
            if self.scores and [user.op for user in node.users] == ["output"]:
                note_once(f"the module's last {kind} is left out: the largest score is the same without")
                return x
            if kind == "softmax":
                return self.graph.softmax(x)
        if kind == "layer_norm":
            return self.layer_norm(node, x, given)
        if kind in aten.POOLING and len(shape) == 1 + int(kind[-2]):
            return self.pool(node, kind, x, given)
        raise aten.refusal(node, f"it is not in the operator set; {aten.instead(kind)}")

    def arithmetic(self, node: torch.fx.Node, kind: str, given: Mapping[str, Any]) -> Value:
        """Return a sum, difference, product or quotient of a value and a constant, or the sum of two values.

        Args:
            node: The call in the traced graph.
            kind: "add", "sub", "rsub", "mul" or "div".
            given: Arguments of the call by name.

        Raises:
            UnsupportedError: A value scales or divides another, or the constant is not finite.
        """
        left, right, alpha = given["self"], given["other"], given.get("alpha", 1)
        if kind == "rsub":
            left, right, kind = right, left, "sub"
        a, b = self.constant(node, left), self.constant(node, right)
        sign = float(alpha if kind == "add" else -alpha)
        if given.get("rounding_mode") is not None or (kind == "div" and b is None):
            raise aten.refusal(node, "it rounds, or divides by a value")
        if a is None and b is None:
            first, second = self.read(node, left), self.read(node, right)
            made = self.graph.multiply(first, second) if kind == "mul" else self.sum(node, first, second, sign)
            assert isinstance(made, Value)
            return made
        x, constant = self.read(node, right if b is None else left), np.asarray(a if b is None else b)
        if not np.isfinite(constant).all() or (kind == "div" and not constant.all()):
            raise aten.refusal(node, "its constant is not finite, or it divides by 0")
        if kind in ("mul", "div"):
            return self.affine(node, x, constant if kind == "mul" else 1 / constant)
        return self.affine(node, x, *((sign, constant) if b is None else (1.0, sign * constant)))

    def affine(self, node: torch.fx.Node, x: Value, factor: Any, offset: Any = 0.0) -> Value:
        """Return the value times `factor` plus `offset`, which are numbers or have the result's shape.

        Args:
            node: The call in the traced graph.
            x: The value.
            factor: Factor of each element.
            offset: Offset of each element.
        """
        if x.size != math.prod(aten.shape(node)):
            raise aten.refusal(node, "it repeats a value along an axis")
        made = self.graph.affine(x, factor, offset)
        if not isinstance(made, Value):
            raise aten.refusal(node, "its result is a constant")
        return made

    def sum(self, node: torch.fx.Node, a: Value, b: Value, sign: float) -> Operand:
        """Return a + sign * b; two results of one dense layer become another layer.

        Args:
            node: The call in the traced graph.
            a: First term.
            b: Second term.
            sign: Factor of `b`.
        """
        size = math.prod(aten.shape(node))
        if max(a.size, b.size) != size or min(a.size, b.size) not in (1, size):
            raise aten.refusal(node, "it adds values of two shapes")
        return self.graph.add(a, self.graph.affine(b, abs(sign)), 1 if sign > 0 else -1)

    def part(self, node: torch.fx.Node, kind: str, x: Value, given: Mapping[str, Any]) -> Value | tuple[Value, ...]:
        """Return parts, sums and means of a value; for a dense layer they are rows of another layer.

        Args:
            node: The call in the traced graph.
            kind: Kind of the call.
            x: The value.
            given: Arguments of the call by name.
        """
        if kind in aten.PARTS:
            places = self.applied(node, np.arange(x.size).reshape(x.shape))
            pieces = [self.graph.move(x, each) for each in places]
            return tuple(pieces) if isinstance(node.meta["val"], list | tuple) else pieces[0]
        if not (isinstance(x.form, Layer) and isinstance(x.form.op, Dense)):
            if x.size > MAX_REDUCED:
                raise aten.refusal(node, f"it adds more than {MAX_REDUCED:,} numbers that are not outputs of a layer")
            row = self.graph.flat(x)
            x = Value(x.shape, self.graph.linear(f"{self.graph.name(row)}.{kind}", row, np.eye(x.size)).form)
        layer = x.form
        assert isinstance(layer, Layer)
        rows = self.applied(node, layer.rows.reshape(-1, *x.shape[1:]))[0]
        return Value((1, *aten.shape(node)), replace(layer, rows=rows[:, None]))

    def applied(self, node: torch.fx.Node, rows: Array) -> list[Array]:
        """Apply the call to other rows than the module's [N, *shape]; return each of its results."""
        target: Any = node.target
        made = target(torch.from_numpy(np.ascontiguousarray(rows)), *node.args[1:], **node.kwargs)
        results = [made] if isinstance(made, torch.Tensor) else list(made)
        for result, value in zip(results, aten.tensors(node), strict=True):
            if tuple(result.shape) != (len(rows), *value.shape[1:]):
                raise aten.refusal(node, "it mixes observations")
        return [result.numpy() for result in results]

    def batch_norm(self, node: torch.fx.Node, x: Value, given: Mapping[str, Any]) -> Value:
        """Return the normalization by the statistics of training, as factors and offsets of channels.

        Args:
            node: The call in the traced graph.
            x: The value, with its channels first.
            given: Arguments of the call by name: statistics, weight, bias and epsilon.

        Raises:
            UnsupportedError: The call normalizes over the batch.
        """
        stored = [self.tensor(given[name]) for name in ("running_mean", "running_var", "weight", "bias")]
        if given["training"] or stored[0] is None or stored[1] is None:
            raise aten.refusal(node, "it normalizes over the batch, but a policy sees one row: use running statistics")
        mean, variance, weight, bias = (entry and entry[1].astype(np.float64) for entry in stored)
        factor = (1.0 if weight is None else weight) / np.sqrt(variance + given["eps"])
        offset = (0.0 if bias is None else bias) - mean * factor
        along = (-1, *(1,) * (len(aten.shape(node)) - 1))
        return self.affine(node, x, factor.reshape(along), np.reshape(offset, along))

    def clip(self, node: torch.fx.Node, x: Value, ends: list[Any]) -> Value:
        """Add a clip to two bounds; statistics in front of it clip themselves.

        Args:
            node: The call in the traced graph.
            x: The value.
            ends: Lower and upper bound; None means unbounded.

        Returns:
            The clipped value.
        """
        numbers = []
        for end, missing in zip(ends, (-math.inf, math.inf), strict=True):
            constant = np.asarray(missing) if end is None else self.constant(node, end)
            if constant is None or (constant != constant.flat[0]).any():
                raise aten.refusal(node, "its bounds are not two numbers")
            numbers.append(float(constant.flat[0]))
        return self.graph.clip(x, *numbers)

    def layer(self, node: torch.fx.Node, kind: str, x: Value, given: Mapping[str, Any]) -> Value:
        """Return a Dense or Conv2d layer; a convolution along one axis reads images with one row.

        Args:
            node: The call in the traced graph.
            kind: "linear", "conv1d" or "conv2d".
            x: The input.
            given: Arguments of the call by name.

        Raises:
            UnsupportedError: The weight is not a parameter, or an option of the layer has no counterpart.
        """
        stored, stored_bias = self.tensor(given["weight"]), self.tensor(given["bias"])
        if stored is None or (stored_bias is None and given["bias"] is not None):
            raise aten.refusal(node, "its weight or bias is not a parameter of the module")
        name, weight = stored[0].removesuffix(".weight"), stored[1]
        bias = np.zeros(weight.shape[0], np.float32) if stored_bias is None else stored_bias[1]
        shape = aten.shape(node.args[0])
        if kind == "linear" and len(shape) != 1:
            raise aten.refusal(node, f"it reads {shape} for each observation; flatten it before")
        if kind == "linear":
            value = self.graph.linear(name, x, weight, bias)
        else:
            stride, padding, dilation = (aten.pair(given[key]) for key in ("stride", "padding", "dilation"))
            if stride is None or padding is None or dilation != (1, 1) or given["groups"] != 1:
                raise aten.refusal(node, "dilation, groups and padding by name are not supported")
            if kind == "conv1d":
                weight, shape = weight[:, :, None], (shape[0], 1, shape[1])
                stride, padding = (1, stride[1]), (0, padding[1])
            form = self.graph.convolution(name, self.shaped(x, shape), weight, bias, stride, padding).form
            value = Value((1, *aten.shape(node)), form)
        if len(node.users) > 1 and any(aten.kind(user).removesuffix("_") not in aten.FOLDED for user in node.users):
            self.graph.name(value)  # the layer is read as it is: factors and offsets stay behind it
        return value

    def layer_norm(self, node: torch.fx.Node, x: Value, given: Mapping[str, Any]) -> Value:
        """Add a LayerNorm over the last axis; its gain and offset may be missing.

        Args:
            node: The call in the traced graph.
            x: The value.
            given: Arguments of the call by name.
        """
        if len(given["normalized_shape"]) != 1:
            raise aten.refusal(node, "it normalizes over several axes; only the last one is supported")
        gain, offset = self.tensor(given["weight"]), self.tensor(given["bias"])
        name = f"{self.graph.name(x)}.norm" if gain is None else gain[0].removesuffix(".weight")
        weight = np.ones(x.shape[-1:], np.float32) if gain is None else gain[1]
        bias = np.zeros(x.shape[-1:], np.float32) if offset is None else offset[1]
        return self.graph.layer_norm(name, x, weight, bias, float(given["eps"]))

    def pool(self, node: torch.fx.Node, kind: str, x: Value, given: Mapping[str, Any]) -> Value:
        """Add a Pool2d of an image; pooling along one axis reads an image with one row.

        Args:
            node: The call in the traced graph.
            kind: Kind of the call, as in "max_pool2d".
            x: The value.
            given: Arguments of the call by name.

        Returns:
            The pooled value.
        """
        image = aten.shape(node.args[0])
        whole = kind.startswith("adaptive_avg_pool") and set(aten.shape(node)[1:]) == {1}
        options = {"kernel_size": image[1:], "stride": 1, "padding": 0} if whole else given
        kernel, stride, padding = (aten.pair(options.get(key)) for key in ("kernel_size", "stride", "padding"))
        if kind.endswith("1d"):
            image, kernel, stride = (image[0], 1, image[1]), kernel and (1, kernel[1]), stride and (1, stride[1])
            padding = padding and (0, padding[1])
        uncounted = any(padding or ()) and given.get("count_include_pad") is False
        unlike = (
            aten.pair(given.get("dilation", 1)) != (1, 1) or given.get("ceil_mode") or given.get("divisor_override")
        )
        if kernel is None or padding is None or uncounted or unlike:
            raise aten.refusal(node, "its dilation, ceil_mode, divisor, margin or output size is not supported")
        name = "max" if kind.startswith("max") else "average"
        pooled = self.graph.pool(self.shaped(x, image), name, kernel, stride or kernel, padding)
        return self.shaped(pooled, aten.shape(node))

    def concat(self, node: torch.fx.Node, given: Mapping[str, Any]) -> Value:
        """Add a Concat of the values."""
        if given["dim"] not in (-1, len(aten.shape(node))):
            raise aten.refusal(node, "it does not join along the last axis")
        if any(getattr(part, "name", "") not in self.values for part in given["tensors"]):
            raise aten.refusal(node, "it joins constants")
        made = self.graph.concat([self.read(node, part) for part in given["tensors"]], -1)
        assert isinstance(made, Value)
        return made

    def read(self, node: torch.fx.Node, argument: Any) -> Value:
        """Return the value in an argument."""
        value = self.values.get(getattr(argument, "name", ""))
        if value is None or isinstance(value, tuple):
            raise aten.refusal(node, "one of its inputs is a constant, or the result of an unsupported operator")
        return value

    def shaped(self, x: Value, shape: Shape) -> Value:
        """Return the value with its numbers in these axes."""
        return self.graph.move(x, np.arange(x.size).reshape(1, *shape))

    def tensor(self, argument: Any) -> tuple[str, Array] | None:
        """Return (dotted name, float32 copy) of the tensor in an argument.

        None if the argument is not a parameter, buffer or constant.
        """
        if not isinstance(argument, torch.fx.Node) or argument.name not in self.tensors:
            return None
        name, tensor = self.tensors[argument.name]
        return name, tensor.detach().to("cpu", torch.float32, copy=True).contiguous().numpy()

    def constant(self, node: torch.fx.Node, argument: Any) -> Array | None:
        """Return the constant in an argument, float64 [] or [*shape of the node's result]; None if it is a value."""
        if isinstance(argument, int | float):
            return np.asarray(argument, np.float64)
        if not isinstance(argument, torch.fx.Node) or argument.name not in self.tensors:
            return None
        shape, numbers = aten.shape(node), self.tensors[argument.name][1].detach().cpu().double().numpy()
        if numbers.size == 1:
            return np.asarray(numbers.reshape(()))
        if numbers.ndim > len(shape) and len(numbers) == BATCH and (numbers == numbers[:1]).all():
            numbers = numbers[:1]  # repeated for each row
        try:
            return np.asarray(np.broadcast_to(numbers, (1, *shape))[0])
        except ValueError:
            raise aten.refusal(node, "its constant is of another shape than the value") from None
