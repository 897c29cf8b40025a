"""The environments of one actor: made, seeded, and made anew when they raise."""

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
"""Environments that one incarnation of an actor can make before seeds come again."""
GAP = 2
"""What a sequence number jumps by after an environment was lost: replay then knows that no step leads across."""
RETRIES = 5
"""Environments in a row that raise before they made a step: then it is not the environment that helps."""
PAUSE_S = 0.1
"""After one that could not be made anew; twice as long after each further one."""


def environment_of(config: ActorQConfig) -> Environment:
    """Return the run's environment: --params describes it in RL Zoo's words, and the verb's options replace these.

    Games of Atari are preprocessed if neither says otherwise.
    """
    rule = PREPROCESSING if Environment.typed_by_user(config.env).is_atari else {}
    written = EnvironmentOptions.said(config).over(rule | config.hyperparameters())
    options = EnvironmentOptions.written(written, Path("--params"))
    longest(options.env_kwargs.get(LIMIT), config.max_episode_steps)
    return replace(Environment.typed_by_user(config.env, options), longest=config.max_episode_steps)


class Environments:
    """`num` environments that are stepped side by side, and where each of them stands."""

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
        """place: number of the incarnation among those of all actors; cells: the actor's row of the counters.

        observations [num, *shape]: in the learner's shape and dtype, where each environment stands. say: hears of the
        first environment that raises; all are counted.
        """
        self._environment, self._seed, self._place, self._cells, self._say = environment, seed, place, cells, say
        self._made = self._raised = 0
        self.sequence: Any = [0] * num
        """Number of the next segment of each; a list, or an array where a `Block` steps them."""
        self._failed_at = [(0, 0)] * num
        """(its sequence after it was last replaced, times that it was there)."""
        self.length: Any = [0] * num
        """Steps of each one's episode so far."""
        self.total: Any = [0.0] * num
        """Its return so far."""
        self.observations = observations
        self.envs = [self._make() for _ in range(num)]
        for k in range(num):
            self.observations[k] = self._first(k)

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        return self.envs[0].action_space

    def reset(self, k: int) -> None:
        """The next episode; it goes on with the environment's own generator."""
        try:
            self.observations[k] = self.envs[k].reset()[0]
            self._beat()
        except RAISED as error:  # as in a step
            self.replace(k, error)

    def close(self) -> None:
        """Ends all of them; one that cannot be closed has done its work."""
        for env in self.envs:
            with contextlib.suppress(*RAISED):
                env.close()

    def replace(self, k: int, error: BaseException) -> None:
        """A new environment for one that raised `error`; its unfinished episode has no end in replay."""
        before, times = self._failed_at[k]
        times = times + 1 if self.sequence[k] == before else 1
        while True:
            if times > RETRIES:
                raise error if isinstance(error, Exception) else broken(self.envs[k], error)
            self._cells[Actor.ERRORS] += 1
            self._raised += 1
            if self._raised == 1:
                self._say(f"an environment raised {in_one_line(error)}; it is made anew")
            with contextlib.suppress(*RAISED):  # it is broken as it is
                self.envs[k].close()
            try:
                self.envs[k] = self._make()
                self.observations[k] = self._first(k)
                break
            except RAISED as again:  # what it needs may be away for a while
                self._beat()
                time.sleep(PAUSE_S * 2 ** (times - 1))
                error, times = again, times + 1
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
        """The first observation of a new environment."""
        self._made += 1
        number = (self._place << MADE_BITS | self._made % 2**MADE_BITS) % 2**EPISODE_BITS
        try:
            observation: Array = self.envs[k].reset(seed=episode_seed("training", self._seed, number))[0]
        except SystemExit as error:
            raise broken(self.envs[k], error) from error
        self._beat()
        return observation
