"""Tables of rows: the same cells for the terminal, the page and the eye; every number of a row as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from quarl.errors import short
from quarl.report.actorq_columns import ACTORQ
from quarl.report.columns import (
    Column,
    activations,
    field_of,
    interval,
    number,
    number_of,
    percent,
    size,
    three_digits,
    unless_float,
    verdict,
)
from quarl.report.envs_columns import ENVS
from quarl.report.inspect_columns import INSPECT
from quarl.report.mixed_precision_columns import MIXED_PRECISION
from quarl.report.schema import Row
from quarl.report.study_columns import STUDY
from quarl.report.train_columns import TRAIN

MAX_CELL = 300
"""Characters of a cell: names out of files can be of any length. Files of rows have them whole."""


@dataclass(frozen=True, slots=True)
class Cells:
    """A table as text."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str


PRECISION = Column("precision", field_of("precision"), left=True)
ENGINE = Column("engine", field_of("engine"), "on {}", left=True)
MEASURED = Column("kernels", lambda row: "measured" if row["measured"] else "simulated", "{} kernels", left=True)
EPISODES = Column("episodes", field_of("episodes"), "{} episodes each")
RETURN = Column("return", lambda row: f"{number(row['mean'])} ± {number(row['std'])}")
INTERVAL = Column("95 % interval", interval)
IQM = Column("IQM", number_of("iqm"))

COLUMNS: Mapping[str, tuple[Column, ...]] = {
    "ptq": (
        PRECISION,
        Column("scheme", unless_float("scheme"), "scheme {}", left=True),
        Column("mode", activations, "{} activations", left=True),
        ENGINE,
        MEASURED,
        EPISODES,
        RETURN,
        INTERVAL,
        IQM,
        Column("E %", number_of("error_pct")),
        Column("verdict", verdict, left=True),
        Column("margin", lambda row: f"{row['margin_pct']:g} %", "margin {}"),
        Column("agree %", lambda row: percent(row["agreement"])),
        Column("file", lambda row: size(row["bytes"]) if row["bytes"] else "–"),
        Column("packed", lambda row: size(row["bytes_packed"])),
        Column("µs p50", lambda row: three_digits(row["latency_us_p50"])),
        Column("p99", lambda row: three_digits(row["latency_us_p99"])),
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
    **INSPECT,
    "bench latency": (
        Column("network", field_of("network"), left=True),
        Column("batch", field_of("batch"), "batch {}"),
        ENGINE,
        PRECISION,
        Column("µs p50", lambda row: three_digits(row["us_p50"])),
        Column("µs p99", lambda row: three_digits(row["us_p99"])),
        Column("file", lambda row: size(row["bytes"]) if row["bytes"] else "–"),
    ),
    **TRAIN,
    **STUDY,
    "sweep": STUDY["study"],
    **ACTORQ,
    **ENVS,
    **MIXED_PRECISION,
    "doctor": (
        Column("check", field_of("check"), left=True),
        Column("found", field_of("found"), left=True),
        Column("", lambda row: "ok" if row["ok"] else "!", left=True),
        Column("advice", field_of("advice"), left=True),
    ),
}
"""By the `command` of the document."""


def cells(command: str, rows: Sequence[Row]) -> Cells:
    """The table of the rows; columns in which all rows agree move to the caption where they know how to."""
    shown: list[Column] = []
    caption: list[str] = []
    for column in COLUMNS[command]:
        values = {_cell(column, row) for row in rows} - {""}
        if column.constant and len(values) == 1:
            caption.append(column.constant.format(values.pop()))
        elif values or not column.optional:
            shown.append(column)
    return Cells(
        columns=tuple(shown),
        rows=tuple(tuple(_cell(column, row) for column in shown) for row in rows),
        caption=", ".join(caption),
    )


def _cell(column: Column, row: Row) -> str:
    return short(column.cell(row), MAX_CELL)


def terminal(table: Cells, title: str) -> Table:
    """The table for a rich console."""
    drawn = Table(
        title=Text(short(title, MAX_CELL)),
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
