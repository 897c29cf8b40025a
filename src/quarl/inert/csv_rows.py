"""Numbers of a .csv file: one row per step, and optionally a header with the names of the columns."""

from __future__ import annotations

import csv
import io
import math
from array import array

import numpy as np

from quarl.arrays import Array
from quarl.errors import QuarlError, short
from quarl.inert.reading_budget import current


def read_csv(data: bytes, where: str) -> Array:
    """Return the numbers, float64 [rows, columns], of comma-separated text whose first line may name the columns.

    Args:
        data: Bytes of the file, in UTF-8.
        where: Name of the file in errors.

    Raises:
        QuarlError: A cell is not a finite number, a row has another number of columns, or there is no row. The message
            names the line and the column.
    """
    numbers, width, budget = array("d"), 0, current(where)
    try:
        lines = csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""), strict=True)
        for cells in filter(None, lines):
            values = list(map(_value, cells))
            if not width:
                width = len(cells)
                # no cell is a number, or they are those that pandas gives to columns without names
                if all(map(math.isnan, values)) or (width > 1 and cells == list(map(str, range(width)))):
                    continue
            if len(cells) != width:
                raise QuarlError(
                    f"{where}, line {lines.line_num} has {len(cells)} columns, but the first line has {width}"
                )
            for column, value in enumerate(values):
                if not math.isfinite(value):
                    place = f"{where}, line {lines.line_num}, column {column + 1}"
                    raise QuarlError(f"{place} is {short(cells[column])!r}; use a finite number")
            budget.copy(8 * width)
            numbers.extend(values)
    except (UnicodeDecodeError, csv.Error) as error:
        raise QuarlError(f"{where} is not comma-separated text in UTF-8: {short(str(error))}") from None
    if not numbers:
        raise QuarlError(f"{where} has no row of numbers: write one row per step")
    return np.frombuffer(numbers).reshape(-1, width)


def _value(cell: str) -> float:
    """Return the number in a cell; NaN if there is none, as in 1_000, which Python would read as 1000."""
    try:
        return float(cell) if "_" not in cell else math.nan
    except ValueError:
        return math.nan
