"""Figures of returns: one training against its steps and clock, a study against precision, and shared parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from quarl.arrays import Array
from quarl.quant.spec import FLOAT_BITS, MIXED, QuantSpec
from quarl.report import style
from quarl.report.schema import Fields
from quarl.rows import by

SHIFT = 0.12
"""Distance between lines, in precisions, so that their intervals do not overlap."""
COLUMNS = 2
"""Largest number of panels side by side."""
FLOATS = "float formats"
FP32_LABEL = "fp32, 95 % interval shaded"
"""Label of the line and band of fp32."""
COMPARED: Mapping[str, str] = {"ptq": "scheme: {}", "distill": "distilled", "qat": "trained for it"}
"""Methods of producing a precision, with the labels of their lines."""
POINT = 3.0
"""Size of a point, which suits the small panels."""
WIDTHS = {bits: style.SERIES[place] for place, bits in enumerate((8, 4, 2, 3, 6, 5, 7))} | {32: style.MUTED}
"""Color of a precision in all figures, by the bits of its weights."""
THINNED = 500
"""Largest number of points in a line: no screen shows more, and pages are sent by mail."""


def whiskers(rows: Sequence[Fields], middle: str, low: str, high: str) -> tuple[Array, Array]:
    """Return values [n] and the lengths of their intervals below and above [2, n]; NaN if null.

    Args:
        rows: Rows with these keys.
        middle: Key of the value.
        low: Key of the interval's lower end.
        high: Key of its upper end.

    Returns:
        Values and lengths.
    """
    middles, lows, highs = (np.array([row[key] for row in rows], np.float64) for key in (middle, low, high))
    return middles, np.maximum([middles - lows, highs - middles], 0)


def band(axes: Axes, base: Fields, label: str | None = None) -> None:
    """Draw the mean of fp32, and its interval over the whole width.

    Args:
        axes: Panel to draw in.
        base: The row of fp32.
        label: Entry in the legend; None for no entry.
    """
    if base["ci_low"] is not None:
        axes.axhspan(base["ci_low"], base["ci_high"], color=style.MUTED, alpha=0.25, linewidth=0)
    axes.axhline(base["mean"], color=style.MUTED, linewidth=1, label=label)


def points(axes: Axes, x: Array, rows: Sequence[Fields], color: str, label: str, size: float) -> Array:
    """Draw means with their intervals, hollow if no kernel of the precision ran.

    Args:
        axes: Panel to draw in.
        x: Horizontal positions [n].
        rows: The n rows.
        color: Color of the points.
        label: Entry in the legend.
        size: Size of a point.

    Returns:
        The means [n].
    """
    mean, ends = whiskers(rows, "mean", "ci_low", "ci_high")
    look: Any = {"color": color, "markersize": size}
    axes.errorbar(x, mean, yerr=ends, fmt="o", capsize=size / 2, elinewidth=size / 5, label=label, **look)
    hollow = [not row["measured"] for row in rows]
    axes.plot(x[hollow], mean[hollow], "o", markerfacecolor=style.PAPER, zorder=3, **look)
    return mean


def draw(
    axes: Axes, rows: Sequence[Fields], label: Callable[[Fields], str], colors: dict[str, str], size: float = 6.0
) -> list[str]:
    """Draw means with their intervals against precision; different labels are side by side.

    Points that differ only in the bits of weights are joined. Float formats, which have no label, are grey.

    Args:
        axes: Panel to draw in.
        rows: The rows.
        label: Function that gives a row's label.
        colors: Color by label; new labels are added.
        size: Size of a point.

    Returns:
        The precisions from left to right.
    """
    order = sorted({row["precision"] for row in rows}, key=_width, reverse=True)
    axes.set_xticks(range(len(order)), order)
    floats_last = sorted(rows, key=lambda row: row["precision"] in FLOAT_BITS)
    groups = by(floats_last, lambda row: FLOATS if row["precision"] in FLOAT_BITS else label(row))
    middle = (len(groups.keys() - {FLOATS}) - 1) / 2
    for number, (name, group) in enumerate(groups.items()):
        members = sorted(group, key=lambda row: order.index(row["precision"]))
        shift, shade = 0.0, style.MUTED
        if name != FLOATS:
            shift = SHIFT * (number - middle)
            shade = colors.setdefault(name, style.SERIES[len(colors) % len(style.SERIES)])
        x = np.array([order.index(row["precision"]) for row in members]) + shift
        mean = points(axes, x, members, shade, name, size)
        activation_bits = np.array([_width(row["precision"])[1] for row in members])
        for alike in (activation_bits == bits for bits in dict.fromkeys(activation_bits.tolist())):
            axes.plot(x[alike], mean[alike], color=shade, linewidth=0.8 + size / 6)
    return order


def _width(precision: str) -> tuple[int, int, str]:
    """Return the bits of a weight and of an activation, as a sort key with the widest last."""
    spec = QuantSpec.parse("8" if precision == MIXED else precision)
    return spec.weight_bits, FLOAT_BITS.get(precision, spec.activation_bits or 0), precision


def precision_colors(precisions: Iterable[str]) -> dict[str, str]:
    """Return a color for each precision: that of its bits, or a free one if another precision has it."""
    colors: dict[str, str] = {}
    for name in dict.fromkeys(precisions):
        own = WIDTHS.get(_width(name)[0], style.SERIES[-1])
        colors[name] = next((each for each in (own, *style.SERIES[::-1]) if each not in colors.values()), own)
    return colors


@style.look()
def bits_against_return(rows: Sequence[Fields], title: str) -> Figure:
    """Draw mean returns over seeds against precision, with a line per method and scheme.

    Each policy has a panel with fp32's interval.

    Each row is one policy, method and precision. It has its mean and the ends of its interval. Its marker is filled if
    it was measured on kernels of the precision.
    """
    agent_of = itemgetter("algo", "env_id", "source")
    agents = by((row for row in rows if row["method"] in COMPARED), agent_of)
    bases = by((row for row in rows if row["method"] == "fp32"), agent_of)
    drawn, panels = style.panels(len(agents), title, height=1.9, head=0.6, columns=COLUMNS, y="return")
    for axes in panels[-COLUMNS:]:  # one label for all would be under the legend
        axes.set_xlabel("precision of the weights, in bits")
    colors: dict[str, str] = {}
    for axes, (agent, members) in zip(panels, agents.items(), strict=True):
        for base in bases.get(agent, ()):
            band(axes, base)
        others = [{**row, "precision": QuantSpec.parse(row["precision"]).precision} for row in members]  # w8a8 is int8
        order = draw(axes, others, _kind, colors, POINT)
        axes.set_xticks(range(len(order)), [name.removeprefix("int") for name in order])
        several = sum(other[:2] == agent[:2] for other in agents) > 1
        style.panel_title(axes, " ".join(agent if several else agent[:2]), min(len(agents), COLUMNS))
    if colors:
        shown = colors | ({FP32_LABEL: style.MUTED} if bases else {})
        style.legend(drawn, [panels[0].plot([], [], color=color)[0] for color in shown.values()], [*shown])
    return drawn


def _kind(row: Fields) -> str:
    static = " static" if row["mode"] == "static" and row["method"] != "qat" else ""
    return f"{COMPARED[row['method']].format(row['scheme'])}{static}"


def thinned(rows: Sequence[Fields]) -> Sequence[Fields]:
    """Return at most THINNED rows, evenly spaced, including the last."""
    return rows[:: -max(1, -(-len(rows) // THINNED))][::-1]


@style.look()
def learning(points: Sequence[Fields], episodes: Sequence[Fields], against: Mapping[str, str], title: str) -> Figure:
    """Draw returns against each key of `against`, in a panel each.

    Args:
        points: Evaluations with `label` and, if they have them, `mean`, `ci_low` and `ci_high`. Points with the same
            label are joined, and a single one is a hollow mark in the color of its label up to a comma, or in their
            `color`. One without a mean is an event, drawn as a vertical line.
        episodes: Training episodes, by `return_mean`.
        against: Axis label by key.
        title: Title of the figure.

    Returns:
        The figure.
    """
    drawn, panels = style.panels(len(against), title, height=2.3, head=0.4, y="return")
    episodes = thinned([row for row in episodes if row["return_mean"] is not None])
    for axes, (key, name) in zip(panels, against.items(), strict=True):
        x, y = [row[key] for row in episodes], [row["return_mean"] for row in episodes]
        if episodes:
            axes.plot(x, y, color=style.MUTED, label="training, with exploration")
        shades: dict[str, str] = {}
        marks = ({**dict.fromkeys(("mean", "ci_low", "ci_high")), **point} for point in points)
        for label, members in by(marks, lambda point: str(point["label"])).items():
            shade = members[0].get("color") or shades.setdefault(label.partition(",")[0], style.SERIES[len(shades)])
            x, (means, ends) = [point[key] for point in members], whiskers(members, "mean", "ci_low", "ci_high")
            if np.isnan(means[0]):
                axes.axvline(x[0], color=style.MUTED, linestyle=(0, (4, 3)), linewidth=1, label=label)
            else:
                mark: dict[str, Any] = (
                    {"fmt": "o-", "ms": 4} if len(members) > 1 else {"fmt": "D", "ms": 7, "mfc": "none"}
                )
                axes.errorbar(x, means, ends, color=str(shade), label=label, capsize=2, elinewidth=1, **mark)
        axes.set_xlabel(name)
        axes.locator_params("x", integer=True, min_n_ticks=1 + (len(points) > 1))  # no fractions around one count
        style.plain(axes.xaxis, "{x:,.10g}")
        style.plain(axes.yaxis, "{x:,.10g}")
    style.legend(drawn, *panels[0].get_legend_handles_labels())
    return drawn
