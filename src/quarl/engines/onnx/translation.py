"""A policy's ONNX file: standard operators only, so that any ONNX runtime can execute it.

Codes are uint8, shifted by 128 (weights of at most 4 bits by 8). On processors with AVX2 but without VNNI, ONNX
Runtime's uint8 x int8 kernels add two products in 16 bits, which saturates; its uint8 x uint8 kernels are exact. Every
row is quantized on its own, so no result depends on its batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from quarl.arrays import Array
from quarl.engines.lookup_tables import table
from quarl.engines.numpy_operators import Norm, averages_codes, norms_codes
from quarl.engines.onnx import weightless
from quarl.engines.onnx.model_file import File
from quarl.engines.onnx.weightless import SHIFT
from quarl.engines.sums import check_bits, check_int32, fits, requantization, symmetric, unit
from quarl.errors import UnsupportedError
from quarl.policy import operators
from quarl.policy.graph import ActivationGrid, QuantizedPolicy, final_linear, shapes
from quarl.policy.grids import EXACT
from quarl.policy.operators import OBSERVATION, Linear, Op, QuantizedTensor, as_float32
from quarl.policy.recurrent import ports

NIBBLE_SHIFT = 8
"""Offset like SHIFT, for codes of half a byte."""


def write(
    policy: QuantizedPolicy,
    batch: int | None = None,
    *,
    acts: bool = False,
    metadata: Mapping[str, str] | None = None,
) -> bytes:
    """Return the .onnx file: "observation" [batch, *shape] to "output" float32 [batch, n].

    A policy with a memory reads one row with its state; if it acts, each part of the state is an input and an output of
    its own, as in `policy.recurrent.ports`.

    A batch of 1 needs fewer operators per layer, with the same results bit for bit. Weights of 5 to 8 bits are stored
    in 8. Those of 2 to 4 bits are stored in 4 (UINT4, widened by a Cast that a runtime folds when it loads the file).
    fp16 and bf16 are stored as such, and weights without quantized activations as their real values in float32.

    Args:
        policy: The policy.
        batch: Number of rows; None leaves it open.
        acts: Return the greedy action itself unless actions are discrete, instead of the input of the policy's head.
        metadata: Texts by name to store in the file.

    Raises:
        UnsupportedError: ONNX operators cannot express the policy's precision.
    """
    refuse(policy)
    return Translation(policy, batch, metadata).run(acts=acts)


def refuse(policy: QuantizedPolicy) -> None:
    """Raise UnsupportedError if ONNX operators cannot express the policy's precision."""
    check_bits(policy, "engine onnx")
    for op in policy.linear if policy.spec.activation_bits is not None else ():
        if isinstance(op.weight, QuantizedTensor):
            weight = symmetric(op, "engine onnx")
            if policy.spec.mode == "dynamic":
                check_int32(op.name, weight.codes)


@dataclass(frozen=True, slots=True)
class Codes:
    """A statically quantized value: a uint8 tensor, and the grid of its codes minus SHIFT."""

    tensor: str
    grid: ActivationGrid


class Translation:
    """The translation of one policy into a file."""

    def __init__(self, policy: QuantizedPolicy, batch: int | None, metadata: Mapping[str, str] | None) -> None:
        self.policy, self.batch, self.acts = policy, batch, False
        self.static = policy.spec.mode == "static"
        self.shapes = shapes(policy)
        self.final = final_linear(policy)
        self.file = File(metadata)
        self.values: dict[str, str | Codes] = {OBSERVATION: OBSERVATION}
        self.rows: dict[str, tuple[str, str, str]] = {}
        """Quantized rows by tensor: two layers may read the same value."""
        self.not_negative: set[str] = set()
        """Values without negative numbers, whose rows need no search for their low end: half of the work of quantizing
        them."""

    def run(self, *, acts: bool) -> bytes:
        dtype, self.acts = self.policy.observation_dtype, acts
        if dtype == "uint8":
            self.values[OBSERVATION] = self.file.cast(OBSERVATION, np.float32)
            self.not_negative.add(OBSERVATION)
        row = ports(self.policy, apart=acts)
        self.values |= {port.value: port.name for port in row if port.value not in self.values}
        for op in (each for each in self.policy.ops if each.name not in self.values):
            self.values[op.name] = LOWERINGS[type(op)](self, op)
            rectified = isinstance(op, operators.Activation) and op.kind in ("relu", "sigmoid")
            kept = isinstance(op, operators.Flatten) or (isinstance(op, operators.Scale) and (op.factor >= 0).all())
            if rectified or (kept and op.inputs[0] in self.not_negative):
                self.not_negative.add(op.name)
        batch: list[Any] = ["batch" if self.batch is None else self.batch]
        inputs = {port.name: (dtype, [*batch, *self.shapes[port.value]]) for port in row}
        outputs = {port.next: (self.real(port.computed), [*batch, *self.shapes[port.computed]]) for port in row}
        head, (output, _) = self.policy.head, outputs[row[0].next]
        if acts and not head.is_discrete:
            outputs[row[0].next] = weightless.action(self.file, head, output), [*batch, head.low.size]
        return self.file.serialize(inputs, outputs)

    def real(self, name: str) -> str:
        """Return the float32 tensor of a value."""
        value = self.values[name]
        if isinstance(value, str):
            return value
        floats = self.file.cast(value.tensor, np.float32)
        centered = self.file.node("Sub", floats, self.file.number(value.grid.zero_point + SHIFT))
        return self.file.node("Mul", centered, self.file.number(value.grid.scale))

    def on_grid(self, name: str, grid: ActivationGrid) -> Codes:
        """Return the codes of a value on `grid`."""
        value = self.values[name]
        if isinstance(value, Codes) and value.grid == grid:
            return value
        return self.quantized(self.real(name), grid)

    def quantized(self, tensor: str, grid: ActivationGrid) -> Codes:
        scale, zero_point = self.file.number(grid.scale), self.file.constant(np.uint8(grid.zero_point + SHIFT))
        return Codes(self.file.node("QuantizeLinear", tensor, scale, zero_point), grid)

    def on(self, tensor: str, grid: ActivationGrid) -> str | Codes:
        """Return the tensor's numbers moved to the nearest levels of the grid."""
        if grid.bits <= 8:
            return self.quantized(tensor, grid)
        return self.file.node("Mul", self.counted(tensor, grid), self.file.number(grid.scale))

    def counted(self, tensor: str, grid: ActivationGrid) -> str:
        """Return the codes of a tensor on a grid of any bits, as float32 integers counted from the zero point."""
        low, high = map(self.file.number, grid.steps)
        if math.frexp(grid.scale)[0] == 0.5:  # the reciprocal of a power of two is exact
            steps = self.file.node("Mul", tensor, self.file.number(1 / grid.scale))
        else:
            steps = self.file.node("Div", tensor, self.file.number(grid.scale))
        return self.file.node("Clip", self.file.node("Round", steps), low, high)

    def linear(self, op: Linear) -> str | Codes:
        if not isinstance(op.weight, QuantizedTensor) or self.policy.spec.activation_bits is None:
            return self.float_linear(op)
        return self.static_linear(op, op.weight) if self.static else self.dynamic_linear(op, op.weight)

    def float_linear(self, op: Linear) -> str:
        stored = as_float32(op.weight) if isinstance(op.weight, QuantizedTensor) else op.weight
        weight = self.file.constant(stored, f"{op.name}.weight")
        if stored.dtype.itemsize < 4:
            weight = self.file.cast(weight, np.float32)
        inputs = self.real(op.inputs[0]), weight, self.file.constant(op.bias, f"{op.name}.bias")
        if not isinstance(op, operators.Conv2d):
            return self.file.node("Gemm", *inputs, transB=1)
        return self.file.node("Conv", *inputs, strides=op.stride, pads=op.padding * 2)

    def dynamic_linear(self, op: Linear, weight: QuantizedTensor) -> str:
        file = self.file
        x = self.real(op.inputs[0])
        if isinstance(op, operators.Conv2d) and any(op.padding):
            # Padded in float: 0 has an exact code, but a different one in every row.
            x = file.node("Pad", x, file.constant(np.array([0, 0, *op.padding] * 2)))
        source = op.inputs[0]
        if x not in self.rows:
            rank, positive = len(self.shapes[source]), source in self.not_negative
            self.rows[x] = weightless.quantized_rows(file, x, rank, self.batch, positive=positive)
        (codes, row_scale, zero_point), rank = self.rows[x], len(self.shapes[op.name])
        if self.batch == 1 or not zero_point:
            accumulator = self.products(op, weight, codes, zero_point)
        else:
            # ONNX Runtime takes one zero point for all rows: each row's share is subtracted afterwards.
            sums = weight.codes.reshape(len(op.bias), -1).sum(axis=1, dtype=np.int32)
            zero_points = weightless.down_rows(file, file.cast(zero_point, np.int32), rank, self.batch)
            share = file.node("Mul", zero_points, file.constant(_channels(op, sums), f"{op.name}.sums"))
            accumulator = file.node("Sub", self.products(op, weight, codes, ""), share)
        scale = weightless.down_rows(file, row_scale, rank, self.batch)
        product = file.node("Mul", file.cast(accumulator, np.float32), scale)
        # float64 keeps the product exact: the kernels that this must equal multiply and add in one step.
        factor = file.cast(file.constant(_channels(op, weight.scale), f"{op.name}.scale"), np.float64)
        offset = file.cast(file.constant(_channels(op, op.bias), f"{op.name}.bias"), np.float64)
        return file.cast(file.scaled(file.cast(product, np.float64), factor, offset), np.float32)

    def static_linear(self, op: Linear, weight: QuantizedTensor) -> str | Codes:
        source = self.policy.grids[op.inputs[0]]
        if op.name in self.final:
            sums = self.static_sums(op, weight, source, None)
            return self.affine(op, sums, unit(weight, source).astype(np.float32))
        grid = self.policy.grids[op.name]
        steps, multiplier = requantization(op, weight, source, grid)
        sums = self.static_sums(op, weight, source, steps)
        product = self.file.node("Mul", sums, self.file.constant(_channels(op, multiplier), f"{op.name}.multiplier"))
        return Codes(self.file.round(product, grid.zero_point + SHIFT), grid)

    def static_sums(self, op: Linear, weight: QuantizedTensor, source: ActivationGrid, steps: Array | None) -> str:
        """Append the exact accumulator, with a bias in steps of its scale, as float32.

        Args:
            op: The layer.
            weight: Its codes.
            source: Grid of its input.
            steps: Bias in units of the sums; None for no bias.
        """
        if source.bits > 8:
            return self.wide_sums(op, weight, source, np.zeros(len(op.bias)) if steps is None else steps)
        check_int32(op.name, weight.codes, source.reach, 0.0 if steps is None else steps)
        x = self.on_grid(op.inputs[0], source)
        padding = op.padding if isinstance(op, operators.Conv2d) else (0, 0)
        zero_point = self.file.constant(np.uint8(source.zero_point + SHIFT))
        accumulator = self.products(op, weight, x.tensor, zero_point, padding)
        if steps is not None:
            bias = self.file.constant(_channels(op, steps.astype(np.int32)), f"{op.name}.steps")
            accumulator = self.file.node("Add", accumulator, bias)
        return self.file.cast(accumulator, np.float32)

    def wide_sums(self, op: Linear, weight: QuantizedTensor, source: ActivationGrid, steps: Array) -> str:
        """Append the accumulator of codes that no integer kernel takes: float32 sums of integers are exact below 2**24.

        Args:
            op: The layer.
            weight: Its codes.
            source: Grid of its input.
            steps: Bias in units of the sums.
        """
        if not isinstance(op, operators.Dense) or not fits(weight.codes, EXACT, source.reach, steps):
            raise UnsupportedError(
                f"engine onnx sums {source.bits}-bit codes in 24 bits, which layer {op.name!r} exceeds"
            )
        file, centered = self.file, self.counted(self.real(op.inputs[0]), source)
        codes = file.cast(file.constant(weight.codes, f"{op.name}.weight"), np.float32)
        bias = file.constant(steps.astype(np.float32), f"{op.name}.steps")
        return file.node("Gemm", centered, codes, bias, transB=1)

    def products(
        self, op: Linear, weight: QuantizedTensor, x: str, zero_point: str, padding: tuple[int, int] = (0, 0)
    ) -> str:
        """Append int32 sums of (x - zero_point) * weight; padding counts as zero_point.

        Args:
            op: The layer.
            weight: Its codes.
            x: Tensor of uint8 codes.
            zero_point: Tensor of their zero point, or "".
            padding: Margin in rows and columns.
        """
        codes = weight.codes.T if isinstance(op, operators.Dense) else weight.codes
        narrow = weight.bits <= 4 and codes.min() >= -NIBBLE_SHIFT and codes.max() < NIBBLE_SHIFT
        shift = NIBBLE_SHIFT if narrow else SHIFT
        if narrow:
            tensor = self.file.cast(self.file.nibbles(_unsigned(codes, shift), f"{op.name}.weight"), np.uint8)
        else:
            tensor = self.file.constant(_unsigned(codes, shift), f"{op.name}.weight")
        if isinstance(op, operators.Conv2d) and not zero_point:
            zero_point = self.file.constant(np.uint8(0))  # ONNX Runtime 1.16 crashes if it is left out
        inputs = x, tensor, zero_point, self.file.constant(np.uint8(shift))
        if not isinstance(op, operators.Conv2d):
            return self.file.node("MatMulInteger", *inputs)
        return self.file.node("ConvInteger", *inputs, strides=op.stride, pads=padding * 2)

    def affine(self, op: Linear, x: str, scale: Array) -> str:
        """Append x * scale + bias, per channel."""
        factor = self.file.constant(_channels(op, scale), f"{op.name}.scale")
        return self.file.scaled(x, factor, self.file.constant(_channels(op, op.bias), f"{op.name}.bias"))

    def activation(self, op: operators.Activation) -> str | Codes:
        first, grid = self.values[op.inputs[0]], self.policy.grids.get(op.name)
        if grid is None or op.inputs[0] not in self.policy.grids:
            return weightless.activation(self.file, op, self.real(op.inputs[0]))
        if grid.bits <= 8 and isinstance(first, Codes):
            return self.tabled(op, first, grid)
        return self.on(weightless.activation(self.file, op, self.real(op.inputs[0])), grid)

    def rounded(self, op: operators.Rounded) -> str | Codes:
        real, grid = self.real(op.inputs[0]), self.policy.grids.get(op.name)
        if grid is None:
            return real
        if grid.bits > 8:
            return self.on(real, grid)
        # Ties are common where steps are powers of two, and QuantizeLinear of OpenVINO does not round them to even.
        return Codes(self.file.round(self.counted(real, grid), grid.zero_point + SHIFT), grid)

    def pool(self, op: operators.Pool2d) -> str | Codes:
        first, channels = self.values[op.inputs[0]], self.shapes[op.name][0]
        if isinstance(first, Codes) and op.kind == "max":
            return Codes(weightless.pool(self.file, op, first.tensor, channels), first.grid)
        if not averages_codes(op, self.policy.grids):
            return weightless.pool(self.file, op, self.real(op.inputs[0]), channels)
        grid = self.policy.grids[op.inputs[0]]
        sums = weightless.pool(self.file, op, self.integers(op.inputs[0], grid), channels)
        return self.file.node("Mul", sums, self.file.number(grid.scale))

    def integers(self, name: str, grid: ActivationGrid) -> str:
        """Return the codes of a value on an int8 grid, as float32 integers counted from the zero point."""
        shifted = self.file.cast(self.on_grid(name, grid).tensor, np.float32)
        return self.file.node("Sub", shifted, self.file.number(grid.zero_point + SHIFT))

    def norm(self, op: Norm) -> str:
        if not norms_codes(op, self.policy.grids):
            return weightless.norm(self.file, op, self.real(op.inputs[0]))
        grid = self.policy.grids[op.inputs[0]]
        return weightless.norm_of_codes(self.file, op, self.integers(op.inputs[0], grid), grid)

    def flatten(self, op: operators.Flatten) -> str | Codes:
        first = self.values[op.inputs[0]]
        if isinstance(first, Codes):
            return Codes(self.file.node("Flatten", first.tensor), first.grid)
        return self.file.node("Flatten", first)

    def slice(self, op: operators.Slice) -> str:
        ends = (op.start, op.start + math.prod(op.part), 1)
        bounds = (self.file.constant(np.array([end], np.int64)) for end in ends)
        row = self.file.node("Slice", self.real(op.inputs[0]), *bounds)
        if len(op.part) == 1:
            return row
        return self.file.node("Reshape", row, self.file.constant(np.array([self.batch or -1, *op.part], np.int64)))

    def scale(self, op: operators.Scale) -> str:
        x = self.real(op.inputs[0])
        return self.file.node("Mul", x, self.file.constant(op.factor.astype(np.float32), f"{op.name}.factor"))

    def tabled(self, op: operators.Activation, x: Codes, grid: ActivationGrid) -> Codes:
        """Append the activation of codes as a table of 256 entries."""
        if op.kind == "relu" and x.grid == grid and grid.zero_point == -SHIFT:
            return x  # all codes are at or above that of 0
        entries = self.file.constant(_unsigned(table(op, x.grid, grid), SHIFT), f"{op.name}.table")
        return Codes(self.file.node("Gather", entries, self.file.cast(x.tensor, np.int32)), grid)


LOWERINGS: Mapping[type[Op], Callable[[Translation, Any], str | Codes]] = {
    operators.Dense: lambda into, op: into.linear(op),
    operators.Conv2d: lambda into, op: into.linear(op),
    operators.Activation: lambda into, op: into.activation(op),
    operators.Softmax: lambda into, op: weightless.softmax(into.file, op, into.real(op.inputs[0])),
    operators.Pool2d: Translation.pool,
    operators.LayerNorm: Translation.norm,
    operators.L2Norm: Translation.norm,
    operators.Normalize: lambda into, op: weightless.normalize(
        into.file, op, into.real(op.inputs[0]), unfolded=into.acts
    ),
    operators.Scale: Translation.scale,
    operators.Flatten: Translation.flatten,
    operators.Slice: Translation.slice,
    operators.Concat: lambda into, op: into.file.node("Concat", *map(into.real, op.inputs), axis=-1),
    operators.Add: lambda into, op: into.file.node("Add", *map(into.real, op.inputs)),
    operators.Mul: lambda into, op: into.file.node("Mul", *map(into.real, op.inputs)),
    operators.Rounded: Translation.rounded,
}
"""Function that adds an operator's nodes to the file."""


def _channels(op: Linear, values: Array) -> Array:
    """Return [out] shaped to broadcast along axis 1 of the operator's value."""
    return values.reshape(-1, 1, 1) if isinstance(op, operators.Conv2d) else values


def _unsigned(codes: Array, shift: int) -> Array:
    """Return int8 codes shifted up into uint8."""
    return (codes.astype(np.int16) + np.int16(shift)).astype(np.uint8)
