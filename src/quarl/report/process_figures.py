"""Figures of ActorQ's processes: the seconds that each spent on its tasks, and the age of weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from quarl.arrays import Array
from quarl.report import style
from quarl.report.figures import thinned
from quarl.report.schema import Fields

WAIT = "waiting"
SPENT = ("updates", "inference", "environment", "experience", "weights", "quantizing", "checkpoints", "other", WAIT)
"""Tasks of a run's processes."""


def stacked(axes: Axes, names: Sequence[str], heights: Sequence[Mapping[str, float]], labels: Sequence[str]) -> Array:
    """Draw a stacked bar for each name, with waits in gray.

    Args:
        axes: The axes to draw on.
        names: The names below the bars.
        heights: The heights of each bar's parts, by label.
        labels: The labels, from the lowest part to the highest.

    Returns:
        The height of each bar.
    """
    base = np.zeros(len(names))
    for number, label in enumerate(labels):
        parts = np.array([max(bar.get(label, 0.0), 0.0) for bar in heights])
        shade = style.MUTED if label == WAIT else style.SERIES[number]
        axes.bar(range(len(names)), parts, 0.7, base, color=shade, label=label)
        base += parts
    axes.set_xticks(range(len(names)), names)
    axes.grid(visible=False, axis="x")
    return base


@style.look()
def processes(spent: Mapping[str, Mapping[str, float]], title: str) -> Figure:
    """Seconds of each process by activity. Actors wait if the learner is the bottleneck, and it waits if they are."""
    drawn, (axes,) = style.panels(1, title, height=3.2)
    stacked(axes, [*spent], [*spent.values()], SPENT)
    axes.set_ylabel("seconds")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return drawn


@style.look()
def ages(rows: Sequence[Fields], title: str) -> Figure:
    """Age in updates of the weights that chose a step when it entered replay, over all steps since the run began or
    was resumed. Below: versions that the learner has published and the publisher or an actor has not yet received."""
    drawn, (upper, lower) = style.panels(2, title, height=1.9, head=0.4, x="training seconds", shared="x")
    rows = thinned(rows)
    seconds = [row["clock_s"] for row in rows]
    oldest = [min(actor["version"] for actor in row["actors"]) for row in rows]
    behind = {"publisher": [row["published_version"] for row in rows], "actor with the oldest": oldest}
    for number, (key, label) in enumerate({"staleness_p50": "median", "staleness_p99": "99th percentile"}.items()):
        age = np.array([row[key] for row in rows], np.float64)
        upper.plot(seconds, age, color=style.SERIES[number], label=label)
    for number, (label, versions) in enumerate(behind.items(), 2):
        # 0 means none yet, as after resuming
        late = [row["version"] - version if version else np.nan for row, version in zip(rows, versions, strict=True)]
        lower.plot(seconds, late, color=style.SERIES[number], label=label)
    for axes, label in ((upper, "age, updates"), (lower, "versions behind")):
        axes.set(ylabel=label, ylim=(0, None))
        axes.legend()
        style.plain(axes.yaxis, "{x:,.10g}")
        style.plain(axes.xaxis, "{x:,.10g}")
    return drawn
