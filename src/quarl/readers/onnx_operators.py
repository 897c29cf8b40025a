"""Rules of ONNX's operators: constants are folded with numpy, other results become values of the policy's graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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


def _image(graph: Symbolic, x: Value) -> Value:
    """Return an image [1, C, H, W]; numbers along one axis are an image of one row."""
    shape = (*x.shape[:2], 1, *x.shape[2:]) if len(x.shape) == 3 else x.shape
    if len(shape) != 4:
        raise UnsupportedError(f"it reads {list(x.shape)}, which is not a batch of images")
    return graph.move(x, indices(x).reshape(shape))


def _of_image(call: Call, made: Value) -> Value:
    """Return a result in as many axes as the image has in the file."""
    return Value(made.shape[:2] + made.shape[6 - len(call.value.shape) :], made.form)


def _conv(graph: Symbolic, call: Call) -> Operand:
    x, weight, options = _image(graph, call.value), np.asarray(call.given(1)), call.options
    if (
        weight.ndim != len(call.value.shape)
        or options.get("group", 1) != 1
        or set(options.get("dilations", [1])) != {1}
    ):
        raise UnsupportedError("only convolutions of images without groups and dilation are supported")
    kernels, steps = weight.reshape(*weight.shape[:2], -1, weight.shape[-1]), _along(call, options.get("strides"), 1)
    return _of_image(call, graph.convolution(call.name, x, kernels, call.given(2), steps, _padding(call)))


def _pool(graph: Symbolic, call: Call) -> Operand:
    x, options, padding = _image(graph, call.value), call.options, _padding(call)
    uncounted = call.kind == "AveragePool" and any(padding) and not options.get("count_include_pad")
    if options.get("ceil_mode") or set(options.get("dilations", [1])) != {1} or uncounted:
        raise UnsupportedError("its dilation, ceil_mode or margin is not supported")
    kernel = x.shape[2:] if call.kind == "GlobalAveragePool" else _along(call, options["kernel_shape"], 1)
    kind, steps = "max" if call.kind == "MaxPool" else "average", _along(call, options.get("strides"), 1)
    return _of_image(call, graph.pool(x, kind, kernel, steps, padding))


def _along(call: Call, numbers: Sequence[int] | None, default: int) -> tuple[int, int]:
    """Return an option for the axes of an image, (rows, columns).

    Args:
        call: The call, which reads the image.
        numbers: The option in the file.
        default: Number of an axis without option.
    """
    axes = len(call.value.shape) - 2
    rows, columns = [default] * (2 - axes) + list(numbers or [default] * axes)
    return int(rows), int(columns)


def _padding(call: Call) -> tuple[int, int]:
    pads = call.options.get("pads") or []
    first, last = pads[: len(pads) // 2], pads[len(pads) // 2 :]
    if call.options.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID") or first != last:
        raise UnsupportedError("its margins differ between the sides of the image")
    return _along(call, first, 0)


def _batch_norm(graph: Symbolic, call: Call) -> Operand:
    given = (call.given(place, default=default) for place, default in ((1, 1), (2, 0), (3, None), (4, None)))
    gain, offset, mean, variance = (np.asarray(each, np.float64) for each in given)
    factor = gain / np.sqrt(variance + call.options.get("epsilon", 1e-5))
    along = (-1, *(1,) * (len(call.value.shape) - 2))
    return graph.affine(call.value, factor.reshape(along), (offset - mean * factor).reshape(along))


def _layer_norm(graph: Symbolic, call: Call) -> Operand:
    x = call.value
    if call.axis(-1) not in (-1, len(x.shape) - 1):
        raise UnsupportedError("it normalizes over several axes; only the last one is supported")
    gain = np.asarray(call.given(1, default=np.ones(x.shape[-1:])), np.float32)
    bias = np.asarray(call.given(2, default=np.zeros_like(gain)), np.float32)
    return graph.layer_norm(
        call.name or f"{graph.name(x)}.norm", x, gain, bias, float(call.options.get("epsilon", 1e-5))
    )


def _reduced(graph: Symbolic, call: Call) -> Operand:
    """Fold a reduction of constants; of a value, sums and means are layers, and otherwise only the shape is known."""
    x, axes, keep = call.operand(0), call.whole(1, "axes"), bool(call.options.get("keepdims", 1))
    along = None if axes is None else tuple(axes)
    if not isinstance(x, Value):
        return np.asarray(REDUCTIONS[call.kind](x, axis=along, keepdims=keep))
    if call.kind in ("ReduceMean", "ReduceSum") and not isinstance(x.form, Unknown | Choice | Length):
        behind = tuple(axis + (axis >= 0) for axis in (range(len(x.shape)) if along is None else along))
        kind = call.kind.removeprefix("Reduce").lower()
        return graph.combine(x, kind, lambda rows: REDUCTIONS[call.kind](rows, axis=behind, keepdims=keep))
    shape = np.sum(indices(x), axis=along, keepdims=keep).shape
    of_row = call.kind == "ReduceL2" and math.prod(shape) == 1 and x.shape[-1] == x.size
    return Value(shape, Length(x) if of_row else Unknown(call.error()))


def _softmax(graph: Symbolic, call: Call) -> Operand:
    if call.axis(-1) not in (-1, len(call.value.shape) - 1):
        raise UnsupportedError("it is not over the last axis")
    return graph.softmax(call.value)


def _number(x: Value, numbers: Any) -> float:
    """Return the number that a constant repeats for the value."""
    array = np.asarray(numbers, np.float64)
    if np.broadcast_shapes(x.shape, array.shape) != x.shape or (array != array.flat[0]).any():
        raise UnsupportedError("it takes several numbers; only one constant number is supported")
    return float(array.flat[0])


def _clip(graph: Symbolic, call: Call) -> Operand:
    x, low, high = call.operand(0), call.given(1, "min", -math.inf), call.given(2, "max", math.inf)
    return graph.clip(x, _number(x, low), _number(x, high)) if isinstance(x, Value) else np.clip(x, low, high)


def _hard_sigmoid(graph: Symbolic, call: Call) -> Operand:
    sloped = graph.affine(call.value, call.options.get("alpha", 0.2), call.options.get("beta", 0.5))
    return _clip(graph, replace(call, inputs=[sloped], options={"min": 0, "max": 1}))


def _bound(graph: Symbolic, call: Call) -> Operand:
    a, b = call.operand(0), call.operand(1)
    x, bound = (a, b) if isinstance(a, Value) else (b, a)
    if isinstance(bound, Value) or not isinstance(x, Value) or len(call.inputs) > 2:
        raise UnsupportedError("only one constant number can bound a value")
    number = _number(x, bound)
    return graph.clip(x, number, math.inf) if call.kind == "Max" else graph.clip(x, -math.inf, number)


def _elu(graph: Symbolic, call: Call) -> Operand:
    defaults = SELU if call.kind == "Selu" else (1.0, 1.0)
    alpha, scale = (float(call.options.get(key, n)) for key, n in zip(("alpha", "gamma"), defaults, strict=True))
    settings = () if alpha == scale == 1 else (alpha, scale)
    return graph.activation(call.value, "selu" if settings else "elu", settings, call.kind.lower())


def _leaky(graph: Symbolic, call: Call) -> Operand:
    slope = _number(call.value, call.given(1, "alpha", LEAKY_SLOPE))
    settings = () if np.float32(slope) == np.float32(LEAKY_SLOPE) else (slope,)
    name = "prelu" if call.kind == "PRelu" else "leaky_relu"
    return graph.activation(call.value, "prelu" if settings else "leaky_relu", settings, name)


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
    "Add": lambda graph, call: graph.add(call.operand(0), call.operand(1), call.options.get("alpha", 1)),
    "ArgMax": _argmax,
    "BatchNormalization": _batch_norm,
    "Cast": _cast,
    "Clip": _clip,
    "Concat": lambda graph, call: graph.concat([call.operand(i) for i in range(len(call.inputs))], call.axis(1)),
    "ConstantOfShape": _filled,
    "Conv": _conv,
    "Div": lambda graph, call: graph.divide(call.operand(0), call.operand(1)),
    "Elu": _elu,
    "Gelu": lambda graph, call: graph.activation(
        call.value, "gelu_tanh" if call.options.get("approximate") == b"tanh" else "gelu", name="gelu"
    ),
    "Gemm": _gemm,
    "HardSigmoid": _hard_sigmoid,
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
    "Selu": _elu,
    "Shape": _shape,
    "Softmax": _softmax,
    "Sub": lambda graph, call: graph.add(call.operand(0), call.operand(1), -call.options.get("alpha", 1)),
    "Where": _where,
    **dict.fromkeys(("AveragePool", "GlobalAveragePool", "MaxPool"), _pool),
    **{
        name: (lambda kind: lambda graph, call: graph.activation(call.value, kind))(name.lower())
        for name in ("Relu", "Tanh", "Sigmoid", "Softplus", "Hardsigmoid", "HardSwish", "Mish", "Silu")
    },
}
