"""Microseconds per step of an actor's loop, besides environment and engine: python benchmarks/actor_loop.py --help"""

import argparse
import contextlib
import statistics
import time
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np

from quarl.actorq import actor
from quarl.actorq.channel import LocalChannel
from quarl.actorq.counters import Actor, Learner
from quarl.actorq.exploration import Explorer
from quarl.actorq.segment import segment_dtype
from quarl.config import ActorQConfig
from quarl.policy.graph import ActionHead
from results import write

EPISODE, ROUND = 200, 512


class Stub(gymnasium.Env[Any, Any]):
    """CartPole's spaces, with episodes of 200 steps."""

    def __init__(self) -> None:
        self.steps, self.seen = 0, np.zeros(4, np.float32)

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        return self.seen, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.seen, 1.0, self.steps % EPISODE == 0, False, {}


class StubEngine:
    """An engine that returns precomputed scores."""

    def __init__(self, num_envs: int) -> None:
        self.scores = np.random.default_rng(0).normal(size=(num_envs, 2)).astype(np.float32)

    def run(self, observations: Any) -> Any:
        return self.scores


@contextlib.contextmanager
def acting(num_envs: int) -> Iterator[tuple[LocalChannel, actor.ActorLoop]]:
    """A channel and an actor without other processes."""
    world = gymnasium.make("CartPole-v1")
    channel = LocalChannel.create(1, 1, segment_dtype(world.observation_space, world.action_space), 2 * ROUND)
    try:
        config = ActorQConfig(env="CartPole-v1", envs_per_actor=num_envs)
        loop: Any = actor.ActorLoop(actor.ActorSpec(config=config, channel=channel.of(0), index=0, incarnation=0))
        loop.environments.envs, loop.engine, loop.version = [Stub() for _ in range(num_envs)], StubEngine(num_envs), 1
        loop.explorer = Explorer(ActionHead("argmax"), world.action_space, 1.0, loop.rng)
        channel.counters.learner[Learner.EXPLORATION] = 0.05
        yield channel, loop
    finally:
        channel.remove()


def overhead_us(num_envs: int, row_wise: int, rounds: int) -> float:
    """Return the median of many rounds; row_wise: largest number of environments that each send their own row."""
    actor.ROW_WISE, times = row_wise, []
    with acting(num_envs) as (channel, loop):
        rows = np.zeros(2 * ROUND, channel.dtype)
        for _ in range(rounds):
            before, start = loop.cells.copy(), time.perf_counter()
            loop._act(ROUND // num_envs, random=False)
            seconds = time.perf_counter() - start
            spent = loop.cells - before
            times.append((seconds - spent[Actor.ENVIRONMENT_S] - spent[Actor.INFERENCE_S]) / spent[Actor.STEPS])
            channel.drain(rows)
    return round(1e6 * float(statistics.median(times)), 2)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--environments", nargs="+", type=int, default=[1, 4, 8, 16, 64])
parser.add_argument("--rounds", type=int, default=400)
options = parser.parse_args()
table: list[dict[str, object]] = []
for num in options.environments:
    row = {"name": f"{num} environments", "environments": num, "overhead_us": overhead_us(num, 4, options.rounds)}
    table.append({**row, "row_loop_us": overhead_us(num, 10**9, options.rounds)})
    print(table[-1], flush=True)
write("actor-loop", "make bench-actor-loop", steps=table)
