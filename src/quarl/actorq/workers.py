"""The workers: learner, publisher and actors of a run, each with what it is told, and whether each of them works."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from quarl.actorq import actor, learner, publisher
from quarl.actorq.actor import ActorSpec
from quarl.actorq.counters import Actor, Publisher
from quarl.actorq.exploration import ladder
from quarl.actorq.learner import LearnerSpec
from quarl.actorq.publisher import PublisherSpec
from quarl.actorq.roles import Channel
from quarl.actorq.versions import Versions
from quarl.actorq.weights import Template
from quarl.config import ActorQConfig
from quarl.envs.checked import Recalled
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


class Workers:
    """The child processes, not started yet; errors of each go to a log of its own in the output folder.

    `look` is called again and again while a run goes on: it finds those that are alive and do not work, and says when
    actors wait for newer weights.
    """

    def __init__(
        self, config: ActorQConfig, template: Template, channel: Channel, world: Recalled, say: Callable[[str], None]
    ) -> None:
        """world: what a learner, which plays nothing, needs of its environment."""
        self._counters, self._env_timeout, self._say = channel.counters, config.env_timeout, say
        self._looked = self._stale_at = time.monotonic()
        self._watched = 0.0
        """Seconds that count."""
        self._signs: dict[str, tuple[float, float]] = {}
        """Of each child, by name: its last sign of life, and when it was seen, in seconds that count."""
        self._stale, self._waiting = 0.0, False
        cores, *cores_of_actors = _cores(config.actors, config.learner_threads, alone=channel.alone())
        of_learner = LearnerSpec(config=config, channel=channel, world=world, cores=cores)
        self.learner = Child("learner", learner.main, of_learner, config.output / "learner.log")
        packer = (config.actor_precision, config.comm_bits, config.weight_compress)
        of_publisher = PublisherSpec(channel=channel, template=template, packer=packer)
        self.publisher = Child("publisher", publisher.main, of_publisher, config.output / "publisher.log")
        # After --resume no incarnation may come again: replay would take its segments for those it has. Versions are
        # reserved in blocks by every learner, so their first number is above all incarnations before it.
        first = Versions(config.output).first - 1
        self.actors: list[Child] = []
        for i, rung in enumerate(ladder(template.initial.head.kind, config.actors, config.sigma)):
            log = config.output / f"actor-{i}.log"
            spec = ActorSpec(
                config=config,
                channel=channel.of(i),
                cores=cores_of_actors[i],
                index=i,
                incarnation=first,
                rung=rung,
                log=log,
            )
            self.actors.append(Child(f"actor {i}", actor.main, spec, log))

    @property
    def all(self) -> tuple[Child, ...]:
        return (self.learner, self.publisher, *self.actors)

    def look(self) -> None:
        """Kills what hangs; whoever revives the dead starts it again."""
        now = time.monotonic()
        span = min(now - self._looked, BLIND_S, self._env_timeout / 2)
        self._watched, self._looked = self._watched + span, now
        for child, cells in zip(self.actors, self._counters.actors, strict=True):
            self._watch(child, float(cells[Actor.HEARTBEAT_S]), span, self._env_timeout, "made no step")
        heard = float(self._counters.publisher[Publisher.HEARTBEAT_S])
        self._watch(self.publisher, heard, span, PUBLISHER_S, "gave no sign of life")
        self._staleness(now)

    def _watch(self, child: Child, heard: float, span: float, bound: float, lack: str) -> None:
        """Counts `span` more seconds of its work, and kills it where it was silent for longer than `bound`."""
        if not child.alive():
            return
        child.worked_s += span * (heard > child.started)
        sign = max(heard, child.started)
        if self._signs.get(child.name, (None,))[0] != sign:
            self._signs[child.name] = sign, self._watched
        if self._watched - self._signs[child.name][1] > bound + START_S * (heard <= child.started):
            name = f"the {child.name}" if child is self.publisher else child.name
            self._say(f"{name} {lack} for {bound:g} s: killed")
            child.kill()

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


def _cores(actors: int, learner_threads: int, *, alone: bool) -> list[frozenset[int] | None]:
    """Those of the learner, one for each of its threads, and of each actor; None leaves the choice to the system.

    alone: no other run would take the same ones.
    """
    cores = sorted(os.sched_getaffinity(0)) if alone and hasattr(os, "sched_getaffinity") else []
    if len(cores) <= learner_threads:
        return [None] * (1 + actors)
    others = cores[learner_threads:]
    return [frozenset(cores[:learner_threads]), *(frozenset({others[i % len(others)]}) for i in range(actors))]
