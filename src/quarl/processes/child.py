"""Child processes: started, revived with back-off, parked when they die again and again, and never left behind."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import multiprocessing
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from quarl.errors import QuarlError, in_one_line
from quarl.processes.inside import note, settle
from quarl.processes.leaving import leave
from quarl.processes.signals import SIGNALS

DEATHS, WITHIN_S = 5, 60.0
"""So many deaths in so many seconds at work, and a child is parked. How long it takes to start, on a machine with other
things to do, says nothing about it."""
FIRST_PAUSE_S = 0.1
"""Before a dead child is started again; doubles with each death of the last minute at work."""
MISTAKE = 64
"""Exit code of a child whose last line is for the user (sysexits.h's EX_USAGE): to start it again does not help."""


class Child:
    """A process with a role, in its successive incarnations."""

    def __init__(self, name: str, main: Callable[[Any], None], spec: Any, log: Path | None = None) -> None:
        """log: the file that its errors go to; None: stderr."""
        self.name, self.main, self.spec, self.log = name, main, spec, log
        self.parked = False
        self.started = 0.0
        """time.monotonic() of the last start."""
        self.worked_s = 0.0
        """Seconds at work of all its incarnations; whoever watches it counts them."""
        self.num_deaths = 0
        self._recent: list[float] = []
        """`worked_s` at its latest deaths."""
        self.not_before = 0.0
        """When the pause after a death that was counted is over; 0: none was."""
        self.process: BaseProcess | None = None

    def alive(self) -> bool:
        return self.process is not None and self.process.is_alive()

    def join(self, timeout: float) -> None:
        """Returns when it is dead, or after so many seconds."""
        if self.process is not None:
            self.process.join(timeout)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.join()

    @property
    def exit_code(self) -> int | None:
        return None if self.process is None else self.process.exitcode

    @property
    def sentinel(self) -> int:
        assert self.process is not None
        return self.process.sentinel

    def reason(self) -> str:
        """Why it died: the error in its log, or the signal or exit code that ended it."""
        code = self.exit_code
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                return signal.Signals(-code).name
        if self.log is not None and code in (1, MISTAKE):
            with contextlib.suppress(OSError):
                lines = self.log.read_text(errors="replace").split("\n")
                return next((line.strip() for line in reversed(lines) if line.strip()), f"exit code {code}")
        return f"exit code {code}"

    def count_death(self) -> None:
        """Called once with a dead child: it rests for a while, or is parked."""
        self.num_deaths += 1
        self._recent = [*(t for t in self._recent if self.worked_s - t < WITHIN_S), self.worked_s]
        self.parked = len(self._recent) >= DEATHS
        self.not_before = time.monotonic() + FIRST_PAUSE_S * 2 ** (len(self._recent) - 1)


class Family:
    """All children of a supervisor."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        # Forks and runtimes with threads do not mix.
        self._context = multiprocessing.get_context("spawn")
        self._children: list[Child] = []
        # Whatever way this process leaves: multiprocessing itself would ask them kindly, and wait for the deaf.
        atexit.register(self.kill)

    def start(self, child: Child) -> None:
        """Starts the child's present incarnation."""
        arguments = (child.main, child.spec, child.name, child.log)
        child.process = self._context.Process(target=_run, args=arguments, name=child.name, daemon=True)
        # A child that still imports would answer Ctrl-C with a traceback; it inherits what is blocked here.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            child.process.start()
        except OSError:
            child.process = None  # there is nothing to kill
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        child.started, child.not_before = time.monotonic(), 0.0
        if child not in self._children:
            self._children.append(child)

    def revive(self, child: Child) -> None:
        """Called with a dead child, again and again: starts its successor when its pause is over, or parks it."""
        if child.parked:
            return
        if not child.not_before:
            child.count_death()
            if child.parked:
                where = f"; see {child.log}" if child.log is not None and child.log.exists() else ""
                self._say(
                    f"{child.name} died {DEATHS} times in {WITHIN_S:g} s of work ({child.reason()}): parked{where}"
                )
        elif child.not_before <= time.monotonic():
            if hasattr(child.spec, "incarnation"):
                child.spec = dataclasses.replace(child.spec, incarnation=child.spec.incarnation + 1)
            self.start(child)

    def alive(self) -> list[Child]:
        return [child for child in self._children if child.alive()]

    def wind_up(self, grace_s: float) -> None:
        """Waits for children that were told to stop, and kills the rest when the time is over."""
        deadline = time.monotonic() + grace_s
        for child in self._children:
            child.join(max(deadline - time.monotonic(), 0))
        self.kill()

    def kill(self) -> None:
        """Ends every child at once."""
        for child in self._children:
            if child.process is not None:
                child.process.kill()
        for child in self._children:
            if child.process is not None:
                child.process.join()


def _run(main: Callable[[Any], None], spec: Any, name: str, log: Path | None) -> None:
    """A child's main: one line for what the user got wrong, a traceback for what we did."""
    settle(name)
    code = 0
    try:
        main(spec)
    except QuarlError as error:
        note(log, in_one_line(error) if log else f"quarl: {name}: {in_one_line(error)}")
        code = MISTAKE
    except Exception:
        note(log, traceback.format_exc())
        code = 1
    # the last line of the log is the reason that the supervisor gives
    leave(code, (lambda line: None) if code else partial(note, log))
    sys.exit(code)
