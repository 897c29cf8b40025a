"""Tables of rows: the same cells for the terminal, the page and Markdown; every number of a row as CSV."""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from quarl import __version__
from quarl.errors import printable, short
from quarl.files import write_bytes
from quarl.machine import commit
from quarl.report.schema import Document, Fields
from quarl.rows import Column, Row, columns

FILE_WIDTH = 160
"""Characters in a line of a table for a file or a pipe, because the width of the reader's window is unknown."""
IDENTITY = (
    "env_id",
    "algo",
    "source",
    "agent",
    "arm",
    "method",
    "precision",
    "scheme",
    "mode",
    "actor_precision",
    "disturbance",
    "level",
    "seed",
)
"""Fields that identify the policy of an episode, in a document or in its rows."""
BY_EPISODE = ("returns", "lengths", "successes")
"""Fields that list episodes."""
LATEX = str.maketrans(
    {
        **{mark: f"\\{mark}" for mark in "&%$#_{}"},
        **{mark: f"{{{mark}}}" for mark in "[*"},  # a line break reads these as its arguments
        **{mark: f"${mark}$" for mark in "<>|"},
        **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": r"\textendash{}"},
        **{"−": "$-$", "±": r"$\pm$", "×": r"$\times$", "µ": r"$\mu$", "≤": r"$\leq$", "≥": r"$\geq$"},
    }
)
"""LaTeX of the characters that are markup there or that its fonts lack."""
MOST_COLUMNS = 7
"""Largest number of columns of a LaTeX table that is not scaled to the width of a line."""
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
    names = [name for name, value in rows[0].items() if not isinstance(value, list) and name not in BY_EPISODE]
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


def to_latex(table: Cells, title: str, command: str = "") -> str:
    """Return the table for LaTeX with the package booktabs; a wide one is scaled to the line with graphicx.

    Args:
        table: The table.
        title: First sentence of its caption.
        command: Command that repeats the run; the caption ends with it, and with the version of QuaRL.

    Returns:
        A table environment.
    """
    source = f"QuaRL {__version__}{f', commit {number}' if (number := commit()) else ''}"
    said = table.caption[:1].upper() + table.caption[1:]
    caption = [f"{_latex(text)}." for text in (title, said) if text]
    repeat = rf"\texttt{{{_latex(command)}}}, " if command else ""
    wide = len(table.columns) > MOST_COLUMNS
    lines = [" & ".join(map(_latex, row)) + r" \\" for row in ([each.heading for each in table.columns], *table.rows)]
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{' '.join(caption)} {repeat}{_latex(source)}.}}",
            *[r"\resizebox{\linewidth}{!}{%"] * wide,
            rf"\begin{{tabular}}{{{''.join('l' if each.left else 'r' for each in table.columns)}}}",
            r"\toprule",
            lines[0],
            r"\midrule",
            *lines[1:],
            r"\bottomrule",
            rf"\end{{tabular}}{'}' * wide}",
            r"\end{table}",
            "",
        ]
    )


def write_latex(folder: Path, title: str, tables: Sequence[tuple[str, Cells]], command: str) -> None:
    """Write the tables into tables.tex, if there are any.

    Args:
        folder: Folder of the file.
        title: Title of the run.
        tables: Heading and cells of each table.
        command: Command that repeats the run.
    """
    if tables:
        text = "\n".join(to_latex(table, f"{title}: {heading}", command) for heading, table in tables)
        write_bytes(text.encode(), folder / "tables.tex")


def write_returns(document: Document, folder: Path) -> None:
    """Write returns.csv with a line for each episode of the document's rows, if there are any.

    A line has the fields that identify the policy and are known of one or more, the index of the episode, its return,
    and its length and success if they are known.
    """
    long, rows = list[Fields](), [{**document, **row} for row in document["rows"]]
    names = [name for name in IDENTITY if any(row.get(name) is not None for row in rows)]
    for row in rows:
        known = {name: row.get(name) for name in names}
        listed = zip_longest(*(row.get(name) or () for name in BY_EPISODE))
        for index, episode in enumerate(listed):
            long.append(known | {"episode": index} | dict(zip(("return", "length", "success"), episode, strict=True)))
    if long:
        write_bytes(to_csv(long).encode(), folder / "returns.csv")


def _latex(text: str) -> str:
    """Escape the text for LaTeX; characters beyond Latin-1 that its fonts lack become their code points."""
    plain = re.sub(r"-(?=-)", "-{}", " ".join(printable(text).split()).translate(LATEX))
    return re.sub(r"[^\x00-\xff]", lambda found: f"{{[}}U+{ord(found[0]):04X}]", plain)


def escaped(text: str) -> str:
    """Escape the parts of the text that Markdown would read as markup, links or columns."""
    plain = (
        html.escape("\n".join(map(printable, text.split("\n"))), quote=False).replace("|", "\\|").replace("`", "\\`")
    )
    return plain.replace("](", "]\\(").replace("][", "]\\[")


def _line(cells: list[str] | tuple[str, ...]) -> str:
    return "| " + " | ".join(escaped(cell) for cell in cells) + " |"
