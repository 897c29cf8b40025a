"""The oracle: every operator in numpy, every integer product exact, no runtime imported.

Integer accumulators are kept in float64, which is exact below 2**53: 32-bit weights times 8-bit activations over 2**14
inputs still fit. Each row is computed on its own, so a result cannot depend on its batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from quarl.arrays import Array
from quarl.engines import int16x8
from quarl.engines.lookup_tables import steady_scale
from quarl.engines.numpy_operators import apply, averages_codes, fold, normalized_codes, norms_codes, on_grid, unfold
from quarl.engines.sums import in_floats, requantization, unit
from quarl.policy.graph import ActivationGrid, QuantizedPolicy, final_linear, readers
from quarl.policy.operators import (
    OBSERVATION,
    Activation,
    Flatten,
    LayerNorm,
    Linear,
    Op,
    Pool2d,
    QuantizedTensor,
    Rounded,
    as_float32,
)
from quarl.quant.affine import (
    dequantize,
    quantize,
    quantize_away,
    quantize_rows,
    requantize,
    requantize_narrow,
    requantize_twice,
)


class Reference:
    """A policy interpreted operator by operator, in the arithmetic "f32-rne"."""

    name = "reference"
    measured = False
    file_bytes = 0

    def __init__(self, policy: QuantizedPolicy, batch: int) -> None:
        self.policy = policy
        self.batch = batch
        self.grids = policy.grids
        """Grids of the values that are codes."""
        self._final = final_linear(policy)
        self._weights = {op.name: _integers(op) for op in policy.linear}

    def run(self, observations: Array) -> Array:
        """Return float32 outputs [B, n] of observations [B, *shape]."""
        return self.trace(observations)[self.policy.output]

    @np.errstate(all="ignore")  # `sound` checks the outputs
    def trace(self, observations: Array) -> dict[str, Array]:
        """Return every value of the graph, float32 [B, *shape]; codes are returned as real numbers."""
        values: dict[str, Array] = {OBSERVATION: np.asarray(observations, np.float32)}
        for op in self.policy.ops:
            inputs = [values[name] for name in op.inputs]
            values[op.name] = self._linear(op, inputs[0]) if isinstance(op, Linear) else self._other(op, inputs)
        return values

    def _other(self, op: Op, inputs: list[Array]) -> Array:
        if norms_codes(op, self.policy.grids):
            grid = self.policy.grids[op.inputs[0]]
            return normalized_codes(op, self.quantized(inputs[0], grid) - np.float32(grid.zero_point), grid)
        if averages_codes(op, self.policy.grids):
            grid = self.policy.grids[op.inputs[0]]
            integers = self.quantized(inputs[0], grid) - np.float32(grid.zero_point)
            return np.asarray(apply(op, [integers]) * np.float32(grid.scale))
        if isinstance(op, Rounded) and op.name in self.policy.grids:
            return on_grid(inputs[0], self.policy.grids[op.name]) + np.float32(0)  # 0 as a code has no sign
        if isinstance(op, Activation) and op.inputs[0] in self.policy.grids and op.name in self.policy.grids:
            return self.bent(op, inputs[0], self.policy.grids[op.name])
        return apply(op, inputs)

    def quantized(self, x: Array, grid: ActivationGrid) -> Array:
        """Return the float32 codes of x."""
        return np.asarray(quantize(x, grid.qparams))

    def bent(self, op: Activation, x: Array, target: ActivationGrid) -> Array:
        """Return the value of a function of codes on its own grid, float32: in static mode it is a table of codes.

        Args:
            op: The activation.
            x: Its input, in real numbers.
            target: Grid of its value.
        """
        return on_grid(apply(op, [x]), target)

    def requantized(self, op: Linear, sums: Array, multiplier: Array, source: ActivationGrid) -> Array:
        """Return the codes of a hidden layer from its integer sums.

        Args:
            op: The layer.
            sums: Sums of codes of `source` and the bias.
            multiplier: Multipliers, broadcast to the sums.
            source: Grid of its input.
        """
        q = self.policy.grids[op.name].qparams
        return requantize(sums, multiplier, int(q.zero_point), q.qmin, q.qmax)

    def _linear(self, op: Linear, x: Array) -> Array:
        spec = self.policy.spec
        if not isinstance(op.weight, QuantizedTensor) or spec.activation_bits is None:
            weight = as_float32(op.weight)
            return _per_row(op, x, weight.reshape(len(weight), -1)) + _channels(op.bias, x.ndim)
        flat = x.reshape(len(x), -1)
        if spec.mode == "dynamic":
            codes, q = quantize_rows(flat, spec.activation_bits)
            accumulator = self._accumulate(op, x, codes, q.zero_point)
            product = accumulator.astype(np.float32) * _rows(q.scale, x.ndim)
            # XNNPACK's kernels multiply and add in one step; the product of two float32 is exact in float64.
            scaled = product.astype(np.float64) * _channels(op.weight.scale, x.ndim)
            return (scaled + _channels(op.bias, x.ndim)).astype(np.float32)
        source = self.policy.grids[op.inputs[0]]
        accumulator = self._accumulate(op, x, self.quantized(flat, source), np.float32(source.zero_point))
        if op.name in self._final:
            product = accumulator.astype(np.float32) * _channels(unit(op.weight, source).astype(np.float32), x.ndim)
            return product + _channels(op.bias, x.ndim)
        bias, multiplier = requantization(op, op.weight, source, self.policy.grids[op.name])
        accumulator = accumulator + _channels(bias, x.ndim)
        codes = self.requantized(op, accumulator, _channels(multiplier, x.ndim), source)
        value: Array = dequantize(codes, self.policy.grids[op.name].qparams)
        return value.astype(np.float32)

    def _accumulate(self, op: Linear, x: Array, codes: Array, zero_point: Any) -> Array:
        centered = (codes - zero_point).astype(np.float64).reshape(x.shape)
        return _per_row(op, centered, self._weights[op.name])


class Q31Double(Reference):
    """The reference in the arithmetic of TFLite Micro's kernels, "q31-double", for static .tflite files in it.

    Sums of codes are requantized by integers, rounded twice, unless a float kernel sums them. Float numbers become
    codes of 8 bits with ties away from zero, and wider codes with ties to even.
    """

    def __init__(self, policy: QuantizedPolicy, batch: int) -> None:
        super().__init__(policy, batch)
        self._readers = readers(policy)
        self._scales: dict[str, np.float32 | None] = {}
        self._coded = {op.name for op in policy.linear} - self._final
        """Values that exist only as codes in the file."""
        for op in policy.ops:
            kept = isinstance(op, Activation | Flatten | Pool2d) and op.name in policy.grids
            if kept and op.inputs[0] in self._coded and policy.grids[op.name].bits <= 8:
                self._coded.add(op.name)

    def quantized(self, x: Array, grid: ActivationGrid) -> Array:
        """Return the float32 codes of x."""
        return super().quantized(x, grid) if grid.bits > 8 else quantize_away(x, grid.qparams)

    def bent(self, op: Activation, x: Array, target: ActivationGrid) -> Array:
        """Return the value of a function of codes on its own grid.

        It comes from the table, or from the float arithmetic of the file.

        Args:
            op: The activation.
            x: Its input, in real numbers.
            target: Grid of its value.
        """
        source = self.policy.grids[op.inputs[0]]
        if op.inputs[0] in self._coded and target.bits <= 8:
            if op.name not in self._scales:
                self._scales[op.name] = steady_scale(op, source, target)
            if (scale := self._scales[op.name]) is None:
                return super().bent(op, x, target)
            x = (self.quantized(x, source) - np.float32(source.zero_point)) * scale
        codes = self.quantized(apply(op, [x]), target)
        return np.asarray(dequantize(codes, target.qparams), np.float32)

    def requantized(self, op: Linear, sums: Array, multiplier: Array, source: ActivationGrid) -> Array:
        """Return the codes of a hidden layer from its integer sums.

        Args:
            op: The layer.
            sums: Sums of codes of `source` and the bias.
            multiplier: Multipliers, broadcast to the sums.
            source: Grid of its input.
        """
        target = self.policy.grids[op.name]
        assert isinstance(op.weight, QuantizedTensor)
        bias, _ = requantization(op, op.weight, source, target)
        anywhere = any(isinstance(reader, LayerNorm) for reader in self._readers[op.name])
        if in_floats(op.weight, source, bias, multiplier, anywhere=anywhere):
            return super().requantized(op, sums, multiplier, source)
        return requantize_twice(
            sums, multiplier, target.zero_point, *map(int, (target.qparams.qmin, target.qparams.qmax))
        )


class Int16x8(Reference):
    """The reference in the arithmetic "int16x8", for files of int8 weights and int16 activations."""

    def __init__(self, policy: QuantizedPolicy, batch: int) -> None:
        super().__init__(policy, batch)
        self.grids = int16x8.grids(policy)

    def encoded(self, observations: Array) -> Array:
        """Return the file's input, int16 [B, 1, 1, K], for raw observations."""
        name = int16x8.entry(self.policy)
        codes = self.quantized(self.trace(observations)[name], self.grids[name])
        return codes.astype(np.int16).reshape(len(codes), 1, 1, -1)

    def decoded(self, codes: Array) -> Array:
        """Return the network's outputs, float32 [B, n], for the file's output."""
        return codes.reshape(len(codes), -1).astype(np.float32) * np.float32(self.grids[self.policy.output].scale)

    def _other(self, op: Op, inputs: list[Array]) -> Array:
        if op.name not in self.grids or op.name == int16x8.entry(self.policy) or not isinstance(op, Activation):
            return apply(op, inputs)
        source = self.grids[op.inputs[0]]
        codes = int16x8.activation(op.kind, self.quantized(inputs[0], source).astype(np.int64), source)
        return codes.astype(np.float32) * np.float32(self.grids[op.name].scale)

    def _linear(self, op: Linear, x: Array) -> Array:
        source, target = self.grids[op.inputs[0]], self.grids[op.name]
        bias, multiplier = int16x8.layer(op, source, target)
        codes = requantize_narrow(self._accumulate(op, x, self.quantized(x, source), 0.0) + bias, multiplier)
        return codes.astype(np.float32) * np.float32(target.scale)


ARITHMETICS: Mapping[str, type[Reference]] = {
    "f32-rne": Reference,
    "q31-double": Q31Double,
    "int16x8": Int16x8,
}
"""Reference for each arithmetic, by name."""


def load(policy: QuantizedPolicy, batch: int, arithmetic: str = "f32-rne") -> Reference:
    """Return the policy ready to run in numpy.

    Args:
        policy: The policy.
        batch: Rows of a call.
        arithmetic: One of `ARITHMETICS`.
    """
    return ARITHMETICS[arithmetic](policy, batch)


def _integers(op: Linear) -> Array:
    """Return the weight as a matrix [out, K]: exact integers in float64, or float32 values."""
    if isinstance(op.weight, QuantizedTensor):
        along = (-1,) + (1,) * (op.weight.codes.ndim - 1)
        matrix = op.weight.codes.astype(np.float64) - op.weight.zero_point.reshape(along)
    else:
        matrix = as_float32(op.weight)
    return np.ascontiguousarray(matrix.reshape(matrix.shape[0], -1))


def _per_row(op: Linear, x: Array, weight: Array) -> Array:
    """Return x (*) weight without bias, row by row: BLAS sums a single row in another order than a row among many."""
    y = np.stack([row @ weight.T for row in unfold(op, x)])
    return fold(op, y, x.shape[1:])


def _channels(values: Array, ndim: int) -> Array:
    """Return [out] shaped to broadcast along axis 1 of a value with `ndim` axes."""
    return values.reshape(-1, *(1,) * (ndim - 2))


def _rows(values: Array, ndim: int) -> Array:
    """Return [B, 1] shaped to broadcast along axis 0 of a value with `ndim` axes."""
    return values.reshape(-1, *(1,) * (ndim - 1))
