"""The watchdog: finds processes that are alive and do not work, and actors that wait for newer weights."""

from __future__ import annotations

import time
from collections.abc import Callable

from quarl.actorq.counters import Actor, Counters, Publisher
from quarl.actorq.workers import Workers
from quarl.processes.child import Child

START_S = 120.0
"""For a new process until its first sign of life: a slow import is no hang."""
PUBLISHER_S = 30.0
"""Without a sign of life, after which a publisher counts as hung."""
BLIND_S = 1.0
"""Of the time between two looks that counts, at most, and half of --env-timeout: nobody is blamed for what happens in a
longer one (an evaluation, Ctrl-Z)."""
STALE_SHARE = 0.5
"""Of a second that an actor waits for newer weights, and it is worth a line."""


class Watchdog:
    """Called again and again while a run goes on."""

    def __init__(self, workers: Workers, counters: Counters, env_timeout: float, say: Callable[[str], None]) -> None:
        self._workers, self._counters, self._env_timeout, self._say = workers, counters, env_timeout, say
        self._last = time.monotonic()
        self._watched = 0.0
        """Seconds that count."""
        self._signs: dict[str, tuple[float, float]] = {}
        """Of each child, by name: its last sign of life, and when it was seen, in seconds that count."""
        self._stale, self._stale_at, self._waiting = 0.0, self._last, False

    def look(self) -> None:
        """Kills what hangs; whoever revives the dead starts it again."""
        now = time.monotonic()
        span = min(now - self._last, BLIND_S, self._env_timeout / 2)
        self._watched += span
        self._last = now
        for child, cells in zip(self._workers.actors, self._counters.actors, strict=True):
            self._watch(child, float(cells[Actor.HEARTBEAT_S]), span, self._env_timeout, "made no step")
        heard = float(self._counters.publisher[Publisher.HEARTBEAT_S])
        self._watch(self._workers.publisher, heard, span, PUBLISHER_S, "gave no sign of life")
        self._staleness(now)

    def _watch(self, child: Child, heard: float, span: float, bound: float, lack: str) -> None:
        """Counts `span` more seconds of its work, and kills it where it was silent for longer than `bound`."""
        if not child.alive():
            return
        child.worked_s += span * (heard > child.started)
        if self._silent_s(child, heard) > bound:
            name = f"the {child.name}" if child is self._workers.publisher else child.name
            self._say(f"{name} {lack} for {bound:g} s: killed")
            child.kill()

    def _silent_s(self, child: Child, heard: float) -> float:
        """Seconds that count since the child's present incarnation was last heard."""
        sign = max(heard, child.started)
        if self._signs.get(child.name, (None,))[0] != sign:
            self._signs[child.name] = sign, self._watched
        silent = self._watched - self._signs[child.name][1]
        return silent - START_S if heard <= child.started else silent

    def _staleness(self, now: float) -> None:
        """Says once that actors wait, and again when they have gone on in between."""
        if (span := now - self._stale_at) < 1:
            return
        before, self._stale, self._stale_at = self._stale, float(self._counters.actors[:, Actor.STALE_S].max()), now
        grown = self._stale - before
        if grown > STALE_SHARE * span and not self._waiting:
            self._waiting = True
            self._say("actors wait for newer weights: those they have are --max-staleness updates old")
        elif grown == 0:
            self._waiting = False
