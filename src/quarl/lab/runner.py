"""The runner: measures missing cells, a number at a time, each within its bounds, and keeps their results.

It is the only process that writes the store. A failure of a cell affects only that cell's row. If the runner ends, its
processes end with it, and finished cells stay.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quarl import __version__
from quarl.errors import QuarlError
from quarl.lab import trainings
from quarl.lab.cells import ACTORQ, DONE, FAILED, FP32, PTQ, RUNNING, THROUGHPUT, TODO, TRAIN, Cell, Job
from quarl.lab.file import Study
from quarl.lab.methods import actorq
from quarl.lab.play import make_worker, preload
from quarl.lab.store import Record, Store
from quarl.processes.inside import Result
from quarl.processes.pool import Bounds, Ended, LocalPool
from quarl.processes.signals import Interrupts
from quarl.quant.spec import SCHEMES
from quarl.readers import zoo

if TYPE_CHECKING:
    from quarl.cluster.cell_pool import ClusterPool

Progress = Callable[[str, int], None]
MakePool = Callable[[Path, Bounds, int, Callable[[], None]], "LocalPool | ClusterPool"]
"""Function with the signature of `LocalPool`."""
WORK = {**trainings.WORK, ACTORQ: actorq.run, THROUGHPUT: actorq.watch_window}
"""Function that measures a cell without a worker, by its method."""
PLAYED = (FP32, PTQ)
"""Methods whose cells are forked from a worker; the processes of others start empty."""
TICK_S = 0.2
LOG = "study.log"
"""File in the study's folder with the output of its processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The result of a run over a study's cells."""

    records: Sequence[Record]
    """Records of the chosen cells."""
    left: int
    """Number of cells that did not start in time."""
    signal: int | None
    """Number of the signal that ended it early."""


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
    """Measure the missing ones of the chosen cells, inside `locked(folder)`.

    Args:
        folder: Folder of the study.
        study: The study.
        cells: All cells of the study.
        chosen: Cells to measure.
        progress: Called with the number of cells to measure.
        jobs: Number of cells at a time on a machine.
        minutes: Time after which no cell starts.
        retry_failed: Measure failed cells again.
        make_pool: Makes the pool of measuring processes.

    Returns:
        The records, the number of cells left, and the signal.
    """
    with Store(folder, create=True) as store:
        for record in store.records():
            before, code = record.result.get("scheme_source"), SCHEMES.get(record.scheme)
            if before is not None and code is not None and code.source != before:
                raise QuarlError(
                    f"the code of scheme {record.scheme!r} has changed since cells in {folder} were measured: restore "
                    "it, or choose another folder with -o"
                )
        store.ask(study.name, study.document, __version__, cells)
        if retry_failed:
            states = store.states()
            store.again(cell.key for cell in chosen if states[cell.key] == FAILED)
        store.again(_lost(folder, store, chosen))
        own_pool = partial(make_pool, folder / LOG, study.limits, jobs)
        runner = Runner(folder, store, cells, chosen, own_pool, minutes=minutes)
        with progress(len(runner.waiting)) as report:
            signal = runner.run(report)
        if signal is not None:
            store.again(key for key, state in store.states().items() if state == RUNNING)
        keys = {cell.key for cell in chosen}
        records = [record for record in store.records() if record.key in keys]
        return Measured(records=records, left=len(runner.waiting), signal=signal)


def _lost(folder: Path, store: Store, cells: Sequence[Cell]) -> list[str]:
    """Return finished trainings whose agents were removed since, and that cells still need."""
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
        chosen: Sequence[Cell],
        make_pool: Callable[[Callable[[], None]], LocalPool | ClusterPool],
        *,
        minutes: float,
    ) -> None:
        """Prepare the run.

        Args:
            folder: Folder of the study.
            store: Its store, which knows the cells.
            cells: All cells of the study.
            chosen: Cells to measure, if they are still to do.
            make_pool: Called with the imports of its workers.
            minutes: Time after which no cell starts.
        """
        self.folder, self.store, self.make_pool = folder, store, make_pool
        self.deadline = time.monotonic() + 60 * minutes
        self.cells = {cell.key: cell for cell in cells}
        self.states = store.states()
        self.waiting = {cell.key: cell for cell in chosen if self.states[cell.key] == TODO}
        played = [cell for cell in self.waiting.values() if cell.method in PLAYED]
        self.workers = {cell.key: _worker_of(cell) for cell in played}
        """Names of the workers of the cells that are played."""
        env_ids = dict.fromkeys(cell.work["env_id"] for cell in played)
        self.preload = partial(preload, tuple(env_ids), _wrappers(played))
        self.finished: list[Ended] = []
        self.started: list[str] = []

    def run(self, progress: Progress) -> int | None:
        """Measure the waiting cells; return the number of a signal that ended it early."""
        self.progress = progress
        self.pool = pool = self.make_pool(self.preload)
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

    def _fill(self) -> None:
        """Start cells while there are free places and time; release workers that no cell waits for."""
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
        """Start the cell if its worker is ready, or start the worker."""
        name = self.workers[key]
        ready = self.pool.ready(name)
        if ready:
            self._begin(key)
            self.pool.submit(name, key, cell)
        elif ready is None:
            # float formats need no calibration, but noise is in units of its deviations
            others = [other for key, other in self.waiting.items() if self.workers.get(key) == name]
            calibrate = any(other.is_integer or "disturbance" in other.work for other in others)
            self.pool.prepare(name, partial(make_worker, self._job(cell), calibrate=calibrate))

    def _begin(self, key: str) -> None:
        del self.waiting[key]
        self.started.append(key)
        self.progress(self.cells[key].title, 0)

    def _job(self, cell: Cell) -> Job:
        """Return the job for the process that measures the cell or reads its agent."""
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
        elif error := event.result.error:  # its worker failed
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
        """Write all changes to the disk. The next cells run already, because a sync takes as long as a short cell."""
        finished, started = self.finished, self.started
        self.finished, self.started = [], []
        self.store.write(finished, started)

    def _close(self) -> None:
        self.pool.close()
        with contextlib.suppress(QuarlError):  # the error that ended the run is reported elsewhere
            self._keep()


def _worker_of(cell: Cell) -> str:
    """Return the name of the worker of a cell that is played: agent and seed."""
    identity: Mapping[str, Any] = {} if cell.agent is None else cell.agent.identity
    return f"{identity} {cell.work['env_id']} {cell.seed}"


def _wrappers(cells: Iterable[Cell]) -> list[str]:
    """Return the wrapper classes of the cells' environments, as far as available files name them."""
    paths = dict.fromkeys(cell.agent.path for cell in cells if cell.agent is not None and cell.agent.path is not None)
    names: dict[str, None] = {}
    for path in paths:
        with contextlib.suppress(QuarlError):  # its cells report it
            names |= dict.fromkeys(name for name, _ in zoo.read_settings(path)[0].wrappers)
    return list(names)
