"""Speed-ups of time-to-reward rows: geometric means over seeds and tasks, with Student's intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from quarl import formats
from quarl.arrays import Array
from quarl.report.actorq_arms import own_ratios
from quarl.report.schema import Fields
from quarl.rows import ActorPrecision, Column, Row
from quarl.stats import NO_VERDICT, Interval, as_fields, error_over_seeds, over_few, verdict_over_seeds

MARGIN_PCT = 5.0
FEWEST_SEEDS = 3
"""For a verdict on the final return."""
BASELINES = (("fp32", "litert"), ("fp32", "torch"))
"""The headline first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedupRow(Row):
    """One arm against another on one task, or in the geometric mean over the tasks (task "all")."""

    command = "bench actorq speed-up"
    task: Annotated[str, Column("task")]
    precision: ActorPrecision
    engine: str
    against: Annotated[str, Column("against", caption="against {}")]
    """ENGINE fp32."""
    best_ratio: Annotated[
        bool,
        Column("ratio", lambda best: "each arm's best" if best else "own", caption="{} samples per insert"),
    ]
    """Both arms at the samples per insert at which they were fastest, not at the task's own."""
    seconds: Annotated[float | None, Column("seconds", formats.three_digits)]
    """Geometric mean over the seeds."""
    seconds_against: Annotated[float | None, Column("its seconds", formats.three_digits)]
    speedup: Annotated[float, Column("speed-up", _times, of=("speedup", "low", "high", "at_least"))]
    low: float | None
    """Ends of its 95 % interval: Student's over a task's seeds, or over the tasks of "all". Null for a single one,
    and where none of the other arm's runs reached the target: their seconds are those of the bound."""
    high: float | None
    """Null too where any of them did not: no number bounds the true speed-up."""
    at_least: bool
    """The other arm was stopped before it reached the target: the true speed-up is larger."""
    derived: Annotated[bool, Column("", lambda derived: "derived" if derived else "")]
    seeds: Annotated[int, Column("seeds")]
    lost: Annotated[int, Column("not reached")]
    """Runs of this arm that did not reach the target, and are in none of these numbers."""
    final_return_pct: Annotated[
        float | None,
        Column("loss of return %", formats.times, of=("final_return_pct", "final_return_low", "final_return_high")),
    ]
    """Mean final return over the other arm's, as a loss in percent; negative for a gain. Of the seeds with which both
    reached the target."""
    final_return_low: float | None
    """Ends of its 95 % interval over the seeds. Null for a single one."""
    final_return_high: float | None
    noninferior: bool | None
    verdict: Annotated[str | None, Column("verdict", formats.verdict, of=("verdict", "differs"), optional=True)]
    """At a margin of 5 percent, by the 95 % interval of the loss. Null where a run of either was censored, and below
    three."""
    differs: bool | None


def _times(speedup: float, low: float | None, high: float | None, at_least: bool) -> str:
    return f"{'≥ ' if at_least else ''}{formats.times(speedup, low, high)}"


def speedups(rows: Sequence[Fields]) -> list[SpeedupRow]:
    """All arms against both baselines: each task, then all of them; then the same at each arm's best ratio."""
    found: list[SpeedupRow] = []
    ratios = own_ratios(rows)
    own = [row for row in rows if row["samples_per_insert"] == ratios[row["task"]]]
    for chosen, is_best in ((own, False), (_best_ratio(rows), True)):
        arms = dict.fromkeys((row["precision"], row["engine"]) for row in chosen)
        for base in BASELINES:
            for arm in arms:
                if arm != base:
                    found += _arm(chosen, arm, base, is_best=is_best)
    return found


def loss_of_return(before: Sequence[float], after: Sequence[float]) -> Interval:
    """`error_over_seeds` of paired runs' mean returns, in percent."""
    return error_over_seeds(_paired(before, after), np.random.default_rng(0))


def _paired(before: Sequence[float], after: Sequence[float]) -> list[tuple[Array, Array]]:
    return [(np.array([one]), np.array([other])) for one, other in zip(before, after, strict=True)]


def _best_ratio(rows: Sequence[Fields]) -> list[Fields]:
    """For every task and seed that has several ratios, each arm's fastest run that reached the target."""
    by_run: dict[tuple[Any, ...], list[Fields]] = {}
    for row in rows:
        by_run.setdefault((row["task"], row["seed"], row["precision"], row["engine"]), []).append(row)
    several = [runs for runs in by_run.values() if len(runs) > 1]
    return [min(runs, key=lambda row: (row["censored"], row["seconds"])) for runs in several]


def _arm(rows: Sequence[Fields], arm: tuple[str, str], base: tuple[str, str], *, is_best: bool) -> list[SpeedupRow]:
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    logs: dict[str, Array] = {}
    found: list[SpeedupRow] = []
    lost = 0
    for task in tasks:
        ours, theirs = (
            {row["seed"]: row for row in rows if row["task"] == task and (row["precision"], row["engine"]) == one}
            for one in (arm, base)
        )
        pairs = [(ours[seed], theirs[seed]) for seed in ours if seed in theirs]
        reached = [(a, b) for a, b in pairs if not a["censored"]]
        lost += len(pairs) - len(reached)
        if not reached:
            continue
        logs[task] = np.log([b["seconds"] / a["seconds"] for a, b in reached])
        both = [(a, b) for a, b in reached if not b["censored"]]
        unbounded = ["high"] * (len(both) < len(reached)) + ["low"] * (not both)
        found.append(
            SpeedupRow(
                task=task,
                seconds=_geometric([a["seconds"] for a, _ in reached]),
                seconds_against=_geometric([b["seconds"] for _, b in reached]),
                at_least=len(both) < len(reached),
                derived=any(a["derived"] or b["derived"] for a, b in reached),
                seeds=len(reached),
                lost=len(pairs) - len(reached),
                **_final_return(both, judged=FEWEST_SEEDS <= len(both) == len(pairs)),
                **_common(arm, base, [logs[task]], is_best) | dict.fromkeys(unbounded),
            )
        )
    if len(found) > 1:
        at_least = any(one.at_least for one in found)
        found.append(
            SpeedupRow(
                task="all",
                seconds=None,
                seconds_against=None,
                at_least=at_least,
                derived=any(one.derived for one in found),
                seeds=sum(one.seeds for one in found),
                lost=lost,
                **_final_return([], judged=False),
                **_common(arm, base, list(logs.values()), is_best) | ({"high": None} if at_least else {}),
            )
        )
    return found


def _common(arm: tuple[str, str], base: tuple[str, str], logs: Sequence[Array], is_best: bool) -> dict[str, Any]:
    point, low, high = _mean_of_means(logs)
    return {
        "precision": arm[0],
        "engine": arm[1],
        "against": f"{base[1]} {base[0]}",
        "best_ratio": is_best,
        "speedup": point,
        "low": low,
        "high": high,
    }


def _mean_of_means(logs: Sequence[Array]) -> tuple[float, float | None, float | None]:
    """exp of the mean over tasks of the mean over seeds, and the ends of its interval."""
    values = np.array([one.mean() for one in logs]) if len(logs) > 1 else logs[0]
    if len(values) < 2:
        return math.exp(float(values.mean())), None, None
    mean = over_few(values)
    return math.exp(mean.point), math.exp(mean.low), math.exp(mean.high)


def _geometric(seconds: Sequence[float]) -> float:
    return math.exp(float(np.mean(np.log(seconds))))


def _final_return(pairs: Sequence[tuple[Fields, Fields]], *, judged: bool) -> dict[str, Any]:
    """The fields of the quantised policies' loss of mean final return, in percent of the other arm's."""
    ours, theirs = ([pair[side]["final_return_quantised"] for pair in pairs] for side in (0, 1))
    known = bool(pairs) and None not in (*ours, *theirs) and np.mean(theirs) != 0
    loss = loss_of_return(theirs, ours) if known else None
    ends = as_fields(loss if len(pairs) > 1 else None, "final_return_pct", "final_return")
    found = NO_VERDICT
    if known and judged:
        every = _paired(theirs, ours)
        found = verdict_over_seeds(every, MARGIN_PCT, np.random.default_rng(0), fewest=FEWEST_SEEDS).to_json()
    return {**ends, "final_return_pct": loss and loss.point, **found}
