"""Figures of one policy at many precisions: the choice, the loss against fp32, and every episode's return."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from operator import itemgetter
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from quarl import formats
from quarl.quant.spec import FLOAT_BITS
from quarl.report import style
from quarl.report.figures import FLOATS, FP32_LABEL, SHIFT, band, draw, points
from quarl.report.schema import Fields
from quarl.rows import by

COSTS = {"latency_us_p50": ("latency of one call, µs (median)", 1.0), "payload": ("payload, kB", 1e-3)}
"""Costs of a precision: the key, the label of its axis, and the factor from the key's unit to the axis'."""
APART = 0.075
"""Distance between names of overlapping points, in heights of a panel; side by side, in widths."""
LINE = 11
"""Height in points of a line of small numbers."""
MARGINS = 4
"""Losses are drawn to scale up to this number of margins; larger ones are shown as numbers."""


@style.look()
def choice(rows: Sequence[Fields], title: str) -> Figure:
    """Return against cost: higher and further to the left is better. Latency is for one observation on one thread,
    payload for weights at their bits, scales and biases. Vertical bars are 95 % intervals of the mean. Simulated
    precisions are hollow and have no latency."""
    base, colors = _exact(rows), _colors(rows)
    drawn, panels = style.panels(2, title, height=2.8, head=0.7, y=_returns(base))
    for axes, (key, (name, unit)) in zip(panels, COSTS.items(), strict=True):
        priced = [{**row, "cost": row[key] * unit} for row in rows if row["measured"] or key != "latency_us_p50"]
        band(axes, base, FP32_LABEL)
        _margin(axes, base, base["mean"])
        for scheme, members in by(priced, _scheme).items():
            points(axes, np.array([row["cost"] for row in members]), members, colors[scheme], scheme, 6.0)
        best: list[tuple[float, float]] = []
        for cost, loss in sorted((row["cost"], -row["mean"]) for row in priced):
            if not best or -loss > best[-1][1]:
                best.append((cost, -loss))
        axes.plot(
            *np.reshape(best, (-1, 2)).T, color=style.MUTED, linestyle=":", zorder=0, label="no other is better in both"
        )
        axes.margins(x=0.15, y=0.12)
        axes.set_xlim(left=0)
        axes.set_xlabel(name)
        _name(axes, priced, colors)
    style.legend(drawn, *panels[1].get_legend_handles_labels())
    if simulated := dict.fromkeys(row["precision"] for row in rows if not row["measured"]):
        style.panel_title(panels[0], f"simulated, so without a latency: {', '.join(simulated)}", 1)
    return drawn


def _name(axes: Axes, rows: Sequence[Fields], colors: dict[str, str]) -> None:
    """Write names beside points, each at the nearest height where it overlaps no other; the limits must be set."""
    placed: list[tuple[float, float]] = []
    for row in sorted(rows, key=itemgetter("mean"), reverse=True):
        across, up = axes.transLimits.transform((row["cost"], row["mean"]))
        near = np.array([other for beside, other in placed if abs(beside - across) < 1.5 * APART])
        free = (at for at in (up, *np.arange(0.03, 1, APART / 3)) if (abs(near - at) >= APART).all())
        height = min(free, key=lambda at: abs(at - up), default=up)
        place, line = (across + 0.025, height), {"arrowstyle": "-", "color": style.MUTED, "linewidth": 0.5}
        look: Any = {"va": "center", "fontsize": 8.5, "color": colors[_scheme(row)]}
        look["bbox"] = {"facecolor": style.PAPER, "edgecolor": "none", "alpha": 0.75, "pad": 0.5}
        axes.annotate(row["precision"], (across, up), place, "axes fraction", "axes fraction", line, **look)
        placed.append((across, height))


@style.look()
def difference(rows: Sequence[Fields], title: str) -> Figure:
    """The data of the verdicts: returns minus those of fp32 from the same starts, with their mean and its 95 %
    interval. An interval above the dashed line means non-inferior, one below it inferior; one without 0 differs
    beyond noise. Means further down are shown as numbers."""
    base = _exact(rows)
    keys = {"mean": "difference", "ci_low": "difference_low", "ci_high": "difference_high"}
    others = [{**row, **{key: row[name] for key, name in keys.items()}} for row in rows if row is not base]
    drawn, (axes,) = style.panels(1, height=3.2, head=0.4)
    axes.axhline(0, color=style.MUTED, linewidth=1)
    margin = _margin(axes, base, 0.0)
    ends = [row[key] for row in others for key in keys if row[key] is not None]
    low, high = max(min([*ends, margin]), MARGINS * margin) * 1.25, max([*ends, -margin]) * 1.1 or 1.0
    axes.axhspan(low, margin, color=style.SERIES[5], alpha=0.1, linewidth=0, label="inferior: all of an interval here")
    colors = _colors(rows)
    order = draw(axes, others, _scheme, colors)
    for name, members in by((row for row in others if row["mean"] < low), itemgetter("precision")).items():
        for number, row in enumerate(members):
            look: Any = {"textcoords": "offset points", "ha": "center", "color": colors[_scheme(row)], "fontsize": 8}
            axes.annotate(f"{formats.number(row['mean'])} ↓", (order.index(name), low), (0, 4 + LINE * number), **look)
    axes.set_ylim(low, high)
    axes.set(xlabel="precision of the weights", ylabel="return less that of fp32", title=title)
    style.legend(drawn, *axes.get_legend_handles_labels())
    return drawn


@style.look()
def sweet_spot(rows: Sequence[Fields], title: str) -> Figure:
    """Return at each precision: the mean with its 95 % interval, and a dot to the right of it for every episode.
    Hollow points are simulated in float."""
    base, colors = _exact(rows), _colors(rows)
    drawn, (axes,) = style.panels(1, height=3.4, head=0.4)
    band(axes, base, FP32_LABEL)
    _margin(axes, base, base["mean"])
    order = draw(axes, rows, _scheme, colors)
    for row in rows:
        number = max([*colors].index(_scheme(row)), 1)
        aside = SHIFT * (number + np.arange(len(row["returns"])) * 0.618 % 1)  # the golden ratio spreads evenly
        look: Any = {"color": colors[_scheme(row)], "markersize": 2, "alpha": 0.6, "markeredgewidth": 0}
        axes.plot(order.index(row["precision"]) + aside, row["returns"], "o", zorder=1, **look)
    axes.set(xlabel="precision of the weights", ylabel=_returns(base), title=title)
    style.legend(drawn, *axes.get_legend_handles_labels())
    return drawn


FIGURES = {
    "choice": (choice, "return against latency and size"),
    "difference": (difference, "difference to fp32"),
    "sweetspot": (sweet_spot, "return at each precision"),
}
"""Figures by file name, with the subjects of their titles; their docstrings are their captions."""


def _scheme(row: Fields) -> str:
    """Return the group that determines a point's color."""
    return FLOATS if row["precision"] in FLOAT_BITS else f"scheme: {row['scheme']}"


def _colors(rows: Sequence[Fields]) -> dict[str, str]:
    """Return the colors of the float formats and each scheme, in that order."""
    schemes = [name for name in by(rows, _scheme) if name != FLOATS]
    return {FLOATS: style.MUTED, **dict(zip(schemes, cycle(style.SERIES), strict=False))}


def _exact(rows: Sequence[Fields]) -> Fields:
    return next(row for row in rows if row["precision"] == "fp32")


def _returns(base: Fields) -> str:
    return f"return ({formats.counted(base['episodes'], 'episode')})"


def _margin(axes: Axes, base: Fields, top: float) -> float:
    """Draw the margin below `top` and return its height."""
    floor = top - base["margin_pct"] / 100 * abs(base["mean"])
    label = f"{base['margin_pct']:g} % below fp32, the margin"
    axes.axhline(floor, color=style.MUTED, linewidth=1, linestyle="--", label=label)
    return float(floor)
