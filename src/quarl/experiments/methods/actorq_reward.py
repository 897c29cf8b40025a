"""Time to reward: training runs of a protocol, each to its target or its bound, and the seconds that they took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

from quarl import formats
from quarl.errors import QuarlError
from quarl.experiments.methods.actorq import described, settings_of, train, watch
from quarl.experiments.methods.actorq_protocol import Protocol, Task
from quarl.experiments.methods.cells import Cells, turned
from quarl.rows import RATIO, ActorPrecision, Column, Joules, JoulesBy, Row, Steps, Updates

WARM_UP_S = 10.0
OF_CURVES = ("clock_s", "timesteps", "updates", "return", "return_quantised")
"""Of an evaluation."""
Curve = list[dict[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardRow(Row):
    """One run, or one that was derived."""

    command = "bench actorq time-to-reward"
    task: Annotated[str, Column("task")]
    algo: str
    precision: ActorPrecision
    engine: str
    seed: Annotated[int, Column("seed")]
    target: Annotated[float, Column("target", formats.number)]
    seconds: Annotated[float, Column("seconds", _seconds, of=("seconds", "censored"))]
    """Of the training clock, until the second of two evaluations running that reach the target; or, censored, until
    the run was stopped without."""
    derived: Annotated[bool, Column("", lambda derived: "derived" if derived else "")]
    """Seconds are the updates of an fp32 run times this arm's measured seconds of an update."""
    censored: bool
    env_steps: Steps
    updates: Updates
    final_return: Annotated[float | None, Column("final return", formats.number)]
    """Of the learner's policy, in the last evaluation."""
    final_return_quantised: Annotated[float | None, Column("quantised", formats.number)]
    samples_per_insert: Annotated[float, replace(RATIO, before="seed")]
    cpu: str
    """The processor: that of all arms of a task's seed."""
    joules: Joules
    """Of the whole run, evaluations included; null where it was derived, or measured without --energy."""
    joules_by: JoulesBy


def _seconds(seconds: float, censored: bool) -> str:
    return f"{'> ' if censored else ''}{seconds:,.0f}"


Run = tuple[RewardRow, Curve]
"""A row and the evaluations behind it, none where it is derived."""


def time_to_reward(protocol: Protocol, tasks: Sequence[Task], cells: Cells) -> list[Run]:
    """All runs that are there, in the protocol's order; those that are missing are made while there is time."""
    runs_of_all: list[Run] = []
    for task in tasks:
        own_s: dict[int, dict[str, float]] = {}
        for number, (seed, ratio) in enumerate(task.runs()):
            runs = _seed(protocol, task, seed, ratio, number, own_s.get(seed, {}), cells)
            if ratio == task.samples_per_insert:
                own_s[seed] = {arm: row.seconds for arm, (row, _) in runs.items()}
            runs_of_all += runs.values()
    return runs_of_all


def _seed(
    protocol: Protocol, task: Task, seed: int, ratio: float, number: int, own_s: Mapping[str, float], cells: Cells
) -> dict[str, Run]:
    """The runs of one seed, by arm: the reference first, whose time bounds the others, which take turns at being early.

    own_s: at another ratio than the task's, seconds of each arm at the task's: beyond them this one is not its best.
    """
    longest_s = 60 * task.cap_minutes
    missing = cells.missing
    reference = _trained(task, protocol.reference, ratio, seed, own_s.get(protocol.reference, longest_s), cells)
    if reference is None:
        if cells.missing > missing:  # for want of time, and not of its processor
            cells.missing += len(task.arms) + len(task.derived) - 1
        return {}
    row, _ = reference
    cap_s = min(protocol.cap_times * row.seconds, longest_s if row.censored else 60 * protocol.cap_minutes)
    runs: dict[str, Run | None] = {protocol.reference: reference}
    for arm in turned([arm for arm in task.arms if arm != protocol.reference], number):
        runs[arm] = _trained(task, arm, ratio, seed, own_s.get(arm, cap_s), cells)
    source = runs.get(protocol.derived_from)
    for arm in task.derived:
        if source is None:
            cells.missing += 1
        else:
            runs[arm] = _derived(protocol, task, arm, ratio, seed, source[0], cells)
    return {arm: run for arm, run in runs.items() if run is not None}


def _trained(task: Task, arm: str, ratio: float, seed: int, cap_s: float, cells: Cells) -> Run | None:
    training = task.training(arm, ratio, seed)
    # The bound is no setting: it follows from the reference's cell.
    cell = cells.get(
        f"{_slug(task.name)}-{arm}-spi{ratio:g}-seed{seed}",
        settings_of(training),
        lambda: train(training, cap_s=cap_s, say=cells.say, meter=cells.meter),
        group=_group(task, seed),
        # stopped sooner than it would be now, it is no censored run
        usable=lambda cell: bool(cell["reached"]) or cell["clock_s"] >= cap_s or cell["timesteps"] >= training.steps,
    )
    if cell is None:
        return None
    ended = cell["reached"] or cell
    last: dict[str, Any] = cell["evaluations"][-1] if cell["evaluations"] else {}
    row = RewardRow(
        task=task.name,
        **described(training, "algo", "seed", "samples_per_insert"),
        target=task.target,
        seconds=ended["clock_s"],
        derived=False,
        censored=cell["reached"] is None,
        env_steps=int(ended["timesteps"]),
        updates=int(ended["updates"]),
        final_return=last.get("return"),
        final_return_quantised=last.get("return_quantised"),
        cpu=cell["machine"]["cpu"],
        joules=cell.get("joules"),
        joules_by=cell.get("joules_by"),
    )
    return row, [{name: entry[name] for name in OF_CURVES if name in entry} for entry in cell["evaluations"]]


def _derived(
    protocol: Protocol, task: Task, arm: str, ratio: float, seed: int, source: RewardRow, cells: Cells
) -> Run | None:
    """`source` at the pace of `arm`, measured once for all seeds."""
    training = task.training(arm, ratio, task.seeds[0])
    endless = replace(training, eval_freq=0, n_timesteps=10**9, target=None)
    window: dict[str, Any] = {"warm_up": WARM_UP_S, "seconds": protocol.window_s}
    name = f"{_slug(task.name)}-{arm}-spi{ratio:g}-pace"
    measure = partial(watch, endless, **window, say=cells.say)
    cell = cells.get(name, settings_of(training, **window), measure, group=_group(task, seed))
    if cell is None:
        return None
    if not cell["updates"]:
        raise QuarlError(f"{name} saw no update, and so no pace: raise the protocol's window_s")
    seconds = source.updates * cell["clock_s"] / cell["updates"]
    return replace(source, **described(training), seconds=seconds, derived=True, joules=None, joules_by=None), []


def _group(task: Task, seed: int) -> str:
    """Runs whose seconds are compared: those of a seed, and of all seeds where a pace was measured once for them."""
    return task.name if task.derived else f"{task.name} seed {seed}"


def _slug(name: str) -> str:
    return "".join(character if character.isalnum() else "-" for character in name)
