"""What a --json file holds: the document around the rows that a verb prints (docs/json.md)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from quarl.energy import Energy

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Row = Mapping[str, Any]
Document = Mapping[str, Any]


def document(
    command: str,
    rows: Sequence[Row | DataclassInstance],
    *,
    model: str | None = None,
    algo: str | None = None,
    env_id: str | None = None,
    seed: int | None = None,
    statistics: str | None = None,
    energy: Energy | None = None,
) -> Document:
    """What a --json file holds; numbers that JSON cannot write (NaN, infinity) become null.

    statistics: in words, with which ones the agent's observations were normalised. energy: what the run cost, where it
    was measured; elsewhere the document has no such key.
    """
    fields = (row if isinstance(row, Mapping) else asdict(row) for row in rows)
    plain = [{key: _plain(value) for key, value in row.items()} for row in fields]
    head = {"command": command, "model": model, "algo": algo, "env_id": env_id, "seed": seed, "statistics": statistics}
    return {**head, **({} if energy is None else {"energy": asdict(energy)}), "rows": plain}


def to_text(document: Document) -> str:
    """The document as JSON text, one row a line, so that two runs can be compared line by line."""
    head = {key: value for key, value in document.items() if key != "rows"}
    fields = [f'  "{key}": {json.dumps(value)}' for key, value in head.items()]
    rows = ",\n".join(f"    {json.dumps(row, allow_nan=False)}" for row in document["rows"])
    return "{\n" + ",\n".join([*fields, f'  "rows": [\n{rows}\n  ]']) + "\n}\n"


def _plain(value: Any) -> Any:
    """The value without numpy's types; numbers that JSON has no word for become None."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value
