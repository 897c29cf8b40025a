"""What quantisation did to one tensor: noise, clipping, the levels that are left, and how the weights lie on them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quarl.arrays import Array
from quarl.quant.affine import QParams, dequantize

HISTOGRAM_BINS = 100
MAX_GRID_LEVELS = 4096
"""Grids with more levels are not listed: drawn, they would be a solid block."""


@dataclass(frozen=True, eq=False, slots=True)
class Diagnostics:
    """One weight tensor before and after quantisation."""

    minimum: float
    maximum: float
    sqnr_db: float
    """Signal to quantisation noise; infinite where nothing changed."""
    saturation: float
    """Share of the weights that lie outside the grid by more than half a step, 0..1."""
    levels: int
    """Distinct codes in use; distinct values where the precision is a float format."""
    counts: Array
    """int64 [bins]: histogram of the float32 weights."""
    edges: Array
    """float64 [bins + 1]."""
    grid: Array
    """float32: every level that the coarsest channel can take, ascending; empty for float formats and huge grids."""

    @property
    def range(self) -> float:
        return self.maximum - self.minimum


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


def diagnose(
    x: Array, quantized: Array, *, codes: Array | None = None, q: QParams | None = None, bins: int = HISTOGRAM_BINS
) -> Diagnostics:
    """Diagnostics of float weights x and of the real values `quantized` that replaced them, same shape.

    codes, q: the integer codes and their grid (scale and zero point broadcast against x); both None for float formats.
    """
    if x.size == 0 or x.shape != quantized.shape:
        raise ValueError(f"expected two equal shapes with at least one weight, got {x.shape} and {quantized.shape}")
    counts, edges = histogram(x, bins)
    return Diagnostics(
        minimum=float(x.min()),
        maximum=float(x.max()),
        sqnr_db=sqnr_db(x, quantized),
        saturation=0.0 if q is None else saturation(x, q),
        levels=len(np.unique(quantized if codes is None else codes)),
        counts=counts,
        edges=edges,
        grid=np.zeros(0, np.float32) if q is None else coarsest_grid(q),
    )
