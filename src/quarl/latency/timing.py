"""Latency of one call, from numpy to numpy, on one thread of one process.

Engines take turns in short blocks. Their order changes in each round, so that a slow moment of the machine affects all
of them. Each block starts with calls that do not count: an actor's process runs one policy, whose weights stay in the
cache.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from quarl.arrays import Array
from quarl.engines import Engine
from quarl.errors import QuarlError

SECONDS = 0.4
"""Time for an engine in all rounds."""
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
    us_p999: float | None = None
    """The following are of paced calls; see LatencyRow."""
    us_max: float | None = None
    hz: float | None = None
    periods: int | None = None
    missed: int | None = None
    missed_share: float | None = None


def time_engines(loaded: Sequence[Engine], observations: Array, *, seconds: float = SECONDS) -> list[Timing]:
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
    with _no_collection():
        for _ in range(ROUNDS):
            for index in rng.permutation(len(calls)).tolist():
                calls[index].block()
    return [call.timing() for call in calls]


def pace(engine: Engine, observations: Array, *, hz: float, seconds: float) -> Timing:
    """Time calls as a controller makes them: one at the start of each period, or at once if the last took longer.

    Args:
        engine: the engine.
        observations: [N, *shape]; each call reads the next `engine.batch` rows.
        hz: periods per second.
        seconds: length of all periods together; there is at least one.

    Returns:
        The time of calls, without the wake-up before each, and the periods that ended before their call returned.
    """
    calls, period, periods = _Calls(engine, observations), 1e9 / hz, max(round(hz * seconds), 1)
    run, now, inputs = calls.run, time.perf_counter_ns, calls.inputs
    number = in_time = 0
    with _no_collection():
        for _ in range(WARM_UP):
            run(inputs[0])
        begin = now()
        while number < periods:
            time.sleep(max(begin + number * period - now(), 0) / 1e9)
            start = now()
            run(inputs[number % len(inputs)])
            end = now()
            calls.nanoseconds.append(end - start)
            ended = (end - begin) / period
            in_time += ended <= number + 1
            number = max(number + 1, int(ended))
    p999, longest = np.percentile(calls.nanoseconds, [99.9, 100]) / 1e3
    missed = periods - in_time
    return replace(
        calls.timing(),
        us_p999=round(float(p999), 2),
        us_max=round(float(longest), 2),
        hz=hz,
        periods=periods,
        missed=missed,
        missed_share=missed / periods,
    )


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Collect no garbage inside the block."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


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
        jitter = np.abs(np.diff(self.nanoseconds)).mean() if len(self.nanoseconds) > 1 else 0.0
        p50, p99, jitter = (round(float(each) / 1e3, 2) for each in (p50, p99, jitter))
        return Timing(p50, p99, jitter)
