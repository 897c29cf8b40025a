"""Tables of rows: the same cells for the terminal, the page and Markdown; every number of a row as CSV."""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from quarl.errors import printable, short
from quarl.report.schema import Fields
from quarl.rows import Column, Row, columns

FILE_WIDTH = 160
"""Characters in a line of a table for a file or a pipe, because the width of the reader's window is unknown."""
MAX_CELL = 300
"""Largest number of characters in a cell: names from files can have any length. Files of rows contain them in full."""


@dataclass(frozen=True, slots=True)
class Cells:
    """A table as text."""

    kind: type[Row]
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str


def cells(kind: type[Row], rows: Sequence[Fields]) -> Cells:
    """Return the table of the rows.

    Columns with equal values in all rows move to the caption if they have a format for it.
    """
    shown: list[Column] = []
    caption: list[str] = []
    for column in columns(kind):
        values = {_cell(column, row) for row in rows} - {""}
        if column.caption and len(values) == 1:
            (value,) = values
            caption.append(column.caption.format(value, s="" if value == "1" else "s"))
        elif values - {"–"} or not column.optional:
            shown.append(column)
    return Cells(
        kind=kind,
        columns=tuple(shown),
        rows=tuple(tuple(_cell(column, row) for column in shown) for row in rows),
        caption=", ".join(caption),
    )


def _cell(column: Column, row: Fields) -> str:
    return short(column.text(*(row[name] for name in column.of)), MAX_CELL)


def terminal(table: Cells, title: str) -> Table:
    """Return the table for a rich console."""
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
        drawn.add_column(Text(column.heading), justify="left" if column.left else "right", overflow="fold")
    for row in table.rows:
        drawn.add_row(*map(Text, row))
    return drawn


def to_csv(rows: Sequence[Fields]) -> str:
    """Return all scalar keys of the rows as CSV, one row per line, numbers in full precision, empty if null."""
    names = [name for name, value in rows[0].items() if not isinstance(value, list)]
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def to_markdown(table: Cells, heading: str) -> str:
    """Return the table under its heading, with its caption below."""
    heads = [column.heading or " " for column in table.columns]
    rules = [":---" if column.left else "---:" for column in table.columns]
    lines = [_line(heads), _line(rules), *(_line(row) for row in table.rows)]
    caption = f"\n{escaped(table.caption)}\n" if table.caption else ""
    return f"## {heading}\n\n" + "\n".join(lines) + f"\n{caption}"


def escaped(text: str) -> str:
    """Escape the parts of the text that Markdown would read as markup, links or columns."""
    plain = (
        html.escape("\n".join(map(printable, text.split("\n"))), quote=False).replace("|", "\\|").replace("`", "\\`")
    )
    return plain.replace("](", "]\\(").replace("][", "]\\[")


def _line(cells: list[str] | tuple[str, ...]) -> str:
    return "| " + " | ".join(escaped(cell) for cell in cells) + " |"
