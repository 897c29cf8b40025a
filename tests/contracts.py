"""The contract of every --json file: the keys and types that the classes of rows say, checked value by value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import reference_pages as reference

from quarl.energy import Energy
from quarl.report.schema import Document

NAMES = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
    list: "array",
    dict: "object",
}


@cache
def kinds() -> Mapping[str, Any]:
    """The class of the rows of each command."""
    return {kind.command: kind for kind in reference.kinds()}


@cache
def rows() -> Mapping[str, Any]:
    """The schema of a row of each command."""
    return {command: reference.schema(kind) for command, kind in kinds().items()}


def check(document: Mapping[str, Any]) -> None:
    """Raises ValueError where the document breaks the contract, naming the first key that does.

    Documents from before they said their schema may lack keys that are younger, and have none that is unknown.
    """
    old = "schema" not in document
    _check(document, reference.schema(Document), "the document", old)
    if "energy" in document:
        _check(document["energy"], reference.schema(Energy), "energy", old)
    if document["command"] not in rows():
        raise ValueError(f"command is {document['command']!r}, expected one of {', '.join(rows())}")
    for number, row in enumerate(document["rows"]):
        _check(row, rows()[document["command"]], f"row {number}", old)


def read(path: str | Path) -> dict[str, Any]:
    """Return the document of a --json file, which keeps the contract."""
    document: dict[str, Any] = json.loads(Path(path).read_text())
    check(document)
    return document


def check_row(command: str, row: Mapping[str, Any]) -> None:
    """Raises ValueError where a row of earlier results has unknown keys or other types."""
    _check(row, rows()[command], command, True)


def _check(values: Mapping[str, Any], schema: Mapping[str, Any], where: str, old: bool) -> None:
    wanted = [key for key in schema["properties"] if key in values or (not old and key != "energy")]
    if sorted(values) != sorted(wanted):
        raise ValueError(f"{where} has keys {list(values)}, expected {wanted}")
    for key, value in values.items():
        types = schema["properties"][key]["type"]
        name = NAMES[type(value)]
        if name not in types and not (name == "integer" and "number" in types):
            raise ValueError(f"{where}: {key} is {value!r}, expected {' or '.join(types)}")
