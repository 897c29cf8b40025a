"""`quarl study`: the cells of a study are measured, counted, and made into tables, figures and a page."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from quarl import __version__
from quarl.commands import terminal
from quarl.config import StudyReportConfig, StudyRunConfig, StudyStatusConfig
from quarl.errors import QuarlError
from quarl.experiments import file, rows
from quarl.experiments.cells import DONE, FAILED, NA, RUNNING, TODO, TRAIN, Cell
from quarl.experiments.crew import Bounds
from quarl.experiments.entries import Study
from quarl.experiments.plan import plan
from quarl.experiments.runner import Runner
from quarl.experiments.store import COLUMNS, NAME, Record, Store
from quarl.folder import locked
from quarl.processes.signals import SIGNALLED
from quarl.report import schema

SOME_FAILED = 2
"""Exit code, as of `quarl sweep`."""


def run(config: StudyRunConfig | StudyStatusConfig | StudyReportConfig) -> int | None:
    """Does what the verb says; returns the exit code."""
    if isinstance(config, StudyRunConfig):
        return _run(config)
    if isinstance(config, StudyStatusConfig):
        return _status(config)
    from quarl.commands import study_report  # here: the others need no figures

    return study_report.run(config)


def _run(config: StudyRunConfig) -> int:
    """Measures what is missing, within the time; 128 + its number after a signal, SOME_FAILED where cells failed."""
    study = file.read(config.study, config.agents)
    cells = plan(study, config.seed)
    chosen = _chosen(config, cells)
    if config.dry_run:
        return _dry(config, study, chosen)
    with ExitStack() as stack:
        stack.enter_context(locked(config.output))
        store = stack.enter_context(Store(config.output, create=True))
        store.ask(study.name, study.document, __version__, cells)
        if config.retry_failed:
            states = store.states()
            store.again(cell.key for cell in chosen if states[cell.key] == FAILED)
        store.again(_lost(config.output, store, chosen))
        bounds = Bounds(minutes=study.minutes, memory_gb=study.memory_gb)
        runner = Runner(config.output, store, cells, bounds, jobs=config.jobs, minutes=config.minutes)
        with terminal.progress(sum(runner.states[cell.key] == TODO for cell in chosen)) as progress:
            signal = runner.run(chosen, progress)
        if signal is not None:
            store.again(key for key, state in store.states().items() if state == RUNNING)
            terminal.note(f"stopped by a signal; go on with {config.command_line()}")
            return SIGNALLED + signal
        records = store.records()
    if runner.left:
        terminal.note(f"the time is over with {runner.left} cells to go: repeat the command to go on")
    asked = {cell.key for cell in chosen}
    asked_for = [record for record in records if record.key in asked]
    _show(config, study, asked_for)
    return SOME_FAILED if any(record.state == FAILED for record in asked_for) else 0


def _show(config: StudyRunConfig, study: Study, records: Sequence[Record]) -> None:
    document = schema.document("study", rows.rows(records, study.margin), seed=config.seed)
    terminal.show("study", document["rows"], study.name)
    failed = [record for record in records if record.state == FAILED]
    for record in failed:
        terminal.say(f"failed: {record.algo} {record.env_id} {record.method} {record.precision}: {record.error}")
    again = " (again with --retry-failed)" if failed else ""
    terminal.say(f"{_counted(records)}{again}; tables and figures: quarl study report {config.output}")
    terminal.finish(config, document)


def _counted(records: Sequence[Record]) -> str:
    states = [record.state for record in records]
    words = {DONE: "done", FAILED: "failed", NA: "n/a", RUNNING: "running", TODO: "to do"}
    return ", ".join(f"{states.count(state)} {word}" for state, word in words.items() if state in states)


def _chosen(config: StudyRunConfig, cells: Sequence[Cell]) -> list[Cell]:
    """The cells of the policies of --only."""
    names = dict.fromkeys(f"{cell.algo}/{cell.env_id}" for cell in cells)
    for word in config.only:
        if word not in names:
            raise QuarlError(f"--only {word}: the study has no such policy; it has {', '.join(names)}")
    return [cell for cell in cells if not config.only or f"{cell.algo}/{cell.env_id}" in config.only]


def _lost(folder: Path, store: Store, cells: Sequence[Cell]) -> list[str]:
    """Trainings that are done, whose agents were removed since, and that cells still wait for."""
    states = store.states()
    wanted = {cell.needs for cell in cells if cell.needs and states[cell.key] == TODO}
    done = [cell.key for cell in cells if cell.method == TRAIN and cell.key in wanted and states[cell.key] == DONE]
    return [key for key in done if not (folder / str(store.found(key)["agent"])).is_file()]


def _dry(config: StudyRunConfig, study: Study, cells: Sequence[Cell]) -> int:
    """Shows what would be measured, and what is there already."""
    states: dict[str, str] = {}
    if (config.output / NAME).is_file():
        with Store(config.output) as store:
            states = store.states()
    records = [_as_record(cell, NA if cell.na else states.get(cell.key, TODO)) for cell in cells]
    _show_status(config, rows.status(records), f"{study.name}: {_counted(records)}")
    for reason in dict.fromkeys(cell.na for cell in cells if cell.na):
        terminal.say(f"n/a: {reason}")
    terminal.say("nothing was measured: drop --dry-run")
    return 0


def _as_record(cell: Cell, state: str) -> Record:
    about: dict[str, Any] = {name: getattr(cell, name) for name in ("key", *COLUMNS)}
    return Record(**about, state=state, error=cell.na or None, seconds=None, peak_mb=None, found=None)


def _status(config: StudyStatusConfig) -> int:
    with Store(config.folder) as store:
        name, _ = store.study()
        records = store.records()
    _show_status(config, rows.status(records), f"{name}: {_counted(records)}")
    for record in records:
        if record.state == FAILED:
            terminal.say(f"failed: {record.algo} {record.env_id} {record.method} {record.precision}: {record.error}")
    return 0


def _show_status(config: StudyRunConfig | StudyStatusConfig, found: Sequence[rows.Status], title: str) -> None:
    document = schema.document("study status", found)
    terminal.show("study status", document["rows"], title)
    terminal.finish(config, document)
