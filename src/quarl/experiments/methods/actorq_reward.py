"""Time to reward: training runs of a protocol, each to its target or its bound, and the seconds that they took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from quarl import formats
from quarl.errors import QuarlError
from quarl.experiments.methods.actorq import described, settings_of, train, watch
from quarl.experiments.methods.actorq_protocol import Protocol, Task
from quarl.experiments.methods.cells import Cell, Cells, turned
from quarl.rows import RATIO, ActorPrecision, Column, Joules, JoulesBy, Row, Steps, Updates

WARM_UP_S = 10.0
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A row and the evaluations behind it, empty where it is derived."""

    row: RewardRow
    curve: Curve


def time_to_reward(protocol: Protocol, tasks: Sequence[Task], cells: Cells) -> list[Run]:
    """All runs that are there, in the protocol's order; those that are missing are made while there is time."""
    found: list[Run] = []
    for task in tasks:
        own_s: dict[int, dict[str, float]] = {}
        for number, (seed, ratio) in enumerate(task.runs()):
            runs = _seed(protocol, task, seed, ratio, number, own_s.get(seed, {}), cells)
            if ratio == task.samples_per_insert:
                own_s[seed] = {arm: run.row.seconds for arm, run in runs.items()}
            found += runs.values()
    return found


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
    if not reference.row.censored:
        longest_s = 60 * protocol.cap_minutes
    cap_s = min(protocol.cap_times * reference.row.seconds, longest_s)
    others = [arm for arm in task.arms if arm != protocol.reference]
    runs = {protocol.reference: reference}
    for arm in turned(others, number):
        run = _trained(task, arm, ratio, seed, own_s.get(arm, cap_s), cells)
        if run is not None:
            runs[arm] = run
    for arm in task.derived:
        if protocol.derived_from not in runs:
            cells.missing += 1
            continue
        derived = _derived(protocol, task, arm, ratio, seed, runs[protocol.derived_from].row, cells)
        if derived is not None:
            runs[arm] = derived
    return runs


def _trained(task: Task, arm: str, ratio: float, seed: int, cap_s: float, cells: Cells) -> Run | None:
    training = task.training(arm, ratio, seed)
    # The bound is no setting: it follows from the reference's cell.
    name = f"{_slug(task.name)}-{arm}-spi{ratio:g}-seed{seed}"
    cell = cells.get(
        name,
        settings_of(training),
        lambda: train(training, cap_s=cap_s, say=cells.say, meter=cells.meter),
        group=_group(task, seed),
        # stopped sooner than it would be now, it is no censored run
        usable=lambda cell: bool(cell["reached"]) or cell["clock_s"] >= cap_s or cell["timesteps"] >= training.steps,
    )
    if cell is None:
        return None
    reached: dict[str, Any] | None = cell["reached"]
    last: dict[str, Any] = cell["evaluations"][-1] if cell["evaluations"] else {}
    row = RewardRow(
        task=task.name,
        **described(training, "algo", "seed"),
        target=task.target,
        seconds=cell["clock_s"] if reached is None else reached["clock_s"],
        derived=False,
        censored=reached is None,
        env_steps=int((reached or cell)["timesteps"]),
        updates=int((reached or cell)["updates"]),
        final_return=last.get("return"),
        final_return_quantised=last.get("return_quantised"),
        samples_per_insert=ratio,
        cpu=cell["machine"]["cpu"],
        joules=cell.get("joules"),
        joules_by=cell.get("joules_by"),
    )
    return Run(row=row, curve=_curve(cell))


def _derived(
    protocol: Protocol, task: Task, arm: str, ratio: float, seed: int, source: RewardRow, cells: Cells
) -> Run | None:
    """`source` at the pace of `arm`, measured once for all seeds."""
    training = task.training(arm, ratio, task.seeds[0])
    endless = replace(training, eval_freq=0, n_timesteps=10**9, target=None)
    window: dict[str, Any] = {"warm_up": WARM_UP_S, "seconds": protocol.window_s}
    name = f"{_slug(task.name)}-{arm}-spi{ratio:g}-pace"
    cell = cells.get(
        name,
        settings_of(training, **window),
        lambda: watch(endless, **window, say=cells.say),
        group=_group(task, seed),
    )
    if cell is None:
        return None
    if not cell["updates"]:
        raise QuarlError(f"{name} saw no update, and so no pace: raise the protocol's window_s")
    seconds = source.updates * cell["clock_s"] / cell["updates"]
    row = replace(source, **described(training), seconds=seconds, derived=True, joules=None, joules_by=None)
    return Run(row=row, curve=[])


def _group(task: Task, seed: int) -> str:
    """Runs whose seconds are compared: those of a seed, and of all seeds where a pace was measured once for them."""
    return task.name if task.derived else f"{task.name} seed {seed}"


def _curve(cell: Cell) -> Curve:
    names = ("clock_s", "timesteps", "updates", "return", "return_quantised")
    return [{name: entry[name] for name in names if name in entry} for entry in cell["evaluations"]]


def _slug(name: str) -> str:
    return "".join(character if character.isalnum() else "-" for character in name)
