"""Output of a command: progress on stderr, tables and the repeating command on stdout."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Unpack

from rich.console import Console

from quarl import energy
from quarl.config import Config
from quarl.config.base import STDOUT, is_kept
from quarl.errors import complain, extras, in_one_line, is_quiet, note, printable
from quarl.files import FullError, write_bytes
from quarl.progress import progress
from quarl.report import schema, tables
from quarl.report.schema import Fields
from quarl.rows import Row

__all__ = ["complain", "finish", "keep", "note", "progress", "reported", "say", "show", "tell"]


class Unwritten(str):
    """Line about a page that was not written; it is printed to stderr."""


class NoRoom(Unwritten):
    """Line about a page for which the disk has no room: the exit code is 2."""


def show(kind: type[Row], rows: Sequence[Fields], title: str) -> None:
    """Print the table of the rows.

    Args:
        kind: Class of the rows, which defines the columns.
        rows: Fields of the rows by name.
        title: Title of the table.
    """
    out = _stdout()
    out.print()
    out.print(tables.terminal(tables.cells(kind, rows), title))


def tell(
    config: Config, kind: type[Row], rows: Sequence[Row], title: str, *said: str, **about: Unpack[schema.Told]
) -> int:
    """Print the table of a command's rows and the lines about it, and finish.

    Args:
        config: The command's options.
        kind: Class of the rows.
        rows: Rows of the command.
        title: Title of the table.
        *said: Lines below the table.
        **about: Header of the document.

    Returns:
        The exit code.
    """
    document = schema.document(kind, rows, **about)
    show(kind, document["rows"], title)
    say(*said)
    return finish(config, document, said)


def keep(kind: type[Row], rows: Sequence[Row], title: str, file: Path, **about: Unpack[schema.Told]) -> schema.Document:
    """Write the document of the rows to a file, and print their table if there are any.

    Args:
        kind: Class of the rows.
        rows: The rows.
        title: Title of the table.
        file: File of the document.
        **about: Header of the document.

    Returns:
        The document.
    """
    document = schema.document(kind, rows, **about)
    schema.write(document, file)
    if document["rows"]:
        show(kind, document["rows"], title)
    return document


def say(*lines: str) -> None:
    """Print lines as they are, to stderr if they are Unwritten."""
    out = _stdout()
    for line in lines:
        if isinstance(line, Unwritten):
            complain(line)
        else:
            out.print(printable(line), markup=False, highlight=False, soft_wrap=True)


def resumed(step: int) -> str:
    """Return the sentence about a resumed run, which the repeating command trains in one go."""
    return f"resumed at step {step:,}: the command below trains without this break, so its numbers differ"


def finish(config: Config, document: schema.Document, said: Sequence[str] = ()) -> int:
    """Print the energy, write the document to the file of --json, and print the command that repeats the run.

    --quiet leaves out the command.

    Args:
        config: The command's options.
        document: Document of its rows.
        said: Lines that were printed.

    Returns:
        The exit code: 2 if one of the lines is NoRoom, else 0.
    """
    if "energy" in document:
        say(energy.sentence(document["energy"]))
    if config.json is not None:
        _hand_over(schema.to_text(document).encode(), config.json)
        say(f"rows: {config.json}")
    if not is_quiet():
        say(f"repeat: {config.command_line()}")
    return 2 if any(isinstance(line, NoRoom) for line in said) else 0


def reported(draw: Callable[[], Path], what: str = "report") -> list[str]:
    """Return the line that names the page that `draw` writes; a page that cannot be drawn is lost, the run is not.

    Args:
        draw: Writes the page and returns its path.
        what: Its name, if it is another picture.

    Returns:
        One line, Unwritten if there is no page, and NoRoom if that is because the disk is full.
    """
    try:
        with extras(f"a {what}"):
            return [f"{what}: {draw()}"]
    except Exception as error:  # a failed picture must not fail the run
        return [
            (NoRoom if isinstance(error, FullError) else Unwritten)(
                f"no {what} was written ({in_one_line(error)}); the run is complete"
            )
        ]


def _hand_over(rows: bytes, file: Path) -> None:
    """Write the rows to the file of --json.

    It may be the process's own stdout, an existing file that must stay, or a new file, written in one step.
    """
    if file in STDOUT or is_kept(file):
        with open(os.dup(1) if file in STDOUT else file, "wb") as out:
            out.write(rows)
    else:
        write_bytes(rows, file)


def _stdout() -> Console:
    return Console(file=sys.stdout, width=None if sys.stdout.isatty() else tables.FILE_WIDTH)
