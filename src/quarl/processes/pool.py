"""Pools: workers with jobs that are forked from them, jobs in their own processes, and limits for all."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from multiprocessing import reduction
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

from quarl.errors import QuarlError, UnsupportedError
from quarl.processes.child import Child, join, kill_group
from quarl.processes.forkserver import READY, Held, serve
from quarl.processes.inside import Result

ATTEMPTS = 2
"""Attempts to start a worker: the server may have been killed from outside."""
LOOK_S = 0.5
"""Seconds between two checks of the time and memory of processes."""
GRACE_S = 8.0
"""Seconds for processes that a job has started to exit after a signal."""
PAGE_BYTES = mmap.PAGESIZE
PGRP, RSS = 2, 21
"""Indices in /proc/PID/stat, counted after the process's name (proc(5): fields 5 and 24)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The limits of one job."""

    minutes: float
    memory_gb: float


@dataclass(frozen=True, slots=True)
class Ended:
    """An event: a job is done, or a worker is ready or has failed."""

    key: str
    result: Result
    seconds: float = 0.0
    lost: bool = False
    """The machine was lost: the job must be repeated, and has no result."""


@dataclass(slots=True, kw_only=True)
class _Task:
    """An occupied slot with limits: a job, or a worker that gets ready."""

    group: int
    """Process group of the job; the worker's until the job has its own process."""
    worker: str = ""
    since: float
    peak_mb: float = 0.0
    over: str = ""
    """Limit that was exceeded, for which the job was killed."""


@dataclass(slots=True)
class _Worker:
    name: str
    link: Connection
    group: int


class LocalPool:
    """A pool of processes on this machine; `ClusterPool` has the same methods."""

    def __init__(self, log: Path, bounds: Bounds, jobs: int, load: Callable[[], None]) -> None:
        """Describe the pool; processes are started on demand.

        Args:
            log: File for the output of the processes.
            bounds: Limits of each job.
            jobs: Number of slots.
            load: Imports everything that workers need.
        """
        if not hasattr(os, "fork"):
            raise UnsupportedError("studies and sweeps fork their processes, which Windows cannot: use Linux, or WSL")
        self.log, self.bounds, self._places = log, bounds, jobs
        self._server = Child("forkserver", serve, load, log, apart=True, linked=True)
        self._tasks: dict[str, _Task] = {}
        self._workers: dict[str, _Worker] = {}
        self._children: dict[str, Child] = {}
        self._looked = 0.0

    @property
    def occupied(self) -> int:
        """Number of slots taken by jobs, and by workers that get ready."""
        return len(self._tasks)

    @property
    def full(self) -> bool:
        """True if no slot is free."""
        return len(self._tasks) >= self._places

    def ready(self, name: str) -> bool | None:
        """Return True if the worker takes jobs, None if there is none of that name; call it while a slot is free."""
        return name not in self._tasks if name in self._workers else None

    def prepare(self, name: str, make: Callable[[], Held]) -> None:
        """Start a worker."""
        link, group = self._fork(make)
        self._workers[name] = _Worker(name, link, group)
        self._tasks[name] = _Task(group=group, worker=name, since=time.monotonic())

    def _fork(self, make: Callable[[], Held]) -> tuple[Connection, int]:
        """Fork a worker, and return its link and process id."""
        for _ in range(ATTEMPTS):
            if not self._server.alive():
                self._server.start()
            ours, theirs = Pipe()
            try:
                self._server.link.send(make)
                reduction.send_handle(self._server.link, theirs.fileno(), self._server.group)
                return ours, self._server.link.recv()
            except (EOFError, OSError):  # the server was killed from outside
                ours.close()
                self._server.kill()
            finally:
                theirs.close()
        raise QuarlError(f"cannot start a process for cells; see {self.log}")

    def submit(self, name: str, key: str, job: Any) -> None:
        """Start a job in a worker that is ready.

        Args:
            name: Name of the worker.
            key: Key of the job in its events.
            job: Argument of the worker's function.
        """
        worker = self._workers[name]
        self._tasks[key] = _Task(group=worker.group, worker=name, since=time.monotonic())
        with contextlib.suppress(OSError):  # the worker has died, as its link will show
            worker.link.send((key, job))

    def start(self, key: str, name: str, main: Callable[[Any], Any], spec: Any) -> None:
        """Start a job in a new process, without a worker.

        Args:
            key: Key of the job in its events.
            name: Name of the process.
            main: Function that the process runs.
            spec: Argument of `main`.
        """
        self._children[key] = child = Child(name, main, spec, self.log, apart=True)
        child.start()
        self._tasks[key] = _Task(group=child.group, since=time.monotonic())

    def keep_only(self, names: Collection[str]) -> None:
        """End workers without jobs whose names are not in `names`."""
        for worker in list(self._workers.values()):
            if worker.name not in names and not self._keys(worker):
                self._let_go(worker)

    def events(self, timeout: float) -> Iterator[Ended]:
        """Yield the events of at most `timeout` seconds."""
        workers = {worker.link: worker for worker in self._workers.values()}
        children = {child.link: key for key, child in self._children.items()}
        for source in wait([*workers, *children], timeout):
            assert isinstance(source, Connection)
            if source in children:
                key = children[source]
                yield self._ended(key, self._children.pop(key).result)
            elif not source.closed:  # otherwise it was released meanwhile
                yield from self._hear(workers[source])
        self._bound()

    def _hear(self, worker: _Worker) -> Iterator[Ended]:
        """Yield the event of a worker's message, or of its end."""
        try:
            key, message = worker.link.recv()
        except (EOFError, OSError):
            self._let_go(worker)
            for key in self._keys(worker):
                does = "reads" if key == worker.name else "held"
                yield self._ended(key, Result(error=f"the process that {does} its agent died"))
            return
        if not isinstance(message, Result):
            self._tasks[key].group = message
            return
        key = worker.name if key == READY else key
        if key == worker.name and message.error:
            self._let_go(worker)
        yield self._ended(key, message)

    def _keys(self, worker: _Worker) -> list[str]:
        """Return the keys of its jobs, which include its own name until it is ready."""
        return [key for key, task in self._tasks.items() if task.worker == worker.name]

    def _let_go(self, worker: _Worker) -> None:
        """End the worker and its remaining jobs."""
        self._workers.pop(worker.name).link.close()

    def _ended(self, key: str, result: Result) -> Ended:
        task = self._tasks.pop(key)
        error = result.error and (task.over or result.error)
        peak_mb = max(result.peak_mb, task.peak_mb)
        return Ended(key, replace(result, error=error, peak_mb=peak_mb), time.monotonic() - task.since)

    def _bound(self) -> None:
        """Kill jobs that exceed the limits of time or memory."""
        now = time.monotonic()
        if now - self._looked < LOOK_S:
            return
        self._looked = now
        sizes = memory_mb({task.group for task in self._tasks.values()})
        for task in self._tasks.values():
            size = sizes[task.group]
            task.peak_mb = max(task.peak_mb, size)
            if now - task.since > 60 * self.bounds.minutes:
                task.over = f"took longer than the limit of {self.bounds.minutes:g} minutes"
            elif size > 1000 * self.bounds.memory_gb:
                task.over = f"needed more memory than the limit of {self.bounds.memory_gb:g} GB"
            if task.over:
                kill_group(task.group)

    def leave(self, keys: Collection[str]) -> None:
        """Let these jobs, whose own processes must not be left behind, end in good order."""
        leaving = [child for key, child in self._children.items() if key in keys]
        for child in leaving:
            with contextlib.suppress(OSError):
                os.kill(child.group, signal.SIGTERM)
        join(leaving, GRACE_S)

    def kill(self) -> None:
        """Kill all jobs at once."""
        for group in (
            *(task.group for task in self._tasks.values()),
            *(worker.group for worker in self._workers.values()),
        ):
            kill_group(group)

    def close(self) -> None:
        """End everything that was started."""
        self.kill()
        for child in self._children.values():
            child.kill()
        for worker in self._workers.values():
            worker.link.close()
        self._server.kill()  # the workers that it forked end with it


def memory_mb(groups: Collection[int]) -> dict[int, float]:
    """Return the resident megabytes of each process group; zeros on systems without /proc."""
    sizes = dict.fromkeys(groups, 0.0)
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # the process has ended
            fields = path.read_text(errors="replace").rpartition(")")[2].split()
            if (group := int(fields[PGRP])) in sizes:
                sizes[group] += int(fields[RSS]) * PAGE_BYTES / 1e6
    return sizes
