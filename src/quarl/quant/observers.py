"""Ranges of real numbers: what a quantiser's grid should cover.

An observer sees [channels, samples] arrays, one or several, and answers with one (low, high) per channel. A
per-tensor range is the case of one channel.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from quarl.arrays import Array
from quarl.errors import QuarlError
from quarl.quant.affine import choose_qparams, fake_quantize

SHRINKS = np.linspace(1.0, 0.2, 41)
"""Fractions of the full range that the MSE search tries."""


class Observer(Protocol):
    """Collects numbers, then names their range."""

    def update(self, x: Array) -> None:
        """Sees x [channels, samples]; non-finite numbers are left out."""
        ...

    def ranges(self) -> tuple[Array, Array]:
        """(low, high), float64 [channels]; (0, 0) for a channel that has seen nothing."""
        ...


def finite_extent(x: Array) -> tuple[Array, Array]:
    """Smallest and largest finite number of each row of x [channels, samples]; 0 where there is none."""
    if x.shape[1]:
        low, high = x.min(axis=1), x.max(axis=1)
        if np.isfinite(low).all() and np.isfinite(high).all():  # minimum and maximum pass every NaN on
            return low, high
    finite = np.isfinite(x)
    low = np.min(x, axis=1, where=finite, initial=np.inf)
    high = np.max(x, axis=1, where=finite, initial=-np.inf)
    return np.where(np.isfinite(low), low, 0.0), np.where(np.isfinite(high), high, 0.0)


class MinMax:
    """The smallest and largest number ever seen."""

    def __init__(self) -> None:
        self._low: Array | None = None
        self._high: Array | None = None

    def update(self, x: Array) -> None:
        low, high = finite_extent(x)
        self._low = low if self._low is None else np.minimum(self._low, low)
        self._high = high if self._high is None else np.maximum(self._high, high)

    def ranges(self) -> tuple[Array, Array]:
        if self._low is None or self._high is None:
            return np.zeros(1), np.zeros(1)
        return self._low.astype(np.float64), self._high.astype(np.float64)


class _Keeping:
    """Keeps what it sees: the base of the observers whose answer needs the whole distribution."""

    def __init__(self) -> None:
        self._seen: list[Array] = []

    def update(self, x: Array) -> None:
        self._seen.append(np.array(x, np.float32))

    def _all(self) -> Array:
        return np.concatenate(self._seen, axis=1) if self._seen else np.zeros((1, 0), np.float32)


class Percentile(_Keeping):
    """The range between two percentiles, so that rare outliers saturate."""

    def __init__(self, percentile: float = 99.9) -> None:
        super().__init__()
        self.percentile = percentile
        """High end, in percent; the low end is 100 minus it."""

    def ranges(self) -> tuple[Array, Array]:
        x = np.where(np.isfinite(seen := self._all()), seen, np.nan)
        empty = np.isnan(x).all(axis=1, keepdims=True)
        x = np.where(empty, 0.0, x) if x.size else np.zeros((len(x), 1))
        low, high = np.nanpercentile(x, [100 - self.percentile, self.percentile], axis=1)
        return low, high


class MSE(_Keeping):
    """The shrunken extent whose n-bit grid leaves the least squared error on what was seen."""

    def __init__(self, bits: int = 8, *, symmetric: bool = True) -> None:
        super().__init__()
        self.bits, self.symmetric = bits, symmetric

    def ranges(self) -> tuple[Array, Array]:
        x = np.where(np.isfinite(seen := self._all()), seen, np.float32(0))
        low, high = finite_extent(x)
        best = np.full(len(x), np.inf)
        shrink = np.ones(len(x))
        for fraction in SHRINKS:
            q = choose_qparams(low[:, None] * fraction, high[:, None] * fraction, self.bits, symmetric=self.symmetric)
            error = np.square((fake_quantize(x, q) - x).astype(np.float64)).sum(axis=1)
            shrink = np.where(error < best, fraction, shrink)
            best = np.minimum(error, best)
        return low * shrink, high * shrink


def observer(kind: str, *, bits: int = 8, symmetric: bool = True) -> Observer:
    """A new observer by its name in a Scheme: minmax, percentile or mse."""
    match kind:
        case "minmax":
            return MinMax()
        case "percentile":
            return Percentile()
        case "mse":
            return MSE(bits, symmetric=symmetric)
        case _:
            raise QuarlError(f"unknown observer {kind!r}; use minmax, percentile or mse")
