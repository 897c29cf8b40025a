"""Columns: how one number of a row is written in a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quarl.quant.spec import FLOAT_BITS
from quarl.report.schema import Row

SPARKS = "▁▂▃▄▅▆▇█"
SPARK_BINS = 20


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its head, and the text of a row's cell."""

    head: str
    cell: Callable[[Row], str]
    constant: str = ""
    """Where set and all rows that have a cell agree, this, with {} for the cell, joins the caption instead."""
    left: bool = False
    optional: bool = False
    """Whether it is left out where no row has a cell."""


def number(value: float | None) -> str:
    """A return, with as many decimals as its size deserves; an en dash where there is none."""
    if value is None:
        return "–"
    decimals = 0 if abs(value) >= 1000 else 1 if abs(value) >= 10 else 2
    return f"{value:z.{decimals}f}".replace("-", "−")


def signed(value: float | None) -> str:
    """A correlation; an en dash where there is none."""
    return "–" if value is None else f"{value:+z.2f}".replace("-", "−")


def size(count: int) -> str:
    """Bytes in decimal units."""
    for unit, factor in (("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{three_digits(count / factor)} {unit}"
    return f"{count} B"


def three_digits(value: float) -> str:
    """Never in powers of ten, to which `.3g` turns from 999.5 on."""
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"


def percent(share: float) -> str:
    """A share 0..1 in percent, never rounded up to 100."""
    text = f"{100 * share:.1f}"
    return "100" if share == 1 else "99.9" if text == "100.0" else text


def interval(row: Row, low: str = "ci_low", high: str = "ci_high") -> str:
    """The interval whose ends lie in these fields; an en dash where there is none."""
    return "–" if row[low] is None else f"[{number(row[low])}, {number(row[high])}]"


def verdict(row: Row) -> str:
    """The row's verdict in words; what others are compared with has none."""
    return "baseline" if row["precision"] == "fp32" else judged(row)


def judged(row: Row) -> str:
    """The row's verdict in words, blank where it has none."""
    return f"{row['verdict'] or ''}{', differs beyond noise' if row['differs'] else ''}"


def spark(counts: Sequence[int]) -> str:
    """A histogram in SPARK_BINS characters, its bars as long as the logarithm of their counts; blank for nothing."""
    width = max(1, len(counts) // SPARK_BINS)
    bars = [sum(counts[start : start + width]) for start in range(0, len(counts), width)]
    top = max(bars).bit_length()
    return "".join(SPARKS[(bar.bit_length() * (len(SPARKS) - 1)) // top] if bar else " " for bar in bars)


def field_of(key: str) -> Callable[[Row], str]:
    return lambda row: str(row[key])


def number_of(key: str) -> Callable[[Row], str]:
    return lambda row: number(row[key])


def unless_float(key: str) -> Callable[[Row], str]:
    """Blank for float formats, which have no scheme."""
    return lambda row: "" if row["precision"] in FLOAT_BITS else str(row[key])


def activations(row: Row) -> str:
    """How activations are quantised, blank where they are not."""
    return "" if row["bits_activations"] == FLOAT_BITS["fp32"] else str(row["mode"])


def digits_of(key: str) -> Callable[[Row], str]:
    """Three digits of a time or rate, an en dash where there is none."""
    return lambda row: "–" if row[key] is None else three_digits(row[key])


def times_of(key: str, low: str = "", high: str = "") -> Callable[[Row], str]:
    """A factor with the ends of its interval, which a baseline against itself has not; the upper one may be unknown."""

    def text(row: Row) -> str:
        if row[key] is None:
            return "–"
        if not low or row[low] is None or row[low] == row[high]:
            return f"{row[key]:.2f}"
        end = "–" if row[high] is None else f"{row[high]:.2f}"
        return f"{row[key]:.2f} [{row[low]:.2f}, {end}]"

    return text
