"""Figures of ActorQ: throughput, where an actor's time goes, the age of weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from operator import itemgetter

import numpy as np
from matplotlib.figure import Figure

from quarl.report import style
from quarl.report.actorq_arms import arm, bars, colour, logarithmic, names, rank
from quarl.report.precision_lines import whiskers
from quarl.report.schema import Fields
from quarl.rows import by

LINES = ("-", "--", ":", "-.")
PARTS = {
    "inference_ms": "inference",
    "environment_ms": "environment",
    "insert_ms": "insert",
    "pull_ms": "pull",
    "deserialize_ms": "deserialise",
    "load_ms": "load",
    "other_ms": "other",
}


@style.look()
def throughput(rows: Sequence[Fields], title: str) -> Figure:
    """Updates a second against samples per insert, a bar an arm, ticks where the plan predicted; a panel a width."""
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
        axes.legend(fontsize=8)
    return drawn


@style.look()
def breakdown(rows: Sequence[Fields], title: str) -> Figure:
    """Milliseconds of 1,000 environment steps, stacked, a bar an arm, a panel an update interval; waits as numbers."""
    intervals = by(rows, itemgetter("actor_update_interval"))
    called = names(rows)
    drawn, panels = style.panels(len(intervals), title, height=3.4, columns=len(intervals), shared="y")
    for axes, (interval, members) in zip(panels, intervals.items(), strict=True):
        base = np.zeros(len(members))
        for number, (key, label) in enumerate(PARTS.items()):
            heights = np.array([max(row[key], 0.0) for row in members])
            axes.bar(range(len(members)), heights, 0.7, base, color=style.SERIES[number], label=label)
            base += heights
        for x, (row, top) in enumerate(zip(members, base, strict=True)):
            axes.annotate(f"+ {row['wait_ms']:,.0f}\nwaits", (x, top), ha="center", va="bottom", fontsize=7)
        axes.set_xticks(range(len(members)), list(map(called, members)))
        axes.set_title(f"every {interval} steps", fontsize=9)
        axes.margins(y=0.15)
        axes.grid(visible=False, axis="x")
        axes.tick_params(axis="x", labelsize=8)
    panels[0].set_ylabel("ms for 1,000 steps")
    panels[-1].legend(fontsize=7)
    return drawn


@style.look()
def staleness(rows: Sequence[Fields], title: str) -> Figure:
    """Final return (a point a run) and age of the weights (median, whisker to p99) against the update interval."""
    drawn, (left, right) = style.panels(2, title, height=2.9, columns=2)
    lines_of: Counter[str] = Counter()
    for name, members in by(sorted(rows, key=lambda row: rank(arm(row))), names(rows)).items():
        line, shade = LINES[lines_of[arm(members[0])] % len(LINES)], colour(arm(members[0]))
        lines_of[arm(members[0])] += 1
        intervals = by(sorted(members, key=itemgetter("actor_update_interval")), itemgetter("actor_update_interval"))
        means = [
            {
                key: np.mean([row[key] or 0.0 for row in runs])
                for key in ("final_return", "staleness_p50", "staleness_p99")
            }
            for runs in intervals.values()
        ]
        left.plot([*intervals], [row["final_return"] for row in means], line, color=shade, label=name)
        x, y = zip(*((row["actor_update_interval"], row["final_return"]) for row in members), strict=True)
        left.plot(x, y, ".", color=shade)
        middle, ends = whiskers(means, "staleness_p50", "staleness_p50", "staleness_p99")
        right.errorbar([*intervals], middle, ends, fmt=line, color=shade, capsize=3, elinewidth=1.2, label=name)
    for axes, label in ((left, "final return"), (right, "age of weights, updates")):
        axes.set_xscale("log")
        style.plain(axes.xaxis, "{x:,.0f}")
        axes.set(xlabel="steps between two looks for weights", ylabel=label)
    left.legend(fontsize=8)
    return drawn
