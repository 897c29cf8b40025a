"""A static policy as an .onnx file of float32 operators between QuantizeLinear and DequantizeLinear pairs.

Compilers for accelerators read this form. Every runtime chooses its own integers for it and adds in its own order, so
codes next to a rounding tie may fall to either side. Therefore the arithmetic "qdq" is compared with the reference's
within a tolerance. Few runtimes have QuantizeLinear for an observation of more than 8 bits. Mul, Round and Clip count
its steps instead, and the results of its layers are rounded before they become codes, the same everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from quarl.arrays import Array
from quarl.engines.onnx import weightless
from quarl.engines.onnx.translation import Translation, refuse
from quarl.engines.sums import requantization, unit
from quarl.errors import UnsupportedError
from quarl.policy import operators
from quarl.policy.graph import ActivationGrid, QuantizedPolicy, readers
from quarl.policy.operators import Linear, QuantizedTensor


def write(policy: QuantizedPolicy, *, acts: bool = True, metadata: Mapping[str, str] | None = None) -> bytes:
    """Return the .onnx file: "observation" [batch, *shape] to "output" float32 [batch, n].

    Its outputs are those of `engines.onnx.write` if it acts.

    Weights are int8 codes, whatever their bits.

    Args:
        policy: The policy.
        acts: The output is what acts, as in `engines.onnx.write`.
        metadata: Texts by name to store in the file.

    Raises:
        UnsupportedError: The policy is not static, or `engines.onnx.write` refuses its precision or an operator.
    """
    if policy.spec.mode != "static" or policy.spec.activation_bits is None:
        raise UnsupportedError("onnx-qdq takes static int8 policies: use mode static, or the target onnx")
    refuse(policy)
    return _Pairs(policy, metadata).run(acts=acts)


class _Pairs(Translation):
    """The translation of one policy into a file whose values are all float32 tensors."""

    def __init__(self, policy: QuantizedPolicy, metadata: Mapping[str, str] | None) -> None:
        super().__init__(policy, None, metadata)
        self._readers = readers(policy)
        self._codes: dict[str, tuple[str, ActivationGrid]] = {}
        """Codes by the tensor on an int8 grid."""

    def static_linear(self, op: Linear, weight: QuantizedTensor) -> str:
        name, scale = op.inputs[0], unit(weight, self.policy.grids[op.inputs[0]])
        source = self.policy.grids[name]
        if op.name in self.final:  # sums of integers are exact in any order, and no codes round them
            sums = self._product(op, weight, self.integers(name, source), np.ones(len(scale)))
            return self.affine(op, sums, scale.astype(np.float32))
        grid = self.policy.grids[op.name]
        steps, multiplier = requantization(op, weight, source, grid)
        if source.bits > 8:  # no integer kernel exists for these: sums and rounding are the reference's
            factor = self.file.constant(multiplier, f"{op.name}.multiplier")
            product = self.file.node("Mul", self.wide_sums(op, weight, source, steps), factor)
            return self._pair(self.file.node("Round", product), grid, 1.0)
        if self.policy.spec.symmetric_activations:  # TensorRT, for which they are, dequantizes no int32
            bias = self.file.constant(steps.astype(np.float32) * scale.astype(np.float32), f"{op.name}.bias")
        else:
            bias = self._dequantized(self.file.constant(steps.astype(np.int32), f"{op.name}.steps"), scale, np.int32)
        product = self._product(op, weight, self.on(self.real(name), source), weight.scale, bias)
        return product if self._rectified(op, grid) else self.on(product, grid)

    def activation(self, op: operators.Activation) -> str:
        value = weightless.activation(self.file, op, self.real(op.inputs[0]))
        grid = self.policy.grids.get(op.name)
        return value if grid is None or op.inputs[0] not in self.policy.grids else self.on(value, grid)

    def integers(self, name: str, grid: ActivationGrid) -> str:
        if grid.bits > 8:
            return self.counted(self.real(name), grid)
        codes, _ = self._codes[self.on(self.real(name), grid)]
        return self.file.node("DequantizeLinear", codes, *self._grid(grid, 1.0))

    def on(self, tensor: str, grid: ActivationGrid) -> str:
        if grid.bits > 8:
            return self.file.node("Mul", self.counted(tensor, grid), self.file.number(grid.scale))
        if tensor in self._codes and self._codes[tensor][1] == grid:
            return tensor
        return self._pair(tensor, grid, grid.scale)

    def _pair(self, tensor: str, grid: ActivationGrid, scale: float) -> str:
        """Return the real values of the codes of a tensor that counts `scale` per step."""
        codes = self.file.node("QuantizeLinear", tensor, *self._grid(grid, scale))
        moved = self.file.node("DequantizeLinear", codes, *self._grid(grid, grid.scale))
        self._codes[moved] = codes, grid
        return moved

    def _grid(self, grid: ActivationGrid, scale: float) -> tuple[str, str]:
        return self.file.number(scale), self.file.constant(np.int8(grid.zero_point))

    def _product(self, op: Linear, weight: QuantizedTensor, x: str, scale: Array, *bias: str) -> str:
        codes = self._dequantized(self.file.constant(weight.codes, f"{op.name}.weight"), scale, np.int8)
        if isinstance(op, operators.Conv2d):
            return self.file.node("Conv", x, codes, *bias, strides=op.stride, pads=op.padding * 2)
        return self.file.node("Gemm", x, codes, *bias, transB=1)

    def _rectified(self, op: Linear, grid: ActivationGrid) -> bool:
        """Return whether only a ReLU with the same grid reads the layer: then one pair behind both is enough."""
        match self._readers[op.name]:
            case [operators.Activation(kind="relu", name=name)]:
                return self.policy.grids.get(name) == grid
        return False

    def _dequantized(self, codes: str, scale: Array, dtype: Any) -> str:
        """Return the real values of constant codes, by channel."""
        scales, zeros = self.file.constant(scale.astype(np.float32), f"{codes}.scale"), np.zeros(len(scale), dtype)
        return self.file.node("DequantizeLinear", codes, scales, self.file.constant(zeros), axis=0)
