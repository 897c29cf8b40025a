"""The workers: learner, publisher and actors of a run, each with what it is told, and whether each of them works."""

from __future__ import annotations

import os
from collections.abc import Callable

from quarl.actorq import learner, publisher
from quarl.actorq.counters import Publisher
from quarl.actorq.exploration import ladder
from quarl.actorq.family import BLIND_S, ActorFamily, Watchdog
from quarl.actorq.learner import LearnerSpec
from quarl.actorq.publisher import PublisherSpec
from quarl.actorq.roles import Channel
from quarl.actorq.versions import Versions
from quarl.actorq.weights import Template
from quarl.config import ActorQConfig
from quarl.envs.checked import Recalled
from quarl.processes.child import Child

PUBLISHER_S = 30.0
"""Without a sign of life, after which a publisher counts as hung."""


class Workers:
    """The child processes, not started yet; errors of each go to a log of its own in the output folder.

    `look` is called again and again while a run goes on: it finds those that are alive and do not work.
    """

    def __init__(
        self,
        config: ActorQConfig,
        template: Template,
        channel: Channel,
        environment: Recalled,
        say: Callable[[str], None],
        family: Callable[..., ActorFamily] = ActorFamily,
    ) -> None:
        """environment: what a learner, which plays nothing, needs of its environment. family: makes the actors."""
        self._cells, self._watchdog = channel.counters.publisher, Watchdog(BLIND_S, say)
        cores, *cores_of_actors = _cores(config.num_actors, config.learner_threads, alone=channel.alone())
        of_learner = LearnerSpec(config=config, channel=channel, environment=environment, cores=cores)
        self.learner = Child("learner", learner.main, of_learner, config.output / "learner.log")
        packer = (config.actor_precision, config.comm_bits, config.weight_compress)
        of_publisher = PublisherSpec(channel=channel, template=template, packer=packer)
        self.publisher = Child("publisher", publisher.main, of_publisher, config.output / "publisher.log")
        # After --resume no incarnation may come again: replay would take its segments for those it has. Versions are
        # reserved in blocks by every learner, so their first number is above all incarnations before it.
        first = Versions(config.output).first - 1
        rungs = ladder(template.initial.head.kind, config.num_actors, config.sigma)
        self.actors = family(config, channel, rungs, cores_of_actors, first, say)

    @property
    def all(self) -> tuple[Child, ...]:
        return (self.learner, self.publisher, *self.actors.children)

    def look(self) -> None:
        """Kills what hangs; whoever revives the dead starts it again."""
        self.actors.look()
        self._watchdog.tick()
        heard = float(self._cells[Publisher.HEARTBEAT_S])
        self._watchdog.watch(self.publisher, heard, PUBLISHER_S, "the publisher gave no sign of life")


def _cores(actors: int, learner_threads: int, *, alone: bool) -> list[frozenset[int] | None]:
    """Those of the learner, one for each of its threads, and of each actor; None leaves the choice to the system.

    alone: no other run would take the same ones.
    """
    cores = sorted(os.sched_getaffinity(0)) if alone and hasattr(os, "sched_getaffinity") else []
    if len(cores) <= learner_threads:
        return [None] * (1 + actors)
    others = cores[learner_threads:]
    return [frozenset(cores[:learner_threads]), *(frozenset({others[i % len(others)]}) for i in range(actors))]
