"""What a study's processes have in common: a group of their own, an end with their runner's, a file to print to."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from quarl.errors import QuarlError
from quarl.processes.inside import die_with_parent

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""For libraries that read it when they are loaded: a cell has one core, and equal cells equal bits."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
PGRP, RSS = 2, 21
"""Places in /proc/PID/stat, counted behind the process's name (proc(5): fields 5 and 24)."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a process says of its work before it ends."""

    found: Any
    """None where it failed."""
    error: str = ""
    peak_mb: float = 0.0


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Processes that are started inside compute on one thread, unless they ask for more themselves."""
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def settle(parent: int) -> None:
    """A process's first call: Ctrl-C on the terminal does not reach it, and it dies when its parent does."""
    with contextlib.suppress(OSError):  # the parent may have done it, or be gone
        os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(True)
    if os.getppid() != parent:  # it was faster
        os._exit(1)


def print_to(log: Path) -> None:
    """Whatever this process and its children print goes to the end of the file."""
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def end_with(life: Connection) -> None:
    """This process ends when the other end of the pipe is closed, which the system does for a runner that was killed.

    Linux does it by itself (see `settle`); for the other systems a thread waits.
    """

    def wait() -> None:
        with contextlib.suppress(EOFError, OSError):
            life.recv_bytes()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def attempt(work: Callable[[], Any]) -> Outcome:
    """What came of the work; an error that is no user's mistake also goes to the log, with where it happened."""
    try:
        return Outcome(work(), peak_mb=_peak_mb())
    except QuarlError as error:
        return Outcome(None, " ".join(str(error).split()), _peak_mb())
    except Exception as error:
        traceback.print_exc()
        sys.stderr.flush()
        first = str(error).partition("\n")[0][:300]
        return Outcome(None, f"{type(error).__name__}: {first}" if first else type(error).__name__, _peak_mb())


def ended(code: int) -> str:
    """How a process ended that said nothing, from what multiprocessing calls its exit code."""
    if code >= 0:
        return f"its process ended with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"its process was ended by {signal.Signals(-code).name}"
    return f"its process was ended by signal {-code}"


def kill_group(group: int) -> None:
    """Ends every process of the group at once."""
    if group <= 1:  # 0 would be our own
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def memory_mb(groups: Collection[int]) -> dict[int, float]:
    """Resident megabytes of each process group; zeros on systems without /proc."""
    found = dict.fromkeys(groups, 0.0)
    try:
        names = [name for name in os.listdir("/proc") if name.isdecimal()]
    except OSError:
        return found
    for name in names:
        try:
            with open(f"/proc/{name}/stat", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        group = int(fields[PGRP])
        if group in found:
            found[group] += int(fields[RSS]) * PAGE_BYTES / 1e6
    return found


def _peak_mb() -> float:
    """Of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / 1e6
