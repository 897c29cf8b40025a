"""Rows of a run's metrics and evaluations: a line of JSON each, in the order in which they came."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from quarl.errors import QuarlError
from quarl.files import write_bytes


def append(path: Path, row: dict[str, Any]) -> None:
    """One line more, whole or not at all; QuarlError where the disk is full."""
    size = path.stat().st_size if path.exists() else 0
    try:
        with path.open("a") as file:
            print(json.dumps(row), file=file)
    except OSError as error:
        with contextlib.suppress(OSError):  # no half of a row, which the next one would go on
            os.truncate(path, size)
        raise QuarlError(f"cannot write {path}: {error.strerror}") from None


def rows_until(path: Path, timesteps: float = math.inf, numbers: Iterable[str] = ()) -> list[dict[str, Any]]:
    """Rows up to that step: later ones, of what was not saved, are no more, nor is half of a line.

    numbers: names of what has to be a number in each.
    """
    rows: list[dict[str, Any]] = []
    for line in path.read_bytes().splitlines(keepends=True) if path.is_file() else ():
        with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
            row = json.loads(line)
            typed = all(isinstance(row[name], int | float) for name in numbers)
            if typed and line.endswith(b"\n") and row["timesteps"] <= timesteps:
                rows.append(row)
    return rows


def write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """The file of these rows, in one step."""
    write_bytes("".join(json.dumps(row) + "\n" for row in rows).encode(), path)
