"""The actor processes of one machine, and a watchdog that kills hung processes.

This module does not import torch, which a machine with actors only would spend seconds loading.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from quarl.actorq import actor
from quarl.actorq.actor import ActorSpec
from quarl.actorq.counters import Actor
from quarl.actorq.environments import BROKEN
from quarl.actorq.faults import Fault, death
from quarl.actorq.roles import Channel
from quarl.config import ActorQConfig
from quarl.processes.child import Child, Children

START_S = 120.0
"""Extra seconds for a new process until its first heartbeat: a slow import is not a hang."""
BLIND_S = 1.0
"""Maximum seconds that count between two checks, and at most half of --env-timeout.

Longer gaps (an evaluation, Ctrl-Z) do not count as silence.
"""
STALE_SHARE = 0.5
"""Share of time that an actor waits for newer weights above which a warning is printed."""


class Watchdog:
    """A watchdog that kills hung processes; reviving dead ones is the caller's task.

    Call `tick` before each round of checks.
    """

    def __init__(self, longest_s: float) -> None:
        """Start the clock; at most `longest_s` seconds count between two checks."""
        self._longest_s = longest_s
        self._looked, self._watched, self._span = time.monotonic(), 0.0, 0.0
        """Time of the last check; seconds that count in all, and since the check before."""
        self._signs: dict[str, tuple[float, float]] = {}
        """Last heartbeat of each child, by name, and when it was seen, in seconds that count."""

    def tick(self) -> None:
        """Count the time since the last check."""
        now = time.monotonic()
        self._span = min(now - self._looked, self._longest_s)
        self._watched, self._looked = self._watched + self._span, now

    def watch(self, child: Child, heard: float, bound: float, lack: str) -> None:
        """Kill the child if it was silent for longer than `bound` seconds.

        Args:
            child: Process to check.
            heard: Time of its last heartbeat, by time.monotonic().
            bound: Maximum silence in seconds; START_S more before the first heartbeat.
            lack: Reason of its death, such as "no step".
        """
        if not child.alive():
            return
        child.worked_s += self._span * (heard > child.started)
        sign = max(heard, child.started)
        if self._signs.get(child.name, (None,))[0] != sign:
            self._signs[child.name] = sign, self._watched
        if self._watched - self._signs[child.name][1] > bound + START_S * (heard <= child.started):
            child.blame = f"{lack} for {bound:g} s"
            child.kill()


class ActorFamily:
    """The actor processes of one machine, not started yet, and checks that each of them works."""

    def __init__(
        self,
        config: ActorQConfig,
        channel: Channel,
        rungs: Sequence[float],
        cores: Sequence[frozenset[int] | None],
        incarnation: int,
        say: Callable[[str | Fault], None],
    ) -> None:
        """Create the child processes without starting them.

        Args:
            config: Options of the run.
            channel: Channel that the actors use.
            rungs: Exploration rung of each actor.
            cores: CPU cores of each actor; None leaves the choice to the system.
            incarnation: Number of their first processes, above all that the run ever had.
            say: Receives faults and lines for the user.
        """
        self._counters, self._env_timeout, self._say = channel.counters, config.env_timeout, say
        self._watchdog = Watchdog(min(BLIND_S, config.env_timeout / 2))
        self._errors = self._counters.actors[:, Actor.ERRORS].copy()
        self._stale_at, self._stale, self._waiting = time.monotonic(), 0.0, False
        self.children: list[Child] = []
        # Give each actor a log file and a pickled start.
        for i, rung in enumerate(rungs):
            log = config.output / f"actor-{i}.log"
            spec = ActorSpec(
                config=config,
                channel=channel.of(i),
                cores=cores[i],
                index=i,
                incarnation=incarnation,
                rung=rung,
                log=log,
            )
            self.children.append(Child(f"actor {i}", actor.main, spec, log))

    @property
    def num_alive(self) -> int:
        """Number of actors whose processes are alive."""
        return sum(child.alive() for child in self.children)

    @property
    def num_at_work(self) -> int:
        """Number of actors that are alive or will be restarted."""
        return sum(not child.parked for child in self.children)

    def look(self) -> None:
        """Kill actors that make no step, report broken environments, and warn if actors wait for newer weights."""
        self._watchdog.tick()
        for child, cells in zip(self.children, self._counters.actors, strict=True):
            heard = float(cells[Actor.HEARTBEAT_S])
            self._watchdog.watch(child, heard, self._env_timeout, "no step")
        before, self._errors = self._errors, self._counters.actors[:, Actor.ERRORS].copy()
        for i in np.flatnonzero(self._errors > before):
            name, log, count = self.children[i].name, self.children[i].log, int(self._errors[i] - before[i])
            who, reason, then = f"environment of {name}", _last_error(log), f"replaced; see {log}"
            self._say(Fault(who=who, event="raised", reason=reason, then=then, count=count))
        self._staleness(time.monotonic())

    def revive(self, children: Children) -> str:
        """Restart dead actors; return the reason if one failed before its first step because of a user error."""
        for child, cells in zip(self.children, self._counters.actors, strict=True):
            if not child.alive() and not child.parked:
                # an actor that has worked did not die of a user error
                if child.result.mistake and not cells[Actor.STEPS]:
                    return f"{child.name}: {child.reason()}"
                if event := children.revive(child):
                    cells[Actor.DEATHS] += 1
                    self._say(death(child, event))
        return ""

    def _staleness(self, now: float) -> None:
        """Warn once when actors wait for newer weights, and again only after they have continued in between."""
        if (span := now - self._stale_at) < 1:
            return
        before, self._stale, self._stale_at = self._stale, float(self._counters.actors[:, Actor.STALE_S].max()), now
        grown = self._stale - before
        if grown > STALE_SHARE * span and not self._waiting:
            self._waiting = True
            reason = "their weights are --max-staleness updates old"
            self._say(Fault(who="actors", event="wait for newer weights", reason=reason, then="training continues"))
        elif grown == 0:
            self._waiting = False


def _last_error(log: Path | None) -> str:
    """Return the reason of the last environment that raised, from its actor's log."""
    lines = log.read_text(errors="replace").splitlines() if log is not None and log.is_file() else []
    found = [line.removeprefix(BROKEN) for line in lines if line.startswith(BROKEN)]
    return found[-1] if found else "its reason could not be logged"
