"""The command line, which passes a command's configuration to `run` of its module and has no further logic."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import platform
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from quarl import __version__
from quarl.config.base import STDOUT, Config, narrow_edges, summary
from quarl.config.words import completion, parse
from quarl.errors import LOUDNESS, QuarlError, complain, detail, extras, in_one_line, note
from quarl.files import FULL
from quarl.processes.signals import SIGNALLED, ctrl_c, leave

INTERRUPTED = 130
"""Exit code of a program that Ctrl-C ended: 128 + SIGINT."""
LAB: Mapping[str, str] = {
    "robust": "robust",
    "study report": "study_report",
    "study run": "study",
    "study status": "study",
    "sweep": "sweep",
}
"""Modules of `quarl.lab.commands` by command; other commands name modules of `quarl.commands` by their first word."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    0: done. 1: a process of the run died, the output's reader has closed, or a proof failed. 2: the user's mistake, one
    line on stderr. 3: nothing fits the board. 4: too few actors left. 130: Ctrl-C, and 128 + N signal N. Without argv
    the program ends then, with everything that it started.
    """
    if argv is not None:
        return _run(list(argv))
    try:
        code = _run(sys.argv[1:])
    except Exception:
        sys.excepthook(*sys.exc_info())
        code = 1
    if code > SIGNALLED:  # a wrapper may send it once more
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    leave(code, complain)
    return code


def _run(words: list[str]) -> int:
    if words in (["--version"], ["version"], ["help", "version"]):
        print(f"quarl {__version__}")
        return 0
    if words[:1] == ["help"]:
        words = [*(word for word in words if word != "help"), "--help"]
    try:
        with ctrl_c():
            if words[:1] == ["completion"]:
                print(completion(*words[1:2]))
                return 0
            config = parse(words)
            config.check()
            config.look()
            os.environ[LOUDNESS] = "verbose" if config.verbose else "quiet" if config.quiet else ""
            for line in narrow_edges(config):
                note(line)
            shown = sys.stderr if config.json in STDOUT else sys.stdout
            with extras(f"quarl {config.verb}"), contextlib.redirect_stdout(shown):
                code: int | None = _load(config).run(config)
    except QuarlError as error:
        complain(in_one_line(error))
        return 2
    except BrokenPipeError:
        # The reader of our output has left (`quarl ... | head`): nothing to report, and nothing to flush at exit.
        _leave_stdout()
        return 1
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            complain(f"the name {str(error.filename)[:40]}... is too long: choose another")
        elif error.errno in FULL:
            complain(f"cannot write the output: {error.strerror}; free some disk space")
            with contextlib.suppress(OSError):  # stdout may be a file on that disk
                _leave_stdout()
        else:  # other errors are handled by the code that knows their meaning
            raise
        return 2
    except KeyboardInterrupt:
        complain("interrupted")
        return INTERRUPTED
    return code or 0


def module_of(verb: str) -> str:
    """Return the name of the module that runs a command."""
    return f"quarl.lab.commands.{LAB[verb]}" if verb in LAB else f"quarl.commands.{verb.split()[0]}"


def _load(config: Config) -> Any:
    """Import the command's module, which may take seconds, after announcing the command on a terminal."""
    if sys.stderr.isatty():
        note(f"{config.command_line().removeprefix('quarl ')}: {summary(type(config))} ...")
    start, name = time.perf_counter(), module_of(config.verb)
    command = importlib.import_module(name)
    loaded = f"{name} in {time.perf_counter() - start:.1f} s"
    detail(f"quarl {__version__}, Python {platform.python_version()}, loaded {loaded}: {config.command_line()}")
    return command


def _leave_stdout() -> None:
    """Leave nothing for Python to flush at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
