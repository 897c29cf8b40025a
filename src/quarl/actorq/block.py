"""A block step: all environments of an actor as rows of one array, filled by columns; the fast form of its row loop."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from quarl.actorq.counters import Actor
from quarl.actorq.environments import Environments
from quarl.arrays import Array
from quarl.errors import RAISED

HEARTBEAT_S = int(Actor.HEARTBEAT_S)


class Block:
    """A stepper for all environments of an actor; it produces the same segments as the actor's row loop."""

    def __init__(
        self, environments: Environments, dtype: np.dtype[Any], actor: int, incarnation: int, cells: Array
    ) -> None:
        """Wrap the environments of one actor.

        Args:
            environments: Environments of the actor; their books become arrays.
            dtype: Row type of a segment.
            actor: Index of the actor.
            incarnation: Number of the actor process.
            cells: The actor's row of the counters.
        """
        self._environments, self._cells = environments, cells
        environments.sequence, environments.length, environments.total = (
            np.array(each) for each in (environments.sequence, environments.length, environments.total)
        )
        self.rows = np.zeros(len(environments.envs), dtype)
        self.rows["actor"], self.rows["incarnation"] = actor, incarnation
        self.rows["environment"] = np.arange(len(self.rows))
        self._columns = {name: self.rows[name] for name in dtype.names or ()}

    def step(self, actions: Any, stored: Array, version: int) -> tuple[Array, list[int], float]:
        """Step every environment once.

        An environment that raises is replaced, and its unfinished episode has no end in replay. A finished episode
        waits for a later `reset`, so that sending its segment need not wait for that.

        Args:
            actions: Action of each environment, as the environment takes it.
            stored: Actions [n, ...] as replay stores them.
            version: Version of the weights behind the actions; -1 for random ones.

        Returns:
            Segments [n] of the environments that made a step, indices of those whose episode ended, and seconds in the
            environments.
        """
        environments, cells, columns, now = self._environments, self._cells, self._columns, time.monotonic
        columns["observation"][:] = environments.observations  # a copy: environments may change theirs
        columns["action"][:] = stored
        following = columns["next_observation"]
        rewards, terminations, truncations = [], [], []
        over: list[int] = []
        lost: list[int] = []
        environment_s = 0.0
        # Step the environments one by one.
        for k, action in enumerate(actions):
            started = now()
            try:
                observation, reward, terminated, truncated, _ = environments.envs[k].step(action)
            except RAISED as error:  # a simulator may raise anything
                environments.replace(k, error)
                observation, reward, terminated, truncated = environments.observations[k], 0.0, False, False
                lost.append(k)
            cells[HEARTBEAT_S] = stepped = now()
            environment_s += stepped - started
            following[k] = observation
            rewards.append(float(reward))
            terminations.append(terminated)
            truncations.append(truncated)
            if terminated or truncated:
                over.append(k)
        # Fill the columns that all rows have.
        columns["version"][:], columns["sequence"][:], columns["reward"][:] = version, environments.sequence, rewards
        columns["terminated"][:], columns["truncated"][:] = terminations, truncations
        columns["episode_length"][:] = columns["episode_return"][:] = 0
        # Book the new state of each environment.
        environments.observations[:] = following
        environments.sequence += 1
        environments.length += 1
        environments.total += columns["reward"]
        if over:
            columns["episode_length"][over] = environments.length[over]
            columns["episode_return"][over] = environments.total[over]
            environments.length[over] = environments.total[over] = 0
        # Leave out the rows of environments that raised.
        if not lost:
            return self.rows, over, environment_s
        environments.sequence[lost] -= 1
        environments.length[lost] = 0
        return np.delete(self.rows, lost), over, environment_s
