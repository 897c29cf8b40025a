"""Means against precision with their intervals, over the band of fp32: what the figures of returns have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes

from quarl.arrays import Array
from quarl.quant.spec import FLOAT_BITS, QuantSpec
from quarl.report import style
from quarl.report.schema import Fields
from quarl.rows import by

SHIFT = 0.12
"""Between lines, in precisions: side by side their intervals do not hide one another."""


def whiskers(rows: Sequence[Fields], middle: str, low: str, high: str) -> tuple[Array, Array]:
    """Values [n] and how far their intervals reach below and above [2, n], of rows and their keys; NaN where null."""
    middles, lows, highs = (np.array([row[key] for row in rows], np.float64) for key in (middle, low, high))
    return middles, np.maximum([middles - lows, highs - middles], 0)


def band(axes: Axes, base: Fields, label: str | None = None) -> None:
    """The mean of fp32, and its interval over the whole width."""
    if base["ci_low"] is not None:
        axes.axhspan(base["ci_low"], base["ci_high"], color=style.MUTED, alpha=0.25, linewidth=0)
    axes.axhline(base["mean"], color=style.MUTED, linewidth=1, label=label)


def draw(
    axes: Axes,
    rows: Sequence[Fields],
    order: Sequence[str],
    label: Callable[[Fields], str],
    colours: dict[str, str],
    *,
    size: float = 6.0,
) -> None:
    """Means with their intervals against precision, a line a label, side by side; float formats, which have none, grey.

    order: precisions from left to right. colours: by label; labels that are new here are added. size: of a point.
    """
    groups = by((row for row in rows if row["precision"] not in FLOAT_BITS), label)
    for number, (name, members) in enumerate(groups.items()):
        shade = colours.setdefault(name, style.SERIES[len(colours) % len(style.SERIES)])
        _line(axes, members, order, SHIFT * (number - (len(groups) - 1) / 2), shade, name, size)
    if floats := [row for row in rows if row["precision"] in FLOAT_BITS]:
        _line(axes, floats, order, 0.0, style.MUTED, "float formats", size)


def _line(
    axes: Axes, rows: Sequence[Fields], order: Sequence[str], shift: float, colour: str, label: str, size: float
) -> None:
    """A point a row, joined where only the bits of weights differ; hollow where no kernel of the precision ran."""
    rows = sorted(rows, key=lambda row: order.index(row["precision"]))
    x = np.array([order.index(row["precision"]) for row in rows]) + shift
    mean, ends = whiskers(rows, "mean", "ci_low", "ci_high")
    axes.errorbar(
        x, mean, yerr=ends, fmt="o", color=colour, markersize=size, capsize=size / 2, elinewidth=size / 5, label=label
    )
    for joined in by(range(len(rows)), lambda at: width(rows[at]["precision"])[1]).values():
        axes.plot(x[joined], mean[joined], color=colour, linewidth=0.8 + size / 6)
    hollow = [not row["measured"] for row in rows]
    axes.plot(x[hollow], mean[hollow], "o", color=colour, markersize=size, markerfacecolor="white", zorder=3)


def width(precision: str) -> tuple[int, int, str]:
    """Bits of a weight and of an activation; to sort by, widest last."""
    spec = QuantSpec.parse(precision)
    return spec.weight_bits, FLOAT_BITS.get(precision, spec.activation_bits or 0), precision
