"""Means against precision with their intervals, over the band of fp32: what the figures of returns have in common."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from quarl.quant.spec import FLOAT_BITS, QuantSpec
from quarl.report import style
from quarl.report.schema import Fields

SHIFT = 0.12
"""Between lines, in precisions: side by side their intervals do not hide one another."""


def band(axes: Axes, base: Fields, label: str | None = None) -> None:
    """The mean of fp32, and its interval over the whole width."""
    if base["ci_low"] is not None:
        axes.axhspan(base["ci_low"], base["ci_high"], color=style.MUTED, alpha=0.25, linewidth=0)
    axes.axhline(base["mean"], color=style.MUTED, linewidth=1, label=label)


def shift(number: int, count: int) -> float:
    """How far the line of that number is from the middle of `count` of them."""
    return SHIFT * (number - (count - 1) / 2)


def line(
    axes: Axes,
    rows: Sequence[Fields],
    order: Sequence[str],
    *,
    shift: float,
    colour: str,
    label: str | None = None,
    size: float = 6.0,
) -> None:
    """A point a row, joined where only the bits of weights differ; hollow where no kernel of the precision ran.

    order: precisions from left to right. size: of a point.
    """
    rows = sorted(rows, key=lambda row: order.index(row["precision"]))
    x = np.array([order.index(row["precision"]) for row in rows]) + shift
    mean, low, high = (np.array([row[key] for row in rows], np.float64) for key in ("mean", "ci_low", "ci_high"))
    spread = np.maximum([mean - low, high - mean], 0)
    axes.errorbar(
        x, mean, yerr=spread, fmt="o", color=colour, markersize=size, capsize=size / 2, elinewidth=size / 5, label=label
    )
    activations = np.array([width(row["precision"])[1] for row in rows])
    for bits in dict.fromkeys(activations.tolist()):
        some = activations == bits
        axes.plot(x[some], mean[some], color=colour, linewidth=0.8 + size / 6)
    hollow = [not row["measured"] for row in rows]
    axes.plot(x[hollow], mean[hollow], "o", color=colour, markersize=size, markerfacecolor="white", zorder=3)


def width(precision: str) -> tuple[int, int, str]:
    """Bits of a weight and of an activation; to sort by, widest last."""
    spec = QuantSpec.parse(precision)
    return spec.weight_bits, FLOAT_BITS.get(precision, spec.activation_bits or 0), precision
