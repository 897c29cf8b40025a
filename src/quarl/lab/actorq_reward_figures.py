"""Figures of time to reward: seconds at the tasks' own samples per insert, learning curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from quarl.lab.actorq_figures import arm, at_own_ratio, bars, color, logarithmic, rank
from quarl.report import style
from quarl.report.schema import Fields
from quarl.rows import by
from quarl.stats import geometric_mean

DERIVED: Mapping[str, Any] = {"fill": False, "hatch": "////", "edgecolor": style.MUTED, "linewidth": 0}
COLUMNS = 3
SIDE_BY_SIDE = 4
"""Largest number of task names that fit below their bars in one line."""
Curve = Sequence[Mapping[str, float]]
CLOCKS = {"clock_s": "training seconds", "updates": "updates"}


@style.look()
def times(rows: Sequence[Fields], title: str) -> Figure:
    """Draw the seconds to the target as a geometric mean over seeds, with a bar per arm and task.

    Rows are at the task's own ratio, or measured at the arm's choice. Hatched bars are derived. An arrow means that
    runs were stopped before they reached the target. Points are single runs.
    """
    at_own = at_own_ratio(rows)
    tasks = list(by(at_own, itemgetter("task")))
    runs = by(at_own, lambda row: (row["task"], arm(row)))
    means = by(map(_mean, runs.values()), itemgetter("task"))
    drawn, (axes,) = style.panels(1, height=3.6)
    heights = [row["seconds"] for row in at_own]
    for row, (x, width) in bars(axes, [means[task] for task in tasks], "seconds", tasks):
        single = runs[row["task"], arm(row)]
        seconds = [run["seconds"] for run in single]
        axes.plot([x] * len(single), seconds, "o", color=style.INK, markersize=5, markeredgecolor=style.PAPER, zorder=3)
        if any(run["censored"] for run in single):
            heights.append(_arrow(axes, x + width / 4, row["seconds"]))  # beside the points of single runs
        if any(run["derived"] for run in single):
            axes.bar(x, row["seconds"], width, **DERIVED)
    if any(row["derived"] for row in at_own):
        axes.bar([0], [0], label="derived", **DERIVED)
    logarithmic(axes, heights)
    axes.set(ylabel="seconds to the target", title=title)
    if len(tasks) > SIDE_BY_SIDE:
        for label in axes.get_xticklabels():
            label.set(rotation=20, horizontalalignment="right", rotation_mode="anchor")
    drawn.legend(loc="outside right upper")
    return drawn


@style.look()
def curves(pairs: Sequence[tuple[Fields, Curve]], title: str, against: str = "clock_s") -> Figure:
    """Draw the return of the learner's policy, with a line per run, a panel per task, and the target dashed.

    Args:
        pairs: Rows and their curves; the same runs are drawn as in `times`.
        title: Title of the figure.
        against: Horizontal axis, clock_s or updates.

    Returns:
        The figure.
    """
    own = at_own_ratio([row for row, _ in pairs])
    members = [(row, curve) for row, curve in pairs if curve and row in own]
    tasks = by(members, lambda pair: pair[0]["task"])
    drawn, panels = style.panels(
        len(tasks), title, height=2.4, head=0.6, columns=COLUMNS, x=CLOCKS[against], y="return"
    )
    for (task, runs), axes in zip(tasks.items(), panels, strict=True):
        axes.set_title(task)
        for name, lines in by(sorted(runs, key=lambda pair: rank(arm(pair[0]))), lambda pair: arm(pair[0])).items():
            for number, (_, curve) in enumerate(lines):
                x, y = ([point[key] for point in curve] for key in (against, "return"))
                axes.plot(x, y, color=color(name), linewidth=1.1, label=None if number else name)
        axes.axhline(runs[0][0]["target"], color=style.MUTED, linewidth=1, linestyle=(0, (4, 3)))
    if panels:
        drawn.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper")
    return drawn


def _arrow(axes: Axes, x: float, top: float) -> float:
    """Draw an arrow upward and return the height that the axes must include.

    An arrow that ends outside is not drawn.
    """
    axes.annotate("", (x, 1.5 * top), (x, top), arrowprops={"arrowstyle": "->", "color": style.MUTED})
    return 1.6 * top


def _mean(rows: Sequence[Fields]) -> Fields:
    """Return the first of the rows with the geometric mean of all their seconds."""
    return {**rows[0], "seconds": geometric_mean([row["seconds"] for row in rows])}
