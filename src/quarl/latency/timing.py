"""Latency of one call, from numpy to numpy, on one thread of one process.

Engines take turns in short blocks. Their order changes in each round, so that a slow moment of the machine affects all
of them. Each block starts with calls that do not count: an actor's process runs one policy, whose weights stay in the
cache.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quarl.arrays import Array
from quarl.engines import Engine
from quarl.errors import QuarlError

ROUNDS = 20
WARM_UP = 3
MIN_CALLS, MAX_CALLS = 5, 400
"""Counted calls of one block."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Time of a call in microseconds."""

    us_p50: float
    us_p99: float
    us_jitter: float = 0.0


def time_engines(loaded: Sequence[Engine], observations: Array, *, seconds: float = 0.4) -> list[Timing]:
    """Time engines that take turns.

    Args:
        loaded: the engines.
        observations: [N, *shape]; each call reads the next `engine.batch` rows.
        seconds: time for each engine in all rounds. Slow engines take longer, because each makes at least 100 calls.

    Returns:
        A timing for each engine, in their order.

    Raises:
        QuarlError: if there are no observations.
    """
    if len(observations) == 0:
        raise QuarlError("latency is measured on recorded observations, and there are none")
    calls = [_Calls(engine, observations) for engine in loaded]
    for call in calls:
        call.prepare(seconds / ROUNDS)
    rng = np.random.default_rng(0)
    collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(ROUNDS):
            for index in rng.permutation(len(calls)).tolist():
                calls[index].block()
    finally:
        if collecting:
            gc.enable()
    return [call.timing() for call in calls]


class _Calls:
    """The calls of one engine and their times."""

    def __init__(self, engine: Engine, observations: Array) -> None:
        self.run = engine.run
        size = max(len(observations) // engine.batch, 1) * engine.batch
        rows = np.resize(observations, (size, *observations.shape[1:]))
        self.inputs = [rows[start : start + engine.batch] for start in range(0, size, engine.batch)]
        self.position = 0
        self.calls = MIN_CALLS
        self.nanoseconds: list[int] = []

    def prepare(self, seconds: float) -> None:
        """Warm up, and fit the length of a block to `seconds`."""
        self.block()
        typical = float(np.median(self.nanoseconds))
        self.calls = int(np.clip(1e9 * seconds / typical, MIN_CALLS, MAX_CALLS))
        self.nanoseconds.clear()

    def block(self) -> None:
        run, now, inputs, record = self.run, time.perf_counter_ns, self.inputs, self.nanoseconds.append
        for index in range(self.position, self.position + WARM_UP):
            run(inputs[index % len(inputs)])
        for index in range(self.position, self.position + self.calls):
            rows = inputs[index % len(inputs)]
            start = now()
            run(rows)
            record(now() - start)
        self.position += self.calls

    def timing(self) -> Timing:
        p50, p99 = np.percentile(self.nanoseconds, [50, 99])
        return Timing(*(round(float(each) / 1e3, 2) for each in (p50, p99, np.abs(np.diff(self.nanoseconds)).mean())))
