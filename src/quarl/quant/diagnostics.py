"""What quantisation does to one tensor: noise, clipping, the levels of its grid, and how its numbers lie."""

from __future__ import annotations

import numpy as np

from quarl.arrays import Array
from quarl.quant.affine import QParams, dequantize

HISTOGRAM_BINS = 100
MAX_GRID_LEVELS = 4096
"""Grids with more levels are not listed: drawn, they would be a solid block."""


def sqnr_db(x: Array, quantized: Array) -> float:
    """Signal-to-quantisation-noise ratio in decibels: 10 log10(sum x^2 / sum (x - quantized)^2).

    Infinite where the two are equal, minus infinity where x is all zero and `quantized` is not.
    """
    signal = float(np.sum(np.square(x, dtype=np.float64)))
    noise = float(np.sum(np.square(x.astype(np.float64) - quantized)))
    if noise == 0.0:
        return float("inf")
    return float(10.0 * np.log10(signal / noise)) if signal > 0.0 else float("-inf")


def saturation(x: Array, q: QParams) -> float:
    """Share of x whose nearest level would lie outside qmin..qmax, 0..1: what clipping moved."""
    codes = (x.astype(np.float64) / q.scale).round() + q.zero_point
    return float(np.mean((codes < q.qmin) | (codes > q.qmax))) if x.size else 0.0


def coarsest_grid(q: QParams) -> Array:
    """Every level of the channel with the widest step, ascending, float32."""
    if q.qmax - q.qmin >= MAX_GRID_LEVELS:
        return np.zeros(0, np.float32)
    scale, zero_point = np.broadcast_arrays(np.float32(q.scale), np.float32(q.zero_point))
    widest = int(np.argmax(scale))
    widest_channel = QParams(scale.reshape(-1)[widest], zero_point.reshape(-1)[widest], q.qmin, q.qmax)
    return np.asarray(dequantize(np.arange(q.qmin, q.qmax + 1, dtype=np.float32), widest_channel), np.float32)


def histogram(x: Array, bins: int = HISTOGRAM_BINS) -> tuple[Array, Array]:
    """Counts int64 [bins] of the numbers x and the edges float64 [bins + 1], from the smallest to the largest.

    Numbers that lie closer together than float64 can part into bins get a wider range around them.
    """
    low, high = float(x.min()), float(x.max())
    room = bins * 4 * np.spacing(max(abs(low), abs(high)))
    if high - low < room:
        # as numpy does for numbers that are all the same
        reach = max(room, 0.5 if low == high else 0.0)
        low, high = low - reach, high + reach
    counts, edges = np.histogram(x.astype(np.float64), bins=bins, range=(low, high))
    return counts, edges
