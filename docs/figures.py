"""Figures of the pages of results, drawn from rows where a study left none.

In a template `{{ points(name, says, rows, x="return") }}`, and so `bars`: name is that of the file in
docs/results/_figures, says the sentence for who does not see it. A row's place is its `label`, its colour its `group`,
its length its `value`, or what stands under the keys named instead; one without a value is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from quarl.formats import three_digits
from quarl.report import style
from quarl.report.figures import whiskers
from quarl.rows import by

KEYS = {name: name for name in ("label", "group", "value", "low", "high")}

WIDTH = 5.6
"""Inches: letters of nine points are then read on a page 500 pixels wide."""


def into(folder: Path, draw: Callable[..., Figure]) -> Callable[..., str]:
    """What a template calls: it saves in the folder what `draw` draws, and is the Markdown of the image."""

    def image(name: str, says: str, *args: Any, **options: Any) -> str:
        folder.mkdir(exist_ok=True)
        style.save(draw(*args, **options), folder / f"{name}.png")
        return f"![{says}](_figures/{name}.png)"

    return image


@style.look()
def points(
    rows: Sequence[Mapping[str, Any]],
    *,
    x: str = "",
    line: float | None = None,
    log: bool = False,
    bar: bool = False,
    **keys: str,
) -> Figure:
    """A point a row with its interval, where it has one, from left to right, labels below one another.

    x: what the numbers are. line: where a vertical line stands, as at no loss. log: whether their axis is logarithmic.
    bar: bars instead of points, with their numbers. keys: where rows have what KEYS names.
    """
    label, group, value, low, high = {**KEYS, **keys}.values()
    rows = [row for row in rows if row.get(value) is not None]
    labels = list(dict.fromkeys(str(row[label]) for row in rows))
    groups = by(rows, lambda row: row.get(group))
    drawn, (axes,) = style.panels(1, height=0.9 + len(labels) * max(0.26, 0.15 * len(groups)))
    for number, (name, members) in enumerate(groups.items()):
        places = [labels.index(str(row[label])) + 0.8 * ((number + 0.5) / len(groups) - 0.5) for row in members]
        shade = style.SERIES[number % len(style.SERIES)]
        if bar:
            shown = axes.barh(places, [row[value] for row in members], 0.8 / len(groups), color=shade, label=name)
            axes.bar_label(shown, [f" {three_digits(row[value])}" for row in members], fontsize=7, color=style.INK)
        else:
            ends = whiskers([{low: None, high: None, **row} for row in members], value, low, high)
            axes.errorbar(ends[0], places, xerr=ends[1], fmt="o", markersize=4, color=shade, elinewidth=1.2, label=name)
    if log:
        axes.set_xscale("log")
        style.plain(axes.xaxis, "{x:,g}")
    if line is not None:
        axes.axvline(line, color=style.MUTED, linewidth=1)
    axes.grid(visible=not bar, axis="y")
    axes.margins(x=0.12 if bar else 0.05)
    axes.set(yticks=range(len(labels)), yticklabels=labels, ylim=(len(labels) - 0.4, -0.6), xlabel=x)
    drawn.set_figwidth(WIDTH)
    if len(groups) > 1:
        longest = max(len(str(name)) for name in groups)
        drawn.legend(loc="outside lower center", ncols=max(1, 64 // (longest + 7)), fontsize=8)
    return drawn


def bars(rows: Sequence[Mapping[str, Any]], **options: Any) -> Figure:
    """A bar a row; otherwise as points."""
    return points(rows, bar=True, **options)
