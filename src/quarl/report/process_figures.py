"""The figure of ActorQ's processes: the seconds that each spent on its tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from quarl.arrays import Array
from quarl.report import style

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
