"""The actor processes of one machine, and a watchdog that kills what hangs.

Nothing here imports torch, which a machine that only acts would load for seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from quarl.actorq import actor
from quarl.actorq.actor import ActorSpec
from quarl.actorq.counters import Actor
from quarl.actorq.roles import Channel
from quarl.config import ActorQConfig
from quarl.processes.child import Child, Children

START_S = 120.0
"""For a new process until its first sign of life: a slow import is no hang."""
BLIND_S = 1.0
"""Of the time between two looks that counts, at most, and half of --env-timeout: nobody is blamed for what happens in a
longer one (an evaluation, Ctrl-Z)."""
STALE_SHARE = 0.5
"""Of a second that an actor waits for newer weights, and it is worth a line."""


class Watchdog:
    """Kills what hangs; whoever revives the dead starts it again. `tick` comes before each round of looks."""

    def __init__(self, longest_s: float, say: Callable[[str], None]) -> None:
        """longest_s: of the time between two looks that counts, at most."""
        self._longest_s, self._say = longest_s, say
        self._looked, self._watched, self._span = time.monotonic(), 0.0, 0.0
        """When it last looked; seconds that count, and those since the look before."""
        self._signs: dict[str, tuple[float, float]] = {}
        """Of each child, by name: its last sign of life, and when it was seen, in seconds that count."""

    def tick(self) -> None:
        """Counts the time since the last look."""
        now = time.monotonic()
        self._span = min(now - self._looked, self._longest_s)
        self._watched, self._looked = self._watched + self._span, now

    def watch(self, child: Child, heard: float, bound: float, lack: str) -> None:
        """Kills the child where it was silent for longer than `bound` seconds.

        heard: time.monotonic() of its last sign of life. lack: who did not do what, as the user is told.
        """
        if not child.alive():
            return
        child.worked_s += self._span * (heard > child.started)
        sign = max(heard, child.started)
        if self._signs.get(child.name, (None,))[0] != sign:
            self._signs[child.name] = sign, self._watched
        if self._watched - self._signs[child.name][1] > bound + START_S * (heard <= child.started):
            self._say(f"{lack} for {bound:g} s: killed")
            child.kill()


class ActorFamily:
    """The actor processes of one machine, not started yet, and whether each of them works."""

    def __init__(
        self,
        config: ActorQConfig,
        channel: Channel,
        rungs: Sequence[float],
        cores: Sequence[frozenset[int] | None],
        incarnation: int,
        say: Callable[[str], None],
    ) -> None:
        """rungs, cores: of each actor. incarnation: of their first processes, above all that the run ever had."""
        self._counters, self._env_timeout, self._say = channel.counters, config.env_timeout, say
        self._watchdog = Watchdog(min(BLIND_S, config.env_timeout / 2), say)
        self._stale_at, self._stale, self._waiting = time.monotonic(), 0.0, False
        self.children: list[Child] = []
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
        """Actors whose processes are there."""
        return sum(child.alive() for child in self.children)

    @property
    def num_at_work(self) -> int:
        """Actors that are there, or will be again."""
        return sum(not child.parked for child in self.children)

    @property
    def num_deaths(self) -> int:
        """Of all of them, since the run began."""
        return sum(child.num_deaths for child in self.children)

    def look(self) -> None:
        """Kills those that make no step, and says when they wait for newer weights."""
        self._watchdog.tick()
        for child, cells in zip(self.children, self._counters.actors, strict=True):
            heard = float(cells[Actor.HEARTBEAT_S])
            self._watchdog.watch(child, heard, self._env_timeout, f"{child.name} made no step")
        self._staleness(time.monotonic())

    def revive(self, children: Children) -> str:
        """Starts the dead again; why none can work, where one died of what the user got wrong before it made a step."""
        for child, sent in zip(self.children, self._counters.actors[:, Actor.STEPS], strict=True):
            if not child.alive() and not child.parked:
                if child.result.mistake and not sent:  # one that has worked was made by no mistake
                    return f"{child.name}: {child.reason()}"
                children.revive(child)
        return ""

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
