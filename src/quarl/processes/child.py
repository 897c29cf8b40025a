"""Child processes: start, messages, restarts with back-off, parking after frequent deaths, and cleanup."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from quarl.processes.inside import Result, attempt, note, parent_id, print_to, settle
from quarl.processes.signals import SIGNALS, leave

DEATHS, WITHIN_S = 5, 60.0
"""Number of deaths within WITHIN_S seconds of work after which a child is parked.

Its start does not count: on a busy machine, a long start proves nothing.
"""
FIRST_PAUSE_S = 0.1
"""Seconds before a dead child is restarted; doubled with each death of the last minute of work."""
LOOK_S = 0.1
"""Seconds between two checks that a silent child is alive."""
EXIT_S = 2.0
"""Seconds for a process to exit after its last message."""
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Variables of libraries that read them on import: a job has one core, and equal jobs must give equal bits."""


class Child:
    """A process with a role, in its successive incarnations, or one that does a single piece of work."""

    def __init__(
        self,
        name: str,
        main: Callable[..., Any],
        spec: Any,
        log: Path | None = None,
        *,
        apart: bool = False,
        linked: bool = False,
    ) -> None:
        """Describe the process without starting it.

        Args:
            name: Name of the process.
            main: Function that it calls with `spec`.
            spec: Argument of `main`.
            log: File that its errors go to; None means stderr.
            apart: Give it a process group of its own, and send all its output to the log.
            linked: Call `main` with the other end of `link`, too.
        """
        self.name, self.main, self.spec, self.log = name, main, spec, log
        self.apart, self.linked = apart, linked
        self.parked = False
        self.started = 0.0
        """Time of the last start, by time.monotonic()."""
        self.worked_s = 0.0
        """Seconds of work of all its incarnations, counted by the watchdog."""
        self.blame = ""
        """Reason for which the watchdog killed it; empty if it did not."""
        self.recent: list[float] = []
        """Values of `worked_s` at its latest deaths."""
        self.not_before = 0.0
        """End of the pause after a counted death; 0 if there is none."""
        self.process: BaseProcess | None = None
        self.link: Connection
        """Connection to the process; available once it was started."""
        self._result: Result | None = None

    def start(self) -> None:
        """Start the current incarnation."""
        context = multiprocessing.get_context("spawn")  # forks do not mix with threaded runtimes
        self.link, theirs = context.Pipe()
        arguments = (theirs, self.main, self.spec, self.name, self.log, self.apart, self.linked)
        process = context.Process(target=_run, args=arguments, name=self.name)
        # A child that still imports would answer Ctrl-C with a traceback; it inherits the blocked signals.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS) if sys.platform != "win32" else ()
        self.process = None  # if the start fails, there is nothing to kill
        try:
            with one_thread():
                process.start()
        finally:
            if sys.platform != "win32":
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()
        self.process, self._result = process, None
        self.started, self.not_before, self.blame = time.monotonic(), 0.0, ""

    def alive(self) -> bool:
        return self.process is not None and self.process.is_alive()

    def join(self, timeout: float | None = None) -> None:
        """Wait until it is dead, or for `timeout` seconds."""
        if self.process is not None:
            self.process.join(timeout)

    def end(self) -> None:
        """Kill it, with its process group if it has one, without waiting."""
        if self.process is not None:
            if self.apart:
                kill_group(self.group)
            self.process.kill()  # it may not have its group yet

    def kill(self) -> None:
        """Kill it and wait until it is dead."""
        self.end()
        self.join()

    @property
    def group(self) -> int:
        """Process id, and process group id if it is apart."""
        return 0 if self.process is None else self.process.pid or 0

    @property
    def sentinel(self) -> int:
        assert self.process is not None
        return self.process.sentinel

    def hear(self) -> Any:
        """Return the child's next message; the last one is its Result, after which the process is gone."""
        message: Any = None
        while self.alive() and not self.link.poll(LOOK_S):
            pass  # a dead child sends nothing, even if another process holds its end
        with contextlib.suppress(EOFError, OSError):
            message = self.link.recv() if self.link.poll() else None
        if message is not None and not isinstance(message, Result):
            return message
        self.link.close()
        self.join(EXIT_S)
        self.kill()
        code = 0 if self.process is None else self.process.exitcode
        self._result = message or Result.of_exit(code or 0)
        return self._result

    @property
    def result(self) -> Result:
        """Result of its last incarnation; waits for its end."""
        while self._result is None:
            self.hear()
        return self._result

    def reason(self) -> str:
        """Return the reason of its death: its error, or the signal, exit code or watchdog that ended it."""
        return self.blame or self.result.cause or self.result.error


class Children:
    """All children of a supervisor."""

    def __init__(self) -> None:
        self._members: list[Child] = []
        # Kill them however this process exits: multiprocessing itself would wait for them.
        atexit.register(self.kill)

    def start(self, child: Child) -> None:
        """Start the child's current incarnation."""
        self._members = [*(member for member in self.alive() if member is not child), child]
        child.start()

    def revive(self, child: Child) -> str:
        """Restart a dead child when its pause is over, or park it; called repeatedly.

        Returns:
            What happened, on the first call after a death; otherwise "".
        """
        if child.parked:
            return ""
        if not child.not_before:  # it has just died
            child.recent = [*(t for t in child.recent if child.worked_s - t < WITHIN_S), child.worked_s]
            child.parked = len(child.recent) >= DEATHS
            child.not_before = time.monotonic() + FIRST_PAUSE_S * 2 ** (len(child.recent) - 1)
            return f"died {DEATHS} times in {WITHIN_S:g} s of work" if child.parked else "died"
        if child.not_before <= time.monotonic():
            if hasattr(child.spec, "incarnation"):
                child.spec = dataclasses.replace(child.spec, incarnation=child.spec.incarnation + 1)
            self.start(child)
        return ""

    def alive(self) -> list[Child]:
        return [child for child in self._members if child.alive()]

    def wind_up(self, grace_s: float) -> None:
        """Wait `grace_s` seconds for children that were told to stop, then kill the rest."""
        join(self._members, grace_s)
        self.kill()

    def kill(self) -> None:
        """Kill every child at once."""
        for child in self._members:
            child.end()
        join(self._members)

    def close(self) -> None:
        """Kill every child, for the last time."""
        self.kill()
        atexit.unregister(self.kill)


def join(children: Iterable[Child], grace_s: float | None = None) -> None:
    """Wait until all children are dead, or for `grace_s` seconds."""
    deadline = None if grace_s is None else time.monotonic() + grace_s
    for child in children:
        child.join(None if deadline is None else max(deadline - time.monotonic(), 0))


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Run the block so that processes started inside compute on one thread, unless they ask for more."""
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


def kill_group(group: int) -> None:
    """Kill every process of the group."""
    if group <= 1:  # 0 would be our own group
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _run(
    link: Connection, main: Callable[..., Any], spec: Any, name: str, log: Path | None, apart: bool, linked: bool
) -> None:
    """Run a child: one line for a user error, a traceback for a bug."""
    # Settle in, and do the work.
    settle(parent_id(), name, apart=apart)
    if apart and log is not None:
        print_to(log)
    result = attempt(partial(main, spec, link) if linked else partial(main, spec), log)
    # Report the result, and exit.
    with contextlib.suppress(OSError):  # the parent no longer listens
        link.send(result)
    code = int(bool(result.error))
    leave(code, partial(note, log))
    sys.exit(code)
