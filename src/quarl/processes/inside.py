"""What all child processes of a run have in common: a name, deafness to signals, and an end with their supervisor's."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
from pathlib import Path

from quarl.processes.signals import SIGNALS

NAME_BYTES = 15
"""What Linux keeps of a process's name."""
SET_PDEATHSIG, SET_NAME = 1, 15
"""Of prctl(2)."""
NICE = 10
"""Of nice(2)."""


def settle(name: str) -> None:
    """A child's first call: it gets its name in `ps` and `top`, hears no signal but SIGKILL, and dies with its parent.

    An actor may hang in its environment for ever: only the system can end it when the supervisor was killed.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # blocked since before it began (Family.start)
    _prctl(SET_NAME, f"quarl-{name}".replace(" ", "-").encode()[:NAME_BYTES])
    die_with_parent(True)
    if os.getppid() != _parent():  # it was faster
        sys.exit(1)


def die_with_parent(wanted: bool) -> None:
    """Whether this process is killed in the moment in which its parent ends; other systems than Linux cannot."""
    _prctl(SET_PDEATHSIG, int(signal.SIGKILL) if wanted else 0)


def give_way() -> None:
    """Learner and actors let their publisher go first: it works for a tenth of the time, and new weights wait for it.

    As one of three busy processes on two cores it would take nearly twice as long.
    """
    if hasattr(os, "nice"):
        os.nice(NICE)


def note(log: Path | None, text: str) -> None:
    """Keeps the terminal for what the supervisor says: five actors that die five times are not 25 tracebacks."""
    if log is None:
        print(text, file=sys.stderr, flush=True)
        return
    with contextlib.suppress(OSError), log.open("a") as file:
        print(text, file=file)


def _prctl(option: int, value: int | bytes) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _parent() -> int:
    """The process that started this one; asked for when it is gone, the system names another."""
    parent = multiprocessing.parent_process()
    return os.getppid() if parent is None or parent.pid is None else parent.pid


class Worker:
    """A child that the supervisor started: pinned where asked, and aware of its supervisor's end."""

    def __init__(self, cores: frozenset[int] | None = None) -> None:
        self._parent = _parent()
        if cores is not None and hasattr(os, "sched_setaffinity"):
            with contextlib.suppress(OSError):  # not every container allows it, and it is only faster
                os.sched_setaffinity(0, cores)

    def orphaned(self) -> bool:
        """True when the supervisor is no more."""
        return os.getppid() != self._parent
