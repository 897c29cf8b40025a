"""Affine quantization: the only module that turns real numbers into integer codes.

All functions accept numpy arrays and torch tensors. They call only methods that both libraries spell alike (`round` is
half-to-even in both). So training, calibration and engines share one rounding rule, and this module needs no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from quarl.arrays import Array
from quarl.quant.spec import integer_range

TINY = float(np.finfo(np.float32).tiny)
"""Smallest scale: 1/scale of a denormal float32 overflows."""
MID_RISE = -0.5
"""Zero point of a mid-rise grid, whose levels are ±0.5, ±1.5, ... steps."""


@dataclass(frozen=True, slots=True)
class QParams:
    """Scale and zero point of a tensor (scalars) or of its channels (arrays that broadcast against it)."""

    scale: Any
    zero_point: Any
    """The int 0 for a symmetric grid; the float MID_RISE for a grid without a level at 0."""
    qmin: int
    qmax: int

    @property
    def mid_rise(self) -> bool:
        """Return whether the grid has no level at 0, so that each of its 2**n levels has an opposite."""
        return type(self.zero_point) is float


def choose_qparams(low: Array, high: Array, bits: int, *, symmetric: bool, mid_rise: bool = False) -> QParams:
    """Return parameters whose grid covers [low, high] and contains 0 exactly (Jacob et al. 2018, section 2.1).

    Empty ranges, infinities and denormals give a finite positive scale. NaN counts as 0.

    Args:
        low: Lower ends of the ranges, a scalar or one per channel.
        high: Upper ends, of the same shape.
        bits: Width of the codes.
        symmetric: Whether the zero point is 0.
        mid_rise: Whether the grid leaves out 0. Two bits then have four levels instead of three (Gersho and Gray 1992,
            section 5.2).
    """
    limit = np.float64(np.finfo(np.float32).max) / 4  # keeps high - low finite in float32
    low = np.fmax(np.fmin(np.asarray(low, np.float64), 0.0), -limit)  # fmin and fmax ignore NaN
    high = np.fmin(np.fmax(np.asarray(high, np.float64), 0.0), limit)
    qmin, qmax = integer_range(bits, symmetric=symmetric and not mid_rise)
    if mid_rise:  # a row of zeros has no level at 0, so it gets the smallest step
        step = np.maximum(np.maximum(-low, high) / (qmax - MID_RISE), 2 * TINY)
        return QParams(step.astype(np.float32), MID_RISE, qmin, qmax)
    scale = np.maximum(-low, high) / qmax if symmetric else (high - low) / (qmax - qmin)
    scale = np.maximum(np.where(scale > 0, scale, 1.0), TINY).astype(np.float32)
    if symmetric:
        return QParams(scale, 0, qmin, qmax)
    zero_point = np.clip(np.round(qmin - low / scale), qmin, qmax).astype(np.int32)
    return QParams(scale, zero_point, qmin, qmax)


def unit_grid(bits: int, *, mid_rise: bool) -> QParams:
    """Return the symmetric grid of step 1 and that many bits."""
    return QParams(1.0, MID_RISE if mid_rise else 0, *integer_range(bits, symmetric=not mid_rise))


def quantize(x: Any, q: QParams) -> Any:
    """Return the integer codes of x as floats of its type and shape: clamp(round(x / scale) + zero_point).

    Ties round to even, as in ONNX's QuantizeLinear. The caller stores the codes in an integer type for `qmin..qmax`.

    >>> quantize(np.float32([0.05, -0.26]), QParams(np.float32(0.1), 0, -127, 127)).tolist()
    [0.0, -3.0]
    """
    if q.mid_rise:
        return (x / q.scale + q.zero_point).round().clip(q.qmin, q.qmax)
    codes = (x / q.scale).round()
    if _is_affine(q):
        codes = codes + q.zero_point
    return codes.clip(q.qmin, q.qmax)


def _is_affine(q: QParams) -> bool:
    """Return False for a symmetric grid, which saves a pass over the numbers."""
    return not (isinstance(q.zero_point, int) and q.zero_point == 0)


def dequantize(codes: Any, q: QParams) -> Any:
    """Return the real numbers of `codes`: (codes - zero_point) * scale, float32."""
    return (codes - q.zero_point) * q.scale if _is_affine(q) else codes * q.scale


def fake_quantize(x: Any, q: QParams) -> Any:
    """Return x moved to the nearest level of the grid, in float: the forward pass of quantization-aware training.

    Equals `dequantize(quantize(x))` in fewer passes, because moving an integer zero point into the bounds is exact.
    """
    if q.mid_rise:
        return dequantize(quantize(x, q), q)
    return (x / q.scale).round().clip(q.qmin - q.zero_point, q.qmax - q.zero_point) * q.scale


def quantize_rows(rows: Array, bits: int = 8) -> tuple[Array, QParams]:
    """Quantize each row of [B, K] on its own; return codes [B, K] with their scales and zero points [B, 1], float32.

    The arithmetic is XNNPACK's (`qd8`), in float32 and in its order, so the integer reference and the LiteRT kernels
    agree on every code. The range includes 0. The zero point is taken from the end of the range that gives the smaller
    error. Unlike `quantize`, rows are multiplied by the reciprocal of the scale. That rounds about one code in some
    thousand differently.
    """
    qmin, qmax = (np.float32(v) for v in integer_range(bits, symmetric=False))
    low = np.minimum(rows.min(axis=1, keepdims=True, initial=0.0), np.float32(0)).astype(np.float32)
    high = np.maximum(rows.max(axis=1, keepdims=True, initial=0.0), np.float32(0)).astype(np.float32)
    width = high - low
    wide = width > np.float32(TINY) * (qmax - qmin)  # 1/scale of a narrower row would overflow: treat it as zeros
    inverse = np.where(wide, (qmax - qmin) / np.where(wide, width, np.float32(1)), np.float32(1))
    low_scaled, high_scaled = low * inverse, high * inverse
    from_low, from_high = qmin + low_scaled, qmax + high_scaled
    zero_point = np.where(from_low + from_high > 0, qmin - low_scaled, qmax - high_scaled)
    zero_point = np.clip(zero_point, qmin, qmax).round().astype(np.float32)
    codes = ((rows * inverse).round() + zero_point).clip(qmin, qmax)
    return codes, QParams((np.float32(1) / inverse).astype(np.float32), zero_point, int(qmin), int(qmax))


def requantize(accumulator: Array, multiplier: Array, zero_point: int, qmin: int, qmax: int) -> Array:
    """Return codes of the next layer from int32 accumulators: clamp(round(float32(acc) * multiplier) + zero_point).

    Computes one float32 product with ties to even, as XNNPACK's fp32 requantization.

    Args:
        accumulator: Integer sums of products.
        multiplier: float32 value of input_scale * weight_scale / output_scale, per channel.
        zero_point: Zero point of the next layer's codes.
        qmin: Smallest code.
        qmax: Largest code.
    """
    scaled = accumulator.astype(np.float32) * multiplier
    codes: Array = scaled.round() + np.float32(zero_point)
    return codes.clip(qmin, qmax)


def quantize_away(x: Array, q: QParams) -> Array:
    """Quantize with ties away from zero, like C's round() in TensorFlow Lite's reference kernels.

    >>> quantize_away(np.float32([0.5, -2.5, 2.4]), QParams(np.float32(1), 0, -127, 127)).tolist()
    [1.0, -3.0, 2.0]
    """
    steps = (x / q.scale).astype(np.float64)  # adding a half is exact in float64
    codes: Array = np.copysign(np.floor(np.abs(steps) + 0.5), steps) + q.zero_point
    return codes.clip(q.qmin, q.qmax).astype(np.float32)


def requantize_twice(accumulator: Array, multiplier: Array, zero_point: int, qmin: int, qmax: int) -> Array:
    """Requantize in integers, like TensorFlow Lite's reference kernels (Jacob et al. 2018, section 2.2).

    The multiplier becomes a 31-bit fraction and a power of two. The product is rounded twice. First it is rounded to
    the high half of the doubled product, with ties away from zero for positive numbers only. Then the shift by the
    power of two rounds it, with ties away from zero.

    Args:
        accumulator: Integer sums of products.
        multiplier: As in `requantize`.
        zero_point: Zero point of the next layer's codes.
        qmin: Smallest code.
        qmax: Largest code.
    """
    fixed, exponent = _fixed_point(multiplier.astype(np.float64))
    product = (accumulator.astype(np.int64) << np.maximum(exponent, 0)) * fixed
    nudged = product + np.where(product >= 0, 1 << 30, 1 - (1 << 30))
    high = np.sign(nudged) * (np.abs(nudged) >> 31)
    shift = np.clip(-exponent, 0, 31)
    mask = (1 << shift.astype(np.int64)) - 1
    rounded_up = (high & mask) > (mask >> 1) + (high < 0)
    codes: Array = (high >> shift) + rounded_up + zero_point
    return codes.clip(qmin, qmax).astype(np.float32)


def _fixed_point(multiplier: Array) -> tuple[Array, Array]:
    """Return float64 multipliers as 31-bit fractions, int64, and powers of two, as TensorFlow Lite does."""
    fraction, exponent = np.frexp(multiplier)
    return np.where(exponent < -31, 0, np.floor(fraction * 2.0**31 + 0.5)).astype(np.int64), exponent


def requantize_narrow(accumulator: Array, multiplier: Array) -> Array:
    """Requantize to int16 in integers, like TensorFlow Lite's kernels with 64-bit sums.

    The multiplier becomes a 15-bit fraction and a power of two. The product is rounded once, with ties upward.

    Args:
        accumulator: Integer sums of products, below 2**47.
        multiplier: float64 value of input_scale * weight_scale / output_scale, below 2**7.
    """
    fixed, exponent = _fixed_point(multiplier)
    shift = 15 - np.maximum(exponent, -31).astype(np.int64)
    product = accumulator.astype(np.int64) * np.minimum((fixed + 2**15) >> 16, 2**15 - 1)
    return np.asarray(((product + (1 << (shift - 1))) >> shift).clip(-(2**15), 2**15 - 1))


def quarl_2020(weights: Array, bits: int) -> tuple[Array, np.float32]:
    """Return (codes, step) of the formula in the original `new_ptq.py`.

    codes * step equals its fake-quantized tensor bit for bit. step = (|min| + |max|) / 2**n and codes = rint(W / step),
    which are anchored at 0 and never clipped: up to 2**n + 1 levels. A tensor of zeros, which gave NaN in the original,
    keeps its zeros.
    """
    low, high = weights.min(initial=np.inf), weights.max(initial=-np.inf)
    step = np.float32((np.abs(low) + np.abs(high)) / np.float32(2**bits))
    if not 0 < step < np.inf:
        return np.zeros_like(weights), np.float32(1)
    return np.rint(weights / step), step
