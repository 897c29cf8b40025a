"""The workers: learner, publisher and actors of a run, each with what it is told."""

from __future__ import annotations

import os

from quarl.actorq import actor, learner, publisher
from quarl.actorq.actor import ActorSpec
from quarl.actorq.exploration import ladder
from quarl.actorq.learner import LearnerSpec
from quarl.actorq.publisher import PublisherSpec
from quarl.actorq.roles import Channel
from quarl.actorq.versions import Versions
from quarl.actorq.weights import Template
from quarl.config import ActorQConfig
from quarl.envs.checked import Recalled
from quarl.processes.child import Child


class Workers:
    """The child processes, not started yet; errors of each go to a log of its own in the output folder."""

    def __init__(self, config: ActorQConfig, template: Template, channel: Channel, world: Recalled) -> None:
        """world: what a learner, which plays nothing, needs of its environment."""
        rungs = ladder(template.initial.head.kind, config.actors, config.sigma)
        cores = _cores(config.actors, config.learner_threads, alone=channel.alone())
        names = ("learner", "publisher", *(f"actor-{i}" for i in range(config.actors)))
        logs = {name: config.output / f"{name}.log" for name in names}
        learner_spec = LearnerSpec(config=config, channel=channel, world=world, cores=cores[0])
        self.learner = Child("learner", learner.main, learner_spec, logs["learner"])
        publisher_spec = PublisherSpec(config=config, channel=channel, template=template)
        self.publisher = Child("publisher", publisher.main, publisher_spec, logs["publisher"])
        # After --resume no incarnation may come again: replay would take its segments for those it has. Versions are
        # reserved in blocks by every learner, so their first number is above all incarnations before it.
        first = Versions(config.output).first - 1
        self.actors = [
            Child(
                f"actor {i}",
                actor.main,
                ActorSpec(
                    config=config,
                    channel=channel.of(i),
                    index=i,
                    incarnation=first,
                    rung=rungs[i],
                    cores=cores[1 + i],
                    log=logs[f"actor-{i}"],
                ),
                logs[f"actor-{i}"],
            )
            for i in range(config.actors)
        ]

    @property
    def all(self) -> tuple[Child, ...]:
        return (self.learner, self.publisher, *self.actors)


def _cores(actors: int, learner_threads: int, *, alone: bool) -> list[frozenset[int] | None]:
    """Those of the learner, one for each of its threads, and of each actor; None leaves the choice to the system.

    alone: no other run would take the same ones.
    """
    cores = sorted(os.sched_getaffinity(0)) if alone and hasattr(os, "sched_getaffinity") else []
    if len(cores) <= learner_threads:
        return [None] * (1 + actors)
    others = cores[learner_threads:]
    return [frozenset(cores[:learner_threads]), *(frozenset({others[i % len(others)]}) for i in range(actors))]
