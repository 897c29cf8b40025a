"""What a layer's sums of integers stand for in static mode, and how large they can become.

Kernels add in 32 bits, or in float32 as far as that is exact.
"""

from __future__ import annotations

import numpy as np

from quarl.arrays import Array
from quarl.errors import UnsupportedError
from quarl.policy.graph import ActivationGrid, QuantizedPolicy
from quarl.policy.grids import EXACT, narrowed
from quarl.policy.operators import Linear, QuantizedTensor

INT32 = 2**31 - 1
LARGEST = 256.0
"""XNNPACK's bound on input_scale * weight_scale / output_scale."""
SMALL = 2**14
"""Weights that float kernels multiply in the time of integer ones."""
LARGEST_DISTANCE = 255
"""From one int8 code to another: how far a row that is quantized at run time may reach from its zero point."""


def check_bits(policy: QuantizedPolicy, runtime: str) -> None:
    """Refuses activations of other than 8 bits, which the runtime has no kernels for; wider observations may pass."""
    if policy.spec.activation_bits not in (None, 8):
        raise UnsupportedError(f"{runtime} runs 8-bit activations only, not {policy.spec.precision}")
    if (name := narrowed(policy)) is not None:
        raise UnsupportedError(f"{runtime} runs 8-bit activations only, {name!r} has {policy.grids[name].bits}")


def symmetric(op: Linear, runtime: str) -> QuantizedTensor:
    """The layer's codes, int8 and without zero points; UnsupportedError for others, which the runtime cannot take."""
    weight = op.weight
    if not isinstance(weight, QuantizedTensor) or weight.codes.dtype != np.int8:
        raise UnsupportedError(f"{runtime} runs weights of 8 bits or fewer only, layer {op.name!r} has others")
    if weight.zero_point.any():
        raise UnsupportedError(f"{runtime} runs symmetric weights only, layer {op.name!r} has affine ones")
    return weight


def unit(weight: QuantizedTensor, source: ActivationGrid) -> Array:
    """float64 [out]: what one unit of the sums of codes of `source` and of the weight stands for."""
    return np.float64(np.float32(source.scale)) * weight.scale.astype(np.float64)


def requantisation(
    op: Linear, weight: QuantizedTensor, source: ActivationGrid, target: ActivationGrid
) -> tuple[Array, Array]:
    """The bias in units of the sums, float64 [out], and the multipliers of quant.affine.requantize, float32 [out]."""
    scale = unit(weight, source)
    return np.rint(op.bias.astype(np.float64) / scale), (scale / np.float64(np.float32(target.scale))).astype(
        np.float32
    )


def in_floats(
    weight: QuantizedTensor, source: ActivationGrid, bias: Array, multiplier: Array, *, anywhere: bool
) -> bool:
    """Whether LiteRT's float kernels, in which they are exact, sum the codes of a hidden layer, not its integer ones.

    Those take no multiplier of LARGEST; and TFLite Micro's round twice, where codes are to be the same `anywhere`.
    """
    small = weight.codes.size <= SMALL and fits(weight.codes, EXACT, source.reach, bias)
    return source.bits > 8 or (anywhere and small) or bool(multiplier.max() >= LARGEST)


def fits(codes: Array, limit: int, distance: int = LARGEST_DISTANCE, bias: Array | float = 0.0) -> bool:
    """Whether no sum of a row of codes [out, ...] times integers up to `distance`, and of its bias, exceeds `limit`.

    What the codes' type could hold answers for most layers: an actor stands still while its new weights are looked at.
    """
    most = codes[0].size * -int(np.iinfo(codes.dtype).min) * distance
    if most + np.abs(bias).max() <= limit:
        return True
    rows = np.abs(codes.reshape(len(codes), -1), dtype=np.float32).sum(axis=1, dtype=np.float64)
    return bool((rows * distance + np.abs(bias)).max() <= limit)


def check_int32(layer: str, codes: Array, distance: int = LARGEST_DISTANCE, bias: Array | float = 0.0) -> None:
    """Refuses a layer whose sums leave the 32 bits that integer kernels add in."""
    if not fits(codes, INT32, distance, bias):
        raise UnsupportedError(f"the integer sums of layer {layer!r} need more than 32 bits")
