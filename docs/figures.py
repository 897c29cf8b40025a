"""Figures of the pages of results, drawn from rows when a study left none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from quarl.formats import three_digits
from quarl.report import style
from quarl.report.figures import whiskers
from quarl.rows import by

KEYS = ("label", "group", "value", "low", "high")
"""Fields of a point: its row and its color by name, its value, and the ends of its interval."""


@style.look()
def points(
    rows: Sequence[Mapping[str, Any]],
    *,
    x: str = "",
    line: float | None = None,
    log: bool = False,
    bar: bool = False,
) -> Figure:
    """Draw a point with its interval for each row, labels below one another.

    Args:
        rows: The fields KEYS of each point; `group`, `low` and `high` are optional.
        x: The label of the axis of values.
        line: The value at which to draw a vertical line.
        log: Whether the axis is logarithmic.
        bar: Whether to draw bars with their numbers instead of points.

    Returns:
        The figure.
    """
    rows = [row for row in rows if row["value"] is not None]
    labels = list(dict.fromkeys(str(row["label"]) for row in rows))
    groups = by(rows, lambda row: row.get("group"))
    drawn, (axes,) = style.panels(1, height=0.9 + len(labels) * max(0.26, 0.15 * len(groups)))
    for number, (name, members) in enumerate(groups.items()):
        places = [labels.index(str(row["label"])) + 0.8 * ((number + 0.5) / len(groups) - 0.5) for row in members]
        shade = style.SERIES[number % len(style.SERIES)]
        if bar:
            shown = axes.barh(places, [row["value"] for row in members], 0.8 / len(groups), color=shade, label=name)
            axes.bar_label(shown, [f" {three_digits(row['value'])}" for row in members], fontsize=7, color=style.INK)
        else:
            ends = whiskers([{"low": None, "high": None, **row} for row in members], "value", "low", "high")
            axes.errorbar(ends[0], places, xerr=ends[1], fmt="o", markersize=4, color=shade, elinewidth=1.2, label=name)
    if log:
        axes.set_xscale("log")
        style.plain(axes.xaxis, "{x:,g}")
    if line is not None:
        axes.axvline(line, color=style.MUTED, linewidth=1)
    axes.grid(visible=not bar, axis="y")
    axes.margins(x=0.12 if bar else 0.05)
    axes.set(yticks=range(len(labels)), yticklabels=labels, ylim=(len(labels) - 0.4, -0.6), xlabel=x)
    drawn.set_figwidth(5.6)  # inches: letters of nine points are legible on a page of 500 pixels
    if len(groups) > 1:
        longest = max(len(str(name)) for name in groups)
        drawn.legend(loc="outside lower center", ncols=max(1, 64 // (longest + 7)), fontsize=8)
    return drawn
