"""The agent of one machine: its own memory, the actors that share it, and answers to the learner's relay.

It is an actor of Ray. The machine's actors see the same as without a cluster; Ray is not between them and their memory.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from quarl.actorq.channel import LocalChannel
from quarl.actorq.counters import Actor, Control, Learner
from quarl.actorq.family import ActorFamily
from quarl.actorq.faults import Fault
from quarl.arrays import Array
from quarl.cluster import begin_here
from quarl.config import ActorQConfig
from quarl.files import temporary_folder
from quarl.processes.child import Children

NAP_S, LONG_NAP_S = 0.002, 0.02
"""Seconds between two checks of the rings: if actors will soon reach their limit, and at most."""
LOOK_S = 0.05
"""Seconds between two checks of the actors."""
GRACE_S = 2.0
"""Seconds for actors to exit."""
HISTOGRAMS_S = 1.0
"""Seconds between two copies of the histograms."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """The start arguments of an agent."""

    config: ActorQConfig
    first: int
    """Number of its first actor among the actors of all machines."""
    rungs: Sequence[float]
    """Exploration rungs of its actors."""
    cores: Mapping[str, Sequence[frozenset[int] | None]]
    """Cores of all actors, by machine name, if they must leave the learner its cores."""
    incarnation: int
    """Number of the first actor processes, unique to this agent, as are the numbers that follow."""
    sizes: tuple[int, np.dtype[Any], int]
    """Sizes of the learner's channel."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """The news of an agent since its last report."""

    rows: Array
    """Segments; each actor's are contiguous, and `actor` counts from 0."""
    cells: Array
    """Cells of the actors, with heartbeats as seconds since then."""
    histograms: tuple[Array, Array] | None
    """Latencies and blocked times of its actors so far; not in every report."""
    alive: int
    at_work: int
    said: Sequence[str | Fault]
    mistake: str
    """User error in the words of the actors' machine; empty if there is none."""


class NodeAgent:
    """The agent that Ray runs on a machine; its methods are called concurrently, after `begin`."""

    def __init__(self) -> None:
        self._stop: threading.Event | None = None
        self._folder = ExitStack()
        self._said: list[str | Fault] = []
        self._mistake = ""

    def begin(self, order: Order) -> str:
        """End earlier work, start actors in new memory, and return the machine's name."""
        self.end()
        name = begin_here()
        folder = self._folder.enter_context(temporary_folder())
        config, num = replace(order.config, output=folder), len(order.rungs)
        self._channel = LocalChannel.create(num, *order.sizes, named=False)
        self._most, self._num_envs = num * order.sizes[-1] // 2, config.num_envs
        self._shown = -np.inf
        self._said, self._mistake, self._stop = [], "", threading.Event()
        cores = order.cores.get(name, [None] * (order.first + num))[order.first :]
        self._family = ActorFamily(config, self._channel, order.rungs, cores, order.incarnation, self._said.append)
        # actors die with the thread that started them: it lives as long as they do
        self._keeper = threading.Thread(target=partial(self._keep, self._stop), daemon=True)
        self._keeper.start()
        return name

    def _keep(self, stop: threading.Event) -> None:
        """Start the actors, and restart those that die, until the end."""
        children = Children()
        try:
            for child in self._family.children:
                children.start(child)
            while not stop.wait(LOOK_S) and not self._mistake:
                self._family.look()
                self._mistake = self._family.revive(children)
            self._channel.counters.control[Control.STOP] = 1
            children.wind_up(GRACE_S)
        finally:
            children.close()

    def tell(self, cells: Array) -> float:
        """Take the learner's cells, with limits for this machine; return this machine's time.monotonic()."""
        self._channel.counters.learner[:] = cells
        return time.monotonic()

    def load(self, data: Array, version: int, step: int, stamp_ns: int) -> float:
        """Publish weights for the actors, and return this machine's time.monotonic() afterwards.

        Args:
            data: Bytes of the packed weights.
            version: Number of the weights.
            step: Learner updates behind them.
            stamp_ns: Time in ns at which they were produced, by this machine's clock.
        """
        with self._channel.packed.slot(len(data), version=version, step=step, stamp_ns=stamp_ns) as slot:
            slot[:] = data
        return time.monotonic()

    def collect(self, most: int, patience_s: float) -> Report:
        """Take up to `most` segments of the actors, once `most` wait, `patience_s` has passed, or no more can come."""
        channel, counters, most = self._channel, self._channel.counters, min(most, self._most)
        began = time.monotonic()
        while (waiting := channel.num_waiting()) < most and (took_s := time.monotonic() - began) < patience_s:
            left = counters.learner[Learner.INSERT_LIMIT] - counters.actors[:, Actor.STEPS].sum()
            if self._mistake or (waiting and left < self._num_envs):
                break  # no actor can make another step until the limit is raised
            # sleep for half the time in which the missing segments will arrive at this pace
            nap_s = 0.5 * min(left, most - waiting) * took_s / waiting if waiting else NAP_S
            time.sleep(min(max(nap_s, NAP_S), LONG_NAP_S))
        # Take the segments and the actors' news.
        rows = np.empty(min(channel.num_waiting(), most), channel.dtype)
        taken = channel.drain(rows) if len(rows) else 0
        cells, now = counters.actors.copy(), time.monotonic()
        cells[:, Actor.HEARTBEAT_S] = now - cells[:, Actor.HEARTBEAT_S]
        histograms = None
        if now - self._shown >= HISTOGRAMS_S:
            self._shown = now
            histograms = counters.latency_ms.copy(), counters.blocked_ms.copy()
        said, self._said[:] = self._said[:], []
        return Report(
            rows=rows[:taken],
            cells=cells,
            histograms=histograms,
            alive=self._family.num_alive,
            at_work=self._family.num_at_work,
            said=said,
            mistake=self._mistake,
        )

    def end(self) -> None:
        """Stop the actors and free their memory."""
        if self._stop is not None:
            self._stop.set()
            self._keeper.join()
            self._channel.remove()
            self._folder.close()
            self._stop = None
