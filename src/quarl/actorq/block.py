"""A step of all environments of an actor as rows of one array, filled by columns: the fast form of its row loop."""

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
    """Steps the environments of an actor side by side; what comes of it are the segments that its row loop sends."""

    def __init__(
        self, environments: Environments, dtype: np.dtype[Any], actor: int, incarnation: int, cells: Array
    ) -> None:
        """dtype: of a segment; cells: the actor's row of the counters."""
        self._environments, self._cells = environments, cells
        environments.sequence, environments.length, environments.total = (
            np.array(each) for each in (environments.sequence, environments.length, environments.total)
        )
        self.rows = np.zeros(len(environments.envs), dtype)
        self.rows["actor"], self.rows["incarnation"] = actor, incarnation
        self.rows["environment"] = np.arange(len(self.rows))
        self._columns = {name: self.rows[name] for name in dtype.names or ()}

    def step(self, actions: Any, stored: Array, version: int) -> tuple[Array, list[int], float]:
        """Segments [n] of the environments that made a step, places of those whose episode is over, seconds in all.

        One that raises is made anew, and what it did has no end in replay. An episode that is over is left to a
        `reset`, so that its segment need not wait for that.
        """
        environments, cells, columns, now = self._environments, self._cells, self._columns, time.monotonic
        columns["observation"][:] = environments.observations  # they may change theirs
        columns["action"][:] = stored
        following = columns["next_observation"]
        rewards, terminations, truncations = [], [], []
        over: list[int] = []
        lost: list[int] = []
        environment_s = 0.0
        for k, action in enumerate(actions):
            started = now()
            try:
                observation, reward, terminated, truncated, _ = environments.envs[k].step(action)
            except RAISED as error:  # whatever a simulator raises
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
        columns["version"][:], columns["sequence"][:], columns["reward"][:] = version, environments.sequence, rewards
        columns["terminated"][:], columns["truncated"][:] = terminations, truncations
        columns["episode_length"][:] = columns["episode_return"][:] = 0
        # where each of them stands now
        environments.observations[:] = following
        environments.sequence += 1
        environments.length += 1
        environments.total += columns["reward"]
        if over:
            columns["episode_length"][over] = environments.length[over]
            columns["episode_return"][over] = environments.total[over]
            environments.length[over] = environments.total[over] = 0
        if not lost:
            return self.rows, over, environment_s
        environments.sequence[lost] -= 1
        environments.length[lost] = 0
        return np.delete(self.rows, lost), over, environment_s
