"""Effects of quantization on one tensor: noise, clipping, grid levels and histograms."""

from __future__ import annotations

import numpy as np

from quarl.arrays import Array
from quarl.quant.affine import QParams, dequantize

HISTOGRAM_BINS = 100
MAX_GRID_LEVELS = 4096
"""Grids with more levels are not listed: drawn, they would be a solid block."""


def sqnr_db(x: Array, quantized: Array) -> float:
    """Return the signal-to-quantization-noise ratio in decibels: 10 log10(sum x^2 / sum (x - quantized)^2).

    The ratio is infinite if the two are equal, and minus infinity if only x is all zero.
    """
    signal = float(np.sum(np.square(x, dtype=np.float64)))
    noise = float(np.sum(np.square(x.astype(np.float64) - quantized)))
    if noise == 0.0:
        return float("inf")
    return float(10.0 * np.log10(signal / noise)) if signal > 0.0 else float("-inf")


def saturation(x: Array, q: QParams) -> float:
    """Return the share of x that is clipped, 0..1: its nearest level would be outside qmin..qmax."""
    codes = (x.astype(np.float64) / q.scale).round() + q.zero_point
    return float(np.mean((codes < q.qmin) | (codes > q.qmax))) if x.size else 0.0


def coarsest_grid(q: QParams) -> Array:
    """Return all levels of the channel with the widest step, ascending, float32."""
    if q.qmax - q.qmin >= MAX_GRID_LEVELS:
        return np.zeros(0, np.float32)
    scale, zero_point = np.broadcast_arrays(np.float32(q.scale), np.float32(q.zero_point))
    widest = int(np.argmax(scale))
    widest_channel = QParams(scale.reshape(-1)[widest], zero_point.reshape(-1)[widest], q.qmin, q.qmax)
    return np.asarray(dequantize(np.arange(q.qmin, q.qmax + 1, dtype=np.float32), widest_channel), np.float32)


def histogram(x: Array, bins: int = HISTOGRAM_BINS) -> tuple[Array, Array]:
    """Return counts int64 [bins] of x and the bin edges float64 [bins + 1], from the smallest to the largest.

    If float64 cannot split the range of x into that many bins, the range is widened.
    """
    low, high = float(x.min()), float(x.max())
    room = bins * 4 * np.spacing(max(abs(low), abs(high)))
    if high - low < room:
        # numpy does the same if all numbers are equal
        reach = max(room, 0.5 if low == high else 0.0)
        low, high = low - reach, high + reach
    counts, edges = np.histogram(x.astype(np.float64), bins=bins, range=(low, high))
    return counts, edges
