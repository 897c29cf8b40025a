"""Figures of ActorQ: throughput, time to reward, learning curves, where an actor's time goes, the age of weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from quarl.report import style
from quarl.report.schema import Row

ORDER = ("torch fp32", "fp32", "fp16", "int8", "int7", "int6", "int5", "int4", "int3", "int2")
"""Arms from slow to fast; an arm has its colour in every figure."""
PARTS = {
    "inference_ms": "inference",
    "environment_ms": "environment",
    "insert_ms": "insert",
    "pull_ms": "pull",
    "deserialize_ms": "deserialise",
    "load_ms": "load",
    "other_ms": "other",
}
DERIVED: Mapping[str, Any] = {"fill": False, "hatch": "////", "edgecolor": style.MUTED, "linewidth": 0}
Curve = Sequence[Mapping[str, float]]


def arm(row: Row) -> str:
    """The arm's name: its precision, with the engine in front where that is not LiteRT."""
    return str(row["precision"]) if row["engine"] == "litert" else f"{row['engine']} {row['precision']}"


def throughput(rows: Sequence[Row], title: str) -> Figure:
    """Updates a second against samples per insert, a bar an arm, ticks where the plan predicted; a panel a width."""
    networks = list(dict.fromkeys(row["net_arch"] for row in rows))
    with style.look():
        drawn = style.figure(7.2, 0.6 + 2.8 * len(networks))
        for number, network in enumerate(networks):
            axes = drawn.add_subplot(len(networks), 1, number + 1)
            members = [row for row in rows if row["net_arch"] == network]
            ratios = sorted({row["samples_per_insert"] for row in members})
            groups = [[row for row in members if row["samples_per_insert"] == ratio] for ratio in ratios]
            places = _bars(axes, groups, "updates_per_s", [f"{ratio:g}" for ratio in ratios])
            for row, (x, width) in places:
                found = row["predicted_updates_per_s"]
                axes.plot([x - width / 2, x + width / 2], [found, found], color=style.MUTED, linewidth=2)
            axes.plot([], [], color=style.MUTED, linewidth=2, label="predicted")
            _logarithmic(axes, [row["updates_per_s"] for row in members])
            axes.set_xlabel("samples per insert")
            axes.set_ylabel("updates a second")
            axes.set_title(f"policy {network}")
            axes.legend(fontsize=8)
        drawn.suptitle(title, x=0.01, ha="left", fontsize=10)
    return drawn


def times(rows: Sequence[Row], title: str) -> Figure:
    """Seconds to the target, geometric mean over seeds, a bar an arm and task; rows at the task's own ratio.

    Hatched: derived. With an arrow: runs were stopped before they reached the target. Points: single runs.
    """
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    own = {task: next(row["samples_per_insert"] for row in rows if row["task"] == task) for task in tasks}
    groups = []
    runs: dict[tuple[str, str], list[Row]] = {}
    for task in tasks:
        members = [row for row in rows if row["task"] == task and row["samples_per_insert"] == own[task]]
        for row in members:
            runs.setdefault((task, arm(row)), []).append(row)
        groups.append([_mean(runs[task, name]) for name in dict.fromkeys(map(arm, members))])
    with style.look():
        drawn = style.figure(7.2, 3.6)
        axes = drawn.add_subplot()
        heights = [row["seconds"] for row in rows]
        for row, (x, width) in _bars(axes, groups, "seconds", tasks):
            single = runs[row["task"], arm(row)]
            seconds = [one["seconds"] for one in single]
            axes.plot([x] * len(single), seconds, "o", color=style.INK, markersize=5, markeredgecolor="white", zorder=3)
            if any(one["censored"] for one in single):
                arrow = {"arrowstyle": "->", "color": style.MUTED}
                top = row["seconds"]
                beside = x + width / 4  # where no run's point is
                axes.annotate("", (beside, 1.5 * top), (beside, top), arrowprops=arrow)
                heights.append(1.6 * top)  # an arrow that ends outside the axes is not drawn
            if any(one["derived"] for one in single):
                axes.bar(x, row["seconds"], width, **DERIVED)
        if any(row["derived"] for row in rows):
            axes.bar([0], [0], label="derived", **DERIVED)
        _logarithmic(axes, heights)
        axes.set_ylabel("seconds to the target")
        axes.set_title(title)
        axes.legend(fontsize=8)
    return drawn


def curves(found: Sequence[tuple[Row, Curve]], title: str) -> Figure:
    """Return of the learner's policy against training seconds, a line a run, a panel a task, the target dashed."""
    with_curve = [(row, curve) for row, curve in found if curve]
    tasks = list(dict.fromkeys(row["task"] for row, _ in with_curve))
    columns = min(len(tasks), 3) or 1
    height = -(-len(tasks) // columns) or 1
    with style.look():
        drawn = style.figure(7.2, 0.6 + 2.4 * height)
        for number, task in enumerate(tasks):
            axes = drawn.add_subplot(height, columns, number + 1)
            members = [(row, curve) for row, curve in with_curve if row["task"] == task]
            shown: set[str] = set()
            for row, curve in sorted(members, key=lambda pair: _rank(arm(pair[0]))):
                name = arm(row)
                axes.plot(
                    [point["clock_s"] for point in curve],
                    [point["return"] for point in curve],
                    color=_colour(name),
                    linewidth=1.1,
                    label=None if name in shown else name,
                )
                shown.add(name)
            axes.axhline(members[0][0]["target"], color=style.MUTED, linewidth=1, linestyle=(0, (4, 3)))
            axes.set_title(task, fontsize=9)
            axes.tick_params(labelsize=7)
            if number == 0:
                axes.legend(fontsize=7)
        drawn.suptitle(title, x=0.01, ha="left", fontsize=10)
        drawn.supxlabel("training seconds", fontsize=9)
        drawn.supylabel("return", fontsize=9)
    return drawn


def breakdown(rows: Sequence[Row], title: str) -> Figure:
    """Milliseconds of 1,000 environment steps, stacked, a bar an arm, a panel an update interval; waits as numbers."""
    intervals = list(dict.fromkeys(row["actor_update_interval"] for row in rows))
    with style.look():
        drawn = style.figure(7.2, 3.4)
        panels = drawn.subplots(1, len(intervals), sharey=True, squeeze=False)[0]
        for axes, interval in zip(panels, intervals, strict=True):
            members = [row for row in rows if row["actor_update_interval"] == interval]
            base = np.zeros(len(members))
            for number, (key, label) in enumerate(PARTS.items()):
                heights = np.array([max(row[key], 0.0) for row in members])
                axes.bar(range(len(members)), heights, 0.7, base, color=style.SERIES[number], label=label)
                base += heights
            for x, (row, top) in enumerate(zip(members, base, strict=True)):
                axes.annotate(f"+ {row['wait_ms']:,.0f}\nwaits", (x, top), ha="center", va="bottom", fontsize=7)
            axes.set_xticks(range(len(members)), [arm(row) for row in members])
            axes.set_title(f"every {interval} steps", fontsize=9)
            axes.margins(y=0.15)
            axes.grid(visible=False, axis="x")
            axes.tick_params(axis="x", labelsize=8)
        panels[0].set_ylabel("ms for 1,000 steps")
        panels[-1].legend(fontsize=7)
        drawn.suptitle(title, x=0.01, ha="left", fontsize=10)
    return drawn


def staleness(rows: Sequence[Row], title: str) -> Figure:
    """Final return (a point a run) and age of the weights (median, whisker to p99) against the update interval."""
    with style.look():
        drawn = style.figure(7.2, 2.9)
        left, right = drawn.subplots(1, 2)
        for name in dict.fromkeys(sorted(map(arm, rows), key=_rank)):
            members = [row for row in rows if arm(row) == name]
            intervals = sorted({row["actor_update_interval"] for row in members})
            by_interval = [[row for row in members if row["actor_update_interval"] == x] for x in intervals]
            colour = _colour(name)
            returns = [float(np.mean([row["final_return"] for row in some])) for some in by_interval]
            left.plot(intervals, returns, color=colour, label=name)
            left.plot(
                *zip(*((row["actor_update_interval"], row["final_return"]) for row in members), strict=True),
                ".",
                color=colour,
            )
            middle, high = (
                np.array([np.mean([row[key] or 0.0 for row in some]) for some in by_interval])
                for key in ("staleness_p50", "staleness_p99")
            )
            whisker = [0 * middle, np.maximum(high - middle, 0)]
            right.errorbar(intervals, middle, yerr=whisker, color=colour, capsize=3, elinewidth=1.2, label=name)
        for axes in (left, right):
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.set_xlabel("steps between two looks for weights")
        left.set_ylabel("final return")
        right.set_ylabel("age of weights, updates")
        left.legend(fontsize=8)
        drawn.suptitle(title, x=0.01, ha="left", fontsize=10)
    return drawn


def _bars(
    axes: Axes, groups: Sequence[Sequence[Row]], key: str, names: Sequence[str]
) -> list[tuple[Row, tuple[float, float]]]:
    """Bars side by side within each group, in the order and colours of the arms; (row, (middle, width)) of each."""
    arms = sorted({arm(row) for group in groups for row in group}, key=_rank)
    width = 0.8 / max(len(arms), 1)
    places = []
    for number, name in enumerate(arms):
        shift = (number - (len(arms) - 1) / 2) * width
        members = [(x, row) for x, group in enumerate(groups) for row in group if arm(row) == name]
        heights = [row[key] for _, row in members]
        axes.bar([x + shift for x, _ in members], heights, 0.92 * width, color=_colour(name), label=name)
        places += [(row, (x + shift, 0.92 * width)) for x, row in members]
    axes.set_xticks(range(len(groups)), list(names))
    axes.grid(visible=False, axis="x")
    return places


def _mean(rows: Sequence[Row]) -> Row:
    """The first of the rows with the geometric mean of their seconds."""
    return {**rows[0], "seconds": float(np.exp(np.mean(np.log([row["seconds"] for row in rows]))))}


def _logarithmic(axes: Axes, values: Sequence[float]) -> None:
    """Decades on the axis of the bars, which begin at the one below the shortest and hold the longest."""
    axes.set_yscale("log")
    positive = [value for value in values if value > 0]
    if positive:
        top = max(axes.get_ylim()[1], *positive)
        axes.set_ylim(10.0 ** np.floor(np.log10(0.8 * min(positive))), top)
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))  # the default one is mathematics, which is off
    axes.yaxis.set_minor_formatter(NullFormatter())


def _rank(name: str) -> int:
    return ORDER.index(name) if name in ORDER else len(ORDER)


def _colour(name: str) -> str:
    return style.SERIES[_rank(name) % len(style.SERIES)]
