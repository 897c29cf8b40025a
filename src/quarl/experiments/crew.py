"""The crew: the processes of a run and what they say: households with the cells that they play, and trainings."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

from quarl.experiments.alone import Alone
from quarl.experiments.household import Begun, Home, Over, Play, Ready
from quarl.experiments.nursery import Nursery
from quarl.experiments.processes import Outcome, ended, kill_group, memory_mb, one_thread
from quarl.experiments.trainings import WORK, Training

LOG = "study.log"
LOOK_S = 0.5
"""Between two looks at the time and memory of processes."""
GRACE_S = 8.0
"""For ActorQ's own processes to leave after a signal."""
UNKNOWN = 0
"""Group of a cell whose process is being made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Of one cell."""

    minutes: float
    memory_gb: float


@dataclass(frozen=True, slots=True)
class Prepared:
    """A household is ready, or cannot be."""

    name: str
    error: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A cell is over."""

    key: str
    outcome: Outcome
    seconds: float


@dataclass(slots=True, kw_only=True)
class _Running:
    """What a bound holds for: a cell, or a household that gets ready, in its process group."""

    group: int
    since: float
    peak_mb: float = 0.0
    over: str = ""
    """The bound that it went over, and was ended for."""


@dataclass(slots=True, kw_only=True)
class _Household:
    link: Connection
    state: _Running
    keys: set[str]
    """Of the cells that it plays."""
    ready: bool = False


class Crew:
    """All processes of one runner."""

    def __init__(self, folder: Path, bounds: Bounds, env_ids: Collection[str], wrappers: Collection[str]) -> None:
        """env_ids, wrappers: what the cells' policies play, to be imported once."""
        self.folder, self.bounds = folder, bounds
        # never written to: the other end closes with this process, however it ends
        self._life, self._held = Pipe(duplex=False)
        self._nursery = Nursery(self._life, folder / LOG, env_ids, wrappers)
        self._running: dict[str, _Running] = {}
        self._homes: dict[str, _Household] = {}
        self._alone: dict[Connection, tuple[str, Alone]] = {}
        self._looked = 0.0

    @property
    def occupied(self) -> int:
        """Places that cells, and households that get ready, take."""
        return len(self._running) + sum(not home.ready for home in self._homes.values())

    def ready(self, name: str) -> bool | None:
        """Whether the household plays; None where there is none of that name."""
        return self._homes[name].ready if name in self._homes else None

    def settle(self, name: str, home: Home) -> None:
        """Begins a household."""
        link, process = self._nursery.fork(home)
        state = _Running(group=process, since=time.monotonic())
        self._homes[name] = _Household(link=link, state=state, keys=set())

    def play(self, name: str, job: Play) -> None:
        """Begins a cell in a household that is ready."""
        home = self._homes[name]
        home.keys.add(job.key)
        self._running[job.key] = _Running(group=UNKNOWN, since=time.monotonic())
        with contextlib.suppress(OSError):  # it has died: its link says so next
            home.link.send(job)

    def train(self, key: str, job: Training) -> None:
        """Begins a cell that trains."""
        with one_thread():
            begun = Alone(job.method, partial(WORK[job.method], job), self._life, self.folder / LOG)
        self._alone[begun.source] = key, begun
        self._running[key] = _Running(group=begun.group, since=time.monotonic())

    def keep_only(self, names: Collection[str]) -> None:
        """Ends the households that have nothing to play any more."""
        for name in [name for name, home in self._homes.items() if home.ready and name not in names and not home.keys]:
            self._homes.pop(name).link.close()

    def events(self, timeout: float) -> Iterator[Prepared | Ended]:
        """What has happened, within so many seconds."""
        for source in wait([*(home.link for home in self._homes.values()), *self._alone], timeout):
            assert isinstance(source, Connection)
            if source in self._alone:
                yield self._hear_training(source)
            else:
                name = next((name for name, home in self._homes.items() if home.link is source), None)
                if name is not None:
                    yield from self._hear_household(name)
        self._bound()

    def _hear_training(self, source: Connection) -> Ended:
        key, training = self._alone.pop(source)
        return self._ended(key, training.hear())

    def _hear_household(self, name: str) -> Iterator[Prepared | Ended]:
        home = self._homes[name]
        try:
            said: Any = home.link.recv()
        except (EOFError, OSError):
            self._homes.pop(name).link.close()
            if not home.ready:
                yield Prepared(name, home.state.over or "the process that reads its agent died")
            for key in home.keys:
                yield self._ended(key, Outcome(None, "the process that held its agent died"))
            return
        if isinstance(said, Ready):
            home.ready = True
            if said.error:
                self._homes.pop(name).link.close()
            yield Prepared(name, said.error)
        elif isinstance(said, Begun):
            self._running[said.key].group = said.group
        elif isinstance(said, Over):
            home.keys.discard(said.key)
            yield self._ended(said.key, said.outcome or Outcome(None, ended(said.exit_code)))

    def _ended(self, key: str, outcome: Outcome) -> Ended:
        state = self._running.pop(key)
        peak_mb = max(outcome.peak_mb, state.peak_mb)
        error = "" if outcome.found is not None else state.over or outcome.error
        return Ended(key, Outcome(outcome.found, error, peak_mb), time.monotonic() - state.since)

    def _bound(self) -> None:
        """Ends what takes more time or memory than a cell may."""
        now = time.monotonic()
        if now - self._looked < LOOK_S:
            return
        self._looked = now
        bounded = [(state, state.group) for state in self._running.values() if state.group != UNKNOWN]
        for home in self._homes.values():
            if not home.ready:
                bounded.append((home.state, home.state.group))
            # while a cell has no process yet, what it takes is taken by its household
            waiting = (cell for key in home.keys if (cell := self._running[key]).group == UNKNOWN)
            bounded += [(cell, home.state.group) for cell in waiting]
        sizes = memory_mb({group for _, group in bounded})
        for state, group in bounded:
            state.peak_mb = max(state.peak_mb, sizes[group])
            if now - state.since > 60 * self.bounds.minutes:
                state.over = f"took longer than the limit of {self.bounds.minutes:g} minutes"
            elif sizes[group] > 1000 * self.bounds.memory_gb:
                state.over = f"needed more memory than the limit of {self.bounds.memory_gb:g} GB"
            if state.over:
                kill_group(group)

    def leave(self, keys: Collection[str]) -> None:
        """Lets these trainings, whose own processes are not to be left behind, end in good order."""
        leaving = [training.process for key, training in self._alone.values() if key in keys]
        for process in leaving:
            with contextlib.suppress(OSError):
                os.kill(process.pid or os.getpid(), signal.SIGTERM)
        until = time.monotonic() + GRACE_S
        for process in leaving:
            process.join(max(until - time.monotonic(), 0))

    def kill(self) -> None:
        """Ends all cells at once."""
        for state in [*self._running.values(), *(home.state for home in self._homes.values())]:
            kill_group(state.group)

    def close(self) -> None:
        """Nothing that was begun is left."""
        self.kill()
        for _, training in self._alone.values():
            training.end()
            training.process.join()
        for home in self._homes.values():
            home.link.close()
        self._nursery.close()
        self._held.close()
        self._life.close()
