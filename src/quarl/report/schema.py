"""The --json file: the document around the rows that a command prints (docs/reference/json.md)."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, NotRequired, TypedDict, Unpack, cast

from quarl import __version__
from quarl.energy import Energy
from quarl.files import write_bytes
from quarl.machine import machine
from quarl.rows import Row

SCHEMA = 3
"""Schema version; increased if a key is removed or changes its meaning."""
Fields = Mapping[str, Any]
"""A row with plain JSON values."""


class About(TypedDict, total=False):
    """The subject of the rows; null if a command has no such thing."""

    model: str | None
    algo: str | None
    env_id: str | None
    seed: int | None
    statistics: str | None
    """The source of the statistics that normalize the agent's observations, in words, or that there is none."""
    incomplete: str | None
    """Number of the cells that a study has measured, in words; null if none is missing."""


class Told(About, total=False):
    """The subject of the rows and the cost of the run, if it was measured."""

    energy: Energy | None


class Document(About):
    """Contents of a --json file; `energy` is present only if it was measured."""

    command: str
    """The command, and the kind of these rows."""
    schema: int
    """Version of this schema."""
    quarl: str
    """Version of QuaRL that wrote the document."""
    machine: dict[str, Any]
    """The machine that wrote it: processor, memory, system, versions of packages, commit."""
    date: str
    """Time of writing in UTC."""
    energy: NotRequired[dict[str, Any]]
    rows: list[Fields]


def document(kind: type[Row], rows: Sequence[Row | Fields], **told: Unpack[Told]) -> Document:
    """Return the document for rows of a kind; numbers that JSON cannot represent (NaN, infinity) become null.

    Args:
        kind: Class of the rows.
        rows: Rows, as objects or fields.
        **told: Subject of the rows, and energy.

    Returns:
        The contents of a --json file.
    """
    energy = told.pop("energy", None)
    written: Any = {
        "command": kind.command,
        "schema": SCHEMA,
        "quarl": __version__,
        "machine": _machine(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **dict.fromkeys(About.__annotations__),
        **told,
        **({} if energy is None else {"energy": asdict(energy)}),
        "rows": fields(rows),
    }
    return cast(Document, written)


def fields(rows: Sequence[Row | Fields]) -> list[Fields]:
    """Return rows as JSON values; a number that JSON cannot represent becomes None."""
    return [_plain(asdict(row) if isinstance(row, Row) else row) for row in rows]


def write(document: Document, file: Path) -> None:
    """Write the document, completely or not at all."""
    write_bytes(to_text(document).encode(), file)


def to_text(document: Document) -> str:
    """Return the document as JSON text, one row per line, so that two runs can be compared line by line."""
    head = {key: value for key, value in document.items() if key != "rows"}
    fields = [f'  "{key}": {json.dumps(value)}' for key, value in head.items()]
    rows = ",\n".join(f"    {json.dumps(row, allow_nan=False)}" for row in document["rows"])
    return "{\n" + ",\n".join([*fields, f'  "rows": [\n{rows}\n  ]']) + "\n}\n"


@cache
def _machine() -> dict[str, Any]:
    """Return the facts of this machine, which do not change; the document has its own date."""
    return {name: fact for name, fact in machine().items() if name != "date"}


def _plain(value: Any) -> Any:
    """Return the value without numpy's types and tuples; NaN and infinity become None."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value
