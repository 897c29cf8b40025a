"""Rules of ONNX's operators: constants are folded with numpy, other results become values of the policy's graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quarl.arrays import Array
from quarl.errors import UnsupportedError
from quarl.inert.reading_budget import current
from quarl.policy.operators import LEAKY_SLOPE
from quarl.readers.symbolic import Choice, Length, Operand, Symbolic, Unknown, Value, indices

Result = Operand | list[Operand]
SELU = (1.6732632423543772, 1.0507009873554805)
END = 2**63 - 1
FOLDED: Mapping[str, Callable[..., Any]] = {
    **{
        kind: getattr(np, kind.lower()) for kind in ("Abs", "Ceil", "Cos", "Exp", "Floor", "Log", "Sin", "Sqrt", "Sign")
    },
    **{"Equal": np.equal, "Greater": np.greater, "Less": np.less, "GreaterOrEqual": np.greater_equal},
    **{"LessOrEqual": np.less_equal, "And": np.logical_and, "Or": np.logical_or, "Not": np.logical_not},
    **{"Neg": np.negative, "Pow": np.power, "Max": np.maximum, "Min": np.minimum, "Where": np.where},
    **{"Reciprocal": np.reciprocal, "Tanh": np.tanh, "Relu": lambda x: np.maximum(x, 0), "Mod": np.mod},
    **{"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Sigmoid": lambda x: 1 / (1 + np.exp(-x))},
    "Div": lambda x, y: np.divide(x, y) if np.asarray(x).dtype.kind == "f" else np.floor_divide(x, y),
}
"""Functions of constants, whose numbers broadcast."""
INCREASING = ("Exp", "Log", "LogSoftmax")
"""Functions of a row that keep the order of its numbers."""
REDUCTIONS: Mapping[str, Callable[..., Any]] = {
    "ReduceL2": lambda x, **options: np.sqrt(np.sum(np.square(x), **options)),
    "ReduceSum": np.sum,
    "ReduceMean": np.mean,
    "ReduceMax": np.max,
    "ReduceMin": np.min,
    "ReduceProd": np.prod,
}
TYPES = {1: np.float32, 2: np.uint8, 3: np.int8, 6: np.int32, 7: np.int64, 9: np.bool_, 11: np.float64}
"""numpy's types of constants by ONNX's numbers."""
FLOATS = (1, 11)
"""Number types of ONNX in which a policy computes: float and double."""
OTHERWISE = "it is not in the operator set; export the policy from dense layers, convolutions and usual activations"


@dataclass(frozen=True, eq=False, slots=True)
class Call:
    """One node with its arguments."""

    kind: str
    name: str
    """Name of the layer that the node computes."""
    node: str
    """Name of the node in the file."""
    inputs: Sequence[Operand | None]
    options: Mapping[str, Any]
    outputs: int

    def error(self, why: object = OTHERWISE) -> UnsupportedError:
        """Return an error that names operator and node."""
        return UnsupportedError(f"operator {self.kind[:60]} ({self.node[:100]!r}): {why}")

    @property
    def value(self) -> Value:
        """Return the first input, which depends on the observation."""
        first = self.inputs[0] if self.inputs else None
        if not isinstance(first, Value):
            raise UnsupportedError(OTHERWISE)
        return first

    def operand(self, place: int) -> Operand:
        """Return an input that must be there."""
        given = self.inputs[place] if place < len(self.inputs) else None
        if given is None:
            raise UnsupportedError(f"input {place} is missing")
        return given

    def given(self, place: int, option: str = "", default: Any = None) -> Any:
        """Return an argument, which is a constant input or an attribute.

        Args:
            place: Index of the input.
            option: Name of the attribute in older versions of the operator.
            default: Result if neither is there.

        Raises:
            UnsupportedError: The input depends on the observation.
        """
        given = self.inputs[place] if place < len(self.inputs) else None
        if isinstance(given, Value):
            raise UnsupportedError(f"its input {place} depends on the observation, but must be constant")
        return self.options.get(option, default) if given is None else given

    def whole(self, place: int, option: str = "", default: Any = None) -> list[int] | None:
        """Return whole numbers of an argument, as `given` does."""
        given = self.given(place, option, default)
        return None if given is None else [int(n) for n in np.asarray(given).reshape(-1)]

    def axis(self, default: int) -> int:
        """Return the attribute axis."""
        return int(self.options.get("axis", default))


def evaluate(graph: Symbolic, call: Call) -> Result:
    """Return the results of a node.

    Raises:
        UnsupportedError: The graph has no counterpart of the operator.
    """
    kind = call.kind
    if kind in FOLDED and not any(isinstance(each, Value) for each in call.inputs):
        constants = [call.given(place) for place in range(len(call.inputs))]
        graph.budget.copy(8 * math.prod(np.broadcast_shapes(*map(np.shape, constants))))
        return np.asarray(FOLDED[kind](*constants))
    if kind in MOVES:
        return _moved(graph, call)
    if kind in RULES:
        return RULES[kind](graph, call)
    if kind in INCREASING:
        return graph.monotone(call.value, call.error())
    if kind.startswith("Reduce"):
        return _reduced(graph, call)
    if kind in FOLDED and len(call.inputs) == 1:
        return Value(call.value.shape, Unknown(call.error()))
    raise UnsupportedError(OTHERWISE)


def _moved(graph: Symbolic, call: Call) -> Result:
    """Return the rearranged numbers of the first input."""
    x = call.operand(0)
    if not isinstance(x, Value):
        made = MOVES[call.kind](x, call)
        graph.budget.copy(8 * sum(each.size for each in (made if isinstance(made, list) else [made])))
        return made  # type: ignore[no-any-return]
    made = MOVES[call.kind](indices(x), call)
    return [graph.move(x, each) for each in made] if isinstance(made, list) else graph.move(x, made)


def _reshape(x: Array, call: Call) -> Array:
    shape = call.whole(1, "shape") or []
    if not call.options.get("allowzero"):
        shape = [x.shape[axis] if n == 0 else n for axis, n in enumerate(shape)]
    return x.reshape(shape)


def _flatten(x: Array, call: Call) -> Array:
    return x.reshape(math.prod(x.shape[: call.axis(1)]), -1)


def _squeeze(x: Array, call: Call) -> Array:
    axes = call.whole(1, "axes")
    return x.squeeze(None if axes is None else tuple(axes))


def _slice(x: Array, call: Call) -> Array:
    starts, ends = call.whole(1, "starts") or [], call.whole(2, "ends") or []
    axes = call.whole(3, "axes") or list(range(len(starts)))
    cut = [slice(None)] * x.ndim
    for axis, start, end, step in zip(axes, starts, ends, call.whole(4) or [1] * len(axes), strict=True):
        cut[axis] = slice(start, None if step < 0 and end < -x.shape[axis] else end, step)
    return x[tuple(cut)]


def _split(x: Array, call: Call) -> list[Array]:
    axis, sizes = call.axis(0), call.whole(1, "split")
    part = -(-x.shape[axis] // call.outputs)
    return np.split(x, np.cumsum(sizes)[:-1] if sizes else range(part, x.shape[axis], part), axis)


def _expand(x: Array, call: Call) -> Array:
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(call.whole(1) or ())))


def _gather(x: Array, call: Call) -> Array:
    axis, places = call.axis(0), np.asarray(call.given(1), np.int64)
    current().copy(8 * x.size // x.shape[axis] * places.size)
    return x.take(places, axis)


MOVES: Mapping[str, Callable[[Array, Call], Any]] = {
    "Identity": lambda x, call: x,
    "Dropout": lambda x, call: x,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "Reshape": _reshape,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Transpose": lambda x, call: x.transpose(call.options.get("perm")),
    "Unsqueeze": lambda x, call: np.expand_dims(x, tuple(call.whole(1, "axes") or ())),
}
"""Operators that only move numbers, as functions of an array."""


def _cast(graph: Symbolic, call: Call) -> Operand:
    x, to = call.operand(0), call.options.get("to", 1)
    if isinstance(x, Value):
        if to not in FLOATS and not isinstance(x.form, Choice):
            raise UnsupportedError("it rounds a value to a type other than float32")
        return x
    return x.astype(TYPES[to])


def _shape(graph: Symbolic, call: Call) -> Array:
    shape = np.array(call.operand(0).shape, np.int64)
    return shape[call.options.get("start", 0) : call.options.get("end", END)]


def _filled(graph: Symbolic, call: Call) -> Array:
    number, shape = np.asarray(call.options.get("value", np.zeros(1, np.float32))), call.whole(0, "shape") or []
    graph.budget.copy(8 * math.prod(shape))
    return np.full(shape, number.reshape(-1)[0])


def _gemm(graph: Symbolic, call: Call) -> Operand:
    weight, bias, options = np.asarray(call.given(1)), call.given(2), call.options
    if weight.ndim != 2 or options.get("transA"):
        raise UnsupportedError("its weight is not a matrix, or it reads a transposed value")
    weight = (weight if options.get("transB") else weight.T) * np.float32(options.get("alpha", 1))
    if bias is not None:
        bias = np.broadcast_to(bias, (1, len(weight))) * np.float32(options.get("beta", 1))
    return graph.linear(call.name, call.value, np.ascontiguousarray(weight), bias)


def _matmul(graph: Symbolic, call: Call) -> Operand:
    a, b = call.operand(0), call.operand(1)
    if not isinstance(a, Value) and not isinstance(b, Value):
        graph.budget.copy(8 * a.size * b.shape[-1])
        return np.asarray(np.matmul(a, b))
    if isinstance(b, Value) or b.ndim != 2:
        raise UnsupportedError("it multiplies two values, or a matrix with a value behind it")
    return graph.linear(call.name, call.value, np.ascontiguousarray(b.T))


def _conv(graph: Symbolic, call: Call) -> Operand:
    x, weight, options = call.value, np.asarray(call.given(1)), call.options
    if (
        weight.ndim != 4
        or len(x.shape) != 4
        or options.get("group", 1) != 1
        or set(options.get("dilations", [1])) != {1}
    ):
        raise UnsupportedError("only convolutions of images without groups and dilation are supported")
    return graph.convolution(call.name, x, weight, call.given(2), _pair(options.get("strides")), _padding(options))


def _pair(numbers: list[int] | None, default: int = 1) -> tuple[int, int]:
    rows, columns = numbers or (default, default)
    return int(rows), int(columns)


def _padding(options: Mapping[str, Any]) -> tuple[int, int]:
    pads = options.get("pads") or [0, 0, 0, 0]
    if options.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID") or pads[:2] != pads[2:]:
        raise UnsupportedError("its margins differ between the sides of the image")
    return _pair(pads[:2])


def _batch_norm(graph: Symbolic, call: Call) -> Operand:
    gain, offset, mean, variance = (np.asarray(call.given(place), np.float64) for place in range(1, 5))
    factor = gain / np.sqrt(variance + call.options.get("epsilon", 1e-5))
    along = (-1, *(1,) * (len(call.value.shape) - 2))
    return graph.affine(call.value, factor.reshape(along), (offset - mean * factor).reshape(along))


def _layer_norm(graph: Symbolic, call: Call) -> Operand:
    x, gain = call.value, np.asarray(call.given(1), np.float32)
    if call.axis(-1) not in (-1, len(x.shape) - 1):
        raise UnsupportedError("it normalizes over several axes; only the last one is supported")
    bias = np.asarray(call.given(2, default=np.zeros_like(gain)), np.float32)
    return graph.layer_norm(f"{call.name}.norm", x, gain, bias, float(call.options.get("epsilon", 1e-5)))


def _reduced(graph: Symbolic, call: Call) -> Operand:
    """Fold a sum, mean or extreme of constants; of a value, only the shape is known."""
    x, axes, keep = call.operand(0), call.whole(1, "axes"), bool(call.options.get("keepdims", 1))
    along = None if axes is None else tuple(axes)
    if isinstance(x, Value):
        shape = np.sum(indices(x), axis=along, keepdims=keep).shape
        of_row = call.kind == "ReduceL2" and math.prod(shape) == 1 and x.shape[-1] == x.size
        return Value(shape, Length(x) if of_row else Unknown(call.error()))
    return np.asarray(REDUCTIONS[call.kind](x, axis=along, keepdims=keep))


def _softmax(graph: Symbolic, call: Call) -> Operand:
    if call.axis(-1) not in (-1, len(call.value.shape) - 1):
        raise UnsupportedError("it is not over the last axis")
    return graph.softmax(call.value)


def _clip(graph: Symbolic, call: Call) -> Operand:
    x, low, high = call.operand(0), call.given(1, "min", -math.inf), call.given(2, "max", math.inf)
    return graph.clip(x, float(low), float(high)) if isinstance(x, Value) else np.clip(x, low, high)


def _bound(graph: Symbolic, call: Call) -> Operand:
    a, b = call.operand(0), call.operand(1)
    x, bound = (a, b) if isinstance(a, Value) else (b, a)
    if isinstance(bound, Value) or np.size(bound) != 1 or not isinstance(x, Value):
        raise UnsupportedError("only one constant number can bound a value")
    number = float(np.asarray(bound).reshape(()))
    return graph.clip(x, number, math.inf) if call.kind == "Max" else graph.clip(x, -math.inf, number)


def _elu(graph: Symbolic, call: Call) -> Operand:
    alpha = call.options.get("alpha", 1.0)
    return graph.activation(call.value, "elu") if alpha == 1 else graph.activation(call.value, "selu", (alpha, 1.0))


def _selu(graph: Symbolic, call: Call) -> Operand:
    settings = call.options.get("alpha", SELU[0]), call.options.get("gamma", SELU[1])
    return graph.activation(call.value, "selu", settings)


def _leaky(graph: Symbolic, call: Call) -> Operand:
    slope = call.given(1, "alpha", LEAKY_SLOPE)
    if np.size(slope) != 1:
        raise UnsupportedError("it has several slopes")
    number = float(np.float32(np.asarray(slope).reshape(())))
    if number == float(np.float32(LEAKY_SLOPE)):
        return graph.activation(call.value, "leaky_relu")
    return graph.activation(call.value, "prelu", (number,))


def _gelu(graph: Symbolic, call: Call) -> Operand:
    return graph.activation(call.value, "gelu_tanh" if call.options.get("approximate") == b"tanh" else "gelu")


def _argmax(graph: Symbolic, call: Call) -> Operand:
    x, axis = call.value, call.axis(0)
    if x.shape[axis] != x.size:
        raise UnsupportedError("it chooses along an axis other than that of the scores")
    kept = np.argmax(indices(x), axis, keepdims=bool(call.options.get("keepdims", 1)))
    return graph.argmax(x, kept.shape)


def _multinomial(graph: Symbolic, call: Call) -> Operand:
    if call.options.get("sample_size", 1) != 1:
        raise UnsupportedError("it draws several samples")
    return graph.argmax(call.value, (1, 1))


def _where(graph: Symbolic, call: Call) -> Operand:
    condition = np.asarray(call.given(0))
    if condition.all() == condition.any():
        chosen, other = (call.operand(place) for place in ((1, 2) if condition.all() else (2, 1)))
        if np.broadcast_shapes(chosen.shape, other.shape, condition.shape) == chosen.shape:
            return chosen
    raise UnsupportedError("it mixes values")


RULES: Mapping[str, Callable[[Symbolic, Call], Operand]] = {
    "Add": lambda graph, call: graph.add(call.operand(0), call.operand(1)),
    "ArgMax": _argmax,
    "BatchNormalization": _batch_norm,
    "Cast": _cast,
    "Clip": _clip,
    "Concat": lambda graph, call: graph.concat([call.operand(i) for i in range(len(call.inputs))], call.axis(1)),
    "ConstantOfShape": _filled,
    "Conv": _conv,
    "Div": lambda graph, call: graph.divide(call.operand(0), call.operand(1)),
    "Elu": _elu,
    "Gelu": _gelu,
    "Gemm": _gemm,
    "LayerNormalization": _layer_norm,
    "LeakyRelu": _leaky,
    "MatMul": _matmul,
    "Max": _bound,
    "Min": _bound,
    "Mul": lambda graph, call: graph.multiply(call.operand(0), call.operand(1)),
    "Multinomial": _multinomial,
    "Neg": lambda graph, call: graph.affine(call.value, -1),
    "PRelu": _leaky,
    "RandomNormal": _filled,
    "RandomNormalLike": lambda graph, call: np.zeros(call.operand(0).shape, np.float32),
    "Selu": _selu,
    "Shape": _shape,
    "Softmax": _softmax,
    "Sub": lambda graph, call: graph.add(call.operand(0), call.operand(1), -1),
    "Where": _where,
    **{
        name: (lambda kind: lambda graph, call: graph.activation(call.value, kind))(name.lower())
        for name in ("Relu", "Tanh", "Sigmoid", "Softplus", "HardSwish", "Mish", "Silu")
    },
}
