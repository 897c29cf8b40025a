"""The one exception a user can cause: a line that says what, where, and the fix. And what is said on the way."""

from __future__ import annotations

import contextlib
import difflib
import functools
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping

LOUDNESS = "QUARL_LOUDNESS"
"""The environment variable that says how much is said: quiet, verbose, or else what is usual."""
EXTRAS: Mapping[str, str] = {
    **dict.fromkeys(("torch", "stable_baselines3", "sb3_contrib"), "train"),
    **dict.fromkeys(("onnx", "onnxruntime"), "onnx"),
    **dict.fromkeys(("matplotlib", "jinja2"), "report"),
    "ray": "cluster",
}
"""Packages that a plain `pip install quarl` leaves out, by import name, and the extra that brings each."""
RAISED = (Exception, SystemExit)
"""What an environment may raise: sys.exit() in its code would end the run without a word."""
MAX_LINE = 600
"""Characters of a message; names out of a file can be of any length."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """What ends the message of an unknown name: "; did you mean 'ppo'?", or nothing where no known one is near."""
    names = {each.lstrip("-"): each for each in known}
    word = name.lstrip("-")
    begun = [short for short in names if re.match(rf"{re.escape(short)}\w", word)]  # --environment: --env, not --engine
    near = begun or difflib.get_close_matches(word, names, n=1, cutoff=0.66)  # one letter of three may differ
    return f"; did you mean {names[near[0]]!r}?" if near else ""


def printable(text: str) -> str:
    """The text with every character that a terminal would obey, not show, spelt out."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def short(text: str, most: int = 60) -> str:
    """The text as a terminal, a table or a figure shows it: printable, the middle of more than `most` characters left
    out."""
    return printable(text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 3 :]}")


def in_one_line(error: BaseException) -> str:
    """What raised and what it said, for a message about what others have raised."""
    said = " ".join(str(error).split())
    return said if isinstance(error, QuarlError) else f"{type(error).__name__}: {said}"


def first_line(error: BaseException) -> str:
    """What an error of others says first, or its kind where it says nothing; where in their sources is not said."""
    lines = [line for line in str(error).strip().splitlines() if not line.startswith("Exception from ")]
    return (lines or [""])[0] or type(error).__name__


def complain(line: str) -> None:
    """Says on stderr what also those hear who want quiet."""
    print(f"quarl: {printable(line)}", file=sys.stderr, flush=True)


def note(line: str) -> None:
    """Says on stderr what is going on, unless this is to be quiet."""
    if not is_quiet():
        complain(line)


def detail(line: str) -> None:
    """Says on stderr what few want to know: with -v."""
    if os.environ.get(LOUDNESS) == "verbose":
        complain(line)


def is_quiet() -> bool:
    """Whether nothing but results and errors is to be said."""
    return os.environ.get(LOUDNESS) == "quiet"


@functools.cache
def note_once(line: str) -> None:
    """As `note`; whoever says it again in this process is not heard."""
    note(line)


class QuarlError(Exception):
    """A mistake outside the program: a bad file, name or number. The command line prints it and exits with 2.

    >>> try:
    ...     quarl.load("nowhere.zip")
    ... except quarl.QuarlError as error:
    ...     print(error)
    no file nowhere.zip; check the path
    """

    def __str__(self) -> str:
        # Messages quote names out of files; whatever those hold, the user sees one line and no terminal codes.
        text = super().__str__()
        if len(text) > MAX_LINE:
            text = f"{text[: MAX_LINE - 100]} ... {text[-90:]}"
        return printable(text)


class NothingSavedError(QuarlError):
    """There is nothing to go on from: no run, no checkpoint, or none that is sound."""


class UnsupportedError(QuarlError):
    """The request is well formed, but this engine or reader has no way to carry it out."""


class MissingEnvironmentError(QuarlError):
    """An environment is not registered here, or its package is not installed."""


class MissingPackageError(QuarlError):
    """A package of an extra is not installed."""


@contextlib.contextmanager
def extras(what: str) -> Iterator[None]:
    """Makes MissingPackageError, with pip's line, of an import in it that fails for want of an extra.

    what: needs the package.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        raise MissingPackageError(f"{what} needs {package}: pip install 'quarl[{EXTRAS[package]}]'") from None
