"""Figures of time to reward: seconds at the tasks' own samples per insert and at others, learning curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from quarl.report import style
from quarl.report.actorq_arms import arm, bars, colour, logarithmic, own_ratios, rank
from quarl.report.schema import Fields

DERIVED: Mapping[str, Any] = {"fill": False, "hatch": "////", "edgecolor": style.MUTED, "linewidth": 0}
COLUMNS = 3
SIDE_BY_SIDE = 4
"""Names of tasks that fit below their bars in one line."""
Curve = Sequence[Mapping[str, float]]
CLOCKS = {"clock_s": "training seconds", "updates": "updates"}


def times(rows: Sequence[Fields], title: str) -> Figure:
    """Seconds to the target, geometric mean over seeds, a bar an arm and task; rows at the task's own ratio.

    Hatched: derived. With an arrow: runs were stopped before they reached the target. Points: single runs.
    """
    own = own_ratios(rows)
    groups = []
    runs: dict[tuple[str, str], list[Fields]] = {}
    for task, ratio in own.items():
        members = [row for row in rows if row["task"] == task and row["samples_per_insert"] == ratio]
        for row in members:
            runs.setdefault((task, arm(row)), []).append(row)
        groups.append([_mean(runs[task, name]) for name in dict.fromkeys(map(arm, members))])
    with style.look():
        drawn = style.figure(7.2, 3.6)
        axes = drawn.add_subplot()
        heights = [row["seconds"] for members in runs.values() for row in members]
        for row, (x, width) in bars(axes, groups, "seconds", list(own)):
            single = runs[row["task"], arm(row)]
            seconds = [one["seconds"] for one in single]
            axes.plot([x] * len(single), seconds, "o", color=style.INK, markersize=5, markeredgecolor="white", zorder=3)
            if any(one["censored"] for one in single):
                heights.append(_arrow(axes, x + width / 4, row["seconds"]))  # where no run's point is
            if any(one["derived"] for one in single):
                axes.bar(x, row["seconds"], width, **DERIVED)
        if any(row["derived"] for row in rows):
            axes.bar([0], [0], label="derived", **DERIVED)
        logarithmic(axes, heights)
        axes.set_ylabel("seconds to the target")
        axes.set_title(title)
        if len(own) > SIDE_BY_SIDE:
            for label in axes.get_xticklabels():
                label.set(rotation=20, horizontalalignment="right", rotation_mode="anchor")
        drawn.legend(fontsize=8, loc="outside right upper")
    return drawn


def ratios(rows: Sequence[Fields], title: str) -> Figure:
    """Seconds to the target against samples per insert, for tasks with several ratios, of the seeds that have them.

    A line an arm, through geometric means over seeds; points: single runs, hollow and with an arrow where they were
    stopped at the seconds shown before they reached the target.
    """
    several: dict[str, list[Fields]] = {}
    for task, own in own_ratios(rows).items():
        members = [row for row in rows if row["task"] == task]
        seeds = {row["seed"] for row in members if row["samples_per_insert"] != own}
        if seeds:
            several[task] = [row for row in members if row["seed"] in seeds]
    with style.look():
        drawn, panels = _panels(list(several), title, "samples per insert", "seconds to the target")
        for members, axes in zip(several.values(), panels, strict=True):
            heights = [row["seconds"] for row in members]
            for name in sorted(dict.fromkeys(map(arm, members)), key=rank):
                found = [row for row in members if arm(row) == name]
                at = sorted({row["samples_per_insert"] for row in found})
                means = [_mean([row for row in found if row["samples_per_insert"] == ratio]) for ratio in at]
                axes.plot(at, [row["seconds"] for row in means], color=colour(name), linewidth=1.1, label=name)
                for row in found:
                    place = (row["samples_per_insert"], row["seconds"])
                    face = "white" if row["censored"] else colour(name)
                    axes.plot(*place, "o", color=colour(name), markersize=5, markerfacecolor=face)
                    if row["censored"]:
                        heights.append(_arrow(axes, *place))
            axes.set_xscale("log", base=2)
            axes.set_xticks(sorted({row["samples_per_insert"] for row in members}))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
            axes.xaxis.set_minor_formatter(NullFormatter())
            logarithmic(axes, heights)
        if panels:
            panels[0].legend(fontsize=7)
    return drawn


def curves(found: Sequence[tuple[Fields, Curve]], title: str, against: str = "clock_s") -> Figure:
    """Return of the learner's policy, a line a run, a panel a task, the target dashed; runs at the task's own ratio.

    against: clock_s or updates.
    """
    own = own_ratios(row for row, _ in found)
    members = [(row, curve) for row, curve in found if curve and row["samples_per_insert"] == own[row["task"]]]
    tasks = list(dict.fromkeys(row["task"] for row, _ in members))
    with style.look():
        drawn, panels = _panels(tasks, title, CLOCKS[against], "return")
        for task, axes in zip(tasks, panels, strict=True):
            runs = [(row, curve) for row, curve in members if row["task"] == task]
            shown: set[str] = set()
            for row, curve in sorted(runs, key=lambda pair: rank(arm(pair[0]))):
                name = arm(row)
                axes.plot(
                    [point[against] for point in curve],
                    [point["return"] for point in curve],
                    color=colour(name),
                    linewidth=1.1,
                    label=None if name in shown else name,
                )
                shown.add(name)
            axes.axhline(runs[0][0]["target"], color=style.MUTED, linewidth=1, linestyle=(0, (4, 3)))
        if panels:
            panels[0].legend(fontsize=7)
    return drawn


def _panels(tasks: Sequence[str], title: str, x: str, y: str) -> tuple[Figure, list[Axes]]:
    """A figure with an empty panel a task, and one name for all panels' x and y."""
    columns = min(len(tasks), COLUMNS) or 1
    height = -(-len(tasks) // columns) or 1
    drawn = style.figure(7.2, 0.6 + 2.4 * height)
    panels = [drawn.add_subplot(height, columns, number + 1) for number in range(len(tasks))]
    for task, axes in zip(tasks, panels, strict=True):
        axes.set_title(task, fontsize=9)
        axes.tick_params(labelsize=7)
    drawn.suptitle(title, x=0.01, ha="left", fontsize=10)
    drawn.supxlabel(x, fontsize=9)
    drawn.supylabel(y, fontsize=9)
    return drawn, panels


def _arrow(axes: Axes, x: float, top: float) -> float:
    """More than that; returns what the axes must hold, as an arrow that ends outside of them is not drawn."""
    axes.annotate("", (x, 1.5 * top), (x, top), arrowprops={"arrowstyle": "->", "color": style.MUTED})
    return 1.6 * top


def _mean(rows: Sequence[Fields]) -> Fields:
    """The first of the rows with the geometric mean of their seconds."""
    return {**rows[0], "seconds": float(np.exp(np.mean(np.log([row["seconds"] for row in rows]))))}
