"""Tables of rows: the same cells for the terminal, the page and the eye; every number of a row as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

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


@dataclass(frozen=True, slots=True)
class Cells:
    """A table as text."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str


def number(value: float | None) -> str:
    """A return, with as many decimals as its size deserves; an en dash where there is none."""
    if value is None:
        return "–"
    decimals = 0 if abs(value) >= 1000 else 1 if abs(value) >= 10 else 2
    return f"{value:.{decimals}f}".replace("-", "−")


def size(count: int) -> str:
    """Bytes in decimal units."""
    for unit, factor in (("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}" if count < 1000 * factor else f"{count / factor:.0f} {unit}"
    return f"{count} B"


def microseconds(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def percent(share: float) -> str:
    """A share 0..1 in percent, never rounded up to 100."""
    text = f"{100 * share:.1f}"
    return "100" if share == 1 else "99.9" if text == "100.0" else text


def verdict(row: Row) -> str:
    """The row's non-inferiority in words."""
    if row["precision"] == "fp32":
        return "baseline"
    return "non-inferior" if row["noninferior"] else "not shown"


def spark(counts: Sequence[int]) -> str:
    """A histogram in SPARK_BINS characters, its bars as long as the logarithm of their counts; blank for nothing."""
    width = max(1, len(counts) // SPARK_BINS)
    bars = [sum(counts[start : start + width]) for start in range(0, len(counts), width)]
    top = max(bars).bit_length()
    return "".join(SPARKS[(bar.bit_length() * (len(SPARKS) - 1)) // top] if bar else " " for bar in bars)


def _field(key: str) -> Callable[[Row], str]:
    return lambda row: str(row[key])


def _number(key: str) -> Callable[[Row], str]:
    return lambda row: number(row[key])


def _unless_float(key: str) -> Callable[[Row], str]:
    """Blank for float formats: they have no scheme, and their activations no mode."""
    return lambda row: "" if row["precision"] in FLOAT_BITS else str(row[key])


PRECISION = Column("precision", _field("precision"), left=True)
ENGINE = Column("engine", _field("engine"), "on {}", left=True)
MEASURED = Column("kernels", lambda row: "measured" if row["measured"] else "simulated", "{} kernels", left=True)
EPISODES = Column("episodes", _field("episodes"), "{} episodes each")
RETURN = Column("return", lambda row: f"{number(row['mean'])} ± {number(row['std'])}")
INTERVAL = Column("95 % interval", lambda row: f"[{number(row['ci_low'])}, {number(row['ci_high'])}]")
IQM = Column("IQM", _number("iqm"))

COLUMNS: Mapping[str, tuple[Column, ...]] = {
    "ptq": (
        PRECISION,
        Column("scheme", _unless_float("scheme"), "scheme {}", left=True),
        Column("mode", _unless_float("mode"), "{} activations", left=True),
        ENGINE,
        MEASURED,
        EPISODES,
        RETURN,
        INTERVAL,
        IQM,
        Column("E %", _number("error_pct")),
        Column("verdict", verdict, left=True),
        Column("margin", lambda row: f"{row['margin_pct']:g} %", "margin {}"),
        Column("agree %", lambda row: percent(row["agreement"])),
        Column("file", lambda row: size(row["bytes"])),
        Column("packed", lambda row: size(row["bytes_packed"])),
        Column("µs p50", lambda row: microseconds(row["latency_us_p50"])),
        Column("p99", lambda row: microseconds(row["latency_us_p99"])),
        Column("covered %", lambda row: percent(row["coverage"]), "{} % of the weights covered"),
    ),
    "eval": (
        PRECISION,
        ENGINE,
        MEASURED,
        Column("actions", lambda row: "sampled" if row["stochastic"] else "deterministic", "{} actions", left=True),
        EPISODES,
        RETURN,
        INTERVAL,
        IQM,
        Column("steps", lambda row: f"{row['steps']:,}"),
        Column("steps/s", lambda row: f"{row['steps_per_s']:,.0f}"),
    ),
    "inspect": (
        Column("layer", _field("layer"), left=True),
        Column("operator", _field("operator"), "{} layers", left=True),
        Column("shape", lambda row: "×".join(map(str, row["shape"]))),
        Column("precision", _field("precision"), "{}", left=True),
        Column("scheme", _unless_float("scheme"), "scheme {}", left=True),
        Column("min", lambda row: f"{row['min']:.4g}"),
        Column("max", lambda row: f"{row['max']:.4g}"),
        Column("range", lambda row: f"{row['range']:.4g}"),
        Column("levels", _field("levels")),
        Column("SQNR dB", lambda row: "exact" if row["sqnr_db"] is None else f"{row['sqnr_db']:.1f}"),
        Column("clipped %", lambda row: f"{100 * row['saturation']:.2g}"),
        Column("histogram (log)", lambda row: spark(row["histogram"]["counts"]), left=True),
    ),
    "bench latency": (
        Column("network", _field("network"), left=True),
        Column("batch", _field("batch"), "batch {}"),
        ENGINE,
        PRECISION,
        Column("µs p50", lambda row: microseconds(row["us_p50"])),
        Column("µs p99", lambda row: microseconds(row["us_p99"])),
        Column("file", lambda row: size(row["bytes"])),
    ),
    "doctor": (
        Column("check", _field("check"), left=True),
        Column("found", _field("found"), left=True),
        Column("", lambda row: "ok" if row["ok"] else "!", left=True),
        Column("advice", _field("advice"), left=True),
    ),
}
"""By the `command` of the document."""


def cells(command: str, rows: Sequence[Row]) -> Cells:
    """The table of the rows; columns in which all rows agree move to the caption where they know how to."""
    shown: list[Column] = []
    caption: list[str] = []
    for column in COLUMNS[command]:
        values = {column.cell(row) for row in rows} - {""}
        if column.constant and len(values) == 1:
            caption.append(column.constant.format(values.pop()))
        else:
            shown.append(column)
    return Cells(
        columns=tuple(shown),
        rows=tuple(tuple(column.cell(row) for column in shown) for row in rows),
        caption=", ".join(caption),
    )


def terminal(table: Cells, title: str) -> Table:
    """The table for a rich console."""
    drawn = Table(
        title=Text(title),
        caption=Text(table.caption) if table.caption else None,
        title_justify="left",
        caption_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for column in table.columns:
        # folded, not cut: a narrow terminal shows everything too
        drawn.add_column(column.head, justify="left" if column.left else "right", overflow="fold")
    for row in table.rows:
        drawn.add_row(*map(Text, row))
    return drawn


def to_csv(rows: Sequence[Row]) -> str:
    """All keys of the rows, one row a line, numbers in full precision, empty where null."""
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
