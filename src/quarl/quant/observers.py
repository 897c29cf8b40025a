"""Observers: ranges of real numbers for a quantizer's grid.

Each observer maps [channels, samples] numbers to one (low, high) per channel, and to (0, 0) if a channel has no finite
number. A per-tensor range has one channel.
"""

from __future__ import annotations

import numpy as np

from quarl.arrays import Array
from quarl.errors import QuarlError
from quarl.quant.affine import choose_qparams, fake_quantize

SHRINKS = np.linspace(1.0, 0.2, 41)
"""Fractions of the full range that the MSE search tries."""
PERCENTILE = 99.9
"""High end of the percentile range; the low end is 100 minus this."""


def observe(x: Array, kind: str, *, bits: int = 8, symmetric: bool = True) -> tuple[Array, Array]:
    """Return the range of each channel, (low, high), both float64 [channels].

    Args:
        x: Numbers [channels, samples].
        kind: Observer of a Scheme: minmax, percentile or mse.
        bits: Width of the grid, which mse needs.
        symmetric: Kind of the grid, which mse needs.

    Raises:
        QuarlError: The observer is unknown.
    """
    match kind:
        case "minmax":
            low, high = finite_extent(x)
            return low.astype(np.float64), high.astype(np.float64)
        case "percentile":
            return percentiles(x)
        case "mse":
            return least_error(x, bits, symmetric=symmetric)
        case _:
            raise QuarlError(f"unknown observer {kind!r}; use minmax, percentile or mse")


def finite_extent(x: Array) -> tuple[Array, Array]:
    """Return the smallest and the largest finite number of each row of x [channels, samples], or 0 if it has none."""
    if x.shape[1]:
        low, high = x.min(axis=1), x.max(axis=1)
        if np.isfinite(low).all() and np.isfinite(high).all():  # min and max propagate NaN
            return low, high
    finite = np.isfinite(x)
    low = np.min(x, axis=1, where=finite, initial=np.inf)
    high = np.max(x, axis=1, where=finite, initial=-np.inf)
    return np.where(np.isfinite(low), low, 0.0), np.where(np.isfinite(high), high, 0.0)


def percentiles(x: Array) -> tuple[Array, Array]:
    """Return the range between two percentiles of each row, so that rare outliers saturate."""
    finite = np.where(np.isfinite(x), x, np.nan)
    finite = np.where(np.isnan(finite).all(axis=1, keepdims=True), 0.0, finite) if x.size else np.zeros((len(x), 1))
    low, high = np.nanpercentile(finite, [100 - PERCENTILE, PERCENTILE], axis=1)
    return low, high


def least_error(x: Array, bits: int, *, symmetric: bool) -> tuple[Array, Array]:
    """Return the shrunken range of each row whose n-bit grid has the least squared error on it.

    Args:
        x: Values [rows, n]; infinities and NaN count as 0.
        bits: Bits of the grid.
        symmetric: Use grids that are symmetric about 0.

    Returns:
        Lower and upper ends [rows].
    """
    x = np.where(np.isfinite(x), x, np.float32(0))
    low, high = finite_extent(x)
    best, shrink = np.full(len(x), np.inf), np.ones(len(x))
    for fraction in SHRINKS:
        q = choose_qparams(low[:, None] * fraction, high[:, None] * fraction, bits, symmetric=symmetric)
        error = np.square((fake_quantize(x, q) - x).astype(np.float64)).sum(axis=1)
        shrink = np.where(error < best, fraction, shrink)
        best = np.minimum(error, best)
    return low * shrink, high * shrink
