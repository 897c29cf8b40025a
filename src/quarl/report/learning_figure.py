"""The figure of one training: return against steps, updates and the clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from quarl.report import style
from quarl.report.figures import whiskers
from quarl.report.schema import Fields
from quarl.rows import by

POINTS = 500
"""Of a line, at most: no screen shows more, and pages are sent by mail."""


def thinned(rows: Sequence[Fields]) -> Sequence[Fields]:
    """At most POINTS of them, evenly, the last one included."""
    return rows[:: -max(1, -(-len(rows) // POINTS))][::-1]


@style.look()
def learning(points: Sequence[Fields], episodes: Sequence[Fields], against: Mapping[str, str], title: str) -> Figure:
    """Returns against each key of `against`, which has its name, a panel each.

    points: evaluations with `label`, `mean`, `low` and `high`: joined where they have the same label, a hollow mark
    where they are alone, in the colour of the label up to a comma. One without a mean is a moment, where a line stands.
    episodes: of training, by `return_mean`.
    """
    drawn, panels = style.panels(len(against), title, height=2.3, head=0.4, y="return")
    episodes = thinned([row for row in episodes if row["return_mean"] is not None])
    for axes, (key, name) in zip(panels, against.items(), strict=True):
        x, y = [row[key] for row in episodes], [row["return_mean"] for row in episodes]
        axes.plot(x, y, color=style.MUTED, label="training, with exploration")
        shades: dict[str, str] = {}
        for label, members in by(points, lambda point: str(point["label"])).items():
            shade = shades.setdefault(label.partition(",")[0], style.SERIES[len(shades)])
            x = [point[key] for point in members]
            if members[0]["mean"] is None:
                axes.axvline(x[0], color=style.MUTED, linestyle=(0, (4, 3)), linewidth=1, label=label)
                continue
            means, ends = whiskers(members, "mean", "low", "high")
            form: dict[str, Any] = {"color": shade, "label": label, "capsize": 2, "elinewidth": 1}
            form |= {"fmt": "o-", "ms": 4} if len(members) > 1 else {"fmt": "D", "ms": 7, "mfc": "none"}
            axes.errorbar(x, means, ends, **form)
        axes.set_xlabel(name)
        style.plain(axes.xaxis, "{x:,.10g}")
        style.plain(axes.yaxis, "{x:,.10g}")
    drawn.legend(*panels[0].get_legend_handles_labels(), loc="outside lower left", ncols=3)
    return drawn
