"""Affine quantisation: the one place where a real number becomes an integer code.

Every function takes numpy arrays or torch tensors alike: it uses only the methods that both spell the same way
(`round` is half-to-even in both), so training, calibration and engines share one rounding rule without this
module importing torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from quarl.arrays import Array
from quarl.quant.spec import integer_range

TINY = float(np.finfo(np.float32).tiny)
"""The smallest scale: below the normal float32 numbers 1/scale overflows."""
MID_RISE = -0.5
"""The zero point of a grid whose levels lie on both sides of 0 and not on it: half a step, one and a half, ..."""


@dataclass(frozen=True, slots=True)
class QParams:
    """Scale and zero point of a tensor (scalars) or of its channels (arrays that broadcast against it)."""

    scale: Any
    zero_point: Any
    """0, the int, where the grid is symmetric; MID_RISE, the float, where it has no level at 0."""
    qmin: int
    qmax: int

    @property
    def mid_rise(self) -> bool:
        """Whether the grid has no level at 0, and so all 2**n codes have their opposite."""
        return type(self.zero_point) is float


def choose_qparams(low: Array, high: Array, bits: int, *, symmetric: bool, mid_rise: bool = False) -> QParams:
    """Parameters whose grid covers [low, high] and holds 0 exactly (Jacob et al. 2018, section 2.1).

    low, high: float arrays of one shape (scalars, or one per channel). Ranges without width, with infinities or
    with denormals get a finite positive scale; NaN counts as 0. mid_rise: no level is 0, and two bits give four levels
    where a symmetric grid with a 0 has three (Gersho and Gray 1992, section 5.2).
    """
    limit = np.float64(np.finfo(np.float32).max) / 4  # keeps high - low finite in float32
    low = np.fmax(np.fmin(np.asarray(low, np.float64), 0.0), -limit)  # of NaN and a number these take the number
    high = np.fmin(np.fmax(np.asarray(high, np.float64), 0.0), limit)
    qmin, qmax = integer_range(bits, symmetric=symmetric and not mid_rise)
    if mid_rise:  # a row of zeros gets the smallest numbers there are: it has no level for them
        step = np.maximum(np.maximum(-low, high) / (qmax - MID_RISE), 2 * TINY)
        return QParams(step.astype(np.float32), MID_RISE, qmin, qmax)
    scale = np.maximum(-low, high) / qmax if symmetric else (high - low) / (qmax - qmin)
    scale = np.maximum(np.where(scale > 0, scale, 1.0), TINY).astype(np.float32)
    if symmetric:
        return QParams(scale, 0, qmin, qmax)
    zero_point = np.clip(np.round(qmin - low / scale), qmin, qmax).astype(np.int32)
    return QParams(scale, zero_point, qmin, qmax)


def unit_grid(bits: int, *, mid_rise: bool) -> QParams:
    """The symmetric grid of step 1 that has so many bits."""
    return QParams(1.0, MID_RISE if mid_rise else 0, *integer_range(bits, symmetric=not mid_rise))


def quantize(x: Any, q: QParams) -> Any:
    """Integer codes of x, as floats of x's kind and shape: clamp(round(x / scale) + zero_point), ties to even.

    Source: ONNX QuantizeLinear. The caller stores them in the integer type that holds `qmin..qmax`.

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
    """False for a symmetric grid, which saves a pass over the numbers."""
    return not (isinstance(q.zero_point, int) and q.zero_point == 0)


def dequantize(codes: Any, q: QParams) -> Any:
    """The real numbers that `codes` stand for: (codes - zero_point) * scale, float32."""
    return (codes - q.zero_point) * q.scale if _is_affine(q) else codes * q.scale


def fake_quantize(x: Any, q: QParams) -> Any:
    """x moved to the nearest point of the grid, still float (the forward pass of quantisation-aware training).

    `dequantize(quantize(x))` in fewer passes: integers lose nothing when the zero point moves into the bounds.
    """
    if q.mid_rise:
        return dequantize(quantize(x, q), q)
    return (x / q.scale).round().clip(q.qmin - q.zero_point, q.qmax - q.zero_point) * q.scale


def quantize_rows(rows: Array, bits: int = 8) -> tuple[Array, QParams]:
    """(codes [B, K], their scale and zero point [B, 1]), all float32, of rows [B, K] quantised each on its own.

    The arithmetic is XNNPACK's (`qd8`), in float32 and in its order, so that the integer reference and the LiteRT
    kernels agree on every code: the range includes 0, the zero point is that of the two candidates (from the low or
    the high end) which errs less, and unlike `quantize` it multiplies by the reciprocal of the scale, which once in
    some thousand codes rounds to the other side.
    """
    qmin, qmax = (np.float32(v) for v in integer_range(bits, symmetric=False))
    low = np.minimum(rows.min(axis=1, keepdims=True, initial=0.0), np.float32(0)).astype(np.float32)
    high = np.maximum(rows.max(axis=1, keepdims=True, initial=0.0), np.float32(0)).astype(np.float32)
    width = high - low
    wide = width > np.float32(TINY) * (qmax - qmin)  # of a narrower row 1/scale would overflow: it counts as zeros
    inverse = np.where(wide, (qmax - qmin) / np.where(wide, width, np.float32(1)), np.float32(1))
    low_scaled, high_scaled = low * inverse, high * inverse
    from_low, from_high = qmin + low_scaled, qmax + high_scaled
    zero_point = np.where(from_low + from_high > 0, qmin - low_scaled, qmax - high_scaled)
    zero_point = np.clip(zero_point, qmin, qmax).round().astype(np.float32)
    codes = ((rows * inverse).round() + zero_point).clip(qmin, qmax)
    return codes, QParams((np.float32(1) / inverse).astype(np.float32), zero_point, int(qmin), int(qmax))


def requantize(accumulator: Array, multiplier: Array, zero_point: int, qmin: int, qmax: int) -> Array:
    """int32 accumulators to the next layer's codes: clamp(round(float32(acc) * multiplier) + zero_point).

    One float32 product, ties to even, as XNNPACK's fp32 requantisation does it; multiplier is the float32 value of
    input_scale * weight_scale / output_scale, per channel.
    """
    scaled = accumulator.astype(np.float32) * multiplier
    codes: Array = scaled.round() + np.float32(zero_point)
    return codes.clip(qmin, qmax)


def quantize_away(x: Array, q: QParams) -> Array:
    """`quantize` with ties away from zero, as TensorFlow Lite's reference kernels round numbers: C's round().

    >>> quantize_away(np.float32([0.5, -2.5, 2.4]), QParams(np.float32(1), 0, -127, 127)).tolist()
    [1.0, -3.0, 2.0]
    """
    steps = (x / q.scale).astype(np.float64)  # in which a half is added without rounding
    codes: Array = np.copysign(np.floor(np.abs(steps) + 0.5), steps) + q.zero_point
    return codes.clip(q.qmin, q.qmax).astype(np.float32)


def requantize_twice(accumulator: Array, multiplier: Array, zero_point: int, qmin: int, qmax: int) -> Array:
    """`requantize` in integers, as TensorFlow Lite's reference kernels do it (Jacob et al. 2018, section 2.2).

    The multiplier is a fraction of 31 bits and a power of two. The high half of the doubled product is rounded, ties
    away from zero but for the negative ones, then what the power shifts out of it, ties away from zero.
    """
    fraction, exponent = np.frexp(multiplier.astype(np.float64))
    fixed = np.where(exponent < -31, 0, fraction * 2.0**31).astype(np.int64)  # 24 bits of it: exact
    product = (accumulator.astype(np.int64) << np.maximum(exponent, 0)) * fixed
    nudged = product + np.where(product >= 0, 1 << 30, 1 - (1 << 30))
    high = np.sign(nudged) * (np.abs(nudged) >> 31)
    shift = np.clip(-exponent, 0, 31)
    mask = (1 << shift.astype(np.int64)) - 1
    rounded_up = (high & mask) > (mask >> 1) + (high < 0)
    codes: Array = (high >> shift) + rounded_up + zero_point
    return codes.clip(qmin, qmax).astype(np.float32)


def quarl_2020(weights: Array, bits: int) -> tuple[Array, np.float32]:
    """(codes, step) of the original `new_ptq.py` formula; codes * step is its fake-quantised tensor, bit for bit.

    step = (|min| + |max|) / 2**n, codes = rint(W / step): anchored at 0, never clipped, so up to 2**n + 1 levels.
    A zero tensor, which the original turned into NaN, keeps its zeros.
    """
    low, high = weights.min(initial=np.inf), weights.max(initial=-np.inf)
    step = np.float32((np.abs(low) + np.abs(high)) / np.float32(2**bits))
    if not 0 < step < np.inf:
        return np.zeros_like(weights), np.float32(1)
    return np.rint(weights / step), step
