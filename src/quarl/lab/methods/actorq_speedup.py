"""Speed-ups of time-to-reward rows: geometric means over seeds and tasks, with Student's intervals."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from operator import itemgetter
from typing import Annotated, Any

import numpy as np

from quarl import formats
from quarl.arrays import Array
from quarl.lab.actorq_figures import at_own_ratio
from quarl.lab.methods.actorq_throughput import FLOAT, TORCH, Arm
from quarl.report.schema import Fields
from quarl.rows import ActorPrecision, Column, Row, by
from quarl.stats import NO_VERDICT, as_fields, error_over_seeds, geometric_mean, over_few, verdict_over_seeds

BEST: Arm = ("fp32", "best")
"""The float engine that was chosen."""
MARGIN_PCT = 5.0
FEWEST_SEEDS = 3
"""Fewest seeds for a verdict on the final return."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedupRow(Row):
    """One arm against another on one task, or in the geometric mean over the tasks (task "all")."""

    command = "study speed-up"
    task: Annotated[str, Column("task")]
    precision: ActorPrecision
    engine: str
    against: Annotated[str, Column("against", caption="against {}")]
    """ENGINE fp32; best is the engine that was chosen at free ratios."""
    best_ratio: Annotated[
        bool,
        Column("ratio", lambda best: "each arm's best" if best else "own", caption="{} samples per insert"),
    ]
    """Both arms use the samples per insert at which they were fastest instead of the task's own."""
    seconds: Annotated[float | None, Column("seconds", formats.three_digits)]
    """Geometric mean over the seeds."""
    seconds_against: Annotated[float | None, Column("its seconds", formats.three_digits)]
    speedup: Annotated[float, Column("speed-up", formats.times, of=("speedup", "low", "high", "at_least"))]
    low: float | None
    """Ends of its 95 % interval: Student's over a task's seeds, or over the tasks of "all". Null for a single one,
    and if none of the other arm's runs reached the target, because their seconds are those of the limit."""
    high: float | None
    """Also null if any of them did not: no number bounds the true speed-up."""
    at_least: bool
    """The other arm was stopped before it reached the target: the true speed-up is larger."""
    derived: Annotated[bool, Column("", lambda derived: "derived" if derived else "")]
    seeds: Annotated[int, Column("seeds")]
    lost: Annotated[int, Column("not reached")]
    """Runs of this arm that did not reach the target; they are in none of these numbers."""
    final_return_pct: Annotated[
        float | None,
        Column("loss of return %", formats.times, of=("final_return_pct", "final_return_low", "final_return_high")),
    ]
    """Loss of mean final return against the other arm in percent, negative for a gain, over seeds with which both
    reached the target.
    """
    final_return_low: float | None
    """Ends of its 95 % interval over the seeds; null for a single one."""
    final_return_high: float | None
    noninferior: bool | None
    verdict: Annotated[str | None, Column("verdict", formats.verdict, of=("verdict", "differs"), optional=True)]
    """Verdict at a margin of 5 percent by the 95 % interval of the loss; null if a run of either was censored, and
    for fewer than three seeds."""
    differs: bool | None


def speedups(rows: Sequence[Fields]) -> list[SpeedupRow]:
    """Return all arms against both baselines: each task, then all of them; then the same at each arm's best ratio.

    At free ratios, each precision is compared with fp32 over the measured seeds, on the engines that were chosen.
    """
    speedups: list[SpeedupRow] = []
    fixed = [row for row in rows if row["part"] == "fixed"]
    measured = [{**row, "engine": BEST[1]} for row in rows if row["part"] == "measured"]
    for chosen, is_best in ((at_own_ratio(fixed), False), (_best_ratio(fixed), True), (measured, True)):
        arms = dict.fromkeys((row["precision"], row["engine"]) for row in chosen)
        for base, arm in product((FLOAT, TORCH, BEST), arms):  # the headline first
            if arm != base:
                speedups += _arm(chosen, arm, base, is_best=is_best)
    return speedups


def _best_ratio(rows: Sequence[Fields]) -> list[Fields]:
    """Return each arm's fastest run that reached the target, for every task and seed with several ratios."""
    runs_of = by(rows, itemgetter("task", "seed", "precision", "engine"))
    several = [runs for runs in runs_of.values() if len(runs) > 1]
    return [min(runs, key=lambda row: (row["censored"], row["seconds"])) for runs in several]


def _arm(rows: Sequence[Fields], arm: Arm, base: Arm, *, is_best: bool) -> Iterator[SpeedupRow]:
    about: dict[str, Any] = {
        "precision": arm[0],
        "engine": arm[1],
        "against": f"{base[1]} {base[0]}",
        "best_ratio": is_best,
    }
    means: list[float] = []
    speedups: list[SpeedupRow] = []
    lost = 0
    for task in dict.fromkeys(row["task"] for row in rows):
        # runs of the same seed are a pair; those of this arm that did not reach the target are only counted
        ours, theirs = (
            {row["seed"]: row for row in rows if (row["task"], row["precision"], row["engine"]) == (task, *of)}
            for of in (arm, base)
        )
        alike = [seed for seed in ours if seed in theirs and ours[seed]["cpu"] == theirs[seed]["cpu"]]
        pairs = [(ours[seed], theirs[seed]) for seed in alike]
        reached = [(a, b) for a, b in pairs if not a["censored"]]
        lost += len(pairs) - len(reached)
        if not reached:
            continue
        logs = np.log([b["seconds"] / a["seconds"] for a, b in reached])
        means.append(float(logs.mean()))
        # seconds at the limit have no upper bound
        both = [(a, b) for a, b in reached if not b["censored"]]
        unbounded = ["high"] * (len(both) < len(reached)) + ["low"] * (not both)
        speedups.append(
            SpeedupRow(
                task=task,
                **about,
                seconds=geometric_mean([a["seconds"] for a, _ in reached]),
                seconds_against=geometric_mean([b["seconds"] for _, b in reached]),
                **_faster(logs) | dict.fromkeys(unbounded),
                at_least=len(both) < len(reached),
                derived=any(a["derived"] or b["derived"] for a, b in reached),
                seeds=len(reached),
                lost=len(pairs) - len(reached),
                **_final_return(both, judged=FEWEST_SEEDS <= len(both) == len(pairs)),
            )
        )
    yield from speedups
    if len(speedups) > 1:
        at_least = any(row.at_least for row in speedups)
        yield SpeedupRow(
            task="all",
            **about,
            seconds=None,
            seconds_against=None,
            **_faster(np.array(means)) | ({"high": None} if at_least else {}),
            at_least=at_least,
            derived=any(row.derived for row in speedups),
            seeds=sum(row.seeds for row in speedups),
            lost=lost,
            **_final_return([], judged=False),
        )


def _faster(logs: Array) -> dict[str, Any]:
    """Return the fields of the geometric mean of ratios and of its interval, from logarithms."""
    if len(logs) < 2:
        return {"speedup": math.exp(float(logs.mean())), "low": None, "high": None}
    mean = over_few(logs)
    return {"speedup": math.exp(mean.point), "low": math.exp(mean.low), "high": math.exp(mean.high)}


def _final_return(pairs: Sequence[tuple[Fields, Fields]], *, judged: bool) -> dict[str, Any]:
    """Return the fields of the quantized policies' loss of mean final return, in percent of the other arm's."""
    returns = [(theirs["final_return_quantised"], ours["final_return_quantised"]) for ours, theirs in pairs]
    known = bool(returns) and not any(None in pair for pair in returns) and sum(theirs for theirs, _ in returns) != 0
    of_seeds = [(np.array([theirs]), np.array([ours])) for theirs, ours in returns] if known else []
    loss = error_over_seeds(of_seeds, np.random.default_rng(0)) if known else None
    verdict = NO_VERDICT
    if known and judged:
        verdict = verdict_over_seeds(of_seeds, MARGIN_PCT, np.random.default_rng(0), fewest=FEWEST_SEEDS).to_json()
    ends = as_fields(loss if len(pairs) > 1 else None, "final_return_pct", "final_return")
    return {**ends, "final_return_pct": loss and loss.point, **verdict}
