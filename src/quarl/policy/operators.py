"""The closed set of operators that a policy is made of, and the weights they carry.

An operator is named after the value that it makes. Shapes never name the batch axis: every value is [B, *shape].
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from quarl.arrays import Array
from quarl.errors import QuarlError, UnsupportedError

Shape = tuple[int, ...]
OBSERVATION = "observation"
ACTIVATIONS = ("relu", "tanh", "sigmoid", "elu", "leaky_relu")
LEAKY_SLOPE = 0.01
"""torch's default negative slope; another one is refused by the readers."""


@dataclass(frozen=True, eq=False, slots=True)
class QuantizedTensor:
    """Integer codes of a weight and the grid they live on; channels are axis 0."""

    codes: Array
    """int8, int16, int32 or int64: the smallest that holds every code; same shape as the weight."""
    scale: Array
    """float32 [channels]; a per-tensor scale is repeated."""
    zero_point: Array
    """int32 [channels]; all 0 for symmetric weights."""
    bits: int

    @property
    def shape(self) -> Shape:
        return self.codes.shape

    @property
    def size(self) -> int:
        return self.codes.size

    @property
    def reach(self) -> Array:
        """float32 [channels]: what no weight is beyond; infinite where one could be."""
        with np.errstate(over="ignore"):
            return self.scale.astype(np.float32) * np.float32(2.0 ** (8 * self.codes.itemsize))

    def dequantize(self) -> Array:
        """float32 weights, same shape: (codes - zero_point) * scale."""
        along = (-1,) + (1,) * (self.codes.ndim - 1)
        centred = self.codes.astype(np.float32) - self.zero_point.astype(np.float32).reshape(along)
        return centred * self.scale.reshape(along)


Weight = Array | QuantizedTensor
"""float32, float16 or ml_dtypes.bfloat16 array, or integer codes."""


def as_float32(weight: Weight) -> Array:
    """The weight's real values, float32."""
    return weight.dequantize() if isinstance(weight, QuantizedTensor) else weight.astype(np.float32, copy=False)


@dataclass(frozen=True, eq=False, slots=True)
class Op:
    """Makes the value `name` from the values `inputs`."""

    name: str
    inputs: tuple[str, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Dense(Op):
    """x @ weight.T + bias; weight [out, in], bias float32 [out]."""

    weight: Weight
    bias: Array


@dataclass(frozen=True, eq=False, slots=True)
class Conv2d(Op):
    """Cross-correlation of [C, H, W] values; weight [out, in, kh, kw], bias float32 [out], zero padding."""

    weight: Weight
    bias: Array
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)


Linear = Dense | Conv2d
"""The operators whose weights are quantised."""


@dataclass(frozen=True, eq=False, slots=True)
class Activation(Op):
    """An elementwise function: one of ACTIVATIONS."""

    kind: str


@dataclass(frozen=True, eq=False, slots=True)
class LayerNorm(Op):
    """(x - mean) / sqrt(variance + epsilon) * weight + bias over the last axis; weight, bias float32 [n]."""

    weight: Array
    bias: Array
    epsilon: float


@dataclass(frozen=True, eq=False, slots=True)
class Normalize(Op):
    """clip((x - mean) / sqrt(variance + epsilon), -clip, clip): VecNormalize and its kin, always in float32.

    mean, variance: float64, the observation's shape.
    """

    mean: Array
    variance: Array
    epsilon: float
    clip: float

    @property
    def mean_parts(self) -> tuple[Array, Array]:
        """The mean as a float32 number and the float32 rest that it leaves out.

        One float32 number is not enough: a mean of many standard deviations, rounded, moves every normalised value.
        """
        mean = self.mean.astype(np.float32)
        return mean, (self.mean - mean).astype(np.float32)

    @property
    def inverse_std(self) -> Array:
        """float32: 1 / sqrt(variance + epsilon)."""
        return (1.0 / np.sqrt(self.variance + self.epsilon)).astype(np.float32)

    def __call__(self, x: Array) -> Array:
        """The normalised float32 value of x [B, *shape]; every engine follows this order of float32 operations."""
        mean, rest = self.mean_parts
        scaled: Array = (x - mean - rest) * self.inverse_std
        return scaled.clip(np.float32(-self.clip), np.float32(self.clip))


@dataclass(frozen=True, eq=False, slots=True)
class Scale(Op):
    """x * factor in float32: x / 255 of images, or one factor per feature to equalise observations."""

    factor: Array
    """float32, a scalar [] or the value's own shape."""


@dataclass(frozen=True, eq=False, slots=True)
class Flatten(Op):
    """[B, ...] to [B, n], row-major."""


@dataclass(frozen=True, eq=False, slots=True)
class Concat(Op):
    """Inputs side by side along the last axis."""


@dataclass(frozen=True, eq=False, slots=True)
class Add(Op):
    """Sum of two values; one may be [B, 1] and is then repeated (the dueling head's V + A)."""


def padded_size(op: Op, first: Shape) -> int:
    """Numbers of the first input with the margin that a convolution puts around it."""
    if not isinstance(op, Conv2d):
        return math.prod(first)
    return first[0] * math.prod(n + 2 * p for n, p in zip(first[1:], op.padding, strict=True))


def output_shape(op: Op, inputs: list[Shape]) -> Shape:
    """Shape of the value that `op` makes of values of these shapes; refuses inputs that do not fit."""

    def misfit(expected: object) -> QuarlError:
        got = ", ".join(map(str, inputs))
        return QuarlError(f"operator {op.name!r} ({type(op).__name__}) expects input {expected}, got {got}")

    expected_inputs = 2 if isinstance(op, Add) else len(inputs) if isinstance(op, Concat) else 1
    if len(inputs) != max(expected_inputs, 1):
        raise misfit(f"from {expected_inputs} operators")
    first = inputs[0]
    match op:
        case Dense():
            if len(op.weight.shape) != 2 or first != (op.weight.shape[1],):
                raise misfit(op.weight.shape[1:])
            return (op.weight.shape[0],)
        case Conv2d():
            if len(op.weight.shape) != 4 or len(first) != 3 or first[0] != op.weight.shape[1]:
                raise misfit("[channels, height, width]")
            if min(op.stride) < 1 or min(op.padding) < 0:
                raise QuarlError(f"operator {op.name!r} has stride {op.stride} and padding {op.padding}")
            size = [
                (n + 2 * p - k) // s + 1
                for n, k, s, p in zip(first[1:], op.weight.shape[2:], op.stride, op.padding, strict=True)
            ]
            if min(size) < 1:
                raise misfit(f"at least {op.weight.shape[2:]}")
            return (op.weight.shape[0], *size)
        case LayerNorm():
            if first[-1:] != op.weight.shape or op.bias.shape != op.weight.shape:
                raise misfit(op.weight.shape)
            return first
        case Normalize():
            if first != op.mean.shape or first != op.variance.shape:
                raise misfit(op.mean.shape)
            return first
        case Flatten():
            return (math.prod(first),)
        case Concat():
            if any(s[:-1] != first[:-1] for s in inputs):
                raise misfit("shapes equal but for the last axis")
            return (*first[:-1], sum(s[-1] for s in inputs))
        case Add():
            wide, narrow = sorted(inputs, reverse=True)
            if wide != narrow and narrow != (1,) * len(wide):
                raise misfit("two equal shapes, or one of [1]")
            return wide
        case Scale():
            if op.factor.shape not in ((), first):
                raise misfit(op.factor.shape)
            return first
        case Activation():
            return first
        case _:
            raise UnsupportedError(f"operator {op.name!r} is a {type(op).__name__}, which is not in the operator set")


def real_arrays(op: Op) -> list[tuple[str, Array]]:
    """(what it is, float array) of every array of an operator whose numbers must be finite."""
    match op:
        case Dense() | Conv2d():
            weight = op.weight.reach if isinstance(op.weight, QuantizedTensor) else op.weight
            if op.bias.shape != op.weight.shape[:1]:
                raise QuarlError(f"bias of layer {op.name!r} is {op.bias.shape}, its weight {op.weight.shape}")
            return [("the weight", weight), ("the bias", op.bias)]
        case LayerNorm():
            return [("the gain", op.weight), ("the offset", op.bias)]
        case Normalize():
            with np.errstate(all="ignore"):  # in float32, as engines have them
                mean, inverse_std = op.mean.astype(np.float32), op.inverse_std
            return [("the mean", mean), ("the variance", op.variance), ("the inverse deviation", inverse_std)]
        case Scale():
            return [("the factor", op.factor)]
        case _:
            return []


def mlp(layers: list[tuple[str, Array, Array]], activation: str, source: str = OBSERVATION) -> list[Op]:
    """Dense operators with `activation` between them (none after the last).

    layers: (name, weight [out, in], bias [out]) in order; the first reads the value `source`.
    """
    ops: list[Op] = []
    for index, (name, weight, bias) in enumerate(layers):
        ops.append(Dense(name, (source,), np.ascontiguousarray(weight, np.float32), np.asarray(bias, np.float32)))
        source = name
        if index + 1 < len(layers):
            source = f"{name}.{activation}"
            ops.append(Activation(source, (name,), activation))
    return ops
