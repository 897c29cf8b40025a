"""Episodes of one policy, played in this process or shared by several."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import gymnasium

from quarl import engines
from quarl.arrays import Array
from quarl.envs.bound import LONGEST
from quarl.envs.rollout import Episode, play
from quarl.envs.seeds import Stream
from quarl.errors import QuarlError, in_one_line
from quarl.policy.graph import QuantizedPolicy


@dataclass(frozen=True, slots=True)
class Clock:
    """What a share of the episodes took."""

    wall_s: float
    """From the first action to the end of the last episode."""
    engine_s: float
    """The part of it spent in the engine."""
    measured: bool
    """False where the engine simulates the precision in float."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Job:
    """What a process needs to play its share of the episodes of one policy."""

    policy: QuantizedPolicy
    make: Callable[[], gymnasium.Env[Any, Any]]
    engine: str
    batch: int
    stream: Stream
    seed: int
    stochastic: bool
    fresh: bool
    bound: int = LONGEST

    def play(self, indices: Iterable[int], report: Callable[[Episode], None]) -> Clock:
        """Plays the episodes of these indices, here; `report` gets each as it ends."""
        engine = engines.load(self.policy, self.engine, batch=self.batch)
        run, now = engine.run, time.perf_counter
        begin = engine_s = 0.0

        def timed(observations: Array) -> Array:
            nonlocal begin, engine_s
            if not begin:
                engines.check_values(self.policy, observations)  # behind it, codes of NaN would look like numbers
            start = now()
            begin = begin or start
            outputs = run(observations)
            engine_s += now() - start
            return engines.sound(self.policy, observations, outputs)

        for episode in play(
            self.policy,
            timed,
            self.batch,
            self.make,
            indices,
            stream=self.stream,
            seed=self.seed,
            fresh=self.fresh,
            stochastic=self.stochastic,
            bound=self.bound,
        ):
            report(episode)
        return Clock(now() - begin, engine_s, engine.measured)


def _work(pipe: Connection, job: Job, indices: Iterable[int]) -> None:
    """A worker's main: sends every finished episode, then its clock, or the error a user should see."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the parent ends its workers
    try:
        pipe.send(job.play(indices, pipe.send))
    except QuarlError as error:
        pipe.send(error)
    except Exception as error:  # whatever a simulator raises; not all of it can be sent
        pipe.send(QuarlError(f"an evaluation process raised {in_one_line(error)}; with one worker it says where"))


def in_processes(job: Job, shares: list[range], report: Callable[[Episode], None]) -> list[Clock]:
    """Plays each share in a process of its own (spawned: forks and runtimes with threads do not mix)."""
    context = multiprocessing.get_context("spawn")
    workers: dict[Connection, BaseProcess] = {}
    clocks: list[Clock] = []
    try:
        for share in shares:
            ours, theirs = context.Pipe(duplex=False)
            workers[ours] = context.Process(target=_work, args=(theirs, job, share), daemon=True)
            workers[ours].start()
            theirs.close()
        waiting = list(workers)
        while waiting:
            for pipe in wait(waiting):
                assert isinstance(pipe, Connection)
                try:
                    message = pipe.recv()
                except EOFError:
                    workers[pipe].join()
                    code = workers[pipe].exitcode
                    raise QuarlError(f"an evaluation process died (exit code {code}); use fewer workers") from None
                if isinstance(message, QuarlError):
                    raise message
                if isinstance(message, Clock):
                    clocks.append(message)
                    waiting.remove(pipe)
                else:
                    report(message)
        return clocks
    finally:
        for pipe, process in workers.items():
            process.terminate()  # has ended, unless an error or an interrupt came first
            process.join()
            pipe.close()
