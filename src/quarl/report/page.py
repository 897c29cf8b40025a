"""One self-contained HTML page of a run: verdicts, table, figures, command and machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup
from matplotlib.figure import Figure

from quarl.errors import printable
from quarl.files import write_bytes
from quarl.machine import machine
from quarl.report.row_schema import terms
from quarl.report.style import INK, PAPER, save, to_svg
from quarl.report.tables import Cells, write_latex


def write(
    folder: Path, figures: Sequence[tuple[str, str, Figure]], formats: Sequence[str] = ("png",), **shown: Any
) -> None:
    """Write report.html, the figures' images, and the tables as LaTeX in tables.tex.

    Args:
        folder: Folder of the files.
        figures: Name, caption and figure; a figure without a name has no image of its own.
        formats: Suffixes of the images.
        **shown: The remaining arguments of `render`.
    """
    for name, _, figure in figures:
        for suffix in formats if name else ():
            save(figure, folder / f"{name}.{suffix}")
    html = render(figures=[(caption, figure) for _, caption, figure in figures], **shown)
    write_bytes(html.encode(), folder / "report.html")
    write_latex(folder, shown["title"], shown["tables"], shown["command"])


def render(
    *,
    title: str,
    facts: Mapping[str, str],
    sentences: Sequence[str],
    tables: Sequence[tuple[str, Cells]],
    figures: Sequence[tuple[str, Figure]],
    command: str,
) -> str:
    """Return the page as HTML text with inline SVG figures, without scripts, fonts, images or links from elsewhere.

    The page also describes the machine that it was made on.

    Args:
        title: Title of the page.
        facts: Facts about the run by name.
        sentences: Verdicts.
        tables: Caption and cells of each table.
        figures: Caption and figure.
        command: Command that repeats the run.

    Returns:
        The HTML text.
    """
    return _template("report.html.j2").render(
        terms=terms,
        title=title,
        facts=facts,
        sentences=sentences,
        tables=tables,
        # the page's own colors replace those of the style; matplotlib escapes the texts
        figures=[
            (caption, Markup(to_svg(figure).replace(INK, "currentColor").replace(PAPER, "var(--paper)")))
            for caption, figure in figures
        ],
        command=command,
        machine=_machine(),
    )


def fragment(table: Cells, title: str) -> str:
    """Return the table alone as HTML text, which takes its colors from the surrounding page or notebook."""
    macros: Any = _template("table.html.j2").module
    return str(macros.fragment(table, terms(table.kind), title))


def _template(name: str) -> Template:
    environment = Environment(
        loader=PackageLoader("quarl.report"),
        autoescape=True,
        finalize=lambda value: "\n".join(map(printable, value.split("\n"))) if type(value) is str else value,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def _machine() -> dict[str, str]:
    """Return the facts of this machine by name."""
    facts = machine()
    versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
    return {
        "processor": f"{facts['cpu']}, {facts['cores']} cores",
        "instruction sets": " ".join(facts["instruction_sets"]),
        "system": f"{facts['os']}, Python {facts['python']}",
        "versions": versions,
        "date": facts["date"],
    }
