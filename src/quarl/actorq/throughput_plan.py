"""The plan of a run: three rates timed on this machine, and the bottleneck among them.

A balanced run makes batch_size / samples_per_insert environment steps for every update. Environment steps and weight
loading are timed in a real actor process, inserts and updates in a real learner. The publisher's work is left out.
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
"""Precision and engine of an actor."""
Bottleneck = Literal["actors", "learner", "even"]
TORCH, FLOAT, PLAIN = ("fp32", "torch"), ("fp32", "litert"), ("fp32", "stable-baselines3")
ARMS: tuple[Arm, ...] = (TORCH, FLOAT, ("fp16", "litert"), ("int8", "litert"), ("int4", "litert"))
SECONDS, ROUNDS, MIN_CALLS = 2.0, 4, 4
"""Seconds for each rate; rounds over the precisions, so that a slow moment affects all; minimum calls per operation."""
START_S = 60.0
"""Seconds for an actor to start, or to make a step with other weights."""
BLOCK, KEPT = 64, 500
"""Maximum segments of a block, and maximum number of blocks kept for the learner."""
EVEN = 1.1
"""Factor within which two rates count as even."""
MUCH = 0.25
"""Share of an actor's time above which its cause is reported."""
REGIMES = {
    "actor-bound": "the learner waits for actors: raise --actors, --envs-per-actor or --samples-per-insert",
    "between": "fp32 actors delay the learner, these less: a faster learner (--device, --learner-dtype) gains more",
    "learner-bound": "all wait for the learner: use a faster one (--device, --learner-dtype) or a lower ratio",
}


class Step(NamedTuple):
    """Seconds of an actor's environment step and of its weight loading."""

    precision: str
    engine: str
    environment_s: float
    inference_s: float
    """Seconds of a call, divided by the environments that it serves."""
    overhead_s: float
    """Seconds of exploration, counters and ring."""
    load_s: float = 0.0
    """Seconds from finding new weights to acting with them."""

    @property
    def arm(self) -> Arm:
        return self.precision, self.engine

    @property
    def seconds(self) -> float:
        return self.environment_s + self.inference_s + self.overhead_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The measured rates in seconds, and the learner's settings behind them."""

    batch_size: int
    samples_per_insert: float
    """Ratio of the configuration."""
    update_s: float
    insert_s: float
    """Learner's seconds for one segment."""
    steps: tuple[Step, ...]
    """Step of every arm, and of plain Stable-Baselines3: its `predict` between an actor's environment and overhead."""

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Rates:
        """Restore rates from the fields that `dataclasses.asdict` returned."""
        return cls(**{**fields, "steps": tuple(Step(*step) for step in fields["steps"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow(Row):
    """The predicted rates of one precision on one engine; times are per environment step."""

    command = "actorq plan"
    precision: ActorPrecision
    engine: str
    """Engine of the actors; stable-baselines3 means its own loop: environment, `predict` and learner in one process."""
    env_us: Annotated[float, Column("environment µs", formats.three_digits)]
    inference_us: Annotated[float, Column("inference µs", formats.three_digits)]
    """Time of a call, divided by the environments that it serves."""
    overhead_us: Annotated[float, Column("overhead µs", formats.three_digits)]
    """Time of exploration, counters and ring per step."""
    weights_us: Annotated[float, Column("weights µs", formats.three_digits)]
    """Time of weight loading for every version that is published, or checked for, spread over the steps in between."""
    steps_per_s: Annotated[float, Column("steps/s an actor", "{:,.0f}".format)]
    """Steps of one actor that never waits: 1e6 over the sum of the four, times its share of a core."""
    learner_ms: Annotated[float, Column("learner ms", formats.three_digits)]
    """Time of one update, with its inserts."""
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
    """Measure the rates of the run that `config` describes.

    Args:
        config: Options of the run.
        arms: Pairs (precision, engine) of actors to time.
        seconds: Seconds for each rate.
        say: Receives one line for each part that is timed.
    """
    with temporary_folder() as folder, threads(config.learner_threads):
        supervisor = Supervisor(replace(config, output=folder, resume=False), lambda line: None)
        with contextlib.closing(supervisor):
            # Time the actors, engine by engine.
            segments: list[Array] = []
            timed: list[Step] = []
            for engine in dict.fromkeys(engine for _, engine in arms):
                say(f"actor, {engine}")
                timed += steps(supervisor, [arm for arm in arms if arm[1] == engine], seconds, segments)
            # Time the learner on the actors' segments, then one call of `predict`.
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
    """Yield the step of each arm, timed in one actor process that never waits.

    Args:
        supervisor: Supervisor whose first actor is used.
        arms: Pairs (precision, engine), all with the same engine.
        seconds: Seconds for each arm.
        segments: List that some of the actor's segments are appended to.
    """
    config, counters, child = supervisor.config, supervisor.counters, supervisor.workers.actors.children[0]
    cells, rows = counters.actors[0], np.zeros(BLOCK, supervisor.channel.dtype)

    def booked(column: Actor, above: float, until: float = 0.0) -> Array:
        """Return the actor's counters once column `column` exceeds `above` and time `until` has passed."""
        deadline = max(time.monotonic() + START_S, until)
        while cells[column] <= above or time.monotonic() < until:
            if not child.alive():
                raise QuarlError(f"an actor died while it was timed ({child.reason()})")
            if time.monotonic() > deadline:
                raise QuarlError(f"an actor made no step in {config.env} within {START_S:g} s")
            while num := supervisor.channel.drain(rows):  # drain as the learner would, so that there is always room
                if len(segments) < KEPT:
                    segments.append(rows[:num].copy())
            time.sleep(0.001)
        books: Array = cells.copy()
        return books

    # Restart the actor with the engine of the arms.
    engine: Any = arms[0][1]
    child.kill()  # it runs another engine
    child.spec = replace(child.spec, config=replace(config, engine=engine), incarnation=child.spec.incarnation + 1)
    counters.learner[Learner.INSERT_LIMIT] = 2**53
    supervisor.children.start(child)
    # Time the arms in turns.
    packers = [Packer(precision, config.comm_bits, config.weight_compress) for precision, _ in arms]
    spent, load_s = np.zeros((len(arms), len(cells))), np.zeros((len(arms), ROUNDS))
    for turn, place in itertools.product(range(ROUNDS), range(len(arms))):
        data = packers[place].pack(supervisor.template.initial, segments[-1]["observation"] if segments else None)
        version, old = supervisor.channel.packed.version, cells.copy()
        supervisor.channel.packed.publish(data, version=version + 1, step=0)
        loaded = booked(Actor.VERSION, version)
        before = booked(Actor.LOOP_S, loaded[Actor.LOOP_S])  # wait until loading the weights is in the counters
        load_s[place, turn] = (before - old)[[Actor.PULL_S, Actor.DESERIALIZE_S, Actor.LOAD_S]].sum()
        until = time.monotonic() + seconds / ROUNDS
        spent[place] += booked(Actor.ENVIRONMENT_S, before[Actor.ENVIRONMENT_S], until) - before
    # Divide by the number of steps.
    for arm, sums, loads in zip(arms, spent, np.median(load_s, axis=1), strict=True):
        times = {column.name.lower(): float(sums[column] / sums[Actor.STEPS]) for column in Actor}
        yield Step(*arm, times["environment_s"], times["inference_s"], overhead_s(times), float(loads))


def _learning(learner: LearnerLoop, rows: Array, num_inserts: float, seconds: float) -> tuple[float, float]:
    """Return the seconds of an update, and of an insert of one segment, with `num_inserts` inserts per update."""
    blocks = itertools.cycle(np.array_split(rows, np.clip(len(rows) / num_inserts, 1, len(rows)).astype(int)))
    span = rows["sequence"].max() + 1
    inserts, insert_s, updates, update_s = 0, 0.0, 0, 0.0
    deadline = time.perf_counter() + seconds
    while updates < MIN_CALLS or time.perf_counter() < deadline:
        segments = next(blocks)
        segments["sequence"] += span  # number the same stream further
        start = time.perf_counter()
        learner.replay_insert.take(segments)
        inserted, settled = time.perf_counter(), learner.updates.settled
        insert_s += inserted - start
        learner.update()  # includes a wait for the GPU, because the losses are read
        if settled and inserts:  # the first update creates the optimizer's state, and some on a GPU a graph
            updates, update_s = updates + 1, update_s + time.perf_counter() - inserted
        inserts += len(segments)
    return update_s / updates, insert_s / inserts


def predict(rates: Rates, config: ActorQConfig, cores: int | None = None) -> list[PlanRow]:
    """Predict a row for every step of `rates`, in order.

    Args:
        rates: Measured rates.
        config: Options of the run.
        cores: Number of cores; None means those of this machine.
    """
    cores = usable_cores() if cores is None else cores
    num_steps = rates.batch_size / (config.samples_per_insert or rates.samples_per_insert)
    learner_s = rates.update_s + num_steps * rates.insert_s
    # An actor fills one core; the learner's threads take theirs first.
    actor_cores = min(config.num_actors, max(cores - config.learner_threads, 1))
    # An actor loads a version when it is published or when it checks for one, whichever comes later.
    versions = min(1 / config.publish_interval, num_steps / config.num_actors / config.actor_update_interval)
    load_s = {step.arm: config.num_actors * versions * step.load_s / num_steps for step in rates.steps}
    costs = {}  # per update, by arm: the actors' seconds for its steps, and the seconds until the next update
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
    """Return the bottleneck from `ratio`, the actors' rate over the learner's."""
    return "actors" if ratio < 1 / EVEN else "learner" if ratio > EVEN else "even"


def even_ratio(rates: Rates, row: PlanRow, config: ActorQConfig) -> float:
    """Return the samples per insert at which learner and the row's actors are equally fast.

    0 means that inserts alone are slower than the actors.

    Args:
        rates: Measured rates.
        row: Predicted rates of the actors.
        config: Options of the run.
    """
    # Seconds of a step that are left for its share of an update.
    spare_s = 1 / (row.steps_per_s * config.num_actors) - rates.insert_s
    return rates.batch_size * max(spare_s, 0.0) / rates.update_s


def sentences(rows: Sequence[PlanRow], rates: Rates, config: ActorQConfig) -> Iterator[str]:
    """Yield sentences that explain the rows for actors of the run's precision, and recommend changes.

    Args:
        rows: Predicted rates, one row for each arm.
        rates: Measured rates.
        config: Options of the run.
    """
    # Name the bottleneck.
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
    # Recommend a ratio or a setting.
    if regime == "learner-bound":
        limit = even_ratio(rates, base, config)
        yield (
            f"quantized actors begin to help below {limit:.2g} samples per insert"
            if limit
            else "quantized actors help at no ratio: the learner inserts steps more slowly than actors send them"
        )
    elif gain < EVEN and precision != "fp32":
        yield f"{precision} actors will not help here: inference is a small part of an actor's step"
    share = row.weights_us / (row.env_us + row.inference_us + row.overhead_us + row.weights_us)
    if share > MUCH:
        yield f"actors spend {share:.0%} of their time on loading weights: raise --publish-interval"
    if plain_gain < EVEN:
        yield f"ActorQ does not pay off here ({plain_gain:.2f} times plain Stable-Baselines3): use `quarl train`"
    yield "only rates are predicted, not time to reward: the number of updates to a target depends on the ratio too"
