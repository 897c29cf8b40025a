"""The contract of every --json file (docs/json.md): keys and types of the document and of the rows of each verb."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from contracts.verbs import NULL, ROWS, Types

DOCUMENT: Mapping[str, Types] = {
    "command": (str,),
    "model": (str, NULL),
    "algo": (str, NULL),
    "env_id": (str, NULL),
    "seed": (int, NULL),
    "statistics": (str, NULL),
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


def check(document: Mapping[str, Any]) -> None:
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
