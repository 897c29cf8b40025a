"""A second transport for ActorQ: a channel of this process's own objects, and threads in place of processes."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import traceback
from collections import deque

import numpy as np

from quarl.actorq import actor, learner, publisher
from quarl.actorq.actor import ActorLoop
from quarl.actorq.counters import Counters
from quarl.actorq.learner import LearnerLoop
from quarl.actorq.publisher import PublisherLoop
from quarl.actorq.roles import Channel, Snapshot, Weights
from quarl.processes.child import Children

RECENT = 512


class Cells:
    """The counters' arrays, which nobody else has."""

    def __init__(self, blocks):
        self.arrays = {name: np.zeros(block.shape, block.dtype) for name, block in blocks.items()}

    def array(self, name):
        return self.arrays[name]


class Newest(Weights):
    """The newest snapshot, handed over by its name alone."""

    def __init__(self):
        self.snapshot = None

    @property
    def version(self):
        return self.snapshot.version if self.snapshot else 0

    @contextlib.contextmanager
    def slot(self, size, *, version, step, stamp_ns=None):
        data = np.zeros(size, np.uint8)
        yield data
        self.snapshot = Snapshot(version, step, time.monotonic_ns() if stamp_ns is None else stamp_ns, data)

    def read(self, newer_than, make):
        snapshot = self.snapshot
        if snapshot is None or snapshot.version <= newer_than:
            return None
        return snapshot, make(snapshot.data)


class InMemoryChannel(Channel):
    """Queues of this process."""

    def __init__(self, num_actors, num_floats, dtype, rows):
        self.counters = Counters(Cells(Counters.blocks(num_actors)))
        self.floats, self.packed, self.dtype, self.removed = Newest(), Newest(), dtype, False
        self.queues = [deque() for _ in range(num_actors)]
        self.counts = [0] * num_actors
        self.recent, self.capacity, self.turn = deque(maxlen=RECENT), rows, 0

    def of(self, index):
        return Sender(self, index)

    def room(self):
        raise AssertionError("only an actor sends")

    num_sent = send = send_rows = room

    def num_waiting(self):
        return sum(map(len, self.queues))

    def drain(self, rows):
        """As the contract says, a segment at a time."""
        taken = []
        while len(taken) < len(rows) and any(self.queues):
            turns = [(self.turn + i) % len(self.queues) for i in range(len(self.queues))]
            chosen = min((i for i in turns if self.queues[i]), key=lambda i: int(self.queues[i][0]["version"]))
            taken.append(self.queues[chosen].popleft())
            self.turn = (chosen + 1) % len(self.queues)
        rows[: len(taken)] = sorted(taken, key=lambda row: row["actor"])
        return len(taken)

    def observations(self, num, rng):
        recent = list(self.recent)
        return np.stack([recent[i] for i in rng.integers(len(recent), size=num)]) if recent else None

    def alone(self):
        return False

    def remove(self):
        self.removed = True


class Sender(InMemoryChannel):
    """The same for one actor."""

    def __init__(self, whole, index):
        self.__dict__.update(whole.__dict__)
        self.index = index

    def room(self):
        return self.capacity - len(self.queues[self.index])

    def num_sent(self):
        return self.counts[self.index]

    def send(self, head, action, observation, next_observation):
        row = np.zeros((), self.dtype)
        for name, value in zip(self.dtype.names, (*head, action, observation, next_observation), strict=True):
            row[name] = value
        self.send_rows(row[None])

    def send_rows(self, rows):
        for row in rows:
            self.recent.append(row["observation"].copy())
            self.queues[self.index].append(row.copy())
        self.counts[self.index] += len(rows)


LOOPS = {learner.main: LearnerLoop, publisher.main: PublisherLoop, actor.main: ActorLoop}


class Thread(threading.Thread):
    """What a supervisor asks of a process."""

    def __init__(self, child):
        super().__init__(name=child.name, daemon=True)
        self.child, self.exitcode = child, None
        self.sentinel, self.end = os.pipe()

    def run(self):
        try:
            LOOPS[self.child.main](self.child.spec).run()
            self.exitcode = 0
        except Exception:
            traceback.print_exc()
            self.exitcode = 1
        os.close(self.end)

    def kill(self):
        """Threads end when they are told to."""


class Threads(Children):
    """Children as threads of this process."""

    def start(self, child):
        self._members.append(child)
        child.process = Thread(child)
        child.process.start()
        child.started, child.not_before = time.monotonic(), 0.0
