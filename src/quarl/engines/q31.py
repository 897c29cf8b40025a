"""The reference in the arithmetic of TFLite Micro's kernels, for static .tflite files in it.

Sums of codes are requantised by integers, rounded twice, where no float kernel sums them; float numbers become codes of
8 bits with ties away from zero, and wider ones with ties to even.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from quarl.arrays import Array
from quarl.engines.lookup_tables import steady_scale
from quarl.engines.reference import Reference, apply
from quarl.engines.sums import in_floats, requantisation
from quarl.policy.graph import ActivationGrid, QuantizedPolicy, readers
from quarl.policy.operators import Activation, Flatten, LayerNorm, Linear, Pool2d, QuantizedTensor
from quarl.quant.affine import dequantize, quantize_away, requantize_twice


class Q31Double(Reference):
    """A policy interpreted operator by operator, in the arithmetic "q31-double"."""

    def __init__(self, policy: QuantizedPolicy, batch: int) -> None:
        super().__init__(policy, batch)
        self._readers = readers(policy)
        self._scales: dict[str, np.float32 | None] = {}
        self._coded = {op.name for op in policy.linear} - self._final
        """Values that are nothing but codes in the file."""
        for op in policy.ops:
            kept = isinstance(op, Activation | Flatten | Pool2d) and op.name in policy.grids
            if kept and op.inputs[0] in self._coded and policy.grids[op.name].bits <= 8:
                self._coded.add(op.name)

    def quantized(self, x: Array, grid: ActivationGrid) -> Array:
        """float32 codes of x."""
        return super().quantized(x, grid) if grid.bits > 8 else quantize_away(x, grid.qparams)

    def bent(self, op: Activation, x: Array, target: ActivationGrid) -> Array:
        """What a function of codes gives on its own grid: the table, or the float road that the file takes to it."""
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
        """Codes of a hidden layer from its sums."""
        target = self.policy.grids[op.name]
        assert isinstance(op.weight, QuantizedTensor)
        bias, _ = requantisation(op, op.weight, source, target)
        anywhere = any(isinstance(reader, LayerNorm) for reader in self._readers[op.name])
        if in_floats(op.weight, source, bias, multiplier, anywhere=anywhere):
            return super().requantized(op, sums, multiplier, source)
        return requantize_twice(
            sums, multiplier, target.zero_point, *map(int, (target.qparams.qmin, target.qparams.qmax))
        )


ARITHMETICS: Mapping[str, type[Reference]] = {"f32-rne": Reference, "q31-double": Q31Double}
"""By name: the reference that computes in it."""
