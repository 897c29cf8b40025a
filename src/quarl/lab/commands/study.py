"""`quarl study run` and `quarl study status`: measure or count the cells of a study."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Unpack

import yaml

from quarl.commands import terminal
from quarl.config import RobustConfig, StudyRunConfig, StudyStatusConfig, SweepConfig
from quarl.errors import QuarlError, own_module
from quarl.files import locked, write_bytes
from quarl.lab import file, rows
from quarl.lab.cells import DONE, FAILED, FP32, NA, RUNNING, TODO, Cell
from quarl.lab.file import Study
from quarl.lab.plan import plan
from quarl.lab.runner import MakePool, Measured, measure
from quarl.lab.store import COLUMNS, NAME, Record, Store
from quarl.processes.pool import LocalPool
from quarl.processes.signals import SIGNALLED
from quarl.report import schema

SOME_FAILED = 2
"""Exit code if some cells failed."""


def run(config: StudyRunConfig | StudyStatusConfig) -> int:
    """Measure or count the cells and return the exit code."""
    return _run(config) if isinstance(config, StudyRunConfig) else _status(config)


def _run(config: StudyRunConfig) -> int:
    """Measure the missing cells within the time.

    Return 128 + its number after a signal, SOME_FAILED if cells failed, otherwise 0.
    """
    if config.env_module:  # before the file, which may name schemes of it
        own_module(config.env_module, "the study")
    study = file.read(config.study, config.agents)
    cells = plan(study, config.seed, config.env_module)
    chosen = _chosen(config, cells)
    if config.dry_run:
        return _dry(config, study, chosen)
    with locked(config.output), _pool(config) as make_pool:
        measured = measure(
            config.output,
            study,
            cells,
            chosen,
            terminal.progress,
            jobs=config.jobs,
            minutes=config.minutes,
            retry_failed=config.retry_failed,
            make_pool=make_pool,
        )
    if (code := ended(measured, config)) > SIGNALLED:
        return code
    again = " (again with --retry-failed)" if FAILED in (record.state for record in measured.records) else ""
    said = f"{_counted(measured.records)}{again}; tables and figures: quarl study report {config.output}"
    show(config, study.name, study.margin, measured.records, said, seed=config.seed)
    return code


@contextmanager
def _pool(config: StudyRunConfig) -> Iterator[MakePool]:
    """Yield the maker of a pool on this machine, or on the cluster's."""
    if config.cluster is None:
        yield LocalPool
        return
    from quarl.cluster import connection  # imported here: few need it

    address, token = config.cluster, None
    with ExitStack() as stack:
        if address == "local":
            local = stack.enter_context(connection.Local(config.output, config.nodes or connection.LOCAL_NODES))
            address, token = local.address, local.token
        # Ray would end this process before it can report a dead first machine.
        os.environ.update(RAY_gcs_rpc_server_reconnect_timeout_s="180")
        machines = connection.connect(address, token=token)
        stack.callback(connection.disconnect)
        if config.cluster != "local":
            connection.check_machines(machines)
        from quarl.cluster.cell_pool import ClusterPool  # imported here: it imports Ray, whose environment is set now

        yield partial(ClusterPool, connection.enough(machines, config.nodes))


def measured(config: SweepConfig | RobustConfig, document: Mapping[str, Any]) -> tuple[Study, Measured]:
    """Write a study file into the locked folder of its command, and measure its missing cells within the time."""
    path = config.output / "study.yml"
    write_bytes(yaml.safe_dump(document, sort_keys=False).encode(), path)
    asked = file.read(str(path))
    cells = plan(asked, env_module=(config.env or "").rpartition(":")[0] or None)
    return asked, measure(
        config.output,
        asked,
        cells,
        cells,
        terminal.progress,
        jobs=config.jobs,
        minutes=config.minutes,
        retry_failed=True,
    )


def ended(measured: Measured, config: StudyRunConfig | SweepConfig | RobustConfig) -> int:
    """Print the reason if the run is incomplete, and return the exit code."""
    if measured.signal is not None:
        terminal.complain(f"stopped by a signal; resume with {config.command_line()}")
        return SIGNALLED + measured.signal
    if measured.left:
        terminal.complain(f"the time is over with {measured.left} cells to go: repeat the command to continue")
    return SOME_FAILED if failures(measured.records) else 0


def show(
    config: StudyRunConfig | SweepConfig,
    title: str,
    margin: float,
    records: Sequence[Record],
    *said: str,
    **about: Unpack[schema.Told],
) -> None:
    """Show the cells and name those that failed.

    Args:
        config: The command's options.
        title: Name of the study.
        margin: Acceptable loss of return in percent.
        records: The cells.
        *said: Lines about them that follow.
        **about: Facts for the document.
    """
    if part := rows.incomplete(records):
        title, about["incomplete"] = f"{title} (incomplete: {part})", part
    terminal.tell(config, rows.CellRow, rows.rows(records, margin), title, *failures(records), *said, **about)


def failures(records: Sequence[Record]) -> list[str]:
    """Return a line for each failed cell with the reason."""
    return [
        f"failed: {record.algo} {record.env_id} {record.method} {record.precision} {record.scheme}: {record.error}"
        for record in records
        if record.state == FAILED
    ]


def _counted(records: Sequence[Record]) -> str:
    states = [record.state for record in records]
    words = {DONE: "done", FAILED: "failed", NA: "n/a", RUNNING: "running", TODO: "to do"}
    return ", ".join(f"{states.count(state)} {word}" for state, word in words.items() if state in states)


def _chosen(config: StudyRunConfig, cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells that --only names, the trainings they need, and the fp32 cells they are compared with."""
    names = [(f"{cell.algo}/{cell.env_id}", cell.source, cell.method, cell.precision) for cell in cells]
    known = [name for kind in zip(*names, strict=True) for name in dict.fromkeys(kind)]
    if unknown := [word for word in config.only if word not in known]:
        raise QuarlError(f"--only {unknown[0]}: the study has no such cell; it has {', '.join(dict.fromkeys(known))}")
    asked = [set(config.only) & {*kind} or kind for kind in zip(*names, strict=True)]
    keys: set[str] = set()
    for cell, of_cell in reversed(list(zip(cells, names, strict=True))):  # the training of a cell precedes it
        fits = [name in words for name, words in zip(of_cell, asked, strict=True)]
        if cell.key in keys or all(fits[:2] if cell.method == FP32 else fits):
            keys |= {cell.key, cell.needs, *cell.after}
    return [cell for cell in cells if cell.key in keys]


def _dry(config: StudyRunConfig, study: Study, cells: Sequence[Cell]) -> int:
    """Show the cells that would be measured, and those that exist already."""
    known: dict[str, Record] = {}
    if (config.output / NAME).is_file():
        with Store(config.output) as store:
            known = {record.key: record for record in store.records()}
    records = []
    for cell in cells:
        about: dict[str, Any] = {name: getattr(cell, name) for name in ("key", *COLUMNS)}
        is_known = cell.key in known and not cell.na
        records.append(known[cell.key] if is_known else Record(**about, state=NA if cell.na else TODO))
    shown = rows.status(records, [*known.values()])
    terminal.tell(config, rows.StatusRow, shown, f"{study.name}: {_counted(records)}")
    minutes = sum(row.minutes_to_go or 0.0 for row in shown) / config.jobs
    unknown = sum(row.todo + row.running for row in shown if row.minutes_to_go is None)
    rest = f"unknown for {unknown:,} cells, none of whose kind is finished in {config.output}" if unknown else ""
    parts = (f"{minutes:,.1f} minutes" if minutes or not unknown else "", rest)
    terminal.say(f"estimated time with --jobs {config.jobs}: {'; '.join(filter(None, parts))}")
    for reason in dict.fromkeys(cell.na for cell in cells if cell.na):
        terminal.say(f"n/a: {reason}")
    terminal.say("nothing was measured: drop --dry-run")
    return 0


def _status(config: StudyStatusConfig) -> int:
    with Store(config.folder) as store:
        name, _ = store.study()
        records = store.records()
    about = rows.incomplete(records) or None
    terminal.tell(config, rows.StatusRow, rows.status(records), f"{name}: {_counted(records)}", incomplete=about)
    terminal.say(*failures(records))
    return 0
