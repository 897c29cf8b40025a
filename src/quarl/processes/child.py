"""Child processes: started, heard, revived with back-off, parked when they die too often, and never left behind."""

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

from quarl import errors
from quarl.processes.inside import Result, attempt, note, parent_id, print_to, settle
from quarl.processes.signals import SIGNALS, leave

DEATHS, WITHIN_S = 5, 60.0
"""So many deaths in so many seconds at work, and a child is parked. How long it takes to start, on a machine with other
things to do, says nothing about it."""
FIRST_PAUSE_S = 0.1
"""Before a dead child is started again; doubles with each death of the last minute at work."""
LOOK_S = 0.1
"""Between two looks at whether a child that says nothing is alive."""
EXIT_S = 2.0
"""For a process to exit after its last word."""
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""For libraries that read it when they are loaded: a job has one core, and equal jobs equal bits."""


class Child:
    """A process with a role, in its successive incarnations, or one that does one piece of work."""

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
        """main: called with `spec`. log: the file that its errors go to; None: stderr. apart: in a process group of its
        own, and all that it prints to the log. linked: `main` is called with the other end of `link`, too."""
        self.name, self.main, self.spec, self.log = name, main, spec, log
        self.apart, self.linked = apart, linked
        self.parked = False
        self.started = 0.0
        """time.monotonic() of the last start."""
        self.worked_s = 0.0
        """Seconds at work of all its incarnations; whoever watches it counts them."""
        self.num_deaths = 0
        self.recent: list[float] = []
        """`worked_s` at its latest deaths."""
        self.not_before = 0.0
        """When the pause after a death that was counted is over; 0: none was."""
        self.process: BaseProcess | None = None
        self.link: Connection
        """To and from it; there once it was started."""
        self._result: Result | None = None

    def start(self) -> None:
        """Starts its present incarnation."""
        context = multiprocessing.get_context("spawn")  # forks and runtimes with threads do not mix
        self.link, theirs = context.Pipe()
        arguments = (theirs, self.main, self.spec, self.name, self.log, self.apart, self.linked)
        process = context.Process(target=_run, args=arguments, name=self.name)
        # A child that still imports would answer Ctrl-C with a traceback; it inherits what is blocked here.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS) if sys.platform != "win32" else ()
        self.process = None  # where it cannot be started, there is nothing to kill
        try:
            with one_thread():
                process.start()
        finally:
            if sys.platform != "win32":
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()
        self.process, self._result = process, None
        self.started, self.not_before = time.monotonic(), 0.0

    def alive(self) -> bool:
        return self.process is not None and self.process.is_alive()

    def join(self, timeout: float | None = None) -> None:
        """Returns when it is dead, or after so many seconds."""
        if self.process is not None:
            self.process.join(timeout)

    def end(self) -> None:
        """Kills it, with its group where it has one, and does not wait."""
        if self.process is not None:
            if self.apart:
                kill_group(self.group)
            self.process.kill()  # it may not have its group yet

    def kill(self) -> None:
        """Nothing of it is left."""
        self.end()
        self.join()

    @property
    def group(self) -> int:
        """Its process, and its process group where it is apart."""
        return 0 if self.process is None else self.process.pid or 0

    @property
    def sentinel(self) -> int:
        assert self.process is not None
        return self.process.sentinel

    def hear(self) -> Any:
        """The next thing that it says, waited for; the last one is its Result, and nothing of it is left then."""
        message: Any = None
        while self.alive() and not self.link.poll(LOOK_S):
            pass  # the dead say nothing, whoever else may hold their end
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
        """Of its last incarnation, which has ended."""
        while self._result is None:
            self.hear()
        return self._result

    def reason(self) -> str:
        """Why it died: its error, or the signal or exit code that ended it."""
        return self.result.cause or self.result.error


class Children:
    """All children of a supervisor."""

    def __init__(self, say: Callable[[str], None] = errors.note) -> None:
        self._say = say
        self._members: list[Child] = []
        # Whatever way this process leaves: multiprocessing itself would wait for them.
        atexit.register(self.kill)

    def start(self, child: Child) -> None:
        """Starts the child's present incarnation."""
        self._members = [*(member for member in self.alive() if member is not child), child]
        child.start()

    def revive(self, child: Child) -> None:
        """Called with a dead child, again and again: starts its successor when its pause is over, or parks it."""
        if child.parked:
            return
        if not child.not_before:  # it has just died
            child.num_deaths += 1
            child.recent = [*(t for t in child.recent if child.worked_s - t < WITHIN_S), child.worked_s]
            child.parked = len(child.recent) >= DEATHS
            child.not_before = time.monotonic() + FIRST_PAUSE_S * 2 ** (len(child.recent) - 1)
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
        return [child for child in self._members if child.alive()]

    def wind_up(self, grace_s: float) -> None:
        """Waits for children that were told to stop, and kills the rest when the time is over."""
        join(self._members, grace_s)
        self.kill()

    def kill(self) -> None:
        """Ends every child at once."""
        for child in self._members:
            child.end()
        join(self._members)

    def close(self) -> None:
        """Ends every child; nothing is asked of this object again."""
        self.kill()
        atexit.unregister(self.kill)


def join(children: Iterable[Child], grace_s: float | None = None) -> None:
    """Returns when all of them are dead, or after so many seconds."""
    deadline = None if grace_s is None else time.monotonic() + grace_s
    for child in children:
        child.join(None if deadline is None else max(deadline - time.monotonic(), 0))


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


def kill_group(group: int) -> None:
    """Ends every process of the group at once."""
    if group <= 1:  # 0 would be our own
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _run(
    link: Connection, main: Callable[..., Any], spec: Any, name: str, log: Path | None, apart: bool, linked: bool
) -> None:
    """A child's main: one line for what the user got wrong, a traceback for what we did."""
    settle(parent_id(), name, apart=apart)
    if apart and log is not None:
        print_to(log)
    result = attempt(partial(main, spec, link) if linked else partial(main, spec), log)
    with contextlib.suppress(OSError):  # nobody listens any more
        link.send(result)
    code = int(bool(result.error))
    leave(code, partial(note, log))
    sys.exit(code)
