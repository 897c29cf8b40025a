"""The contract of every --json file: keys and types of the document and of the rows of each verb."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from quarl.energy import Energy
from quarl.report.contracts import NULL, ROWS, Types

Row = Mapping[str, Any]
Document = Mapping[str, Any]

DOCUMENT: Mapping[str, Types] = {
    "command": (str,),
    "model": (str, NULL),
    "algo": (str, NULL),
    "env_id": (str, NULL),
    "seed": (int, NULL),
    "rows": (list,),
}

ENERGY: Mapping[str, Types] = {
    "joules": (float,),
    "co2_g": (float,),
    "method": (str,),
    "watts": (float, NULL),
    "cpu_seconds": (float,),
    "country": (str,),
    "grams_per_kwh": (float,),
}
"""What --energy adds."""
WITH_ENERGY: Mapping[str, Types] = {
    **{key: types for key, types in DOCUMENT.items() if key != "rows"},
    "energy": (dict,),
    "rows": (list,),
}


def document(
    command: str,
    rows: Sequence[Row],
    *,
    model: str | None = None,
    algo: str | None = None,
    env_id: str | None = None,
    seed: int | None = None,
    energy: Energy | None = None,
) -> Document:
    """What a --json file holds; numbers that JSON cannot write (NaN, infinity) become null.

    energy: what the run cost, where it was measured; elsewhere the document has no such key.
    """
    plain = [{key: _plain(value) for key, value in row.items()} for row in rows]
    head = {"command": command, "model": model, "algo": algo, "env_id": env_id, "seed": seed}
    return {**head, **({} if energy is None else {"energy": energy.to_json()}), "rows": plain}


def to_text(document: Document) -> str:
    """The document as JSON text, one row a line, so that two runs can be compared line by line."""
    head = {key: value for key, value in document.items() if key != "rows"}
    fields = [f'  "{key}": {json.dumps(value)}' for key, value in head.items()]
    rows = ",\n".join(f"    {json.dumps(row, allow_nan=False)}" for row in document["rows"])
    return "{\n" + ",\n".join([*fields, f'  "rows": [\n{rows}\n  ]']) + "\n}\n"


def check(document: Document) -> None:
    """Raises ValueError where the document breaks the contract, naming the first key that does."""
    measured = "energy" in document
    _check_keys(document, WITH_ENERGY if measured else DOCUMENT, "the document")
    if measured:
        _check_keys(document["energy"], ENERGY, "energy")
    if document["command"] not in ROWS:
        raise ValueError(f"command is {document['command']!r}, expected one of {', '.join(ROWS)}")
    for number, row in enumerate(document["rows"]):
        _check_keys(row, ROWS[document["command"]], f"row {number}")


def _check_keys(found: Mapping[str, Any], wanted: Mapping[str, Types], where: str) -> None:
    if list(found) != list(wanted):
        raise ValueError(f"{where} has keys {list(found)}, expected {list(wanted)}")
    for key, types in wanted.items():
        # bool is a kind of int in Python, but not in JSON
        accepted = {*types, *((int,) if float in types else ())}
        if type(found[key]) not in accepted:
            raise ValueError(f"{where}: {key} is {found[key]!r}, expected {' or '.join(t.__name__ for t in types)}")


def _plain(value: Any) -> Any:
    """The value without numpy's types; numbers that JSON has no word for become None."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value
