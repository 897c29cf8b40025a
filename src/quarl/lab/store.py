"""The store: study.sqlite in a study's folder, which holds all of its rows.

Only the process that runs the study writes, one transaction at a time, synced to the disk. Finished cells survive a
kill at any time. Other processes may read meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quarl.errors import QuarlError
from quarl.lab.cells import (
    ACTORQ,
    DONE,
    FAILED,
    NA,
    NAMES,
    PTQ,
    RUNNING,
    THROUGHPUT,
    TODO,
    TRAIN,
    UPDATES,
    Cell,
    Named,
)
from quarl.processes.pool import Ended

NAME = "study.sqlite"
VERSION = 1
"""Version of the tables; a database with a newer one is refused."""
TABLES = """
CREATE TABLE study (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    name TEXT NOT NULL,
    file TEXT NOT NULL,       -- the study file as JSON
    quarl TEXT NOT NULL       -- the version that measured last
);
CREATE TABLE cells (
    key TEXT PRIMARY KEY,
    place INTEGER,            -- in the study file's order, NULL where it is no longer asked for
    algo TEXT NOT NULL, env_id TEXT NOT NULL, source TEXT NOT NULL,
    method TEXT NOT NULL, precision TEXT NOT NULL, scheme TEXT NOT NULL, mode TEXT NOT NULL,
    seed INTEGER NOT NULL, episodes INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('todo', 'running', 'done', 'failed', 'na')),
    error TEXT,               -- one line: why it failed, or why it is not measured
    started REAL,             -- seconds since 1970
    seconds REAL, peak_mb REAL,
    row TEXT                  -- JSON: what was measured, every episode's return with it
);
"""
COLUMNS = (*NAMES, "episodes")
"""Columns of a cell, with the same names."""
WEIGHTS, REACHED = ("weight_min", "weight_max", "weight_std"), ("target", "reached_s", "clock_s")
NEEDED: Mapping[str, tuple[str, ...]] = {
    TRAIN: ("agent",),
    PTQ: ("returns", *WEIGHTS),
    ACTORQ: ("returns", *REACHED),
    UPDATES: ("seconds",),
    THROUGHPUT: ("actors", "slices"),
}
"""Values that tables need of a finished cell, by its method; other methods need only the returns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record(Named):
    """A cell in the database."""

    key: str
    episodes: int
    state: str
    error: str | None = None
    seconds: float | None = None
    peak_mb: float | None = None
    result: Mapping[str, Any] = field(default_factory=dict)
    """Measured values; empty if there are none."""


def _is_whole(method: str, result: Mapping[str, Any]) -> bool:
    """Return True if a finished cell's result has all values of tables, as numbers."""
    needed, returns, won = NEEDED.get(method, ("returns",)), result.get("returns", [0]), result.get("successes") or []
    numbers = (result[name] for name in (*WEIGHTS, *REACHED) if result.get(name) is not None)
    is_list = isinstance(returns, list) and bool(returns) and result.keys() >= {*needed}
    bools = isinstance(won, list) and {*map(type, won)} <= {bool}
    return is_list and bools and all(type(n) in (int, float) and -math.inf < n < math.inf for n in (*returns, *numbers))


class Store(contextlib.AbstractContextManager["Store"]):
    """An open database."""

    def __init__(self, folder: Path, *, create: bool = False) -> None:
        """Open the database; `create` makes it if it is missing, inside `locked`.

        Raises:
            QuarlError: It is missing without `create`, damaged, or newer.
        """
        self.path = folder / NAME
        self._advice = "; choose another folder with -o" if create else ""
        if not create and not self.path.is_file():
            raise QuarlError(f"no study in {folder} ({NAME} is missing): quarl study run STUDY -o {folder} makes one")
        with self._said():
            self._db = sqlite3.connect(self.path, isolation_level=None)
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            if version not in (0, VERSION):
                raise QuarlError(
                    f"{self.path} is of another QuaRL (schema {version}, this one knows {VERSION}): use that version, "
                    "or another folder"
                )
            if version == 0:
                self._make(create=create)
            self._db.execute("PRAGMA synchronous = FULL")

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def ask(self, name: str, document: Mapping[str, Any], version: str, cells: Sequence[Cell]) -> None:
        """Set the cells of the study; results of others stay and are not reported.

        Cells that were running when their runner was killed are to be done again.
        """
        columns = ", ".join(COLUMNS)
        with self._transaction():
            self._db.execute(
                "INSERT OR REPLACE INTO study (id, name, file, quarl) VALUES (1, ?, ?, ?)",
                (name, json.dumps(document), version),
            )
            self._db.execute("UPDATE cells SET place = NULL")
            self._db.execute("UPDATE cells SET state = ?, started = NULL WHERE state = ?", (TODO, RUNNING))
            for place, cell in enumerate(cells):
                values = [getattr(cell, column) for column in COLUMNS]
                self._db.execute(
                    f"INSERT INTO cells (key, place, {columns}, state, error) "
                    f"VALUES (?, ?, {', '.join('?' * len(COLUMNS))}, ?, ?) "
                    "ON CONFLICT (key) DO UPDATE SET place = excluded.place, "
                    f"state = iif(excluded.state = '{NA}', excluded.state, state), "
                    f"error = iif(excluded.state = '{NA}', excluded.error, error), "
                    + ", ".join(f"{column} = excluded.{column}" for column in COLUMNS),
                    (cell.key, place, *values, NA if cell.na else TODO, cell.na or None),
                )

    def states(self) -> dict[str, str]:
        """Return the states of the study's cells by key."""
        with self._said():
            return dict(self._db.execute("SELECT key, state FROM cells WHERE place IS NOT NULL"))

    def again(self, keys: Iterable[str]) -> None:
        """Delete the results of these cells and mark them as to do."""
        with self._transaction():
            self._db.executemany(
                "UPDATE cells SET state = ?, error = NULL, row = NULL, started = NULL, seconds = NULL, peak_mb = NULL"
                " WHERE key = ?",
                [(TODO, key) for key in keys],
            )

    def write(self, finished: Sequence[Ended], started: Sequence[str]) -> None:
        """Write the results of finished cells, and mark others as running."""
        if not finished and not started:
            return
        with self._transaction():
            for event in finished:
                result = event.result
                state, row = (FAILED, None) if result.error else (DONE, json.dumps(result.value))
                self._db.execute(
                    "UPDATE cells SET state = ?, error = ?, seconds = ?, peak_mb = ?, row = ? WHERE key = ?",
                    (state, result.error or None, event.seconds, result.peak_mb, row, event.key),
                )
            for key in started:
                self._db.execute(
                    "UPDATE cells SET state = ?, started = ? WHERE key = ? AND state = ?",
                    (RUNNING, time.time(), key, TODO),
                )

    def result(self, key: str) -> Mapping[str, Any]:
        """Return the result of a finished cell; an empty mapping without one."""
        with self._said():
            row = self._db.execute("SELECT row FROM cells WHERE key = ?", (key,)).fetchone()
        return self._parsed(row[0] if row else None)

    def study(self) -> tuple[str, Mapping[str, Any]]:
        """Return the name and the file of the study."""
        with self._said():
            row = self._db.execute("SELECT name, file FROM study").fetchone()
        if row is None:
            raise QuarlError(f"{self.path} holds no study yet: quarl study run STUDY -o {self.path.parent} starts it")
        return str(row[0]), self._parsed(row[1])

    def records(self) -> list[Record]:
        """Return the study's cells, in its order."""
        names = ("key", *COLUMNS, "state", "error", "seconds", "peak_mb", "row")
        with self._said():
            rows = self._db.execute(
                f"SELECT {', '.join(names)} FROM cells WHERE place IS NOT NULL ORDER BY place"
            ).fetchall()
        records = [Record(**dict(zip(names[:-1], row[:-1], strict=True)), result=self._parsed(row[-1])) for row in rows]
        for record in records:
            if record.state == DONE and not _is_whole(record.method, record.result):
                raise self._damaged(f"the row of cell {record.key[:40]} lacks what its method measures")
        return records

    def _make(self, *, create: bool) -> None:
        if not create:
            raise QuarlError(f"{self.path} holds no study: quarl study run STUDY -o {self.path.parent} begins one")
        if self._db.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,):
            raise QuarlError(f"{self.path} is a database of something else: choose another folder with -o")
        # write-ahead log: readers never wait for the writer
        self._db.execute("PRAGMA journal_mode = WAL")
        with self._transaction():
            for statement in TABLES.strip().removesuffix(";").split(";"):
                self._db.execute(statement)
            self._db.execute(f"PRAGMA user_version = {VERSION}")

    def _parsed(self, text: str | None) -> Mapping[str, Any]:
        """Return the values of a JSON text by name; none without a text."""
        try:
            values = {} if text is None else json.loads(text)
        except (ValueError, RecursionError):
            raise self._damaged("a row is not JSON") from None
        if not isinstance(values, dict):
            raise self._damaged(f"a row holds a {type(values).__name__}, not values by name")
        return values

    def _damaged(self, why: str) -> QuarlError:
        return QuarlError(f"{self.path} is damaged: {why}; run the study in another folder")

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._said(), self._db:  # the connection commits, or rolls back unless a full disk already has
            self._db.execute("BEGIN IMMEDIATE")
            yield

    @contextlib.contextmanager
    def _said(self) -> Iterator[None]:
        """Raise errors of the database as one line."""
        try:
            yield
        except sqlite3.Error as error:
            reason = str(error)
            if "full" in reason or "disk I/O" in reason:
                raise QuarlError(
                    f"cannot write {self.path}: {reason}; its rows so far are whole: free some space and repeat the "
                    "command"
                ) from None
            raise QuarlError(f"cannot use {self.path}: {reason}{self._advice}") from None
