"""What a --json file holds: the document around the rows that a verb prints (docs/reference/json.md)."""

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

SCHEMA = 1
"""Raised when a key is taken away or changes its meaning."""
Fields = Mapping[str, Any]
"""A row as JSON has it."""


class About(TypedDict, total=False):
    """What rows are of; null where a verb has no such thing."""

    model: str | None
    algo: str | None
    env_id: str | None
    seed: int | None
    statistics: str | None
    """In words, with which file the agent's observations are normalized, or that none does."""


class Told(About, total=False):
    """With what the run cost, where it was measured."""

    energy: Energy | None


class Document(About):
    """What a --json file holds; `energy` only where it was measured."""

    command: str
    """The verb, and what kind of rows these are."""
    schema: int
    """Version of this description."""
    quarl: str
    """Version that wrote the document."""
    machine: dict[str, Any]
    """That it was written on: processor, memory, system, versions of packages, commit."""
    date: str
    """When it was written, in UTC."""
    energy: NotRequired[dict[str, Any]]
    rows: list[Fields]


def document(kind: type[Row], rows: Sequence[Row | Fields], **told: Unpack[Told]) -> Document:
    """What a --json file holds of rows of a kind; numbers that JSON cannot write (NaN, infinity) become null."""
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
    """Rows as JSON has them: plain values, None where it has no number."""
    return [_plain(asdict(row) if isinstance(row, Row) else row) for row in rows]


def write(document: Document, file: Path) -> None:
    """Writes the document, whole or not at all."""
    write_bytes(to_text(document).encode(), file)


def to_text(document: Document) -> str:
    """The document as JSON text, one row a line, so that two runs can be compared line by line."""
    head = {key: value for key, value in document.items() if key != "rows"}
    fields = [f'  "{key}": {json.dumps(value)}' for key, value in head.items()]
    rows = ",\n".join(f"    {json.dumps(row, allow_nan=False)}" for row in document["rows"])
    return "{\n" + ",\n".join([*fields, f'  "rows": [\n{rows}\n  ]']) + "\n}\n"


@cache
def _machine() -> dict[str, Any]:
    """This machine, which stays the same; the document has a date of its own."""
    return {name: fact for name, fact in machine().items() if name != "date"}


def _plain(value: Any) -> Any:
    """The value without numpy's types and tuples; numbers that JSON has no word for become None."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value
