"""Leases: each machine's limits under the learner's one insert limit, and its actors' view of the other machines.

A machine counts its own steps since its agent's start; over all machines, only segments that have arrived count. Steps
in transit between the two are leased, and return to the pool if a machine is lost.
"""

from __future__ import annotations

import math

import numpy as np

from quarl.actorq.counters import Learner
from quarl.arrays import Array

MEMORY_S = 2.0
"""Seconds for which a machine's rate is remembered."""
AHEAD_S, AHEAD = 4.0, 1024
"""Maximum lease: seconds of steps, and steps of each machine's environments.

Leases of a machine that slows down make the others wait at the end of a run.
"""
EQUAL_SHARE = 0.5
"""Share of the steps in transit that all machines get equally, however slow; the rest follows their rates."""


class Leases:
    """The leases of all machines, by place; a place without a machine is not alive."""

    def __init__(self, num_nodes: int, num_envs: int) -> None:
        """Reserve a place for each machine; an actor steps all of its `num_envs` environments or none."""
        self._num_envs = num_envs
        self.received, self.granted = np.zeros(num_nodes), np.zeros(num_nodes)
        """float64 [nodes]: steps of the present agents that have arrived, and their limits."""
        self.alive = np.zeros(num_nodes, bool)
        self._recent = np.zeros(num_nodes)
        self._now = -math.inf

    def begin(self, node: int) -> None:
        """Register a new agent, which has made no step."""
        self.received[node] = self.granted[node] = self._recent[node] = 0
        self.alive[node] = True

    def lose(self, node: int) -> None:
        """Cancel the machine's steps in transit, which will not arrive."""
        self.granted[node] = self.received[node]
        self.alive[node] = False

    def insert(self, node: int, count: int) -> None:
        """Count steps that have arrived from the machine."""
        self.received[node] += count
        self._recent[node] += count

    @property
    def rate(self) -> float:
        """Recent steps per second of all machines."""
        return float(self._recent[self.alive].sum()) / MEMORY_S

    @property
    def shares(self) -> Array:
        """float64 [nodes]: shares of the steps in transit; 0 for lost machines."""
        recent = np.where(self.alive, self._recent, 0.0)
        equal: Array = self.alive / max(self.alive.sum(), 1)
        if not recent.any():
            return equal
        shares: Array = EQUAL_SHARE * equal + (1 - EQUAL_SHARE) * recent / recent.sum()
        return shares

    def grant(self, limit: float, total: float, now: float) -> None:
        """Distribute the steps up to `limit` over the machines.

        Args:
            limit: Maximum steps of all machines.
            total: Steps that have arrived.
            now: Current time, by time.monotonic().
        """
        # Forget old rates, and size the window.
        self._recent *= math.exp(min(self._now - now, 0.0) / MEMORY_S)
        self._now = now
        under_way = np.maximum(self.granted - self.received, 0)
        ahead = max(AHEAD_S * self.rate, AHEAD * self._num_envs * self.alive.sum())
        window, shares = min(max(limit - total, 0.0), ahead), self.shares
        free = window - under_way.sum()
        # Serve machines that hold the least of their share first, and the slower of equals.
        order = np.lexsort((self.received, under_way / np.maximum(shares, 1e-9)))
        for node in (node for node in order if self.alive[node]):
            wanted = min(shares[node] * window - under_way[node], free)
            if under_way[node] < self._num_envs <= free:
                wanted = max(wanted, self._num_envs)
            if wanted >= self._num_envs:  # whole steps of all environments: a part of one is useless
                more = wanted // self._num_envs * self._num_envs
                # two actors may both have made the last allowed step
                self.granted[node] = max(self.granted[node], self.received[node]) + more
                free -= more

    def cells(self, node: int, learner: Array, total: float, delay_s: float) -> Array:
        """Return the learner's cells in terms of one machine, whose actors count only their own machine's steps.

        Args:
            node: Place of the machine.
            learner: The learner's cells.
            total: Steps of all machines that have arrived.
            delay_s: Seconds until a new step arrives. A step is learned from after all others made meanwhile are in
                replay, too.
        """
        cells, share, received = learner.copy(), max(float(self.shares[node]), 1e-9), self.received[node]
        cells[Learner.INSERT_LIMIT] = self.granted[node]
        cells[Learner.RANDOM_UNTIL] = received + max(learner[Learner.RANDOM_UNTIL] - total, 0) * share
        per_insert = learner[Learner.UPDATES_PER_INSERT]
        cells[Learner.UPDATES_PER_INSERT] = per_insert / share
        cells[Learner.UPDATES_OFFSET] += per_insert * (total - received / share + self.rate * delay_s)
        return cells
