"""The plan of a run: three rates that are timed on this machine, and which of them the others wait for.

A run in balance makes batch_size / samples_per_insert environment steps for every update. Steps, and taking in weights,
are timed in a real actor process, inserts and updates in a real learner. What the publisher does is left out.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from timeit import Timer
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from quarl import formats
from quarl.actorq.build import samples_per_insert
from quarl.actorq.counters import Actor, Learner, overhead_s
from quarl.actorq.learner import LearnerLoop
from quarl.actorq.supervisor import Supervisor
from quarl.actorq.wire import Packer
from quarl.algorithms.cpu import threads
from quarl.arrays import Array
from quarl.config import ActorQConfig
from quarl.errors import QuarlError
from quarl.files import temporary_folder
from quarl.machine import usable_cores
from quarl.rows import ActorPrecision, Column, Row

Arm = tuple[str, str]
"""(precision, engine) of an actor."""
Bottleneck = Literal["actors", "learner", "even"]
TORCH, FLOAT, PLAIN = ("fp32", "torch"), ("fp32", "litert"), ("fp32", "stable-baselines3")
ARMS: tuple[Arm, ...] = (TORCH, FLOAT, ("fp16", "litert"), ("int8", "litert"), ("int4", "litert"))
SECONDS, ROUNDS, MIN_CALLS = 2.0, 4, 4
"""For each rate; turns that precisions take, so that a slow moment meets all; calls of what is slow, at least."""
START_S = 60.0
"""For an actor to come up, or to make a step on other weights."""
BLOCK, KEPT = 64, 500
"""Segments of a block at most, and blocks that are kept for the learner."""
EVEN = 1.1
"""Rates within this factor of each other are even."""
MUCH = 0.25
"""Of an actor's time, from which on what it is spent on is pointed at."""
REGIMES = {
    "actor-bound": "the learner waits for them: raise --actors, --envs-per-actor or --samples-per-insert",
    "between": "fp32 ones hold the learner up, these less: a faster one (--device, --learner-dtype) gains more by them",
    "learner-bound": "all wait for the learner: a faster one helps (--device, --learner-dtype), or a lower ratio",
}


class Step(NamedTuple):
    """Seconds of one environment step of an actor, and of taking in a version."""

    precision: str
    engine: str
    environment_s: float
    inference_s: float
    """A call, divided by the environments that it serves."""
    overhead_s: float
    """Exploration, books and ring."""
    load_s: float = 0.0
    """From finding new weights to acting with them."""

    @property
    def arm(self) -> Arm:
        return self.precision, self.engine

    @property
    def seconds(self) -> float:
        return self.environment_s + self.inference_s + self.overhead_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What was timed, in seconds, and what of the learner goes with it."""

    batch_size: int
    samples_per_insert: float
    """The ratio of the configuration."""
    update_s: float
    insert_s: float
    """The learner's time for one segment."""
    steps: tuple[Step, ...]
    """Of every arm, and of plain Stable-Baselines3: its `predict` between an actor's environment and overhead."""

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Rates:
        """What `dataclasses.asdict` made of one."""
        return cls(**{**fields, "steps": tuple(Step(*step) for step in fields["steps"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow(Row):
    """What one precision on one engine would do; times are of one environment step."""

    command = "actorq plan"
    precision: ActorPrecision
    engine: str
    """stable-baselines3: its own loop, in which environment, `predict` and learner take turns in one process."""
    env_us: Annotated[float, Column("environment µs", formats.three_digits)]
    inference_us: Annotated[float, Column("inference µs", formats.three_digits)]
    """A call, divided by the environments that it serves."""
    overhead_us: Annotated[float, Column("overhead µs", formats.three_digits)]
    """Exploration, books and ring of a step."""
    weights_us: Annotated[float, Column("weights µs", formats.three_digits)]
    """Taking in every version that is published, or that is looked for, spread over the steps between two of them."""
    steps_per_s: Annotated[float, Column("steps/s an actor", "{:,.0f}".format)]
    """Of one actor that never waits: 1e6 over the sum of the four, times its share of a core."""
    learner_ms: Annotated[float, Column("learner ms", formats.three_digits)]
    """One update, with its inserts."""
    predicted_updates_per_s: Annotated[float, Column("updates/s", formats.three_digits)]
    predicted_speedup_vs_torch_fp32: Annotated[float | None, Column("× torch fp32", formats.times)]
    predicted_speedup_vs_litert_fp32: Annotated[float | None, Column("× fp32", formats.times)]
    bottleneck: Annotated[Bottleneck, Column("bottleneck")]


def measure(
    config: ActorQConfig,
    arms: Sequence[Arm] = ARMS,
    *,
    seconds: float = SECONDS,
    say: Callable[[str], None] = lambda line: None,
) -> Rates:
    """The rates of the run that `config` describes; `say` hears what is being timed."""
    with temporary_folder() as folder, threads(config.learner_threads):
        supervisor = Supervisor(replace(config, output=folder, resume=False), lambda line: None)
        with contextlib.closing(supervisor):
            segments: list[Array] = []
            timed: list[Step] = []
            for engine in dict.fromkeys(engine for _, engine in arms):
                say(f"actor, {engine}")
                timed += steps(supervisor, [arm for arm in arms if arm[1] == engine], seconds, segments)
            say("learner")
            rows = np.concatenate(segments)
            learner = LearnerLoop(replace(supervisor.workers.learner.spec, cores=None))
            model = learner.model
            ratio = float(config.samples_per_insert or samples_per_insert(model))
            update_s, insert_s = _learning(learner, rows, model.batch_size / ratio, seconds)
            calls, predict_s = Timer(lambda: model.predict(rows["observation"][0], deterministic=True)).autorange()
    timed.append(Step(*PLAIN, timed[0].environment_s, predict_s / calls, timed[0].overhead_s))
    return Rates(
        batch_size=model.batch_size,
        samples_per_insert=ratio,
        update_s=update_s,
        insert_s=insert_s,
        steps=tuple(timed),
    )


def steps(supervisor: Supervisor, arms: Sequence[Arm], seconds: float, segments: list[Array]) -> Iterator[Step]:
    """A step of each arm, all of one engine, in one actor process that never waits; keeps some of its segments."""
    config, counters, child = supervisor.config, supervisor.counters, supervisor.workers.actors.children[0]
    cells, rows = counters.actors[0], np.zeros(BLOCK, supervisor.channel.dtype)

    def booked(column: Actor, above: float, until: float = 0.0) -> Array:
        """The actor's books when it has more than `above` in that column, and the time has come."""
        deadline = max(time.monotonic() + START_S, until)
        while cells[column] <= above or time.monotonic() < until:
            if not child.alive():
                raise QuarlError(f"an actor died while it was timed ({child.reason()})")
            if time.monotonic() > deadline:
                raise QuarlError(f"an actor made no step of {config.env} in {START_S:g} s")
            while num := supervisor.channel.drain(rows):  # as the learner would, so that there is always room
                if len(segments) < KEPT:
                    segments.append(rows[:num].copy())
            time.sleep(0.001)
        books: Array = cells.copy()
        return books

    engine: Any = arms[0][1]
    child.kill()  # another engine's
    child.spec = replace(child.spec, config=replace(config, engine=engine), incarnation=child.spec.incarnation + 1)
    counters.learner[Learner.INSERT_LIMIT] = 2**53
    supervisor.children.start(child)
    packers = [Packer(precision, config.comm_bits, config.weight_compress) for precision, _ in arms]
    spent, load_s = np.zeros((len(arms), len(cells))), np.zeros((len(arms), ROUNDS))
    for turn, place in itertools.product(range(ROUNDS), range(len(arms))):
        data = packers[place].pack(supervisor.template.initial, segments[-1]["observation"] if segments else None)
        version, old = supervisor.channel.packed.version, cells.copy()
        supervisor.channel.packed.publish(data, version=version + 1, step=0)
        loaded = booked(Actor.VERSION, version)
        before = booked(Actor.LOOP_S, loaded[Actor.LOOP_S])  # until taking in the weights is in the books
        load_s[place, turn] = (before - old)[[Actor.PULL_S, Actor.DESERIALIZE_S, Actor.LOAD_S]].sum()
        until = time.monotonic() + seconds / ROUNDS
        spent[place] += booked(Actor.ENVIRONMENT_S, before[Actor.ENVIRONMENT_S], until) - before
    for arm, sums, loads in zip(arms, spent, np.median(load_s, axis=1), strict=True):
        times = {column.name.lower(): float(sums[column] / sums[Actor.STEPS]) for column in Actor}
        yield Step(*arm, times["environment_s"], times["inference_s"], overhead_s(times), float(loads))


def _learning(learner: LearnerLoop, rows: Array, num_inserts: float, seconds: float) -> tuple[float, float]:
    """Seconds of an update, and of an insert of one segment, where so many of `rows` come in between two updates."""
    blocks = itertools.cycle(np.array_split(rows, np.clip(len(rows) / num_inserts, 1, len(rows)).astype(int)))
    span = rows["sequence"].max() + 1
    inserts, insert_s, updates, update_s = 0, 0.0, 0, 0.0
    deadline = time.perf_counter() + seconds
    while updates < MIN_CALLS or time.perf_counter() < deadline:
        segments = next(blocks)
        segments["sequence"] += span  # of the same stream once more
        start = time.perf_counter()
        learner.replay_insert.take(segments)
        inserted, settled = time.perf_counter(), learner.updates.settled
        insert_s += inserted - start
        learner.update()  # to the end, also on a GPU: its losses are looked at
        if settled and inserts:  # the first update makes the optimizer's state, some on a GPU a graph
            updates, update_s = updates + 1, update_s + time.perf_counter() - inserted
        inserts += len(segments)
    return update_s / updates, insert_s / inserts


def predict(rates: Rates, config: ActorQConfig, cores: int | None = None) -> list[PlanRow]:
    """A row for every step of the rates, in their order, on so many cores; None: on this machine's."""
    cores = usable_cores() if cores is None else cores
    num_steps = rates.batch_size / (config.samples_per_insert or rates.samples_per_insert)
    learner_s = rates.update_s + num_steps * rates.insert_s
    # An actor fills one core; the learner's threads have theirs before them.
    actor_cores = min(config.num_actors, max(cores - config.learner_threads, 1))
    # An actor takes in a version when it is published, or when it looks for it, whichever comes later.
    versions = min(1 / config.publish_interval, num_steps / config.num_actors / config.actor_update_interval)
    load_s = {step.arm: config.num_actors * versions * step.load_s / num_steps for step in rates.steps}
    costs = {}  # of an update, by arm: seconds that its steps take the actors, and until the next one
    for step in rates.steps:
        busy_s = num_steps * (step.seconds + load_s[step.arm])
        together_s = (learner_s * config.learner_threads + busy_s) / cores
        costs[step.arm] = busy_s / actor_cores, max(learner_s, busy_s / actor_cores, together_s)
        if step.arm == PLAIN:
            costs[step.arm] = busy_s, busy_s + learner_s

    def speedup(update_s: float, base: Arm) -> float | None:
        return round(costs[base][1] / update_s, 3) if base in costs else None

    return [
        PlanRow(
            precision=step.precision,
            engine=step.engine,
            env_us=round(1e6 * step.environment_s, 2),
            inference_us=round(1e6 * step.inference_s, 2),
            overhead_us=round(1e6 * step.overhead_s, 2),
            weights_us=round(1e6 * load_s[step.arm], 2),
            steps_per_s=round(num_steps / actors_s / (1 if step.arm == PLAIN else config.num_actors), 1),
            learner_ms=round(1e3 * learner_s, 3),
            predicted_updates_per_s=round(1 / update_s, 6),
            predicted_speedup_vs_torch_fp32=speedup(update_s, TORCH),
            predicted_speedup_vs_litert_fp32=speedup(update_s, FLOAT),
            bottleneck=_bottleneck(learner_s / actors_s),
        )
        for step, (actors_s, update_s) in zip(rates.steps, costs.values(), strict=True)
    ]


def _bottleneck(ratio: float) -> Bottleneck:
    """ratio: the actors' rate over the learner's."""
    return "actors" if ratio < 1 / EVEN else "learner" if ratio > EVEN else "even"


def even_ratio(rates: Rates, row: PlanRow, config: ActorQConfig) -> float:
    """The samples per insert at which the learner is as fast as the actors of a row; 0: inserts alone are slower."""
    spare_s = 1 / (row.steps_per_s * config.num_actors) - rates.insert_s  # of a step, for its share of an update
    return rates.batch_size * max(spare_s, 0.0) / rates.update_s


def sentences(rows: Sequence[PlanRow], rates: Rates, config: ActorQConfig) -> Iterator[str]:
    """What the rows mean for actors of the run's precision, in plain words, and what to change."""
    by_arm = {(row.precision, row.engine): row for row in rows}
    precision, base = config.actor_precision, by_arm[FLOAT]
    row = by_arm[precision, "litert"]
    gain, torch_gain, plain_gain = (
        row.predicted_updates_per_s / by_arm[arm].predicted_updates_per_s for arm in (FLOAT, TORCH, PLAIN)
    )
    regime = "actor-bound" if row.bottleneck == "actors" else "between"
    if base.bottleneck != "actors" and gain < EVEN:
        regime = "learner-bound"
    yield (
        f"{regime} at {config.samples_per_insert or rates.samples_per_insert:g} samples per insert: {precision} actors "
        f"make {gain:.2f} times the updates of fp32 ones, {torch_gain:.2f} times those of torch fp32; {REGIMES[regime]}"
    )
    if regime == "learner-bound":
        limit = even_ratio(rates, base, config)
        yield (
            f"quantised actors begin to help below {limit:.2g} samples per insert"
            if limit
            else "they help at no ratio: the learner takes steps in more slowly than they come"
        )
    elif gain < EVEN and precision != "fp32":
        yield f"{precision} actors will not help here: inference is a small part of an actor's step"
    share = row.weights_us / (row.env_us + row.inference_us + row.overhead_us + row.weights_us)
    if share > MUCH:
        yield f"actors spend {share:.0%} of their time on taking in weights: raise --publish-interval"
    if plain_gain < EVEN:
        yield f"ActorQ does not pay here ({plain_gain:.2f} times plain Stable-Baselines3): use `quarl train` instead"
    yield "rates are predicted, not time to reward: how many updates a target takes depends on the ratio too"
