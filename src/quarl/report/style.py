"""The style of every figure: one set of colors and sizes, readable on light and dark pages."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import fill
from typing import Any, cast

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import NullFormatter, StrMethodFormatter

from quarl.errors import short
from quarl.files import write_bytes

INK = "#24292e"
"""Text and axes; a page replaces this color with its own text color, so it has no other use."""
PAPER = "#ffffff"
"""Inside of hollow markers; a page replaces it with its own background."""
WIDTH = 6.0
"""Width of a figure in inches: on a page 460 pixels wide, letters have the size given here."""
SERIES = ("#2f7ed8", "#e8793a", "#2a9d6f", "#b35fc4", "#c9a227", "#d1495b", "#6c8ebf", "#8c6d4f", "#5aa5a8")
"""Mid-tones with a contrast of at least 3:1 against white and against near-black."""
MUTED = "#8b949e"
BARS = SERIES[0]
LEVELS = SERIES[1]
MAX_TEXT = 160
"""Largest number of characters in a line of text."""
LEGEND_CHARACTERS = 96
"""Characters that fit side by side in a legend as wide as a figure."""
PANEL_CHARACTERS = {1: 84, 2: 34, 3: 22}
"""Characters that fit over a panel, by the number of columns in the figure."""

RC: Mapping[str, Any] = {
    "axes.edgecolor": INK,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 9,
    "axes.titlecolor": INK,
    "font.family": "sans-serif",
    "font.size": 9,
    "legend.fontsize": 8.5,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "grid.alpha": 0.25,
    "grid.color": MUTED,
    "legend.edgecolor": "none",
    "legend.facecolor": PAPER,
    "legend.labelcolor": INK,
    "lines.linewidth": 1.8,
    "pdf.fonttype": 42,  # TrueType: publishers refuse fonts of type 3
    "svg.fonttype": "none",  # text stays text: small, searchable, in the page's font
    "svg.hashsalt": "quarl",  # equal rows make equal files
    "text.color": INK,
    "text.parse_math": False,  # names from files may contain dollar signs
    "xtick.color": INK,
    "ytick.color": INK,
}


@contextmanager
def look() -> Iterator[None]:
    """Set the style for figures drawn and saved in the block or in a decorated function."""
    with mpl.rc_context(cast(Any, dict(RC))):  # its stub requires a literal type of all 300 setting names
        yield


def panels(
    count: int,
    title: str = "",
    *,
    height: float,
    head: float = 0.0,
    columns: int = 1,
    x: str = "",
    y: str = "",
    shared: str = "",
) -> tuple[Figure, list[Axes]]:
    """Return a figure with empty panels, laid out by constraints. Draw in `look()`.

    Args:
        count: Number of panels.
        title: Title over all panels.
        height: Height of a row of panels in inches.
        head: Height in inches of everything around them.
        columns: Largest number of panels side by side.
        x: Label below all panels.
        y: Label beside all panels.
        shared: "x" or "y", the axis that all panels share.

    Returns:
        The figure and its panels.
    """
    columns = min(count, columns) or 1
    rows = -(-count // columns) or 1
    drawn = Figure(figsize=(WIDTH, head + height * rows), layout="constrained")
    grid = drawn.subplots(rows, columns, squeeze=False, sharex=shared == "x", sharey=shared == "y").ravel().tolist()
    for axes in grid[count:]:
        axes.remove()
    if title:
        drawn.suptitle(title, x=0.01, ha="left", fontsize=10)
    if x:
        drawn.supxlabel(x, fontsize=9)
    if y:
        drawn.supylabel(y, fontsize=9)
    return drawn, grid[:count]


def legend(drawn: Figure, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """Put the legend below the figure, outside the data, with as many columns as its labels allow.

    Args:
        drawn: The figure.
        handles: Marks of the entries.
        labels: Their texts.
    """
    if labels:
        columns = LEGEND_CHARACTERS // (max(map(len, labels)) + 6)  # 6 are those of a mark
        drawn.legend(handles, labels, loc="outside lower left", ncols=max(columns, 1))


def plain(axis: Axis, numbers: str = "{x:g}") -> None:
    """Format the axis' tick labels; matplotlib's default format is math text, which is off."""
    axis.set_major_formatter(StrMethodFormatter(numbers))
    axis.set_minor_formatter(NullFormatter())


def lines(text: str, columns: int) -> str:
    """Return the text in lines that fit over a panel, shortened to three; columns: number of panels side by side."""
    width = PANEL_CHARACTERS[columns]
    return "\n".join(fill(short(line, 3 * width), width) for line in text.split("\n"))


def panel_title(axes: Axes, text: str, columns: int) -> None:
    """Set a title with as many lines as needed to stay within its panel.

    Args:
        axes: The panel.
        text: Its title.
        columns: Number of panels side by side.
    """
    axes.set_title(lines(text, columns), fontsize=8.5)


@contextmanager
def _shown(drawn: Figure) -> Iterator[None]:
    """Set the style for saving: texts printable and not too long, no warnings for letters that the font lacks."""
    for text in (artist for artist in drawn.findobj(Text) if isinstance(artist, Text)):
        text.set_text("\n".join(short(line, MAX_TEXT) for line in text.get_text().split("\n")))
    with look(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph", UserWarning)
        yield


def to_svg(drawn: Figure) -> str:
    """Return the figure as a transparent <svg> element, without metadata or a document type."""
    out = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with _shown(drawn):
        drawn.savefig(out, format="svg", transparent=True, metadata=nothing)
    text = out.getvalue()
    return text[text.index("<svg") :]


def save(drawn: Figure, path: Path) -> None:
    """Write the figure as PNG, PDF or SVG by the suffix, completely or not at all."""
    out = io.BytesIO()
    with _shown(drawn):
        drawn.savefig(out, format=os.path.splitext(path.name)[1][1:], dpi=150, facecolor="white")
    write_bytes(out.getvalue(), path)
