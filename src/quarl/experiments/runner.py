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
from pathlib import Path
from typing import Any

from quarl import __version__
from quarl.errors import QuarlError
from quarl.experiments.cells import ACTORQ, DONE, FAILED, FP32, PTQ, RUNNING, TODO, TRAIN, Cell
from quarl.experiments.crew import Bounds, Crew, Ended, Prepared
from quarl.experiments.entries import Study
from quarl.experiments.household import Home, Play
from quarl.experiments.processes import Outcome
from quarl.experiments.source import FILE
from quarl.experiments.store import Finished, Record, Store
from quarl.experiments.trainings import Training
from quarl.processes.signals import Interrupts
from quarl.quant.spec import QuantSpec
from quarl.readers import zoo

Progress = Callable[[str, int], None]
PLAYED = (FP32, PTQ)
"""Methods whose cells are forked from a household; the others' processes begin from nothing."""
TICK_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a run over a study's cells ended with."""

    records: Sequence[Record]
    """Of the chosen cells."""
    left: int
    """Cells that were not begun in time."""
    signal: int | None
    """The number of the signal that ended it early."""

    @property
    def failed(self) -> list[Record]:
        return [record for record in self.records if record.state == FAILED]


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
) -> Measured:
    """Measures what is missing of the chosen cells, inside `locked(folder)`.

    cells: all of the study. progress: told how many there are to measure. minutes: after these no cell begins.
    """
    with ExitStack() as stack:
        store = stack.enter_context(Store(folder, create=True))
        store.ask(study.name, study.document, __version__, cells)
        if retry_failed:
            states = store.states()
            store.again(cell.key for cell in chosen if states[cell.key] == FAILED)
        store.again(_lost(folder, store, chosen))
        bounds = Bounds(minutes=study.minutes, memory_gb=study.memory_gb)
        runner = Runner(folder, store, cells, bounds, jobs=jobs, minutes=minutes)
        with progress(sum(runner.states[cell.key] == TODO for cell in chosen)) as report:
            signal = runner.run(chosen, report)
        if signal is not None:
            store.again(key for key, state in store.states().items() if state == RUNNING)
        asked = {cell.key for cell in chosen}
        records = [record for record in store.records() if record.key in asked]
        return Measured(records=records, left=runner.left, signal=signal)


def _lost(folder: Path, store: Store, cells: Sequence[Cell]) -> list[str]:
    """Trainings that are done, whose agents were removed since, and that cells still wait for."""
    states = store.states()
    wanted = {cell.needs for cell in cells if cell.needs and states[cell.key] == TODO}
    done = [cell.key for cell in cells if cell.method == TRAIN and cell.key in wanted and states[cell.key] == DONE]
    return [key for key in done if not (folder / str(store.found(key)["agent"])).is_file()]


class Runner:
    """One run over the cells of a study."""

    def __init__(
        self, folder: Path, store: Store, cells: Sequence[Cell], bounds: Bounds, *, jobs: int, minutes: float
    ) -> None:
        """cells: all that the study asks for, which the store knows. minutes: after these no cell begins."""
        self.folder, self.store, self.bounds, self.jobs = folder, store, bounds, jobs
        self.deadline = time.monotonic() + 60 * minutes
        self.cells = {cell.key: cell for cell in cells}
        self.states = store.states()
        self.waiting: dict[str, Cell] = {}
        self.homes: dict[str, str] = {}
        """Names of the households of the cells that are played."""
        self.finished: list[Finished] = []
        self.started: list[str] = []

    def run(self, chosen: Sequence[Cell], progress: Progress) -> int | None:
        """Measures what is to be done of the chosen cells; the number of a signal that ended it early."""
        self.progress = progress
        self.waiting = {cell.key: cell for cell in chosen if self.states[cell.key] == TODO}
        played = {key: cell for key, cell in self.waiting.items() if cell.method in PLAYED}
        self.homes = {key: _home_of(cell) for key, cell in played.items()}
        env_ids = dict.fromkeys(cell.work["env_id"] for cell in played.values())
        self.crew = crew = Crew(self.folder, self.bounds, env_ids, _wrappers(played.values()))
        with ExitStack() as stack:
            stack.callback(self._close)
            interrupts = stack.enter_context(Interrupts(crew.kill))
            while interrupts.number is None:
                self._fill()
                self._keep()
                if not crew.occupied:
                    return None
                for event in crew.events(TICK_S):
                    self._hear(event)
            crew.leave([key for key in self.cells if self.cells[key].method == ACTORQ])
        return interrupts.number

    @property
    def left(self) -> int:
        """Cells that were not begun."""
        return len(self.waiting)

    def _fill(self) -> None:
        """Begins cells while there are free places and time; lets households go that nobody waits for."""
        over = time.monotonic() >= self.deadline
        for key, cell in [] if over else list(self.waiting.items()):
            if self.crew.occupied >= self.jobs:
                break
            if cell.needs and self.states[cell.needs] == FAILED:
                self._finish(key, Outcome(None, f"the training of its agent failed: {self.cells[cell.needs].title}"))
            elif cell.needs and self.states[cell.needs] != DONE:
                continue
            elif cell.method in PLAYED:
                self._play(key, cell)
            else:
                self._begin(key)
                self.crew.train(key, self._training(key, cell))
        self.crew.keep_only([] if over else {self.homes[key] for key in self.waiting if key in self.homes})

    def _play(self, key: str, cell: Cell) -> None:
        """Begins the cell where its household is ready, and the household where there is none."""
        name = self.homes[key]
        ready = self.crew.ready(name)
        if ready:
            self._begin(key)
            spec = QuantSpec.from_json(cell.work["spec"])
            deterministic = cell.work.get("deterministic", False)
            self.crew.play(name, Play(key=key, spec=spec, episodes=cell.work["episodes"], deterministic=deterministic))
        elif ready is None:
            self.crew.settle(name, self._home(name, cell))

    def _begin(self, key: str) -> None:
        del self.waiting[key]
        self.started.append(key)
        self.progress(self.cells[key].title, 0)

    def _home(self, name: str, cell: Cell) -> Home:
        assert cell.agent is not None
        return Home(
            path=self._agent(cell),
            algo=cell.agent.algo,
            env_id=cell.work["env_id"],
            identity=cell.agent.identity,
            seed=cell.seed,
            folder=self.folder,
            # float formats are no grids to be fitted
            calibrate=any(one.is_integer for key, one in self.waiting.items() if self.homes.get(key) == name),
            normalize=cell.agent.normalize,
            transfers=cell.agent.kind == FILE,
        )

    def _training(self, key: str, cell: Cell) -> Training:
        goes_on = cell.work.get("from") is not None
        return Training(
            method=cell.method,
            work=cell.work,
            study=self.folder,
            folder=self.folder / "runs" / key,
            start=self._agent(cell) if goes_on else None,
            normalize=cell.agent.normalize if goes_on and cell.agent is not None else None,
        )

    def _agent(self, cell: Cell) -> Path:
        """The file of the cell's agent."""
        if cell.needs:
            return self.folder / str(self.store.found(cell.needs)["agent"])
        assert cell.agent is not None
        assert cell.agent.path is not None
        return cell.agent.path

    def _hear(self, event: Prepared | Ended) -> None:
        if isinstance(event, Ended):
            self._finish(event.key, event.outcome, event.seconds)
        elif event.error:
            for key in [key for key in self.waiting if self.homes.get(key) == event.name]:
                self._finish(key, Outcome(None, event.error))

    def _finish(self, key: str, outcome: Outcome, seconds: float = 0.0) -> None:
        self.waiting.pop(key, None)
        self.states[key] = FAILED if outcome.found is None else DONE
        self.finished.append(
            Finished(
                key=key,
                state=self.states[key],
                error=outcome.error or None,
                seconds=seconds,
                peak_mb=outcome.peak_mb,
                found=outcome.found,
            )
        )
        if self.cells[key].method == TRAIN:
            self._keep()  # cells that need it are about to read it
        self.progress(self.cells[key].title, 1)

    def _keep(self) -> None:
        """What has happened goes to the disk. The next cells run already: a sync takes as long as a short cell."""
        finished, started = self.finished, self.started
        self.finished, self.started = [], []
        self.store.write(finished, started)

    def _close(self) -> None:
        self.crew.close()
        with contextlib.suppress(QuarlError):  # what broke the run off is being said
            self._keep()


def _home_of(cell: Cell) -> str:
    """Names the household of a cell that is played: agent and seed."""
    identity: Mapping[str, Any] = {} if cell.agent is None else cell.agent.identity
    return f"{identity} {cell.work['env_id']} {cell.seed}"


def _wrappers(cells: Iterable[Cell]) -> list[str]:
    """Classes that the environments of the cells' agents are wrapped in, as far as files at hand say so."""
    paths = dict.fromkeys(cell.agent.path for cell in cells if cell.agent is not None and cell.agent.path is not None)
    found: dict[str, None] = {}
    for path in paths:
        with contextlib.suppress(QuarlError):  # its cells will say it
            found |= dict.fromkeys(name for name, _ in zoo.read_settings(path)[0].wrappers)
    return list(found)
