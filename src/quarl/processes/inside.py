"""A child process from within: it settles, works, and says what came of it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quarl.errors import QuarlError, in_one_line
from quarl.processes.signals import SIGNALS

NAME_BYTES = 15
"""What Linux keeps of a process's name."""
SET_PDEATHSIG, SET_NAME = 1, 15
"""Of prctl(2)."""
NICE = 10
"""Of nice(2)."""
ERROR_CHARACTERS = 300
"""Of what others raise, in a result."""


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a process's work: its last word, or what its end says."""

    value: Any = None
    error: str = ""
    """One line; empty where the work succeeded."""
    mistake: type[QuarlError] | None = None
    """The kind of error that the user caused: to do the work again does not help."""
    cause: str = ""
    """The signal or exit code that ended a process that said nothing."""
    peak_mb: float = 0.0

    @classmethod
    def of_exit(cls, code: int) -> Result:
        """Of a process that said nothing, from what multiprocessing calls its exit code."""
        if code >= 0:
            return cls(error=f"its process ended with exit code {code}", cause=f"exit code {code}")
        name = f"signal {-code}"
        with contextlib.suppress(ValueError):
            name = signal.Signals(-code).name
        return cls(error=f"its process was ended by {name}", cause=name)


def settle(parent: int, name: str = "", *, apart: bool = False) -> None:
    """A process's first call: it gets its name in `ps` and `top`, and dies with its parent, which may hang for ever.

    It hears no signal but SIGKILL; apart, in a group of its own that the terminal's signals do not reach, no Ctrl-C.
    """
    if apart:
        with contextlib.suppress(OSError):  # the parent may have done it, or be gone
            os.setpgid(0, 0)
    for number in (signal.SIGINT,) if apart else SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # blocked since before it began (Child.start)
    if name:
        _prctl(SET_NAME, f"quarl-{name}".replace(" ", "-").encode()[:NAME_BYTES])
    die_with_parent(True)
    if apart and sys.platform != "linux":
        threading.Thread(target=_wait_for_end, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # it was faster
        os._exit(1)


def die_with_parent(wanted: bool) -> None:
    """Whether this process is killed in the moment in which its parent ends; other systems than Linux cannot."""
    _prctl(SET_PDEATHSIG, getattr(signal, "SIGKILL", 0) if wanted else 0)


def give_way() -> None:
    """Learner and actors let their publisher go first: it works for a tenth of the time, and new weights wait for it.

    As one of three busy processes on two cores it would take nearly twice as long.
    """
    os.nice(NICE)


def attempt(work: Callable[[], Any], log: Path | None = None) -> Result:
    """What came of the work; a fault goes to the log, or to stderr, with where it happened."""
    try:
        return Result(work(), peak_mb=_peak_mb())
    except QuarlError as error:
        line = in_one_line(error) or type(error).__name__
        if log is not None:
            note(log, line)
        return Result(error=line, mistake=type(error), peak_mb=_peak_mb())
    except Exception as error:
        note(log, traceback.format_exc().rstrip())
        first = str(error).partition("\n")[0][:ERROR_CHARACTERS]
        kind = type(error).__name__
        return Result(error=f"{kind}: {first}" if first else kind, peak_mb=_peak_mb())


def note(log: Path | None, text: str) -> None:
    """Keeps the terminal for what the supervisor says: five actors that die five times are not 25 tracebacks."""
    if log is None:
        print(text, file=sys.stderr, flush=True)
        return
    with contextlib.suppress(OSError), log.open("a") as file:
        print(text, file=file)


def print_to(log: Path) -> None:
    """Whatever this process and its children print goes to the end of the file."""
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def parent_id() -> int:
    """The process that started this one; asked for when it is gone, the system names another."""
    from multiprocessing import parent_process  # here: whoever was made so has loaded it

    parent = parent_process()
    return os.getppid() if parent is None or parent.pid is None else parent.pid


def _prctl(option: int, value: int | bytes) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _wait_for_end(parent: int) -> None:
    """What Linux does by itself (see `die_with_parent`)."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _peak_mb() -> float:
    """Of this process so far; 0 on Windows, which counts otherwise."""
    try:
        import resource
    except ImportError:
        return 0.0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / 1e6
