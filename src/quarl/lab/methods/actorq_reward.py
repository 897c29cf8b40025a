"""Time to reward: training runs of a protocol, each to its target or its bound, and the seconds that they took."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from operator import attrgetter, itemgetter
from typing import Annotated, Any, Literal

from quarl import formats
from quarl.actorq import throughput_plan
from quarl.config.bench import split_arm
from quarl.errors import QuarlError
from quarl.lab.methods.actorq import described, settings_of, train, watch
from quarl.lab.methods.actorq_protocol import Choice, Protocol, Task
from quarl.lab.methods.cells import Cells, turned
from quarl.rows import RATIO, ActorPrecision, Column, Joules, JoulesBy, Row, Steps, Updates, by

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
    envs_per_actor: Annotated[int, Column("environments", caption="{} environment{s} an actor", before="seed")]
    part: Annotated[Literal["fixed", "development", "choice", "measured"], Column("part", caption="{}", before="seed")]
    """fixed: at a ratio of the protocol. Where ratios are free, development: on the development seed; choice: of these
    the precision's fastest that reached the target; measured: a measured seed at the choice."""
    updates_per_s: Annotated[float | None, Column("updates/s", formats.three_digits)]
    """Between the first evaluation after an update and the last one; null where there was none in between."""
    predicted_updates_per_s: Annotated[
        float | None, Column("predicted", _predicted, of=("predicted_updates_per_s", "updates_per_s"), optional=True)
    ]
    """As `quarl actorq --plan` predicts it; null where ratios are fixed."""
    cpu: str
    """The processor: that of all arms of a task's seed."""
    joules: Joules
    """Of the whole run, evaluations included; null where it was derived, or measured without --energy."""
    joules_by: JoulesBy


def _seconds(seconds: float, censored: bool) -> str:
    return f"{'> ' if censored else ''}{seconds:,.0f}"


def _predicted(predicted: float | None, measured: float | None) -> str:
    if predicted is None or not measured:
        return formats.three_digits(predicted)
    return f"{formats.three_digits(predicted)} ({100 * (predicted / measured - 1):+.0f} %)"


Run = tuple[RewardRow, Curve]
"""A row and the evaluations behind it, none where it is derived."""


def time_to_reward(protocol: Protocol, tasks: Sequence[Task], cells: Cells, *, free: bool = False) -> list[Run]:
    """All runs that are there, in the protocol's order; those that are missing are made while there is time.

    free: each precision runs at its own choice of the protocol's grids and of its engines.
    """
    return [run for task in tasks for run in (_free if free else _fixed)(protocol, task, cells)]


def _fixed(protocol: Protocol, task: Task, cells: Cells) -> list[Run]:
    """The task's runs at the protocol's ratios, each of which all arms have."""
    runs_of_all: list[Run] = []
    own_s: dict[int, dict[str, float]] = {}
    for number, (seed, ratio) in enumerate(task.runs()):
        choices = dict.fromkeys((*task.arms, *task.derived), Choice(ratio))
        runs = _seed(protocol, task, seed, choices, number, own_s.get(seed, {}), cells)
        if ratio == task.samples_per_insert:
            own_s[seed] = {arm: row.seconds for arm, (row, _) in runs.items()}
        runs_of_all += runs.values()
    return runs_of_all


def _free(protocol: Protocol, task: Task, cells: Cells) -> list[Run]:
    """The task's development runs, then each precision's measured seeds at the fastest of them that reached the target.

    Of equally fast ones the first is taken. A precision that nowhere reached the target is not measured.
    """
    arms, tried, best_s = (*task.arms, *task.derived), dict[tuple[str, Choice], Run](), dict[str, float]()
    for number, choice in enumerate(task.choices()):
        everywhere = dict.fromkeys(arms, choice)
        runs = _seed(protocol, task, protocol.development_seed or 0, everywhere, number, best_s, cells)
        tried |= {(arm, choice): run for arm, run in runs.items()}
        best_s |= {arm: row.seconds for arm, (row, _) in runs.items() if not row.censored}
    arrived = [(row.seconds, row.precision, place) for place, (row, _) in tried.items() if not row.censored]
    if len(tried) < len(arms) * len(task.choices()):
        cells.missing += len(task.seeds) * len({split_arm(arm)[0] for arm in arms})
        arrived = []
    # the last one stays: the fastest, and of equal ones the first
    chosen = {precision: place for _, precision, place in sorted(arrived, key=itemgetter(0))[::-1]}
    choices, rates = dict(chosen.values()), {choice: _rates(task, arms, choice, cells) for choice in task.choices()}
    placed: list[tuple[str, Choice, Any, Run]] = [
        (arm, choice, "choice" if choices.get(arm) == choice else "development", run)
        for (arm, choice), run in tried.items()
    ]
    for number, seed in enumerate(task.seeds if choices else ()):
        runs = _seed(protocol, task, seed, choices, number, {}, cells)
        placed += [(arm, choices[arm], "measured", run) for arm, run in runs.items()]
    return [
        (replace(row, part=part, predicted_updates_per_s=rates[choice].get(split_arm(arm))), curve)
        for arm, choice, part, (row, curve) in placed
    ]


def _rates(task: Task, arms: Sequence[str], choice: Choice, cells: Cells) -> dict[throughput_plan.Arm, float]:
    """Updates a second that the plan predicts, by arm; none where it could not be timed."""
    training, timed = task.training(arms[0], choice, task.seeds[0]), tuple(map(split_arm, arms))
    settings, name = settings_of(training, arms=timed), f"{_named(task, arms[0], choice)}-rates"
    cell = cells.get(
        name, settings, lambda: {"rates": asdict(throughput_plan.measure(training, timed))}, group=task.name
    )
    rows = [] if cell is None else throughput_plan.predict(throughput_plan.Rates.from_json(cell["rates"]), training)
    return {(row.precision, row.engine): row.predicted_updates_per_s for row in rows}


def _seed(
    protocol: Protocol,
    task: Task,
    seed: int,
    choices: Mapping[str, Choice],
    number: int,
    own_s: Mapping[str, float],
    cells: Cells,
) -> dict[str, Run]:
    """The runs of one seed, by arm: the reference first, whose time bounds the others, which take turns at being early.

    choices: of the arms that run. own_s: seconds of each arm elsewhere: beyond them this choice is not its best.
    """
    cap_s = longest_s = 60 * task.cap_minutes
    runs: dict[str, Run | None] = {}

    def trained(arm: str, choice: Choice) -> Run | None:
        return _trained(task, arm, choice, seed, own_s.get(arm, cap_s), cells)

    if protocol.reference in choices:
        missing = cells.missing
        reference = runs[protocol.reference] = trained(protocol.reference, choices[protocol.reference])
        if reference is None:
            if cells.missing > missing:  # for want of time, and not of its processor
                cells.missing += len(choices) - 1
            return {}
        row, _ = reference
        cap_s = min(protocol.cap_times * row.seconds, longest_s if row.censored else 60 * protocol.cap_minutes)
    for arm in turned([arm for arm in task.arms if arm in choices and arm != protocol.reference], number):
        runs[arm] = trained(arm, choices[arm])
    for arm in (arm for arm in task.derived if arm in choices):
        if (source := trained(protocol.derived_from, choices[arm])) is not None:
            runs[arm] = _derived(protocol, task, arm, choices[arm], seed, source[0], cells)
    return {arm: run for arm, run in runs.items() if run is not None}


def _trained(task: Task, arm: str, choice: Choice, seed: int, cap_s: float, cells: Cells) -> Run | None:
    training = task.training(arm, choice, seed)
    # The bound is no setting: it follows from the reference's cell.
    cell = cells.get(
        f"{_named(task, arm, choice)}-seed{seed}",
        settings_of(training),
        lambda: train(training, cap_s=cap_s, say=cells.say, meter=cells.meter),
        group=_group(task, seed),
        # stopped sooner than it would be now, it is no censored run
        usable=lambda cell: bool(cell["reached"]) or cell["clock_s"] >= cap_s or cell["timesteps"] >= training.steps,
    )
    if cell is None:
        return None
    ended = cell["reached"] or cell
    paced = [entry for entry in cell["evaluations"] if entry["updates"]]
    seconds, updates = (paced[-1][name] - paced[0][name] if paced else 0 for name in ("clock_s", "updates"))
    last: dict[str, Any] = cell["evaluations"][-1] if cell["evaluations"] else {}
    row = RewardRow(
        task=task.name,
        **described(training, "algo", "seed", "samples_per_insert", "envs_per_actor"),
        target=task.target,
        seconds=ended["clock_s"],
        derived=False,
        censored=cell["reached"] is None,
        env_steps=int(ended["timesteps"]),
        updates=int(ended["updates"]),
        final_return=last.get("return"),
        final_return_quantised=last.get("return_quantised"),
        part="fixed",
        updates_per_s=updates / seconds if updates else None,
        predicted_updates_per_s=None,
        cpu=cell["machine"]["cpu"],
        joules=cell.get("joules"),
        joules_by=cell.get("joules_by"),
    )
    return row, [{name: entry[name] for name in OF_CURVES if name in entry} for entry in cell["evaluations"]]


def _derived(
    protocol: Protocol, task: Task, arm: str, choice: Choice, seed: int, source: RewardRow, cells: Cells
) -> Run | None:
    """`source` at the pace of `arm`, measured once for all seeds."""
    training = task.training(arm, choice, task.seeds[0])
    endless = replace(training, eval_freq=0, n_timesteps=10**9, target=None)
    window: dict[str, Any] = {"warm_up": WARM_UP_S, "seconds": protocol.window_s}
    name = f"{_named(task, arm, choice)}-pace"
    measure = partial(watch, endless, **window, say=cells.say)
    cell = cells.get(name, settings_of(training, **window), measure, group=_group(task, seed))
    if cell is None:
        return None
    if not cell["updates"]:
        raise QuarlError(f"{name} saw no update, and so no pace: raise the protocol's window_s")
    pace = {"seconds": source.updates * cell["clock_s"] / cell["updates"], "updates_per_s": None}
    return replace(source, **described(training), **pace, derived=True, joules=None, joules_by=None), []


def choices_in_words(rows: Iterable[RewardRow]) -> Iterator[str]:
    """What each precision has chosen on each task, or that there was nothing to choose."""
    tried = [row for row in rows if row.part in ("development", "choice")]
    for (task, precision), runs in by(tried, attrgetter("task", "precision")).items():
        for row in (run for run in runs if run.part == "choice"):
            yield (
                f"{task}: of {len(runs)} runs on seed {row.seed} {precision} was fastest on {row.engine} with "
                f"{row.samples_per_insert:g} samples per insert, environments an actor: {row.envs_per_actor}"
            )
        if all(run.censored for run in runs):
            yield f"{task}: {precision} reached the target in none of {len(runs)} development runs, and is not measured"


def _group(task: Task, seed: int) -> str:
    """Runs whose seconds are compared: those of a seed, and of all seeds where a pace or a choice is of all of them."""
    return task.name if task.derived or task.ratios else f"{task.name} seed {seed}"


def _named(task: Task, arm: str, choice: Choice) -> str:
    """What a cell's name begins with."""
    envs = "" if choice.envs_per_actor is None else f"-envs{choice.envs_per_actor}"
    return f"{_slug(task.name)}-{arm}-spi{choice.samples_per_insert:g}{envs}"


def _slug(name: str) -> str:
    return "".join(character if character.isalnum() else "-" for character in name)
