"""The closed set of operators in a policy, and the weights they carry.

An operator has the name of the value that it computes. Shapes leave out the batch axis: every value is [B, *shape]. Its
fields are its complete description, and the artifact stores them by their types: "Weight" may be codes, "Array" is
float.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np

from quarl.arrays import Array
from quarl.errors import QuarlError, UnsupportedError
from quarl.policy.formulas import FORMULAS, SETTINGS
from quarl.quant.packing import packed_size

Shape = tuple[int, ...]
OBSERVATION = "observation"
ACTIVATIONS = ("relu", "tanh", "sigmoid", "elu", "leaky_relu", *FORMULAS)
LEAKY_SLOPE = 0.01
"""torch's default negative slope; a leaky_relu with another slope is a prelu."""


@dataclass(frozen=True, eq=False, slots=True)
class QuantizedTensor:
    """Integer codes of a weight and their grid; channels are axis 0."""

    codes: Array
    """int8, int16, int32 or int64, the smallest type that holds every code; same shape as the weight."""
    scale: Array
    """float32 [channels]; a per-tensor scale is repeated."""
    zero_point: Array
    """int32 [channels]; all 0 for symmetric weights."""
    bits: int
    mid_rise: bool = False
    """All codes are odd, of half a step each, so that `bits` bits hold them: the grid has no level at 0."""

    @property
    def shape(self) -> Shape:
        return self.codes.shape

    @property
    def size(self) -> int:
        return self.codes.size

    @property
    def width(self) -> int:
        """Return the bits of a stored code: `bits`, or more if quarl-2020's 2**n + 1 levels need them."""
        if self.mid_rise:  # codes are odd, so the last bit is implied
            return self.bits
        low, high = int(self.codes.min(initial=0)), int(self.codes.max(initial=0))
        return max(self.bits, 1 + (~low).bit_length(), 1 + high.bit_length())

    @property
    def nbytes(self) -> int:
        """Return the bytes that the tensor takes in any file: codes at their bits, and 4 for each number of its grid.

        A grid has a scale and a zero point for each channel, or one if all are equal; symmetric ones no zero points.
        """
        grid = (self.scale, self.zero_point) if self.zero_point.any() else (self.scale,)
        numbers = sum(array.size if np.unique(array).size > 1 else 1 for array in grid)
        return packed_size(self.size, self.width) + 4 * numbers

    @property
    def reach(self) -> Array:
        """Return a bound of the weights' absolute values, float32 [channels]; infinite if a weight could overflow."""
        with np.errstate(over="ignore"):
            return self.scale.astype(np.float32) * np.float32(2.0 ** (8 * self.codes.itemsize))

    def dequantize(self) -> Array:
        """Return float32 weights of the same shape: (codes - zero_point) * scale."""
        along = (-1,) + (1,) * (self.codes.ndim - 1)
        centered = self.codes.astype(np.float32) - self.zero_point.astype(np.float32).reshape(along)
        return centered * self.scale.reshape(along)


Weight = Array | QuantizedTensor
"""float32, float16 or ml_dtypes.bfloat16 array, or integer codes."""


def as_float32(weight: Weight) -> Array:
    """Return the weight's real values, float32."""
    return weight.dequantize() if isinstance(weight, QuantizedTensor) else weight.astype(np.float32, copy=False)


@dataclass(frozen=True, eq=False, slots=True)
class Op:
    """An operator that computes the value `name` from the values `inputs`."""

    name: str
    inputs: tuple[str, ...]
    num_inputs: ClassVar[int | None] = 1
    """Number of inputs; None means one or more."""

    @property
    def arrays(self) -> dict[str, Weight]:
        """Return the arrays of the operator by field."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.type in ("Array", "Weight")}

    def shape(self, inputs: list[Shape]) -> Shape:
        """Return the shape of the result for inputs of these shapes; refuse inputs that do not fit."""
        try:
            if len(inputs) != (self.num_inputs or max(len(inputs), 1)):
                raise _MisfitError(f"from {self.num_inputs or 0} operators")
            return self._shape(*inputs)
        except _MisfitError as error:
            raise QuarlError(
                f"operator {self.name!r} ({type(self).__name__}) expects input {error.args[0]}, "
                f"got {', '.join(map(str, inputs))}"
            ) from None

    def padded_size(self, first: Shape) -> int:
        """Return the number of elements of the first input, including the margin of a convolution."""
        return math.prod(first)

    def check(self) -> None:
        """Refuse settings that no engine can run, and numbers that are not finite."""
        for what, array in self._reals():
            if not np.isfinite(array).all():
                raise QuarlError(f"{what} of layer {self.name!r} holds NaN or infinity; the policy cannot be used")

    def _shape(self, first: Shape, *others: Shape) -> Shape:
        return first

    def _reals(self) -> list[tuple[str, Array]]:
        """Return (description, float array) of every array whose numbers must be finite."""
        arrays = self.arrays.items()
        return [(f"the {name}", a.reach if isinstance(a, QuantizedTensor) else a) for name, a in arrays]


class _MisfitError(Exception):
    """Inputs that do not fit; the argument describes the expected ones."""


@dataclass(frozen=True, eq=False, slots=True)
class Linear(Op):
    """Operators whose weights are quantized; the bias, float32 [out], never is."""

    weight: Weight
    bias: Array

    def check(self) -> None:
        """Check as for any operator, and that the bias has one number for each output."""
        if self.bias.shape != self.weight.shape[:1]:
            raise QuarlError(f"bias of layer {self.name!r} is {self.bias.shape}, its weight {self.weight.shape}")
        Op.check(self)  # super() refers to the class before slots were added


@dataclass(frozen=True, eq=False, slots=True)
class Dense(Linear):
    """x @ weight.T + bias; weight [out, in]."""

    def _shape(self, first: Shape, *others: Shape) -> Shape:
        if len(self.weight.shape) != 2 or first != self.weight.shape[1:]:
            raise _MisfitError(self.weight.shape[1:])
        return self.weight.shape[:1]


@dataclass(frozen=True, eq=False, slots=True)
class Conv2d(Linear):
    """Cross-correlation of [C, H, W] values; weight [out, in, kh, kw], zero padding."""

    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)

    def padded_size(self, first: Shape) -> int:
        """Return the number of elements of the image with its margin."""
        return first[0] * math.prod(n + 2 * p for n, p in zip(first[1:], self.padding, strict=True))

    def _shape(self, first: Shape, *others: Shape) -> Shape:
        if len(self.weight.shape) != 4 or len(first) != 3 or first[0] != self.weight.shape[1]:
            raise _MisfitError("[channels, height, width]")
        if min(self.stride) < 1 or min(self.padding) < 0:
            raise QuarlError(f"operator {self.name!r} has stride {self.stride} and padding {self.padding}")
        return self.weight.shape[0], *windows(first, self.weight.shape[2:], self.stride, self.padding)


def windows(first: Shape, kernel: Shape, stride: Shape, padding: Shape) -> tuple[int, ...]:
    """Return (rows, columns) of the windows of an image [C, H, W].

    Args:
        first: Shape of the image.
        kernel: Size of the kernel, (rows, columns).
        stride: Step of the window, (rows, columns).
        padding: Margin of zeros, (rows, columns).
    """
    axes = zip(first[1:], kernel, stride, padding, strict=True)
    size = tuple((n + 2 * p - k) // s + 1 for n, k, s, p in axes)
    if min(size) < 1:
        raise _MisfitError(f"at least {kernel}")
    return size


@dataclass(frozen=True, eq=False, slots=True)
class Activation(Op):
    """An elementwise function: one of ACTIVATIONS."""

    kind: str
    settings: tuple[float, ...] = ()
    """Numbers that the formula takes, named in SETTINGS."""

    def check(self) -> None:
        """Refuse unknown functions, and settings that the function does not take."""
        if self.kind not in ACTIVATIONS:
            raise UnsupportedError(f"activation {self.kind!r} of {self.name!r} is not one of {', '.join(ACTIVATIONS)}")
        names = SETTINGS.get(self.kind, ())
        beyond = [s for s in self.settings if not (abs(s) < 3e38 or (self.kind == "clip" and abs(s) == math.inf))]
        misordered = self.kind == "clip" and not beyond and sorted(set(self.settings)) != list(self.settings)
        if len(names) != len(self.settings) or beyond or misordered:
            wanted = ", ".join(names) or "no settings"
            raise QuarlError(f"activation {self.kind!r} of {self.name!r} takes {wanted}, got {self.settings}")


@dataclass(frozen=True, eq=False, slots=True)
class Softmax(Op):
    """exp(x) / sum(exp(x)) over each `size` consecutive numbers of [B, n]."""

    size: int

    def _shape(self, first: Shape, *others: Shape) -> Shape:
        if len(first) != 1 or self.size < 1 or first[0] % self.size:
            raise _MisfitError(f"a row of a multiple of {self.size}")
        return first


@dataclass(frozen=True, eq=False, slots=True)
class Pool2d(Op):
    """Maximum or average of each window of [C, H, W] values; padded zeros count in averages."""

    kind: str
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int] = (0, 0)

    def padded_size(self, first: Shape) -> int:
        """Return the number of elements of the image with its margin, times the number of windows that read each."""
        size = (n + 2 * p for n, p in zip(first[1:], self.padding, strict=True))
        return first[0] * math.prod(size) * math.prod(self.kernel)

    def check(self) -> None:
        """Refuse other kinds."""
        if self.kind not in ("max", "average"):
            raise UnsupportedError(f"pooling {self.kind!r} of {self.name!r} is not one of max, average")

    def _shape(self, first: Shape, *others: Shape) -> Shape:
        if len(first) != 3:
            raise _MisfitError("[channels, height, width]")
        margins = zip(self.padding, self.kernel, strict=True)
        if min(*self.kernel, *self.stride) < 1 or any(not 0 <= 2 * p <= k for p, k in margins):
            raise QuarlError(
                f"operator {self.name!r} has kernel {self.kernel}, stride {self.stride}, padding {self.padding}"
            )
        return first[0], *windows(first, self.kernel, self.stride, self.padding)


@dataclass(frozen=True, eq=False, slots=True)
class LayerNorm(Op):
    """(x - mean) / sqrt(variance + epsilon) * weight + bias over the last axis; weight, bias float32 [n]."""

    weight: Array
    bias: Array
    epsilon: float

    def check(self) -> None:
        """Check as for any operator, and that epsilon keeps deviations above 0."""
        _check_epsilon(self.name, self.epsilon)
        Op.check(self)

    def _shape(self, first: Shape, *others: Shape) -> Shape:
        if first[-1:] != self.weight.shape or self.bias.shape != self.weight.shape:
            raise _MisfitError(self.weight.shape)
        return first


@dataclass(frozen=True, eq=False, slots=True)
class L2Norm(Op):
    """x / max(||x||, epsilon) over the last axis, which has `size` numbers."""

    size: int
    epsilon: float

    def check(self) -> None:
        """Refuse an epsilon whose square is not a normal float32 number: a row of zeros would be divided by zero."""
        if not 1e-18 < self.epsilon < 1e18:
            raise QuarlError(f"layer {self.name!r} has epsilon {self.epsilon:g}, which must be above 1e-18, below 1e18")

    def _shape(self, first: Shape, *others: Shape) -> Shape:
        if first[-1:] != (self.size,):
            raise _MisfitError((self.size,))
        return first


@dataclass(frozen=True, eq=False, slots=True)
class Normalize(Op):
    """clip((x - mean) / sqrt(variance + epsilon), -clip, clip): VecNormalize and similar, always in float32.

    mean, variance: float64, the observation's shape.
    """

    mean: Array
    variance: Array
    epsilon: float
    clip: float

    @property
    def mean_parts(self) -> tuple[Array, Array]:
        """Return the mean as a float32 number, and the float32 rest that rounding leaves out.

        One float32 number is not enough: a mean of many standard deviations, rounded, moves every normalized value.
        """
        mean = self.mean.astype(np.float32)
        return mean, (self.mean - mean).astype(np.float32)

    @property
    def inverse_std(self) -> Array:
        """Return 1 / sqrt(variance + epsilon), float32."""
        return (1.0 / np.sqrt(self.variance + self.epsilon)).astype(np.float32)

    def __call__(self, x: Array) -> Array:
        """Return the normalized float32 value of x [B, *shape].

        Every engine follows this order of float32 operations.
        """
        mean, rest = self.mean_parts
        scaled: Array = (x - mean - rest) * self.inverse_std
        return scaled.clip(np.float32(-self.clip), np.float32(self.clip))

    def check(self) -> None:
        """Check as for any operator; epsilon must keep deviations above 0, and the clip must leave a range."""
        _check_epsilon(self.name, self.epsilon)
        if not (0 < self.clip < 3e38 or self.clip == math.inf):
            raise QuarlError(f"layer {self.name!r} clips at {self.clip:g}, which leaves no range")
        Op.check(self)

    def _shape(self, first: Shape, *others: Shape) -> Shape:
        if first != self.mean.shape or first != self.variance.shape:
            raise _MisfitError(self.mean.shape)
        return first

    def _reals(self) -> list[tuple[str, Array]]:
        with np.errstate(all="ignore"):  # float32, like in engines
            mean, inverse_std = self.mean.astype(np.float32), self.inverse_std
        return [("the mean", mean), ("the variance", self.variance), ("the inverse deviation", inverse_std)]


def _check_epsilon(layer: str, epsilon: float) -> None:
    if not 0 <= epsilon < 3e38:  # float32's
        raise QuarlError(f"layer {layer!r} has epsilon {epsilon:g}, which is not a small positive number")


@dataclass(frozen=True, eq=False, slots=True)
class Scale(Op):
    """x * factor in float32: x / 255 for images, or one factor per feature to equalize observations."""

    factor: Array
    """float32, a scalar [] or the value's own shape."""

    def _shape(self, first: Shape, *others: Shape) -> Shape:
        if self.factor.shape not in ((), first):
            raise _MisfitError(self.factor.shape)
        return first


@dataclass(frozen=True, eq=False, slots=True)
class Flatten(Op):
    """[B, ...] to [B, n], row-major."""

    def _shape(self, first: Shape, *others: Shape) -> Shape:
        return (math.prod(first),)


@dataclass(frozen=True, eq=False, slots=True)
class Slice(Op):
    """Numbers of a row [B, n] from `start` on, as a value [B, *part]."""

    start: int
    part: tuple[int, ...]

    def _shape(self, first: Shape, *others: Shape) -> Shape:
        if len(first) != 1 or self.start < 0 or self.start + math.prod(self.part) > first[0]:
            raise _MisfitError(f"a row of {self.start + math.prod(self.part)} numbers or more")
        return self.part


@dataclass(frozen=True, eq=False, slots=True)
class Concat(Op):
    """Inputs joined along the last axis."""

    num_inputs: ClassVar[int | None] = None

    def _shape(self, first: Shape, *others: Shape) -> Shape:
        if any(shape[:-1] != first[:-1] for shape in others):
            raise _MisfitError("shapes equal but for the last axis")
        return (*first[:-1], first[-1] + sum(shape[-1] for shape in others))


@dataclass(frozen=True, eq=False, slots=True)
class Add(Op):
    """Sum of two values; one may be [B, 1] and is then repeated (the dueling head's V + A)."""

    num_inputs: ClassVar[int | None] = 2

    def _shape(self, first: Shape, *others: Shape) -> Shape:
        wide, narrow = sorted((first, *others), reverse=True)
        if wide != narrow and narrow != (1,) * len(wide):
            raise _MisfitError("two equal shapes, or one of [1]")
        return wide


@dataclass(frozen=True, eq=False, slots=True)
class Mul(Op):
    """Product of two values, number by number: the gates of a recurrent layer."""

    num_inputs: ClassVar[int | None] = 2

    def _shape(self, first: Shape, *others: Shape) -> Shape:
        if others != (first,):
            raise _MisfitError("two equal shapes")
        return first


@dataclass(frozen=True, eq=False, slots=True)
class Rounded(Op):
    """The value itself; in static mode, the nearest level of a grid with zero point 0 that reaches past both ends.

    A state is carried to the next step on such a grid, so that a sum of products of gates and states is exact.
    """

    bits: int
    step: float
    """Step of the grid, a power of two; 0 means a grid of 8 bits that calibration chooses."""

    def check(self) -> None:
        """Refuse other steps than powers of two, and other widths than those of grids."""
        if not 2 <= self.bits <= 16 or not (
            self.step == 0 or (math.frexp(self.step)[0] == 0.5 and 2**-30 < self.step < 2**30)
        ):
            raise QuarlError(f"operator {self.name!r} rounds to {self.bits} bits of {self.step:g}")


OPERATORS: Mapping[str, type[Op]] = {
    kind.__name__: kind
    for kind in (
        *(Dense, Conv2d, Pool2d, Activation, Softmax, LayerNorm, L2Norm, Normalize),
        *(Scale, Flatten, Slice, Concat, Add, Mul, Rounded),
    )
}
"""All operators by name; readers refuse any other, and every engine has a rule for each."""


def mlp(layers: list[tuple[str, Array, Array]], activation: str, source: str = OBSERVATION) -> list[Op]:
    """Return dense operators with `activation` between them (none after the last).

    Args:
        layers: (name, weight [out, in], bias [out]) in order.
        activation: Kind of the activation.
        source: Name of the value that the first layer reads.
    """
    ops: list[Op] = []
    for index, (name, weight, bias) in enumerate(layers):
        ops.append(Dense(name, (source,), np.ascontiguousarray(weight, np.float32), np.asarray(bias, np.float32)))
        source = name
        if index + 1 < len(layers):
            source = f"{name}.{activation}"
            ops.append(Activation(source, (name,), activation))
    return ops
