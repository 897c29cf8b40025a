"""Child processes: started, revived with back-off, parked when they die again and again, and never left behind."""

from __future__ import annotations

import dataclasses
import multiprocessing
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

from quarl.errors import QuarlError

DEATHS, WITHIN_S = 5, 60.0
"""So many deaths in so many seconds, and a child is parked."""
FIRST_PAUSE_S = 0.1
"""Before a dead child is started again; doubles with each death of the last minute."""


class Child:
    """A process with a role, in its successive incarnations."""

    def __init__(self, name: str, main: Callable[[Any], None], spec: Any) -> None:
        self.name, self.main, self.spec = name, main, spec
        self.incarnation = 0
        self.parked = False
        self.started = 0.0
        """time.monotonic() of the last start."""
        self.deaths: list[float] = []
        self.not_before = 0.0
        self.process: BaseProcess | None = None

    def alive(self) -> bool:
        return self.process is not None and self.process.is_alive()

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


class Family:
    """All children of a supervisor."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        # Forks and runtimes with threads do not mix.
        self._context = multiprocessing.get_context("spawn")
        self._children: list[Child] = []

    def start(self, child: Child) -> None:
        """Starts the child's present incarnation."""
        child.process = self._context.Process(target=_run, args=(child.main, child.spec, child.name), daemon=True)
        child.process.start()
        child.started = time.monotonic()
        if child not in self._children:
            self._children.append(child)

    def revive(self, child: Child) -> None:
        """Called with a dead child, again and again: starts its successor when its pause is over, or parks it."""
        if child.parked:
            return
        now = time.monotonic()
        if child.not_before == 0:  # has just died
            child.deaths = [*(t for t in child.deaths if now - t < WITHIN_S), now]
            if len(child.deaths) >= DEATHS:
                child.parked = True
                self._say(f"{child.name} died {DEATHS} times in {WITHIN_S:g} s (exit code {child.exit_code}): parked")
                return
            child.not_before = now + FIRST_PAUSE_S * 2 ** (len(child.deaths) - 1)
        if now >= child.not_before:
            child.not_before = 0.0
            child.incarnation += 1
            if hasattr(child.spec, "incarnation"):
                child.spec = dataclasses.replace(child.spec, incarnation=child.incarnation)
            self.start(child)

    def alive(self) -> list[Child]:
        return [child for child in self._children if child.alive()]

    def wind_up(self, grace_s: float) -> None:
        """Waits for children that were told to stop, and kills the rest when the time is over."""
        deadline = time.monotonic() + grace_s
        for child in self._children:
            if child.process is not None:
                child.process.join(max(deadline - time.monotonic(), 0))
        self.kill()

    def kill(self) -> None:
        """Ends every child at once."""
        for child in self._children:
            if child.process is not None:
                child.process.kill()
        for child in self._children:
            if child.process is not None:
                child.process.join()


def _run(main: Callable[[Any], None], spec: Any, name: str) -> None:
    """A child's main: one line for what the user got wrong, a traceback for what we did."""
    try:
        main(spec)
    except QuarlError as error:
        print(f"quarl: {name}: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception:
        traceback.print_exc()
        sys.exit(1)
