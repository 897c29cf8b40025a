"""The only exception that a user can cause, as one line with cause, place and fix; and progress notes on stderr."""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping

LOUDNESS = "QUARL_LOUDNESS"
"""Environment variable for the amount of output: quiet, verbose, or anything else for the default."""
EXTRAS: Mapping[str, str] = {
    **dict.fromkeys(("torch", "stable_baselines3", "sb3_contrib"), "train"),
    **dict.fromkeys(("onnx", "onnxruntime"), "onnx"),
    **dict.fromkeys(("matplotlib", "jinja2", "pandas"), "report"),
    "ray": "cluster",
}
"""Packages that a plain `pip install quarl` leaves out, by import name, and the extra that installs each."""
RAISED = (Exception, SystemExit)
"""Exceptions that an environment may raise: sys.exit() in its code would end the run silently."""
MAX_LINE = 600
"""Largest message in characters; names from a file can have any length."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of an error about an unknown name: "; did you mean 'ppo'?", or "" if no known name is near."""
    names = {each.lstrip("-"): each for each in known}
    word = name.lstrip("-")
    begun = [short for short in names if re.match(rf"{re.escape(short)}\w", word)]  # --environment: --env, not --engine
    near = begun or difflib.get_close_matches(word, names, n=1, cutoff=0.66)  # one letter of three may differ
    return f"; did you mean {names[near[0]]!r}?" if near else ""


def printable(text: str) -> str:
    """Return the text with every control character, which a terminal would interpret, escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def short(text: str, most: int = 60) -> str:
    """Return printable text for a terminal, a table or a figure, without the middle of more than `most` characters."""
    return printable(text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 3 :]}")


def in_one_line(error: BaseException) -> str:
    """Return type and text of an error in one line, to quote it in a message."""
    said = " ".join(str(error).split())
    return said if isinstance(error, QuarlError) else f"{type(error).__name__}: {said}"


def first_line(error: BaseException) -> str:
    """Return the first line of another library's error, or its type if it has no text.

    The place in the library's sources is left out.
    """
    lines = [line for line in str(error).strip().splitlines() if not line.startswith("Exception from ")]
    return (lines or [""])[0] or type(error).__name__


def complain(line: str) -> None:
    """Print a line on stderr, even in quiet mode."""
    print(f"quarl: {printable(line)}", file=sys.stderr, flush=True)


def note(line: str) -> None:
    """Print progress on stderr, unless quiet."""
    if not is_quiet():
        complain(line)


def detail(line: str) -> None:
    """Print details on stderr, only with -v."""
    if os.environ.get(LOUDNESS) == "verbose":
        complain(line)


def is_quiet() -> bool:
    """Return whether only results and errors are printed."""
    return os.environ.get(LOUDNESS) == "quiet"


@functools.cache
def note_once(line: str) -> None:
    """Print like `note`, but only once per process for each line."""
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
        # Messages quote names from files; whatever these contain, the user sees one line without terminal codes.
        text = super().__str__()
        if len(text) > MAX_LINE:
            text = f"{text[: MAX_LINE - 100]} ... {text[-90:]}"
        return printable(text)


class NothingSavedError(QuarlError):
    """A run that cannot be resumed: no run, no checkpoint, or no valid one."""


class NoClusterError(QuarlError):
    """A cluster whose first machine does not answer; it may answer later."""


class UnsupportedError(QuarlError):
    """A well-formed request that this engine or reader cannot carry out."""


class MissingEnvironmentError(QuarlError):
    """An environment that is not registered here, or whose package is not installed."""


class MissingPackageError(QuarlError):
    """A package of an extra that is not installed."""


def own_module(module: str, wanted: str, kind: type[QuarlError] = QuarlError) -> None:
    """Import a module of the user's own, whose name the user typed; it may be in the working directory.

    Args:
        module: Name of the module.
        wanted: Its purpose, for the error message.
        kind: Class of the error if the import fails.
    """
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)
    try:
        importlib.import_module(module)
    except QuarlError:
        raise
    except RAISED as error:  # the user's code may raise any exception
        reason = str(error).partition("\n")[0]
        raise kind(f"cannot import {module!r} for {wanted}: {type(error).__name__}: {reason}") from error


@contextlib.contextmanager
def extras(what: str) -> Iterator[None]:
    """Turn a failed import of an extra's package inside the block into MissingPackageError with the pip command.

    what: the part of the program that needs the package.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        raise MissingPackageError(f"{what} needs {package}: pip install 'quarl[{EXTRAS[package]}]'") from None
