"""The runner: measures the cells that are missing, so many at a time, each within its bounds, and keeps what they find.

It is the only process that writes the store. Whatever happens to a cell is one cell's row; whatever happens to the
runner, its processes end with it, and what was finished stays.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from quarl import __version__
from quarl.errors import QuarlError
from quarl.lab import trainings
from quarl.lab.cells import ACTORQ, DONE, FAILED, FP32, PTQ, RUNNING, THROUGHPUT, TODO, TRAIN, Cell, Job
from quarl.lab.file import Study
from quarl.lab.methods import actorq
from quarl.lab.play import make_worker, preload
from quarl.lab.store import Record, Store
from quarl.processes.inside import Result
from quarl.processes.pool import Bounds, Ended, LocalPool, Pool
from quarl.processes.signals import Interrupts
from quarl.readers import zoo

Progress = Callable[[str, int], None]
MakePool = Callable[[Path, Bounds, int, Callable[[], None]], Pool]
"""As `LocalPool` is made."""
WORK = {**trainings.WORK, ACTORQ: actorq.run, THROUGHPUT: actorq.watch_window}
"""What measures a cell that no worker plays, by its method."""
PLAYED = (FP32, PTQ)
"""Methods whose cells are forked from a worker; the others' processes begin from nothing."""
TICK_S = 0.2
LOG = "study.log"
"""In the study's folder: what its processes print."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a run over a study's cells ended with."""

    records: Sequence[Record]
    """Of the chosen cells."""
    left: int
    """Cells that were not begun in time."""
    signal: int | None
    """The number of the signal that ended it early."""


def measure(
    folder: Path,
    study: Study,
    cells: Sequence[Cell],
    chosen: Sequence[Cell],
    progress: Callable[[int], AbstractContextManager[Progress]],
    *,
    jobs: int,
    minutes: float,
    retry_failed: bool,
    make_pool: MakePool = LocalPool,
) -> Measured:
    """Measures what is missing of the chosen cells, inside `locked(folder)`.

    cells: all of the study. progress: told how many there are to measure. jobs: cells at a time, of a machine.
    minutes: after these no cell begins. make_pool: of the processes that measure.
    """
    with ExitStack() as stack:
        store = stack.enter_context(Store(folder, create=True))
        store.ask(study.name, study.document, __version__, cells)
        if retry_failed:
            states = store.states()
            store.again(cell.key for cell in chosen if states[cell.key] == FAILED)
        store.again(_lost(folder, store, chosen))
        own_pool = partial(make_pool, folder / LOG, study.limits, jobs)
        runner = Runner(folder, store, cells, own_pool, minutes=minutes)
        with progress(sum(runner.states[cell.key] == TODO for cell in chosen)) as report:
            signal = runner.run(chosen, report)
        if signal is not None:
            store.again(key for key, state in store.states().items() if state == RUNNING)
        keys = {cell.key for cell in chosen}
        records = [record for record in store.records() if record.key in keys]
        return Measured(records=records, left=runner.left, signal=signal)


def _lost(folder: Path, store: Store, cells: Sequence[Cell]) -> list[str]:
    """Trainings that are done, whose agents were removed since, and that cells still wait for."""
    states = store.states()
    wanted = {cell.needs for cell in cells if cell.needs and states[cell.key] == TODO}
    done = [cell.key for cell in cells if cell.method == TRAIN and cell.key in wanted and states[cell.key] == DONE]
    return [key for key in done if not (folder / str(store.result(key)["agent"])).is_file()]


class Runner:
    """One run over the cells of a study."""

    def __init__(
        self,
        folder: Path,
        store: Store,
        cells: Sequence[Cell],
        make_pool: Callable[[Callable[[], None]], Pool],
        *,
        minutes: float,
    ) -> None:
        """cells: all that the study asks for, which the store knows. make_pool: called with what its workers import.
        minutes: after these no cell begins."""
        self.folder, self.store, self.make_pool = folder, store, make_pool
        self.deadline = time.monotonic() + 60 * minutes
        self.cells = {cell.key: cell for cell in cells}
        self.states = store.states()
        self.waiting: dict[str, Cell] = {}
        self.workers: dict[str, str] = {}
        """Names of the workers of the cells that are played."""
        self.finished: list[Ended] = []
        self.started: list[str] = []

    def run(self, chosen: Sequence[Cell], progress: Progress) -> int | None:
        """Measures what is to be done of the chosen cells; the number of a signal that ended it early."""
        self.progress = progress
        self.waiting = {cell.key: cell for cell in chosen if self.states[cell.key] == TODO}
        played = {key: cell for key, cell in self.waiting.items() if cell.method in PLAYED}
        self.workers = {key: _worker_of(cell) for key, cell in played.items()}
        env_ids = dict.fromkeys(cell.work["env_id"] for cell in played.values())
        load = partial(preload, tuple(env_ids), _wrappers(played.values()))
        self.pool = pool = self.make_pool(load)
        with ExitStack() as stack:
            stack.callback(self._close)
            interrupts = stack.enter_context(Interrupts(pool.kill))
            while interrupts.number is None:
                self._fill()
                self._keep()
                if not pool.occupied:
                    return None
                for event in pool.events(TICK_S):
                    self._hear(event)
            pool.leave([key for key in self.cells if self.cells[key].method == ACTORQ])
        return interrupts.number

    @property
    def left(self) -> int:
        """Cells that were not begun."""
        return len(self.waiting)

    def _fill(self) -> None:
        """Begins cells while there are free places and time; lets workers go that nobody waits for."""
        over = time.monotonic() >= self.deadline
        for key, cell in [] if over else list(self.waiting.items()):
            if self.pool.full:
                break
            if cell.needs and self.states[cell.needs] == FAILED:
                error = f"the training of its agent failed: {self.cells[cell.needs].title}"
                self._finish(Ended(key, Result(error=error)))
            elif self._is_early(cell):
                continue
            elif cell.method in PLAYED:
                self._play(key, cell)
            else:
                self._begin(key)
                self.pool.start(key, cell.method, WORK[cell.method], self._job(cell))
        self.pool.keep_only([] if over else {self.workers[key] for key in self.waiting if key in self.workers})

    def _is_early(self, cell: Cell) -> bool:
        """Tell whether the cell waits for others; those that only bound its time may fail."""
        agent_is_missing = bool(cell.needs) and self.states[cell.needs] != DONE
        return agent_is_missing or any(self.states[key] in (TODO, RUNNING) for key in cell.after)

    def _play(self, key: str, cell: Cell) -> None:
        """Begins the cell where its worker is ready, and the worker where there is none."""
        name = self.workers[key]
        ready = self.pool.ready(name)
        if ready:
            self._begin(key)
            self.pool.submit(name, key, cell)
        elif ready is None:
            # float formats are no grids to be fitted
            calibrate = any(other.is_integer for key, other in self.waiting.items() if self.workers.get(key) == name)
            self.pool.prepare(name, partial(make_worker, self._job(cell), calibrate=calibrate))

    def _begin(self, key: str) -> None:
        del self.waiting[key]
        self.started.append(key)
        self.progress(self.cells[key].title, 0)

    def _job(self, cell: Cell) -> Job:
        """What the process is told that measures the cell, or reads its agent."""
        path = None
        if cell.method in PLAYED or cell.work.get("from") is not None:
            assert cell.agent is not None
            path = self.folder / str(self.store.result(cell.needs)["agent"]) if cell.needs else cell.agent.path
        before = {key: self.store.result(key) for key in cell.after if self.states[key] == DONE}
        return Job(cell=cell, study=self.folder, path=path, before=before)

    def _hear(self, event: Ended) -> None:
        if event.lost:
            self._keep()
            self.store.again([event.key])
            self.waiting[event.key] = self.cells[event.key]
        elif event.key in self.cells:
            self._finish(event)
        elif error := event.result.error:  # its worker cannot be
            for key in [key for key in self.waiting if self.workers.get(key) == event.key]:
                self._finish(Ended(key, Result(error=error)))

    def _finish(self, event: Ended) -> None:
        key = event.key
        self.waiting.pop(key, None)
        self.states[key] = FAILED if event.result.error else DONE
        self.finished.append(event)
        if self.cells[key].method in (TRAIN, ACTORQ):
            self._keep()  # cells that need it are about to read it
        self.progress(self.cells[key].title, 1)

    def _keep(self) -> None:
        """What has happened goes to the disk. The next cells run already: a sync takes as long as a short cell."""
        finished, started = self.finished, self.started
        self.finished, self.started = [], []
        self.store.write(finished, started)

    def _close(self) -> None:
        self.pool.close()
        with contextlib.suppress(QuarlError):  # what broke the run off is being said
            self._keep()


def _worker_of(cell: Cell) -> str:
    """Names the worker of a cell that is played: agent and seed."""
    identity: Mapping[str, Any] = {} if cell.agent is None else cell.agent.identity
    return f"{identity} {cell.work['env_id']} {cell.seed}"


def _wrappers(cells: Iterable[Cell]) -> list[str]:
    """Classes that the environments of the cells' agents are wrapped in, as far as files at hand say so."""
    paths = dict.fromkeys(cell.agent.path for cell in cells if cell.agent is not None and cell.agent.path is not None)
    names: dict[str, None] = {}
    for path in paths:
        with contextlib.suppress(QuarlError):  # its cells will say it
            names |= dict.fromkeys(name for name, _ in zoo.read_settings(path)[0].wrappers)
    return list(names)
