"""The contract of every --json file: keys and types of the document and of the rows of each verb."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
Document = Mapping[str, Any]
Types = tuple[type, ...]
NULL = type(None)

DOCUMENT: Mapping[str, Types] = {
    "command": (str,),
    "model": (str, NULL),
    "algo": (str, NULL),
    "env_id": (str, NULL),
    "seed": (int, NULL),
    "rows": (list,),
}

ROWS: Mapping[str, Mapping[str, Types]] = {
    "ptq": {
        "precision": (str,),
        "bits_weights": (int,),
        "bits_activations": (int,),
        "scheme": (str,),
        "mode": (str,),
        "engine": (str,),
        "measured": (bool,),
        "episodes": (int,),
        "mean": (float,),
        "std": (float,),
        "iqm": (float,),
        "ci_low": (float,),
        "ci_high": (float,),
        "error_pct": (float, NULL),
        "margin_pct": (float,),
        "noninferior": (bool,),
        "bytes": (int,),
        "bytes_packed": (int,),
        "latency_us_p50": (float,),
        "latency_us_p99": (float,),
        "agreement": (float,),
        "coverage": (float,),
    },
    "eval": {
        "precision": (str,),
        "engine": (str,),
        "measured": (bool,),
        "stochastic": (bool,),
        "episodes": (int,),
        "mean": (float,),
        "std": (float,),
        "iqm": (float,),
        "ci_low": (float,),
        "ci_high": (float,),
        "steps": (int,),
        "steps_per_s": (float,),
    },
    "inspect": {
        "layer": (str,),
        "operator": (str,),
        "shape": (list,),
        "precision": (str,),
        "scheme": (str,),
        "min": (float,),
        "max": (float,),
        "range": (float,),
        "levels": (int,),
        "sqnr_db": (float, NULL),
        "saturation": (float,),
        "histogram": (dict,),
    },
    "bench latency": {
        "network": (str,),
        "batch": (int,),
        "engine": (str,),
        "precision": (str,),
        "us_p50": (float,),
        "us_p99": (float,),
        "bytes": (int,),
    },
    "doctor": {
        "check": (str,),
        "found": (str,),
        "ok": (bool,),
        "advice": (str,),
    },
}
"""By the document's `command`. A whole number stands for a float too; null where the verb has no such thing."""


def document(
    command: str,
    rows: Sequence[Row],
    *,
    model: str | None = None,
    algo: str | None = None,
    env_id: str | None = None,
    seed: int | None = None,
) -> Document:
    """What a --json file holds; numbers that JSON cannot write (NaN, infinity) become null."""
    plain = [{key: _plain(value) for key, value in row.items()} for row in rows]
    return {"command": command, "model": model, "algo": algo, "env_id": env_id, "seed": seed, "rows": plain}


def to_text(document: Document) -> str:
    """The document as JSON text, one row a line, so that two runs can be compared line by line."""
    head = {key: value for key, value in document.items() if key != "rows"}
    fields = [f'  "{key}": {json.dumps(value)}' for key, value in head.items()]
    rows = ",\n".join(f"    {json.dumps(row, allow_nan=False)}" for row in document["rows"])
    return "{\n" + ",\n".join([*fields, f'  "rows": [\n{rows}\n  ]']) + "\n}\n"


def check(document: Document) -> None:
    """Raises ValueError where the document breaks the contract, naming the first key that does."""
    _check_keys(document, DOCUMENT, "the document")
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
