"""Pools: workers with the jobs that are forked from them, jobs in processes of their own, and bounds for all."""

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
from typing import Any, Protocol

from quarl.errors import QuarlError, UnsupportedError
from quarl.processes.child import Child, join, kill_group
from quarl.processes.forkserver import READY, Held, serve
from quarl.processes.inside import Result

ATTEMPTS = 2
"""To have a worker: the server may have been ended from outside."""
LOOK_S = 0.5
"""Between two looks at the time and memory of processes."""
GRACE_S = 8.0
"""For processes that a job has begun to leave after a signal."""
PAGE_BYTES = mmap.PAGESIZE
PGRP, RSS = 2, 21
"""Places in /proc/PID/stat, counted behind the process's name (proc(5): fields 5 and 24)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Of one job."""

    minutes: float
    memory_gb: float


@dataclass(frozen=True, slots=True)
class Ended:
    """A job is over, or a worker is ready or cannot be."""

    key: str
    result: Result
    seconds: float = 0.0
    lost: bool = False
    """Its machine is gone: the job is to be done again, and has no result."""


@dataclass(slots=True, kw_only=True)
class _Task:
    """What takes a place and is bounded: a job, or a worker that gets ready."""

    group: int
    """Its process group: its worker's, as long as it has no process of its own."""
    worker: str = ""
    since: float
    peak_mb: float = 0.0
    over: str = ""
    """The bound that it went over, and was ended for."""


@dataclass(slots=True)
class _Worker:
    name: str
    link: Connection
    group: int


class Pool(Protocol):
    """All processes of one run over jobs, wherever they are; LocalPool says what each of these does."""

    @property
    def occupied(self) -> int: ...
    @property
    def full(self) -> bool: ...
    def ready(self, name: str) -> bool | None: ...
    def prepare(self, name: str, make: Callable[[], Held]) -> None: ...
    def submit(self, name: str, key: str, job: Any) -> None: ...
    def start(self, key: str, name: str, main: Callable[[Any], Any], spec: Any) -> None: ...
    def keep_only(self, names: Collection[str]) -> None: ...
    def events(self, timeout: float) -> Iterator[Ended]: ...
    def leave(self, keys: Collection[str]) -> None: ...
    def kill(self) -> None: ...
    def close(self) -> None: ...


class LocalPool:
    """Processes of this machine."""

    def __init__(self, log: Path, bounds: Bounds, jobs: int, load: Callable[[], None]) -> None:
        """log: what the processes print. jobs: places. load: imports what workers need."""
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
        """Places that jobs, and workers that get ready, take."""
        return len(self._tasks)

    @property
    def full(self) -> bool:
        """Whether no place is free."""
        return len(self._tasks) >= self._places

    def ready(self, name: str) -> bool | None:
        """Whether the worker takes jobs; None where there is none of that name. Asked where a place is free."""
        return name not in self._tasks if name in self._workers else None

    def prepare(self, name: str, make: Callable[[], Held]) -> None:
        """Begins a worker."""
        link, group = self._fork(make)
        self._workers[name] = _Worker(name, link, group)
        self._tasks[name] = _Task(group=group, worker=name, since=time.monotonic())

    def _fork(self, make: Callable[[], Held]) -> tuple[Connection, int]:
        """The link to a new worker, and its process."""
        for _ in range(ATTEMPTS):
            if not self._server.alive():
                self._server.start()
            ours, theirs = Pipe()
            try:
                self._server.link.send(make)
                reduction.send_handle(self._server.link, theirs.fileno(), self._server.group)
                return ours, self._server.link.recv()
            except (EOFError, OSError):  # the server was ended from outside
                ours.close()
                self._server.kill()
            finally:
                theirs.close()
        raise QuarlError(f"no process for cells can be started; {self.log} may say why")

    def submit(self, name: str, key: str, job: Any) -> None:
        """Begins a job in a worker that is ready."""
        worker = self._workers[name]
        self._tasks[key] = _Task(group=worker.group, worker=name, since=time.monotonic())
        with contextlib.suppress(OSError):  # it has died: its link says so next
            worker.link.send((key, job))

    def start(self, key: str, name: str, main: Callable[[Any], Any], spec: Any) -> None:
        """Begins a job in a process of its own, that begins from nothing."""
        self._children[key] = child = Child(name, main, spec, self.log, apart=True)
        child.start()
        self._tasks[key] = _Task(group=child.group, since=time.monotonic())

    def keep_only(self, names: Collection[str]) -> None:
        """Ends the workers that have no job any more."""
        for worker in list(self._workers.values()):
            if worker.name not in names and not self._keys(worker):
                self._let_go(worker)

    def events(self, timeout: float) -> Iterator[Ended]:
        """What has happened, within so many seconds."""
        workers = {worker.link: worker for worker in self._workers.values()}
        children = {child.link: key for key, child in self._children.items()}
        for source in wait([*workers, *children], timeout):
            assert isinstance(source, Connection)
            if source in children:
                key = children[source]
                yield self._ended(key, self._children.pop(key).result)
            elif not source.closed:  # else it was let go meanwhile
                yield from self._hear(workers[source])
        self._bound()

    def _hear(self, worker: _Worker) -> Iterator[Ended]:
        """What one message of a worker means, or its end."""
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
        """Of its jobs; its own name until it is ready."""
        return [key for key, task in self._tasks.items() if task.worker == worker.name]

    def _let_go(self, worker: _Worker) -> None:
        """The worker ends, and the jobs that it still has."""
        self._workers.pop(worker.name).link.close()

    def _ended(self, key: str, result: Result) -> Ended:
        task = self._tasks.pop(key)
        error = result.error and (task.over or result.error)
        peak_mb = max(result.peak_mb, task.peak_mb)
        return Ended(key, replace(result, error=error, peak_mb=peak_mb), time.monotonic() - task.since)

    def _bound(self) -> None:
        """Ends what takes more time or memory than a job may."""
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
        """Lets these jobs, whose own processes are not to be left behind, end in good order."""
        leaving = [child for key, child in self._children.items() if key in keys]
        for child in leaving:
            with contextlib.suppress(OSError):
                os.kill(child.group, signal.SIGTERM)
        join(leaving, GRACE_S)

    def kill(self) -> None:
        """Ends all jobs at once."""
        for group in (
            *(task.group for task in self._tasks.values()),
            *(worker.group for worker in self._workers.values()),
        ):
            kill_group(group)

    def close(self) -> None:
        """Nothing that was begun is left."""
        self.kill()
        for child in self._children.values():
            child.kill()
        for worker in self._workers.values():
            worker.link.close()
        self._server.kill()  # workers that it forked end with it


def memory_mb(groups: Collection[int]) -> dict[int, float]:
    """Resident megabytes of each process group; zeros on systems without /proc."""
    sizes = dict.fromkeys(groups, 0.0)
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            fields = path.read_text(errors="replace").rpartition(")")[2].split()
            if (group := int(fields[PGRP])) in sizes:
                sizes[group] += int(fields[RSS]) * PAGE_BYTES / 1e6
    return sizes
