"""Leases: how far the actors of each machine may go under the learner's one insert limit, and what they know of others.

A machine counts its own steps from its agent's begin; over all machines count those whose segments are here. What is
under way between the two is leased, and comes back where a machine is lost.
"""

from __future__ import annotations

import math

import numpy as np

from quarl.actorq.counters import Learner
from quarl.arrays import Array

MEMORY_S = 2.0
"""For which a machine's rate is remembered."""
AHEAD_S, AHEAD = 4.0, 1024
"""Seconds of steps that are leased at once, and steps of each machine's environments, at most: what one that slows down
holds, others wait for in the end of a run."""
EQUAL_SHARE = 0.5
"""Of the steps that may be under way, which goes to all machines alike, however slow; the rest goes by their rates."""


class Leases:
    """Of all machines, each by its place; a place without a machine is not alive."""

    def __init__(self, num_nodes: int, num_envs: int) -> None:
        """num_envs: environments of an actor, which steps them all or none."""
        self._num_envs = num_envs
        self.received, self.granted = np.zeros(num_nodes), np.zeros(num_nodes)
        """float64 [nodes]: steps of the present agents that are here, and up to which they may go."""
        self.alive = np.zeros(num_nodes, bool)
        self._recent = np.zeros(num_nodes)
        self._now = -math.inf

    def begin(self, node: int) -> None:
        """A new agent, which has made no step."""
        self.received[node] = self.granted[node] = self._recent[node] = 0
        self.alive[node] = True

    def lose(self, node: int) -> None:
        """What the machine had under way will not come."""
        self.granted[node] = self.received[node]
        self.alive[node] = False

    def insert(self, node: int, count: int) -> None:
        """So many of its steps are here."""
        self.received[node] += count
        self._recent[node] += count

    @property
    def rate(self) -> float:
        """Steps a second of all machines, lately."""
        return float(self._recent[self.alive].sum()) / MEMORY_S

    @property
    def shares(self) -> Array:
        """float64 [nodes]: of the steps that may be under way; 0 for the lost."""
        recent = np.where(self.alive, self._recent, 0.0)
        equal: Array = self.alive / max(self.alive.sum(), 1)
        if not recent.any():
            return equal
        shares: Array = EQUAL_SHARE * equal + (1 - EQUAL_SHARE) * recent / recent.sum()
        return shares

    def grant(self, limit: float, total: float, now: float) -> None:
        """Shares out the steps up to `limit` of all machines, of which `total` are here; now: time.monotonic()."""
        self._recent *= math.exp(min(self._now - now, 0.0) / MEMORY_S)
        self._now = now
        under_way = np.maximum(self.granted - self.received, 0)
        ahead = max(AHEAD_S * self.rate, AHEAD * self._num_envs * self.alive.sum())
        window, shares = min(max(limit - total, 0.0), ahead), self.shares
        free = window - under_way.sum()
        # those that have least of their share first, and the slower of equals
        order = np.lexsort((self.received, under_way / np.maximum(shares, 1e-9)))
        for node in (node for node in order if self.alive[node]):
            wanted = min(shares[node] * window - under_way[node], free)
            if under_way[node] < self._num_envs <= free:
                wanted = max(wanted, self._num_envs)
            if wanted >= self._num_envs:  # whole steps of all environments: less would be of use to nobody
                more = wanted // self._num_envs * self._num_envs
                # two actors may both have made the last step that was allowed
                self.granted[node] = max(self.granted[node], self.received[node]) + more
                free -= more

    def cells(self, node: int, learner: Array, total: float, delay_s: float) -> Array:
        """The learner's cells as the machine's actors are to read them, who know of no steps but their machine's.

        delay_s: until a step that is made there is here. A step is learnt from when all others that are made
        meanwhile are in replay, too.
        """
        cells, share, received = learner.copy(), max(float(self.shares[node]), 1e-9), self.received[node]
        cells[Learner.INSERT_LIMIT] = self.granted[node]
        cells[Learner.RANDOM_UNTIL] = received + max(learner[Learner.RANDOM_UNTIL] - total, 0) * share
        per_insert = learner[Learner.UPDATES_PER_INSERT]
        cells[Learner.UPDATES_PER_INSERT] = per_insert / share
        cells[Learner.UPDATES_OFFSET] += per_insert * (total - received / share + self.rate * delay_s)
        return cells
