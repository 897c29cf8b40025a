"""Figures of ActorQ: throughput and the distribution of an actor's time; an arm has the same color in both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from quarl import formats
from quarl.report import style
from quarl.report.process_figures import stacked
from quarl.report.schema import Fields
from quarl.rows import by

ORDER = ("torch fp32", "fp32", "fp16", "int8", "int7", "int6", "int5", "int4", "int3", "int2")
"""Arms from slow to fast; an arm has the same color in every figure."""
PARTS = {
    "inference_ms": "inference",
    "environment_ms": "environment",
    "insert_ms": "insert",
    "pull_ms": "pull",
    "deserialize_ms": "deserialize",
    "load_ms": "load",
    "other_ms": "other",
}


def arm(row: Fields) -> str:
    """Return the arm's name: its precision, preceded by the engine unless that is LiteRT."""
    return formats.actor(row["precision"], row["engine"])


def names(rows: Sequence[Fields]) -> Callable[[Fields], str]:
    """Return a function that names a row's kind of run: its arm, with policy and ratio if there are several."""
    networks, ratios = ({row[key] for row in rows} for key in ("net_arch", "samples_per_insert"))

    def name(row: Fields) -> str:
        network = [f"policy {row['net_arch']}"] if len(networks) > 1 else []
        ratio = [f"{row['samples_per_insert']:g} per insert"] if len(ratios) > 1 else []
        return "\n".join([arm(row), *network, *ratio])

    return name


def at_own_ratio(rows: Sequence[Fields]) -> list[Fields]:
    """Return the rows at their task's own ratio, that of its first row; with free ratios, the measured ones."""
    ratio_of = {task: members[0]["samples_per_insert"] for task, members in by(rows, itemgetter("task")).items()}
    own = [row for row in rows if row["samples_per_insert"] == ratio_of[row["task"]] or row["part"] == "measured"]
    return [row for row in own if row["part"] in ("fixed", "measured")]


def rank(name: str) -> int:
    return ORDER.index(name) if name in ORDER else len(ORDER)


def color(name: str) -> str:
    return style.SERIES[rank(name) % len(style.SERIES)]


def bars(
    axes: Axes, groups: Sequence[Sequence[Fields]], key: str, names: Sequence[str]
) -> list[tuple[Fields, tuple[float, float]]]:
    """Draw bars side by side within each group, in the order and colors of the arms.

    Args:
        axes: Panel to draw in.
        groups: Rows of each group.
        key: Field that gives a bar's height.
        names: Name of each group.

    Returns:
        (row, (middle, width)) of each bar.
    """
    arms = by(((x, row) for x, group in enumerate(groups) for row in group), lambda pair: arm(pair[1]))
    width = 0.8 / max(len(arms), 1)
    places = []
    for number, name in enumerate(sorted(arms, key=rank)):
        middles = [x + (number - (len(arms) - 1) / 2) * width for x, _ in arms[name]]
        members = [row for _, row in arms[name]]
        axes.bar(middles, [row[key] for row in members], 0.92 * width, color=color(name), label=name)
        places += [(row, (middle, 0.92 * width)) for row, middle in zip(members, middles, strict=True)]
    axes.set_xticks(range(len(groups)), list(names))
    axes.grid(visible=False, axis="x")
    return places


def logarithmic(axes: Axes, values: Sequence[float]) -> None:
    """Set a logarithmic axis for bars, from the decade below the shortest to the longest."""
    axes.set_yscale("log")
    if positive := [value for value in values if value > 0]:
        top = max(axes.get_ylim()[1], *positive)
        axes.set_ylim(10.0 ** np.floor(np.log10(0.8 * min(positive))), top)
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    style.plain(axes.yaxis, "{x:,g}")


@style.look()
def throughput(rows: Sequence[Fields], title: str) -> Figure:
    """Draw updates per second against samples per insert, with a bar per arm and a panel per width.

    Ticks mark the plan's predictions.
    """
    networks = by(rows, itemgetter("net_arch"))
    drawn, panels = style.panels(len(networks), title, height=2.8, head=0.6)
    for axes, (network, members) in zip(panels, networks.items(), strict=True):
        groups = by(sorted(members, key=itemgetter("samples_per_insert")), itemgetter("samples_per_insert"))
        for row, (x, width) in bars(axes, [*groups.values()], "updates_per_s", [f"{ratio:g}" for ratio in groups]):
            predicted = row["predicted_updates_per_s"]
            axes.plot([x - width / 2, x + width / 2], [predicted] * 2, color=style.MUTED, linewidth=2)
        axes.plot([], [], color=style.MUTED, linewidth=2, label="predicted")
        logarithmic(axes, [row["updates_per_s"] for row in members])
        axes.set(xlabel="samples per insert", ylabel="updates a second", title=f"policy {network}")
    style.legend(drawn, *panels[0].get_legend_handles_labels())
    return drawn


@style.look()
def breakdown(rows: Sequence[Fields], title: str) -> Figure:
    """Draw the milliseconds of 1,000 environment steps, stacked, with a bar per arm and a panel per update interval.

    Waits are numbers.
    """
    intervals = by(rows, itemgetter("actor_update_interval"))
    called = names(rows)
    drawn, panels = style.panels(len(intervals), title, height=3.4, columns=len(intervals), shared="y")
    for axes, (interval, members) in zip(panels, intervals.items(), strict=True):
        parts = [{label: row[key] for key, label in PARTS.items()} for row in members]
        tops = stacked(axes, list(map(called, members)), parts, [*PARTS.values()])
        for x, (row, top) in enumerate(zip(members, tops, strict=True)):
            axes.annotate(f"+ {row['wait_ms']:,.0f}\nwaits", (x, top), ha="center", va="bottom")
        axes.set_title(f"every {interval} steps")
        axes.margins(y=0.15)
    panels[0].set_ylabel("ms for 1,000 steps")
    style.legend(drawn, *panels[-1].get_legend_handles_labels())
    return drawn
