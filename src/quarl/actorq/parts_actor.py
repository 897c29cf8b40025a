"""What an actor costs on this machine: a call of its engine, new weights, and everything else of a step."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quarl import engines
from quarl.actorq import actor, wire
from quarl.actorq.actor import ActorSpec
from quarl.actorq.channel import LocalChannel
from quarl.actorq.environments import world_of
from quarl.actorq.exploration import ladder
from quarl.actorq.ledger import Actor, Learner, Ledger
from quarl.actorq.memory import Memory
from quarl.actorq.quantizer import REFRESH_INTERVAL
from quarl.actorq.weights import Template
from quarl.arrays import Array
from quarl.config import ActorQConfig
from quarl.errors import QuarlError
from quarl.processes.child import Child, Family

Arm = tuple[str, str]
"""(precision, engine) of an actor."""
ROUNDS = 10
MIN_CALLS, MIN_PACKS = 5, 4
RING_ROWS = 4096
START_S = 60.0
"""For an actor process to come up."""
UNLIMITED = float(2**53)
WITHOUT = ("inference_s", "environment_s", "pull_s", "deserialize_s", "load_s", "wait_s", "stale_s")
"""What an actor books that is no overhead: its work, new weights, and waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmParts:
    """What depends on the precision and engine of the actors."""

    precision: str
    engine: str
    inference_us: float
    """One call, divided by the environments whose actions it gives."""
    pull_ms: float
    """An actor's time for new weights: unpacked, loaded, run once."""
    pack_ms: float
    """The publisher's time for a version."""


def measure_arms(
    config: ActorQConfig, template: Template, vector: Array, observations: Array, arms: Sequence[Arm], seconds: float
) -> tuple[ArmParts, ...]:
    """The parts of every arm, in order; vector: the learner's weights, observations [N, *shape]: what actors meet."""
    batch = config.envs_per_actor
    inputs = np.resize(observations, (-(-len(observations) // batch) * batch, *observations.shape[1:]))
    batches = inputs.reshape(-1, batch, *observations.shape[1:])
    loaded, costs = [], []
    for precision, engine in arms:
        data, pack_s = pack(config, template, vector, precision, observations)

        def load(data: bytes = data, engine: str = engine) -> engines.Engine:
            made = engines.load(actor.unpacked(np.frombuffer(data, np.uint8), engine), engine, batch=batch)
            made.run(batches[0])
            return made

        loaded.append(load())
        costs.append((pack_s, median_s(load, seconds / 10, MIN_PACKS)))
    times = _side_by_side([engine.run for engine in loaded], batches, seconds)
    return tuple(
        ArmParts(
            precision=precision,
            engine=engine,
            inference_us=1e6 * inference_s / batch,
            pull_ms=1e3 * pull_s,
            pack_ms=1e3 * pack_s,
        )
        for (precision, engine), inference_s, (pack_s, pull_s) in zip(arms, times, costs, strict=True)
    )


def pack(
    config: ActorQConfig, template: Template, vector: Array, precision: str, observations: Array
) -> tuple[bytes, float]:
    """(the packed policy, processor seconds of a version: one look at observations is shared by those that follow)."""
    packer = wire.Packer(precision, config.comm_bits, config.weight_compress)
    seconds = []
    for _ in range(MIN_PACKS):
        start = time.process_time()
        data = packer.pack(template.policy(vector), observations)
        seconds.append(time.process_time() - start)
    rest = float(np.median(seconds[1:]))
    return data, rest + max(seconds[0] - rest, 0) / REFRESH_INTERVAL


def measure_overhead(
    config: ActorQConfig, template: Template, dtype: np.dtype[Any], data: bytes, seconds: float
) -> float:
    """Microseconds of a real actor's step beside environment and inference; `data` is the policy it acts with.

    The actor runs in a process of its own, never waits, and its segments are taken away as the learner would.
    """
    blocks = Ledger.blocks(1)
    blocks |= LocalChannel.blocks(template.num_floats, dtype, 1, max(RING_ROWS, 2 * config.envs_per_actor))
    memory = Memory.create(blocks)
    family = Family(lambda line: None)
    try:
        ledger, channel = Ledger(memory), LocalChannel(memory, 1)
        ledger.learner[Learner.INSERT_LIMIT] = UNLIMITED
        channel.packed.publish(data, version=1, step=0, stamp_ns=time.monotonic_ns())
        spec = ActorSpec(
            index=0,
            num_actors=1,
            incarnation=0,
            memory=memory.path,
            blocks=blocks,
            env_id=config.env,
            world=world_of(config),
            num_envs=config.envs_per_actor,
            engine=config.engine,
            update_interval=config.actor_update_interval,
            rung=ladder(template.initial.head.kind, 1, config.sigma)[0],
            seed=config.seed,
        )
        child = Child("actor 0", actor.main, spec)
        family.start(child)
        cells = ledger.actors[0]
        _drain(channel, child, lambda: bool(cells[Actor.LOOP_S] > 0.1), START_S)
        first = _booked(cells)
        _drain(channel, child, lambda: False, seconds)
        # a simulator may be slower than that, or the machine busy with other things
        _drain(channel, child, lambda: bool(cells[Actor.STEPS] > first["steps"]), START_S)
        spent = {name: value - first[name] for name, value in _booked(cells).items()}
    finally:
        family.kill()
        memory.remove()
    if not spent["steps"]:
        raise QuarlError(f"an actor made no step of {config.env} in {START_S:g} s")
    return 1e6 * overhead_s(spent) / spent["steps"]


def overhead_s(times: Mapping[str, float]) -> float:
    """Of an actor's booked seconds, what is neither environment, inference, taking in weights nor waiting."""
    return times["loop_s"] - sum(times[name] for name in WITHOUT)


def median_s(call: Callable[[], object], seconds: float, least: int = MIN_CALLS) -> float:
    """Seconds of a call, the median of as many as there is time for."""
    found: list[float] = []
    deadline = time.perf_counter() + seconds
    while len(found) < least or time.perf_counter() < deadline:
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return float(np.median(found))


def _side_by_side(calls: Sequence[Callable[[Array], object]], inputs: Array, seconds: float) -> list[float]:
    """Median seconds of each call; they take turns in short blocks, so that a slow moment meets all."""
    found: list[list[float]] = [[] for _ in calls]
    order, index = np.random.default_rng(0), 0
    for _ in range(ROUNDS):
        for which in order.permutation(len(calls)).tolist():
            deadline = time.perf_counter() + seconds / ROUNDS
            block: list[float] = []
            while len(block) < MIN_CALLS or time.perf_counter() < deadline:
                rows, index = inputs[index % len(inputs)], index + 1
                start = time.perf_counter()
                calls[which](rows)
                block.append(time.perf_counter() - start)
            found[which] += block[2:]  # the first ones bring the weights into the cache
    return [float(np.median(one)) for one in found]


def _drain(channel: LocalChannel, child: Child, until: Callable[[], bool], at_most_s: float) -> None:
    deadline = time.monotonic() + at_most_s
    while not until() and time.monotonic() < deadline:
        if not child.alive():
            raise QuarlError(f"an actor process ended with exit code {child.exit_code} while it was measured")
        for _ in channel.receive(RING_ROWS):
            pass
        time.sleep(0.001)


def _booked(cells: Array) -> dict[str, float]:
    return {column.name.lower(): float(cells[column]) for column in Actor}
