"""What figures of ActorQ have in common: names, order and colours of its arms, bars and their axis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator

from quarl.report import style
from quarl.report.schema import Fields
from quarl.rows import by

ORDER = ("torch fp32", "fp32", "fp16", "int8", "int7", "int6", "int5", "int4", "int3", "int2")
"""Arms from slow to fast; an arm has its colour in every figure."""


def arm(row: Fields) -> str:
    """The arm's name: its precision, with the engine in front where that is not LiteRT."""
    return str(row["precision"]) if row["engine"] == "litert" else f"{row['engine']} {row['precision']}"


def names(rows: Sequence[Fields]) -> Callable[[Fields], str]:
    """What each row's kind of run is called: its arm, with policy and ratio where there are several of them."""
    networks, ratios = ({row[key] for row in rows} for key in ("net_arch", "samples_per_insert"))

    def name(row: Fields) -> str:
        network = [f"policy {row['net_arch']}"] if len(networks) > 1 else []
        ratio = [f"{row['samples_per_insert']:g} per insert"] if len(ratios) > 1 else []
        return "\n".join([arm(row), *network, *ratio])

    return name


def own_ratios(rows: Iterable[Fields]) -> dict[str, float]:
    """Each task's own samples per insert: those of its first row."""
    return {task: members[0]["samples_per_insert"] for task, members in by(rows, itemgetter("task")).items()}


def rank(name: str) -> int:
    return ORDER.index(name) if name in ORDER else len(ORDER)


def colour(name: str) -> str:
    return style.SERIES[rank(name) % len(style.SERIES)]


def bars(
    axes: Axes, groups: Sequence[Sequence[Fields]], key: str, names: Sequence[str]
) -> list[tuple[Fields, tuple[float, float]]]:
    """Bars side by side within each group, in the order and colours of the arms; (row, (middle, width)) of each."""
    arms = by(((x, row) for x, group in enumerate(groups) for row in group), lambda pair: arm(pair[1]))
    width = 0.8 / max(len(arms), 1)
    places = []
    for number, name in enumerate(sorted(arms, key=rank)):
        middles = [x + (number - (len(arms) - 1) / 2) * width for x, _ in arms[name]]
        members = [row for _, row in arms[name]]
        axes.bar(middles, [row[key] for row in members], 0.92 * width, color=colour(name), label=name)
        places += [(row, (middle, 0.92 * width)) for row, middle in zip(members, middles, strict=True)]
    axes.set_xticks(range(len(groups)), list(names))
    axes.grid(visible=False, axis="x")
    return places


def logarithmic(axes: Axes, values: Sequence[float]) -> None:
    """Decades on the axis of the bars, which begin at the one below the shortest and hold the longest."""
    axes.set_yscale("log")
    if positive := [value for value in values if value > 0]:
        top = max(axes.get_ylim()[1], *positive)
        axes.set_ylim(10.0 ** np.floor(np.log10(0.8 * min(positive))), top)
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    style.plain(axes.yaxis, "{x:,g}")
