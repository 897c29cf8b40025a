"""Tables as Markdown, for those who write about them."""

from __future__ import annotations

import html

from quarl.errors import printable
from quarl.report.tables import Cells


def to_markdown(table: Cells, heading: str) -> str:
    """The table under its heading, its caption below."""
    heads = [column.heading or " " for column in table.columns]
    rules = [":---" if column.left else "---:" for column in table.columns]
    lines = [_line(heads), _line(rules), *(_line(row) for row in table.rows)]
    caption = f"\n{escaped(table.caption)}\n" if table.caption else ""
    return f"## {heading}\n\n" + "\n".join(lines) + f"\n{caption}"


def escaped(text: str) -> str:
    """The text where Markdown would make markup, links or columns of it."""
    plain = (
        html.escape("\n".join(map(printable, text.split("\n"))), quote=False).replace("|", "\\|").replace("`", "\\`")
    )
    return plain.replace("](", "]\\(").replace("][", "]\\[")


def _line(cells: list[str] | tuple[str, ...]) -> str:
    return "| " + " | ".join(escaped(cell) for cell in cells) + " |"
