"""Figures of ActorQ: throughput, where an actor's time goes, the age of weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, StrMethodFormatter

from quarl.report import style
from quarl.report.actorq_arms import arm, bars, colour, logarithmic, names, rank
from quarl.report.schema import Fields

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


def throughput(rows: Sequence[Fields], title: str) -> Figure:
    """Updates a second against samples per insert, a bar an arm, ticks where the plan predicted; a panel a width."""
    networks = list(dict.fromkeys(row["net_arch"] for row in rows))
    with style.look():
        drawn = style.figure(7.2, 0.6 + 2.8 * len(networks))
        for number, network in enumerate(networks):
            axes = drawn.add_subplot(len(networks), 1, number + 1)
            members = [row for row in rows if row["net_arch"] == network]
            ratios = sorted({row["samples_per_insert"] for row in members})
            groups = [[row for row in members if row["samples_per_insert"] == ratio] for ratio in ratios]
            places = bars(axes, groups, "updates_per_s", [f"{ratio:g}" for ratio in ratios])
            for row, (x, width) in places:
                found = row["predicted_updates_per_s"]
                axes.plot([x - width / 2, x + width / 2], [found, found], color=style.MUTED, linewidth=2)
            axes.plot([], [], color=style.MUTED, linewidth=2, label="predicted")
            logarithmic(axes, [row["updates_per_s"] for row in members])
            axes.set_xlabel("samples per insert")
            axes.set_ylabel("updates a second")
            axes.set_title(f"policy {network}")
            axes.legend(fontsize=8)
        drawn.suptitle(title, x=0.01, ha="left", fontsize=10)
    return drawn


def breakdown(rows: Sequence[Fields], title: str) -> Figure:
    """Milliseconds of 1,000 environment steps, stacked, a bar an arm, a panel an update interval; waits as numbers."""
    intervals = list(dict.fromkeys(row["actor_update_interval"] for row in rows))
    called = names(rows)
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
            axes.set_xticks(range(len(members)), list(map(called, members)))
            axes.set_title(f"every {interval} steps", fontsize=9)
            axes.margins(y=0.15)
            axes.grid(visible=False, axis="x")
            axes.tick_params(axis="x", labelsize=8)
        panels[0].set_ylabel("ms for 1,000 steps")
        panels[-1].legend(fontsize=7)
        drawn.suptitle(title, x=0.01, ha="left", fontsize=10)
    return drawn


def staleness(rows: Sequence[Fields], title: str) -> Figure:
    """Final return (a point a run) and age of the weights (median, whisker to p99) against the update interval."""
    with style.look():
        drawn = style.figure(7.2, 2.9)
        left, right = drawn.subplots(1, 2)
        called, kinds = names(rows), dict[str, list[Fields]]()
        for row in sorted(rows, key=lambda row: rank(arm(row))):
            kinds.setdefault(called(row), []).append(row)
        so_far: Counter[str] = Counter()
        for name, members in kinds.items():
            of_arm = arm(members[0])
            line = LINES[so_far[of_arm] % len(LINES)]
            so_far[of_arm] += 1
            intervals = sorted({row["actor_update_interval"] for row in members})
            by_interval = [[row for row in members if row["actor_update_interval"] == x] for x in intervals]
            shade = colour(of_arm)
            returns = [float(np.mean([row["final_return"] for row in some])) for some in by_interval]
            left.plot(intervals, returns, line, color=shade, label=name)
            left.plot(
                *zip(*((row["actor_update_interval"], row["final_return"]) for row in members), strict=True),
                ".",
                color=shade,
            )
            middle, high = (
                np.array([np.mean([row[key] or 0.0 for row in some]) for some in by_interval])
                for key in ("staleness_p50", "staleness_p99")
            )
            whisker = [0 * middle, np.maximum(high - middle, 0)]
            right.errorbar(intervals, middle, whisker, fmt=line, color=shade, capsize=3, elinewidth=1.2, label=name)
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
