"""Operators of an nn.Module, through torch.export: each ATen call becomes one operator of the closed set."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from quarl.arrays import Array
from quarl.errors import UnsupportedError, first_line
from quarl.policy.operators import LEAKY_SLOPE, Activation, Add, Concat, Conv2d, Dense, Flatten, LayerNorm, Op, Scale
from quarl.readers.normalizer import clamp

BATCH = 2
"""Rows of the example: more than one, so that an operator that mixes rows shows in its output's shape."""
PASSING = frozenset(["alias", "clone", "contiguous", "detach", "dropout", "feature_dropout", "identity"])
CASTS = frozenset(["to", "_to_copy", "float"])
RESHAPES = frozenset(["flatten", "view", "reshape", "_unsafe_view", "squeeze", "unsqueeze"])
FUNCTIONS: Mapping[str, Mapping[str, float]] = {
    **{name: {} for name in ("relu", "tanh", "sigmoid")},
    "elu": {"alpha": 1, "scale": 1, "input_scale": 1},
    "leaky_relu": {"negative_slope": LEAKY_SLOPE},
}
"""Activations, and the only values that their options may have."""
BOUNDS = {"hardtanh": ("min_val", "max_val"), "clamp": ("min", "max")}
"""Of functions that clip: what their bounds are called."""
WAYS: Mapping[tuple[str, ...], str] = {
    ("batch_norm", "instance_norm", "group_norm", "rms_norm"): "use nn.LayerNorm, or fold a trained BatchNorm into the "
    "layer before it (torch.nn.utils.fuse_linear_bn_eval, fuse_conv_bn_eval)",
    ("gelu", "mish", "silu", "softplus", "hardswish", "hardsigmoid", "prelu", "log_sigmoid", "celu"): "use nn.ReLU, "
    "nn.LeakyReLU, nn.ELU, nn.Tanh or nn.Sigmoid",
    ("pool",): "use nn.Conv2d with a stride",
    ("softmax",): "leave it out: the largest score is the same without",
}
"""What to do instead, by words in the name of an ATen operator."""
OTHERWISE = "use nn.Linear, nn.Conv2d, nn.LayerNorm, nn.Flatten, and ReLU, LeakyReLU, ELU, Tanh or Sigmoid"


def trace(
    module: nn.Module, shape: tuple[int, ...], dtype: str, source: str, *, named_by: nn.Module | None = None
) -> list[Op]:
    """The operators that compute `module(x)` for x [B, *shape] of the given dtype; `source` is the name of x.

    Layers are named after the module that owns their weight ("q_net.q_net.0"), other operators after the value they
    read ("q_net.q_net.0.relu"). named_by: the part of `module` from which names start, if not from `module` itself.
    The module is traced in evaluation mode and left as it was found; weights are copied.

    Raises UnsupportedError naming the first operator outside the set and the module that calls it.
    """
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    example = torch.zeros(BATCH, *shape, dtype=getattr(torch, dtype), device=device)
    exported = _export(module, example)
    named = module if named_by is None else named_by
    # A shared module has several names and torch.export picks one; its first name is the one for every reader.
    first = {id(tensor): name for name, tensor in [*named.named_parameters(), *named.named_buffers()]}
    return _Translation(exported, first, source).ops()


def _export(module: nn.Module, example: torch.Tensor) -> torch.export.ExportedProgram:
    with evaluating(module), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.export warns about itself
        try:
            return torch.export.export(module, (example,), strict=False)
        except Exception as error:  # its errors have no common base; all of them mean the same here
            reason = first_line(error)[:200]
    raise UnsupportedError(f"torch.export cannot follow {type(module).__name__}: {reason}")


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode inside (dropout off), every submodule's own mode restored after."""
    modes = [(child, child.training) for child in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for child, mode in modes:
            child.training = mode


class _Translation:
    """One pass over an exported graph."""

    def __init__(self, exported: torch.export.ExportedProgram, first: Mapping[int, str], source: str) -> None:
        self.nodes = list(exported.graph.nodes)
        self.values: dict[str, str] = {}
        """Names of our values by torch's node names."""
        self.operators: dict[str, Op] = {}
        self.source = source
        signature = exported.graph_signature
        stored: Mapping[str, Any] = {**exported.state_dict, **exported.constants}
        weights = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        targets = {**weights, **signature.inputs_to_lifted_tensor_constants}
        self.tensors = {node: (first.get(id(stored[name]), name), stored[name]) for node, name in targets.items()}
        """(dotted name, tensor) of parameters, buffers and constants by node name."""

    def ops(self) -> list[Op]:
        """The operators on the way to the module's output, in order."""
        result: Any = ()
        for node in self.nodes:
            if node.op == "placeholder" and node.name not in self.tensors:
                self.values[node.name] = self.source
            elif node.op == "call_function":
                self.call(node)
            elif node.op == "output":
                result = node.args[0]
        if len(result) != 1 or getattr(result[0], "name", None) not in self.values:
            raise UnsupportedError(f"the module returns {len(result)} values; a policy returns one tensor")
        needed = {self.values[result[0].name]}
        for op in reversed(self.operators.values()):
            needed.update(op.inputs if op.name in needed else ())
        return [op for op in self.operators.values() if op.name in needed]

    def call(self, node: torch.fx.Node) -> None:
        """Adds the operator that `node` calls."""
        kind = str(node.target).removeprefix("aten.").split(".")[0]
        if kind.startswith("_assert"):
            return
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or value.ndim < 2 or value.shape[0] != BATCH:
            raise self.refusal(node, "its result is not one row per observation")
        if kind.endswith("_"):
            self.check_overwrites(node)
            kind = kind[:-1]
        op = self.translate(node, kind, tuple(value.shape[1:]))
        if isinstance(op, str):
            self.values[node.name] = op
            return
        name, number = op.name, 2
        while name in self.operators:  # one layer called twice
            name, number = f"{op.name}.{number}", number + 1
        self.operators[name] = replace(op, name=name)
        self.values[node.name] = name

    def translate(self, node: torch.fx.Node, kind: str, shape: tuple[int, ...]) -> Op | str:
        """The operator, or the name of the value that the call only passes on."""
        given = _arguments(node)
        if kind == "cat":
            return self.concat(node, given, shape)
        x, dtype = self.value(node, next(iter(given.values()), None)), node.meta["val"].dtype
        drops = kind in ("dropout", "feature_dropout") and given["train"]
        if (kind in PASSING and not drops) or (kind in CASTS and dtype == torch.float32):
            return x
        if kind in RESHAPES:
            return self.reshape(node, x, shape)
        if dtype != torch.float32:
            raise self.refusal(node, f"it computes in {dtype}; convert to float32 before it")
        if kind in FUNCTIONS:
            for name, only in FUNCTIONS[kind].items():
                if given[name] != only:
                    why = f"its {name} is {given[name]}; the operator set has {kind} with {name} {only}"
                    raise self.refusal(node, why)
            return Activation(f"{x}.{kind}", (x,), kind)
        if kind in BOUNDS:
            low, high = (given[name] for name in BOUNDS[kind])
            if isinstance(high, int | float) and high > 0 and low == -high:
                return clamp(x, shape, float(high))
            raise self.refusal(node, f"its bounds {low} and {high} are not opposite numbers")
        if kind in ("mul", "div") and given.get("rounding_mode") is None:
            factor = self.factor(node, given["other"], shape)
            return Scale(f"{x}.scale", (x,), (factor if kind == "mul" else 1 / factor).astype(np.float32))
        if kind == "add" and given["alpha"] == 1:
            return Add(f"{x}.add", (x, self.value(node, given["other"])))
        if kind in ("linear", "conv2d", "layer_norm"):
            return self.layer(node, kind, x, given)
        ways = (way for kinds, way in WAYS.items() if any(word in kind for word in kinds))
        raise self.refusal(node, f"it is not in the operator set; {next(ways, OTHERWISE)}")

    def reshape(self, node: torch.fx.Node, x: str, shape: tuple[int, ...]) -> Flatten | str:
        """Flatten, or x where its shape stays."""
        before = tuple(node.all_input_nodes[0].meta["val"].shape[1:])
        if shape == before:
            return x
        if shape != (math.prod(before),):
            raise self.refusal(node, f"it reshapes {before} to {shape}; only flattening is supported")
        return Flatten(f"{x}.flatten", (x,))

    def layer(self, node: torch.fx.Node, kind: str, x: str, given: Mapping[str, Any]) -> Op:
        """Dense, Conv2d or LayerNorm."""
        stored, stored_bias = self.tensor(given["weight"]), self.tensor(given["bias"])
        if stored is None or (stored_bias is None and given["bias"] is not None):
            raise self.refusal(node, "its weight or bias is no parameter of the module")
        name, weight = stored[0].removesuffix(".weight"), stored[1]
        bias = np.zeros(weight.shape[0], np.float32) if stored_bias is None else stored_bias[1]
        if kind == "linear":
            return Dense(name, (x,), weight, bias)
        if kind == "layer_norm":
            if weight.ndim != 1:
                raise self.refusal(node, f"it normalises over {weight.ndim} axes; only the last one is supported")
            return LayerNorm(name, (x,), weight, bias, float(given["eps"]))
        stride, padding, dilation = (_pair(given[key]) for key in ("stride", "padding", "dilation"))
        if stride is None or padding is None or dilation != (1, 1) or given["groups"] != 1:
            raise self.refusal(node, "dilation, groups and padding by name are not supported")
        return Conv2d(name, (x,), weight, bias, stride, padding)

    def concat(self, node: torch.fx.Node, given: Mapping[str, Any], shape: tuple[int, ...]) -> Concat:
        """The values side by side."""
        if given["dim"] not in (-1, len(shape)):
            raise self.refusal(node, "it does not join along the last axis")
        names = tuple(self.values.get(getattr(part, "name", ""), "") for part in given["tensors"])
        if "" in names:
            raise self.refusal(node, "it joins constants")
        return Concat(f"{names[0]}.concat", names)

    def value(self, node: torch.fx.Node, argument: Any) -> str:
        """The name of the value in an argument."""
        name = self.values.get(getattr(argument, "name", ""))
        if name is None:
            raise self.refusal(node, "one of its inputs is a constant, or made by an operator that is not followed")
        return name

    def tensor(self, argument: Any) -> tuple[str, Array] | None:
        """(dotted name, copy in float32) of the parameter or buffer in an argument; None where it is none."""
        if not isinstance(argument, torch.fx.Node) or argument.name not in self.tensors:
            return None
        name, tensor = self.tensors[argument.name]
        return name, tensor.detach().to("cpu", torch.float32, copy=True).contiguous().numpy()

    def factor(self, node: torch.fx.Node, argument: Any, shape: tuple[int, ...]) -> Array:
        """float64 [] or [*shape]: the argument, if it is a constant other than 0."""
        stored = self.tensor(argument)
        if stored is None and not isinstance(argument, int | float):
            raise self.refusal(node, "only a constant can scale a value")
        factor = np.asarray(argument if stored is None else stored[1], np.float64)
        if not np.isfinite(factor).all() or not factor.all() or factor.size not in (1, math.prod(shape)):
            raise self.refusal(node, "the constant that scales is 0, not finite or of another shape than the value")
        return factor.reshape(() if factor.size == 1 else shape)

    def check_overwrites(self, node: torch.fx.Node) -> None:
        """Refuses to follow an in-place operator whose input, or what that is a view of, is read again."""
        overwritten = node.args[0]
        while isinstance(overwritten, torch.fx.Node):
            if len(overwritten.users) > 1:
                raise self.refusal(node, "it overwrites a value that is read elsewhere; use inplace=False")
            view = str(overwritten.target).removeprefix("aten.").split(".")[0] in RESHAPES | PASSING | CASTS
            overwritten = overwritten.args[0] if view else None

    def refusal(self, node: torch.fx.Node, why: str) -> UnsupportedError:
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        path, cls = stack[-1] if stack else ("", "")
        cls = cls if isinstance(cls, str) else getattr(cls, "__name__", "")
        place = f"module {path!r} ({cls.rpartition('.')[2]})" if path else "the module's own code"
        return UnsupportedError(f"{place} calls {node.target}: {why}")


def _arguments(node: torch.fx.Node) -> dict[str, Any]:
    """The arguments of a call by name, in order; those that it leaves out are what the operator's schema says."""
    schema = getattr(node.target, "_schema", None)  # Python's own operators have none
    defaults = {} if schema is None else {argument.name: argument.default_value for argument in schema.arguments}
    return {**defaults, **dict(zip(defaults, node.args, strict=False)), **node.kwargs}


def _pair(value: Any) -> tuple[int, int] | None:
    """(rows, columns) of a convolution's option; None where it is not one or two whole numbers."""
    numbers = list(value) if isinstance(value, list | tuple) else [value]
    if not all(isinstance(n, int) for n in numbers) or len(numbers) not in (1, 2):
        return None
    return numbers[0], numbers[-1]
