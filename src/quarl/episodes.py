"""Episodes of one policy, played in this process or shared by several."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path

from quarl import engines
from quarl.arrays import Array
from quarl.engines import Engine
from quarl.envs.rollout import Episode, Play, play
from quarl.errors import QuarlError
from quarl.policy.graph import QuantizedPolicy
from quarl.processes.child import Child, Children
from quarl.processes.inside import Result, exit_if_imported


@dataclass(frozen=True, slots=True)
class Clock:
    """Time that a share of the episodes took."""

    wall_s: float
    """Seconds from the first action to the end of the last episode."""
    engine_s: float
    """Part of these seconds spent in the engine."""
    measured: bool
    """False if the engine simulates the precision in float."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Job(Play):
    """Everything a process needs to play its share of the episodes of one policy."""

    policy: QuantizedPolicy
    engine: str | Engine

    def play(self, indices: Iterable[int], report: Callable[[Episode], None]) -> Clock:
        """Play the episodes of these indices in this process; `report` receives each as it ends."""
        name = self.engine
        engine = engines.load(self.policy, name, batch=self.batch) if isinstance(name, str) else name
        run, now = engine.run, time.perf_counter
        begin = engine_s = 0.0

        def timed(observations: Array) -> Array:
            nonlocal begin, engine_s
            if not begin:
                engines.check_values(self.policy, observations)  # afterwards codes of NaN would look like numbers
            start = now()
            begin = begin or start
            outputs = run(observations)
            engine_s += now() - start
            return engines.sound(self.policy, observations, outputs)

        for episode in play(self, timed, indices):
            report(episode)
        return Clock(now() - begin, engine_s, engine.measured)


def _play_share(_: None, link: Connection) -> Clock:
    """Play a share in a child process: send every finished episode, and return the clock."""
    job, indices = link.recv()
    clock: Clock = job.play(indices, link.send)
    return clock


def in_processes(job: Job, shares: list[range], report: Callable[[Episode], None]) -> list[Clock]:
    """Play each share in a process of its own.

    Args:
        job: Policy, engine and environment.
        shares: Indices of the episodes of each process.
        report: Receives each episode as it ends.

    Raises:
        QuarlError: A process died, or an error was raised in one.
    """
    exit_if_imported()
    clocks: list[Clock] = []
    with contextlib.closing(Children()) as children:
        playing: dict[Connection, Child] = {}
        for i, share in enumerate(shares):
            child = Child(f"episodes {i}", _play_share, None, Path(os.devnull), linked=True)
            children.start(child)
            with contextlib.suppress(OSError):  # it may be dead already, which start would not notice
                child.link.send((job, share))
            playing[child.link] = child
        while playing:
            for source in wait(list(playing)):
                assert isinstance(source, Connection)
                message = playing[source].hear()
                if not isinstance(message, Result):
                    report(message)
                    continue
                del playing[source]
                if message.cause:
                    raise QuarlError(f"an evaluation process died ({message.cause}); use fewer workers")
                if message.mistake:
                    raise message.mistake(message.error)
                if message.error:
                    raise QuarlError(f"an evaluation process raised {message.error}; use one worker for the traceback")
                clocks.append(message.value)
    return clocks
