"""The agent of one machine: memory of its own, the actors that share it, and answers to the learner's relay.

It is an actor of Ray. What the actors of a machine see is what they see without a cluster; nothing of Ray is between
them and their memory.
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
from quarl.arrays import Array
from quarl.cluster import begin_here
from quarl.config import ActorQConfig
from quarl.files import temporary_folder
from quarl.processes.child import Children

NAP_S, LONG_NAP_S = 0.002, 0.02
"""Between two looks at the rings: where actors will soon be at their limit, and at most."""
LOOK_S = 0.05
"""Between two looks at the actors."""
GRACE_S = 2.0
"""For actors to leave."""
HISTOGRAMS_S = 1.0
"""Between two of them."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """What an agent is to begin."""

    quarl: str
    """The learner's version."""
    config: ActorQConfig
    run: str
    """Names the run's folder of logs on each machine."""
    first: int
    """Number of its first actor among those of all machines."""
    rungs: Sequence[float]
    """Of its actors."""
    cores: Mapping[str, Sequence[frozenset[int] | None]]
    """Of all actors, by the names of machines where they are not to take the learner's."""
    incarnation: int
    """Of their first processes; no other agent of the run has it, nor those that follow."""
    sizes: tuple[int, np.dtype[Any], int]
    """Of the learner's channel."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What an agent has since the last one."""

    rows: Array
    """Segments; each actor's lie together, and `actor` counts from 0."""
    cells: Array
    """The actors', their heartbeats as seconds since then."""
    histograms: tuple[Array, Array] | None
    """Latencies and blocked times of its actors so far; not in each report."""
    alive: int
    at_work: int
    deaths: int
    cpu_s: float
    said: Sequence[str]
    mistake: str
    """What the user got wrong, as the actors' machine says it; empty: nothing."""


class NodeAgent:
    """The methods are called side by side, `begin` before all others."""

    def __init__(self) -> None:
        self._stop: threading.Event | None = None
        self._folder = ExitStack()
        self._said: list[str] = []
        self._mistake = ""

    def begin(self, order: Order) -> str:
        """Ends what it did, and starts actors in new memory; the machine's name."""
        self.end()
        name = begin_here(order.quarl)
        folder = self._folder.enter_context(temporary_folder())
        config, num = replace(order.config, output=folder), len(order.rungs)
        self._channel = LocalChannel.create(num, *order.sizes, named=False)
        self._most, self._num_envs = num * order.sizes[-1] // 2, config.num_envs
        self._shown = -np.inf
        self._said, self._mistake, self._stop = [], "", threading.Event()
        cores = order.cores.get(name, [None] * (order.first + num))[order.first :]
        self._family = ActorFamily(config, self._channel, order.rungs, cores, order.incarnation, self._said.append)
        # actors die with the thread that started them: it lasts as long as they
        self._keeper = threading.Thread(target=partial(self._keep, self._stop), daemon=True)
        self._keeper.start()
        return name

    def _keep(self, stop: threading.Event) -> None:
        """Starts the actors, and again those that die, until the end."""
        children = Children(self._said.append)
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
        """Takes the learner's cells, with limits that are this machine's; its time.monotonic()."""
        self._channel.counters.learner[:] = cells
        return time.monotonic()

    def load(self, data: Array, version: int, step: int, stamp_ns: int) -> float:
        """Puts weights up for the actors; its time.monotonic() when they were there. stamp_ns: by this clock."""
        with self._channel.packed.slot(len(data), version=version, step=step, stamp_ns=stamp_ns) as slot:
            slot[:] = data
        return time.monotonic()

    def collect(self, most: int, patience_s: float) -> Report:
        """Takes the actors' segments: when there are so many, the time is over, or more cannot come."""
        channel, counters, most = self._channel, self._channel.counters, min(most, self._most)
        began = time.monotonic()
        while (waiting := channel.num_waiting()) < most and (took_s := time.monotonic() - began) < patience_s:
            left = counters.learner[Learner.INSERT_LIMIT] - counters.actors[:, Actor.STEPS].sum()
            if self._mistake or (waiting and left < self._num_envs):
                break  # no actor can make another step of its environments before it is allowed more
            # half the time that so many, or the last ones that are allowed, will take at this pace
            nap_s = 0.5 * min(left, most - waiting) * took_s / waiting if waiting else NAP_S
            time.sleep(min(max(nap_s, NAP_S), LONG_NAP_S))
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
            deaths=self._family.num_deaths,
            cpu_s=time.process_time(),
            said=said,
            mistake=self._mistake,
        )

    def end(self) -> None:
        """Nothing of its actors and their memory is left."""
        if self._stop is not None:
            self._stop.set()
            self._keeper.join()
            self._channel.remove()
            self._folder.close()
            self._stop = None
