"""The environments of one actor: created, seeded, and replaced when they raise."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium

from quarl.actorq.counters import Actor
from quarl.arrays import Array
from quarl.config import ActorQConfig
from quarl.envs.bound import LIMIT, longest
from quarl.envs.checked import broken
from quarl.envs.environment import Environment
from quarl.envs.options import EnvironmentOptions
from quarl.envs.seeds import EPISODE_BITS, episode_seed
from quarl.envs.wrappers import channels_as
from quarl.errors import RAISED, in_one_line
from quarl.readers.zoo import PREPROCESSING

MADE_BITS = 12
"""Width of the environment number in a seed: later environments of one incarnation repeat seeds."""
GAP = 2
"""Increment of the sequence number after an environment was lost; it tells replay that no step leads across."""
RETRIES = 5
"""Maximum number of consecutive environments that raise before their first step; after that, the run fails."""
BROKEN, LOGGED = "an environment raised ", 100
"""Start of a line in the actor's log, and the most of them: messages may have a number that differs each time."""
PAUSE_S = 0.1
"""Seconds of pause after a failed replacement; doubled after each further one."""


def environment_of(config: ActorQConfig) -> Environment:
    """Return the run's environment, described by --params in RL Zoo's terms; the command's options override these.

    Atari games are preprocessed unless one of the two says otherwise.
    """
    rule = PREPROCESSING if Environment.typed_by_user(config.env).is_atari else {}
    written = EnvironmentOptions.of(**config.environment()).over(rule | config.hyperparameters())
    options = EnvironmentOptions.written(written, Path("--params"))
    longest(options.env_kwargs.get(LIMIT), config.max_episode_steps)
    return replace(Environment.typed_by_user(config.env, options), longest=config.max_episode_steps)


class Environments:
    """The `num` environments of an actor, stepped side by side, and the state of each."""

    def __init__(
        self,
        environment: Environment,
        num: int,
        seed: int,
        place: int,
        cells: Array,
        observations: Array,
        say: Callable[[str], None],
    ) -> None:
        """Create and reset the environments.

        Args:
            environment: Environment that each of them is an instance of.
            num: Number of environments.
            seed: Seed of the run.
            place: Number of this incarnation among the incarnations of all actors.
            cells: The actor's row of the counters.
            observations: Buffer [num, *shape] for current observations, in the learner's shape and dtype.
            say: Receives a line if an environment raises for another reason than the one before; all are counted.
        """
        self._environment, self._seed, self._place, self._cells, self._say = environment, seed, place, cells, say
        self._made = self._logged = 0
        self._reason = ""
        self.sequence: Any = [0] * num
        """Number of the next segment of each environment; a list, or an array if a `Block` steps them."""
        self._failed_at = [(0, 0)] * num
        """Pairs (sequence after the last replacement, number of failures at that sequence)."""
        self.length: Any = [0] * num
        """Number of steps of each current episode so far."""
        self.total: Any = [0.0] * num
        """Return of each current episode so far."""
        self.observations = observations
        self.envs = [self._make() for _ in range(num)]
        for k in range(num):
            self.observations[k] = self._first(k)

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        return self.envs[0].action_space

    def reset(self, k: int) -> None:
        """Begin the next episode, with the environment's own random generator."""
        try:
            self.observations[k] = self.envs[k].reset()[0]
            self._beat()
        except RAISED as error:  # same as in a step
            self.replace(k, error)

    def close(self) -> None:
        """Close all environments; an error while closing is ignored."""
        for env in self.envs:
            with contextlib.suppress(*RAISED):
                env.close()

    def replace(self, k: int, error: BaseException) -> None:
        """Replace an environment that raised `error`; its unfinished episode has no end in replay."""
        # Count consecutive failures at the same step.
        before, times = self._failed_at[k]
        times = times + 1 if self.sequence[k] == before else 1
        while True:
            if times > RETRIES:
                raise error if isinstance(error, Exception) else broken(self.envs[k], error)
            if (reason := in_one_line(error)) != self._reason and self._logged < LOGGED:
                self._reason = reason
                self._logged += 1
                self._say(f"{BROKEN}{reason}")
            self._cells[Actor.ERRORS] += 1  # after the line, which the watchdog reads
            with contextlib.suppress(*RAISED):  # it is broken anyway
                self.envs[k].close()
            try:
                self.envs[k] = self._make()
                self.observations[k] = self._first(k)
                break
            except RAISED as again:  # a resource that it needs may be unavailable for a while
                self._beat()
                time.sleep(PAUSE_S * 2 ** (times - 1))
                error, times = again, times + 1
        # Book the lost episode.
        self._cells[Actor.DROPPED] += self.length[k]
        self.sequence[k] += GAP
        self.length[k], self.total[k] = 0, 0.0
        self._failed_at[k] = (self.sequence[k], times)

    def _beat(self) -> None:
        self._cells[Actor.HEARTBEAT_S] = time.monotonic()

    def _make(self) -> gymnasium.Env[Any, Any]:
        env = channels_as(self._environment.make(), self.observations.shape[1:])
        self._beat()
        return env

    def _first(self, k: int) -> Array:
        """Return the first observation of a new environment, seeded by its number."""
        self._made += 1
        number = (self._place << MADE_BITS | self._made % 2**MADE_BITS) % 2**EPISODE_BITS
        try:
            observation: Array = self.envs[k].reset(seed=episode_seed("training", self._seed, number))[0]
        except SystemExit as error:
            raise broken(self.envs[k], error) from error
        self._beat()
        return observation
