"""The plan of a run: three rates timed on this machine, and the bottleneck among them.

A balanced run makes batch_size / samples_per_insert environment steps for every update. Environment steps and weight
loading are timed in a real actor process, inserts and updates in a real learner, both at the run's niceness. The
publisher's work is left out. Seconds in which a thread waited for a core do not count as its work: their share, and the
cores that other processes take, tell what is left for the run on a busy machine.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
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
from quarl.processes.inside import give_way, queued_s
from quarl.rows import ActorPrecision, Column, Row

Arm = tuple[str, Any]
"""Precision and engine of an actor."""
TORCH, FLOAT, PLAIN = ("fp32", "torch"), ("fp32", "litert"), ("fp32", "stable-baselines3")
ARMS: tuple[Arm, ...] = (TORCH, FLOAT, ("fp16", "litert"), ("int8", "litert"), ("int4", "litert"))
SECONDS, TURNS, CALLS = 2.0, 6, 10
"""Seconds for each rate; turns over the precisions, so that a slow moment affects all; calls of the learner in a group,
because some updates move more networks, or push weights. A rate is the median over turns or groups after warm-up.
"""
BLOCK, KEPT = 64, 500
"""Maximum segments of a block, and maximum number of blocks kept for the learner."""
EVEN, MUCH = 1.1, 0.25
"""Factor within which two rates count as even, and share of an actor's time above which its cause is reported."""
BUSY, SPAN = 0.2, 2.0
"""Share of the cores for other processes, or of the time in a queue for a core, above which a range is predicted; upper
end of the range over the lower one.
"""
MOST = 64
"""Maximum number of actors of an environment that waits."""
REGIMES = {
    "actor-bound": "the learner waits for actors: raise --actors, --envs-per-actor or --samples-per-insert",
    "between": "fp32 actors delay the learner, these less: a faster learner (--device, --learner-dtype) gains more",
    "learner-bound": "all wait for the learner: use a faster one (--device, --learner-dtype) or a lower ratio",
}


class Step(NamedTuple):
    """Seconds of an actor's environment step and of its weight loading, without those in a queue for a core."""

    arm: Arm
    environment_s: float
    inference_s: float
    """Seconds of a call, divided by the environments that it serves."""
    overhead_s: float
    """Seconds of exploration, counters and ring."""
    load_s: float = 0.0
    """Seconds from finding new weights to acting with them."""
    work: float = 1.0
    """Share of a step on a core; in the rest its environment waits."""

    @property
    def seconds(self) -> float:
        return self.environment_s + self.inference_s + self.overhead_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The measured rates in seconds, and the learner's settings behind them."""

    batch_size: int
    samples_per_insert: float
    """Ratio of the configuration."""
    learner_s: float
    """Seconds of an update with its inserts."""
    steps: tuple[Step, ...]
    """Step of every arm, and of plain Stable-Baselines3: its `predict` between an actor's environment and overhead."""
    queued: float = 0.0
    """Seconds of the learner in a queue for a core, for each second on one."""
    others: float = 0.0
    """Number of cores that other processes took meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow(Row):
    """The predicted rates of one precision on one engine; times are per environment step, on a machine of its own."""

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
    bottleneck: Annotated[Literal["actors", "learner", "even"], Column("bottleneck")]


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
    start, others_s = time.monotonic(), _others_s()
    with temporary_folder() as folder, threads(config.learner_threads):
        supervisor = Supervisor(replace(config, output=folder, resume=False), lambda line: None)
        segments, timed = deque[Array](maxlen=KEPT), list[Step]()
        with contextlib.closing(supervisor), ThreadPoolExecutor(1) as pool:
            # Time the actors, engine by engine.
            for engine in dict.fromkeys(engine for _, engine in arms):
                say(f"actor, {engine}")
                timed += steps(supervisor, [arm for arm in arms if arm[1] == engine], seconds, segments)
            # Time the learner on the actors' segments, in a thread: a thread has a niceness of its own.
            say("learner")
            rates = pool.submit(_learning, supervisor, np.concatenate(segments), seconds, timed).result()
    # By now all children have ended and are counted.
    return replace(rates, others=(_others_s() - others_s) / (time.monotonic() - start))


def _others_s() -> float:
    """Return the seconds for which others than this process and its ended children worked on this process's cores."""
    lines = re.findall(r"^cpu(\d+) (.+)$", Path("/proc/stat").read_text(), re.MULTILINE)
    times = [[*map(int, line.split())] for core, line in lines if int(core) in os.sched_getaffinity(0)]
    # user, nice, system, irq, softirq and steal of proc(5), which are all but idle and iowait
    return sum(sum(each[:3] + each[5:8]) for each in times) / os.sysconf("SC_CLK_TCK") - sum(os.times()[:4])


def steps(supervisor: Supervisor, arms: Sequence[Arm], seconds: float, segments: deque[Array]) -> Iterator[Step]:
    """Yield the step of each arm, timed in one actor process that never waits for a learner.

    Args:
        supervisor: Supervisor whose first actor is used.
        arms: Pairs (precision, engine), all with the same engine.
        seconds: Seconds for each arm.
        segments: Queue that the actor's segments are appended to.
    """
    config, actors, learner = supervisor.config, supervisor.workers.actors, supervisor.counters.learner
    child, cells, rows = actors.children[0], supervisor.counters.actors[0], np.zeros(BLOCK, supervisor.channel.dtype)

    def booked(column: Actor, above: float, until: float = 0.0) -> Array:
        """Return the actor's counters once column `column` exceeds `above` and time `until` has passed."""
        while cells[column] <= above or time.monotonic() < until:
            actors.look()  # kills it if it hangs
            if not child.alive():
                raise QuarlError(
                    f"an actor died while it was timed, or made no step in {config.env} for --env-timeout "
                    f"{config.env_timeout:g} s ({child.reason()})"
                )
            while num := supervisor.channel.drain(rows):  # drain as the learner would, so that there is always room
                segments.append(rows[:num].copy())
            time.sleep(0.001)
        return np.array(cells)

    # Restart the actor with the engine of the arms, and let it count its time on a core.
    child.kill()  # it runs another engine
    child.spec = replace(
        child.spec, config=replace(config, engine=arms[0][1], plan=True), incarnation=child.spec.incarnation + 1
    )
    learner[Learner.INSERT_LIMIT] = 2**53
    supervisor.children.start(child)
    # Time the arms in turns.
    packers = [Packer(precision, config.comm_bits, config.weight_compress) for precision, _ in arms]
    spent = np.zeros((len(cells), 2, len(arms), 1 + TURNS))
    for turn, place in itertools.product(range(1 + TURNS), range(len(arms))):
        data = packers[place].pack(supervisor.template.initial, segments[-1]["observation"] if segments else None)
        version, old = supervisor.channel.packed.version, cells.copy()
        supervisor.channel.packed.publish(data, version=version + 1, step=0)
        # Begin and end the window right after a block of steps, when all of its columns are written.
        before = booked(Actor.LOOP_S, booked(Actor.VERSION, version)[Actor.LOOP_S])
        spent[:, 0, place, turn] = before - old
        until = time.monotonic() + seconds / TURNS
        spent[:, 1, place, turn] = booked(Actor.LOOP_S, booked(Actor.STEPS, 0, until)[Actor.LOOP_S]) - before
    # Take the time in a queue out of all windows but the first, which warms up, and divide by the number of steps.
    loading, acting = spent[:, 0, :, 1:], spent[:, 1, :, 1:]
    served = 1 - acting[Actor.QUEUED_S] / acting[Actor.LOOP_S]
    times = {column.name.lower(): acting[column] * served / acting[Actor.STEPS] for column in Actor}
    columns = (
        times["environment_s"],
        times["inference_s"],
        overhead_s(times),
        loading[[Actor.PULL_S, Actor.DESERIALIZE_S, Actor.LOAD_S]].sum(axis=0)
        * (1 - loading[Actor.QUEUED_S] / loading[Actor.LOOP_S]),
        (times["cpu_s"] / served / times["loop_s"]).clip(max=1),
    )
    for arm, *medians in zip(arms, *(np.median(column, axis=1).tolist() for column in columns), strict=True):
        yield Step(arm, *medians)


def _learning(supervisor: Supervisor, rows: Array, seconds: float, timed: Sequence[Step]) -> Rates:
    """Return the timed steps with the rates of a learner in this thread, and of plain Stable-Baselines3's `predict`."""
    give_way(supervisor.config.nice)
    learner = LearnerLoop(supervisor.workers.learner.spec)  # pins this thread as in the run
    ratio = float(supervisor.config.samples_per_insert or samples_per_insert(learner.model))
    num_blocks = np.clip(len(rows) * ratio / learner.model.batch_size, 1, len(rows)).astype(int)
    blocks, span = itertools.cycle(np.array_split(rows, num_blocks)), rows["sequence"].max() + 1

    def learn() -> None:
        segments = next(blocks)
        segments["sequence"] += span  # number the same stream further
        learner.replay_insert.take(segments)
        learner.update()  # includes a wait for the GPU, because the losses are read

    learner_s = _median_s(learn, seconds)
    predict_s = _median_s(partial(learner.model.predict, rows["observation"][0], deterministic=True), seconds / TURNS)
    return Rates(
        batch_size=learner.model.batch_size,
        samples_per_insert=ratio,
        learner_s=learner_s,
        steps=(*timed, timed[0]._replace(arm=PLAIN, inference_s=predict_s, load_s=0.0)),
        queued=queued_s() / time.thread_time(),
    )


def _median_s(call: Callable[[], Any], seconds: float) -> float:
    """Return the seconds of a call without those in a queue for a core, as the median over groups of calls."""
    for until in (0.0, seconds):  # the first round warms up
        marks, start = [_served_s()], time.perf_counter()
        while len(marks) < 2 or time.perf_counter() < start + until:
            for _ in range(CALLS):
                call()
            marks.append(_served_s())
    return float(np.median(np.diff(marks))) / CALLS


def _served_s() -> float:
    """Return the time of a clock that stops while this thread waits for a core."""
    queued, now = queued_s(), time.perf_counter()
    return now - queued if queued_s() == queued else _served_s()


def predict(rates: Rates, config: ActorQConfig, cores: float | None = None) -> list[PlanRow]:
    """Predict a row for every step of `rates`, in order, on a machine without other processes.

    Args:
        rates: Measured rates.
        config: Options of the run.
        cores: Number of cores; None means those of this machine.
    """
    cores = usable_cores() if cores is None else cores
    num_steps, learner_s = rates.batch_size / (config.samples_per_insert or rates.samples_per_insert), rates.learner_s
    # An actor loads a version when it is published or when it checks for one, whichever comes later.
    loads = min(config.num_actors / config.publish_interval / num_steps, 1 / config.actor_update_interval)
    costs = {}  # per update, by arm: the actors' seconds for its steps, and the seconds until the next update
    for step in rates.steps:
        # An actor that works fills one core; the learner's threads take theirs first.
        busy_s = num_steps * (step.seconds + loads * step.load_s)
        actors_s = busy_s * max(1 / config.num_actors, step.work / max(cores - config.learner_threads, 1))
        together_s = (learner_s * config.learner_threads + busy_s * step.work) / cores
        costs[step.arm] = (
            (busy_s, busy_s + learner_s) if step.arm == PLAIN else (actors_s, max(learner_s, actors_s, together_s))
        )

    return [
        PlanRow(
            precision=step.arm[0],
            engine=step.arm[1],
            env_us=round(1e6 * step.environment_s, 2),
            inference_us=round(1e6 * step.inference_s, 2),
            overhead_us=round(1e6 * step.overhead_s, 2),
            weights_us=round(1e6 * loads * step.load_s, 2),
            steps_per_s=round(num_steps / actors_s / (1 if step.arm == PLAIN else config.num_actors), 1),
            learner_ms=round(1e3 * learner_s, 3),
            predicted_updates_per_s=round(1 / update_s, 6),
            predicted_speedup_vs_torch_fp32=round(costs[TORCH][1] / update_s, 3) if TORCH in costs else None,
            predicted_speedup_vs_litert_fp32=round(costs[FLOAT][1] / update_s, 3) if FLOAT in costs else None,
            bottleneck="actors"
            if actors_s > EVEN * learner_s
            else "learner"
            if learner_s > EVEN * actors_s
            else "even",
        )
        for step, (actors_s, update_s) in zip(rates.steps, costs.values(), strict=True)
    ]


def actors_for(rates: Rates, config: ActorQConfig, step: Step) -> tuple[int, str]:
    """Return the number of actors for `--actors auto`, and the reason: more than cores only if the environment waits.

    Args:
        rates: Measured rates.
        config: Options of the run.
        step: The actors' step among the rates.
    """
    free, alone = max(usable_cores() - config.learner_threads, 1), replace(rates, steps=(step,))
    most = max(free, min(int(free / step.work), MOST))
    wider = (num for num in range(free, most) if predict(alone, replace(config, actors=num))[0].bottleneck == "learner")
    if (number := next(wider, most)) > free:
        return number, f"because the environment waits: a step takes a core for {step.work:.0%} of its time"
    return free, f"of {formats.counted(usable_cores(), 'core')} with {config.learner_threads} for the learner"


def sentences(rows: Sequence[PlanRow], rates: Rates, config: ActorQConfig) -> Iterator[str]:
    """Yield sentences that explain the rows for the run's actors, and recommend changes.

    Args:
        rows: Predicted rates, one row for each arm.
        rates: Measured rates.
        config: Options of the run.
    """
    # Name the bottleneck.
    by_arm = {step.arm: (row, step) for row, step in zip(rows, rates.steps, strict=True)}
    row, step = by_arm[config.actor_precision, config.engine]
    gains = [row.predicted_updates_per_s / by_arm[arm][0].predicted_updates_per_s for arm in (FLOAT, TORCH, PLAIN)]
    gain, torch_gain, plain_gain = (f"{gain:.2f} times{' (a loss)' if gain < 0.995 else ''}" for gain in gains)
    regime = "actor-bound" if row.bottleneck == "actors" else "learner-bound" if gains[0] < EVEN else "between"
    yield (
        f"{regime} at {config.samples_per_insert or rates.samples_per_insert:g} samples per insert: {row.precision} "
        f"actors make {gain} the updates of fp32 ones, {torch_gain} those of torch fp32; {REGIMES[regime]}"
    )
    # Name what other processes leave of it: a queue delays work, but not an environment that waits.
    queued, slower = rates.queued, 1 + rates.queued
    if max(rates.others / usable_cores(), queued / slower) > BUSY:
        slow = step._replace(
            environment_s=step.environment_s + queued * step.work * step.seconds, load_s=slower * step.load_s
        )
        slowed = replace(rates, learner_s=slower * rates.learner_s, steps=(slow,))
        # In a long queue our own processes hardly delay each other.
        number = config.num_actors + config.learner_threads
        left = number * slower / (number / max(usable_cores() - rates.others, 1) + queued)
        low = predict(slowed, config, left)[0].predicted_updates_per_s / SPAN**0.5
        yield (
            f"other processes take {rates.others:.1f} cores, and the learner queues for one {queued / slower:.0%} of "
            f"its time: expect {low:.3g} to {SPAN * low:.3g} updates/s beside them, and those above without"
        )
    # Recommend a number of actors, or another setting.
    number, why = actors_for(rates, config, step)
    if number > max(config.num_actors, usable_cores()):
        yield f"more actors than cores are faster: use --actors {number}, {why}"
    if (share := row.weights_us / (row.env_us + row.inference_us + row.overhead_us + row.weights_us)) > MUCH:
        yield f"actors spend {share:.0%} of their time on loading weights: raise --publish-interval"
    if gains[2] < EVEN:
        yield f"ActorQ does not pay off here, at {plain_gain} plain Stable-Baselines3's updates: use `quarl train`"
