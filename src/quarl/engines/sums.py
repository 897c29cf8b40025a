"""Integer sums of a layer in static mode: their real values, and bounds of their size.

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
"""Number of weights up to which float kernels are as fast as integer ones."""
LARGEST_DISTANCE = 255
"""Distance between two int8 codes: the largest distance from the zero point in a row quantized at run time."""


def check_bits(policy: QuantizedPolicy, runtime: str) -> None:
    """Refuse activations of other than 8 bits, for which the runtime has no kernels.

    Wider observations are accepted.
    """
    if policy.spec.activation_bits not in (None, 8):
        raise UnsupportedError(f"{runtime} runs 8-bit activations only, not {policy.spec.precision}")
    if (name := narrowed(policy)) is not None:
        raise UnsupportedError(f"{runtime} runs 8-bit activations only, {name!r} has {policy.grids[name].bits}")


def symmetric(op: Linear, runtime: str) -> QuantizedTensor:
    """Return the layer's codes, int8 and without zero points.

    Raises UnsupportedError if the runtime cannot take them.
    """
    weight = op.weight
    if not isinstance(weight, QuantizedTensor) or weight.codes.dtype != np.int8:
        raise UnsupportedError(f"{runtime} runs weights of 8 bits or fewer only, layer {op.name!r} has others")
    if weight.zero_point.any():
        raise UnsupportedError(f"{runtime} runs symmetric weights only, layer {op.name!r} has affine ones")
    if weight.codes.min(initial=0) < -127:  # kernels that add two products in 16 bits would overflow
        raise UnsupportedError(f"{runtime} runs symmetric weights only, layer {op.name!r} has the code -128")
    return weight


def unit(weight: QuantizedTensor, source: ActivationGrid) -> Array:
    """Return the real value of one unit in the sums of codes of `source` and of the weight, float64 [out]."""
    return np.float64(np.float32(source.scale)) * weight.scale.astype(np.float64)


def requantization(
    op: Linear, weight: QuantizedTensor, source: ActivationGrid, target: ActivationGrid
) -> tuple[Array, Array]:
    """Return the bias in units of the sums, and the multipliers of quant.affine.requantize.

    The bias is float64 [out], the multipliers are float32 [out].

    Args:
        op: The layer.
        weight: Its codes.
        source: Grid of its input.
        target: Grid of its output.
    """
    scale = unit(weight, source)
    return np.rint(op.bias.astype(np.float64) / scale), (scale / np.float64(np.float32(target.scale))).astype(
        np.float32
    )


def in_floats(
    weight: QuantizedTensor, source: ActivationGrid, bias: Array, multiplier: Array, *, anywhere: bool
) -> bool:
    """Return whether LiteRT's float kernels, in which they are exact, sum the codes of a hidden layer.

    Its integer kernels take no multiplier of LARGEST or more. And those of TFLite Micro round twice, which matters if
    codes must be the same everywhere.

    Args:
        weight: Codes of the weights.
        source: Grid of the input.
        bias: Bias in units of the sums.
        multiplier: Multipliers of the requantization.
        anywhere: Codes must be the same in TFLite Micro.
    """
    small = weight.codes.size <= SMALL and fits(weight.codes, EXACT, source.reach, bias)
    return source.bits > 8 or (anywhere and small) or bool(multiplier.max() >= LARGEST)


def fits(codes: Array, limit: int, distance: int = LARGEST_DISTANCE, bias: Array | float = 0.0) -> bool:
    """Return whether all sums of a row of codes times integers, plus its bias, stay within a limit.

    The range of the codes' type answers this for most layers, so an actor does not wait while its new weights are
    checked.

    Args:
        codes: Integer codes [out, ...].
        limit: Largest absolute value of a sum.
        distance: Largest absolute value of the integers.
        bias: Bias in units of the sums.
    """
    most = codes[0].size * -int(np.iinfo(codes.dtype).min) * distance
    if most + np.abs(bias).max() <= limit:
        return True
    rows = np.abs(codes.reshape(len(codes), -1), dtype=np.float32).sum(axis=1, dtype=np.float64)
    return bool((rows * distance + np.abs(bias)).max() <= limit)


def check_int32(layer: str, codes: Array, distance: int = LARGEST_DISTANCE, bias: Array | float = 0.0) -> None:
    """Refuse a layer whose sums leave the 32 bits in which integer kernels add.

    Args:
        layer: Name of the layer.
        codes: Integer codes [out, ...].
        distance: Largest absolute value of the inputs.
        bias: Bias in units of the sums.
    """
    if not fits(codes, INT32, distance, bias):
        raise UnsupportedError(f"the integer sums of layer {layer!r} need more than 32 bits")
