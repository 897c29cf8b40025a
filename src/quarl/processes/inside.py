"""A child process from within: it settles in, works, and reports its result."""

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
"""Bytes of a process name that Linux keeps."""
SET_PDEATHSIG, SET_NAME = 1, 15
"""Options of prctl(2)."""
ERROR_CHARACTERS = 300
"""Maximum characters of a foreign error message in a result."""
UNGUARDED = 78
"""Exit code of a process that would run the user's script again."""
GUARD = 'each process of a run imports the script: put its code under if __name__ == "__main__":'


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a process's work: its last message, or the reason of its end."""

    value: Any = None
    error: str = ""
    """One line; empty if the work succeeded."""
    mistake: type[QuarlError] | None = None
    """Class of a user error: a retry does not help."""
    cause: str = ""
    """Signal or exit code that ended a process without a message."""
    peak_mb: float = 0.0

    @classmethod
    def of_exit(cls, code: int) -> Result:
        """Return the result of a process without a message, from its multiprocessing exit code."""
        if code == UNGUARDED:
            return cls(error=GUARD, mistake=QuarlError)
        if code >= 0:
            return cls(error=f"its process ended with exit code {code}", cause=f"exit code {code}")
        name = f"signal {-code}"
        with contextlib.suppress(ValueError):
            name = signal.Signals(-code).name
        return cls(error=f"its process was ended by {name}", cause=f"killed by {name}")


def exit_if_imported() -> None:
    """Exit from a process of a run that imports the user's script without a guard, which would start the run again."""
    from multiprocessing import current_process  # a local import, as in `parent_id`

    if getattr(current_process(), "_inheriting", False):
        raise SystemExit(UNGUARDED)


def settle(parent: int, name: str = "", *, apart: bool = False) -> None:
    """Make a process's first call: name it in `ps` and `top`, and let it die with its parent, which may hang forever.

    The process ignores all signals but SIGKILL. If it is apart, in a group that the terminal's signals do not reach, it
    ignores only Ctrl-C.

    Args:
        parent: Process id of the parent.
        name: Name of the process; empty keeps the old one.
        apart: Give the process a group of its own.
    """
    if apart:
        with contextlib.suppress(OSError):  # the parent may have done it, or has exited
            os.setpgid(0, 0)
    for number in (signal.SIGINT,) if apart else SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # blocked since before the start (Child.start)
    if name:
        _prctl(SET_NAME, f"quarl-{name}".replace(" ", "-").encode()[:NAME_BYTES])
    die_with_parent(True)
    if apart and sys.platform != "linux":
        threading.Thread(target=_wait_for_end, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # the parent has already exited
        os._exit(1)


def die_with_parent(wanted: bool) -> None:
    """Choose if this process is killed as soon as its parent ends; on Linux only."""
    _prctl(SET_PDEATHSIG, getattr(signal, "SIGKILL", 0) if wanted else 0)


def give_way(nice: int) -> None:
    """Raise the niceness of this thread and of those that it starts, so that a publisher goes first.

    The publisher works for a tenth of the time, and new weights wait for it. As one of three busy processes on two
    cores it would take nearly twice as long.
    """
    os.nice(nice)


def queued_s() -> float:
    """Return the seconds for which this thread was ready but had no core; 0 if the system does not count them."""
    with contextlib.suppress(OSError):
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) * 1e-9
    return 0.0


def attempt(work: Callable[[], Any], log: Path | None = None) -> Result:
    """Do the work and return its result; a bug's traceback goes to the log, or to stderr."""
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
    """Append the text to the log; None prints it to stderr.

    Logs keep the terminal readable: five actors that die five times must not print 25 tracebacks.
    """
    if log is None:
        print(text, file=sys.stderr, flush=True)
        return
    with contextlib.suppress(OSError), log.open("a") as file:
        print(text, file=file)


def print_to(log: Path) -> None:
    """Redirect all output of this process and its children to the end of the file."""
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def parent_id() -> int:
    """Return the id of the process that started this one; call it while the parent lives."""
    from multiprocessing import parent_process  # a local import: such a process has it loaded

    parent = parent_process()
    return os.getppid() if parent is None or parent.pid is None else parent.pid


def _prctl(option: int, value: int | bytes) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _wait_for_end(parent: int) -> None:
    """Exit when the parent does, on systems without `die_with_parent`."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _peak_mb() -> float:
    """Return the peak memory of this process in MB; 0 on Windows, which measures differently."""
    try:
        import resource
    except ImportError:
        return 0.0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / 1e6
