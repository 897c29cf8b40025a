"""The workers: learner, publisher and actors of a run, with their start arguments and checks that they work."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np

from quarl.actorq import learner, publisher
from quarl.actorq.counters import Actor, Publisher
from quarl.actorq.exploration import ladder
from quarl.actorq.family import BLIND_S, ActorFamily, Watchdog
from quarl.actorq.faults import Fault
from quarl.actorq.learner import LearnerSpec
from quarl.actorq.publisher import PublisherSpec
from quarl.actorq.roles import Channel
from quarl.actorq.versions import Versions
from quarl.actorq.weights import Template
from quarl.config import ActorQConfig
from quarl.envs.checked import Recalled
from quarl.processes.child import Child

PUBLISHER_S = 30.0
"""Seconds without a heartbeat after which a publisher counts as hung."""
REPLACEMENTS, ENOUGH = 10, (1, 1000)
"""Replacements within which an actor must complete so many episodes or so many steps."""


class Workers:
    """The child processes, not started yet; each logs its errors to its own file in the output folder.

    `look` is called regularly during a run: it finds processes that are alive but do not work.
    """

    def __init__(
        self,
        config: ActorQConfig,
        template: Template,
        channel: Channel,
        environment: Recalled,
        say: Callable[[str | Fault], None],
        family: Callable[..., ActorFamily] = ActorFamily,
    ) -> None:
        """Prepare the children without starting them.

        Args:
            config: Options of the run.
            template: Layout of the weights.
            channel: Channel of the run.
            environment: Environment data for the learner's model, which plays nothing.
            say: Receives faults and lines for the user.
            family: Creates the actors.
        """
        self._counters, self._watchdog = channel.counters, Watchdog(BLIND_S)
        self._done = self._counters.actors[:, [Actor.EPISODES, Actor.STEPS]]
        """Episodes and steps of each actor when it last did enough, and its replacements up to then."""
        self._replaced, self._each = np.zeros(config.num_actors), REPLACEMENTS * config.num_envs
        cores, *cores_of_actors = _cores(config.num_actors, config.learner_threads, alone=channel.alone())
        of_learner = LearnerSpec(config=config, channel=channel, environment=environment, cores=cores)
        self.learner = Child("learner", learner.main, of_learner, config.output / "learner.log")
        packer = (config.actor_precision, config.comm_bits, config.weight_compress)
        of_publisher = PublisherSpec(channel=channel, template=template, packer=packer)
        self.publisher = Child("publisher", publisher.main, of_publisher, config.output / "publisher.log")
        # After --resume no incarnation number may repeat: replay would take its segments for known ones. Every learner
        # reserves a block of versions, so their first number is above all earlier incarnations.
        first = Versions(config.output).first - 1
        rungs = ladder(template.initial.head.kind, config.num_actors, config.sigma)
        self.actors = family(config, channel, rungs, cores_of_actors, first, say)

    @property
    def all(self) -> tuple[Child, ...]:
        return (self.learner, self.publisher, *self.actors.children)

    def look(self) -> None:
        """Kill hung processes; reviving them is the caller's task."""
        self.actors.look()
        self._watchdog.tick()
        heard = float(self._counters.publisher[Publisher.HEARTBEAT_S])
        self._watchdog.watch(self.publisher, heard, PUBLISHER_S, "no sign of life")

    def are_barren(self) -> bool:
        """Return True if no actor completed an episode or 1,000 steps in its last ten replacements.

        Replacements are of its process and of its environments: ten for each of these.
        """
        cells = self._counters.actors
        done, replaced = cells[:, [Actor.EPISODES, Actor.STEPS]], cells[:, Actor.DEATHS] + cells[:, Actor.ERRORS]
        enough = (done - self._done >= ENOUGH).any(axis=1)
        self._done[enough], self._replaced[enough] = done[enough], replaced[enough]
        parked = np.array([child.parked for child in self.actors.children])
        return bool((parked | (replaced - self._replaced >= self._each)).all())


def _cores(actors: int, learner_threads: int, *, alone: bool) -> list[frozenset[int] | None]:
    """Return the learner's cores, one for each thread, and each actor's; None leaves the choice to the system.

    alone: no other run would use the same cores.
    """
    cores = sorted(os.sched_getaffinity(0)) if alone and hasattr(os, "sched_getaffinity") else []
    if len(cores) <= learner_threads:
        return [None] * (1 + actors)
    others = cores[learner_threads:]
    return [frozenset(cores[:learner_threads]), *(frozenset({others[i % len(others)]}) for i in range(actors))]
