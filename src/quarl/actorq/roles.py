"""The roles of a run of ActorQ and the channel between them: read this first.

    supervisor    starts the others, restarts dead ones, evaluates while they pause, and ends the run.

    learner ──── floats ────► publisher ──── packed ────► actors
       ▲                                                     │
       └────────────────────── segments ─────────────────────┘

Each role is a process. They share nothing but a Channel: two boards of weights, a queue of segments from each actor,
and the counters, each with one writer. No process waits for another inside the channel: a board has its newest weights,
a queue has room or not, and the counters hold the limits of each process.
"""

from __future__ import annotations

import contextlib
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from quarl.actorq.counters import Control, Counters
from quarl.actorq.segment import Head
from quarl.arrays import Array
from quarl.processes.inside import parent_id

Made = TypeVar("Made")
LOOK_S = 0.003
"""Seconds between two checks of a board; a check costs 65 us beside two busy cores.

If packing is slow, weights are pushed about once a second.
"""


@dataclass(frozen=True, eq=False, slots=True)
class Snapshot:
    """Published weights."""

    version: int
    step: int
    """Learner updates behind the weights."""
    stamp_ns: int
    """Learner's monotonic time in ns at which the weights were produced."""
    data: Array
    """uint8 [size]."""


class Weights(ABC):
    """A board: one writer publishes numbered snapshots, any number of readers take the newest; older ones are lost."""

    @property
    @abstractmethod
    def version(self) -> int:
        """Version of the newest snapshot; 0 before the first."""

    @abstractmethod
    def slot(self, size: int, *, version: int, step: int, stamp_ns: int | None = None) -> AbstractContextManager[Array]:
        """Yield uint8 [size] for the next snapshot and publish it at the end of the block; never waits.

        Args:
            size: Number of bytes.
            version: Number of the snapshot.
            step: Learner updates behind it.
            stamp_ns: Learner's monotonic time in ns; None means now.
        """

    @abstractmethod
    def read(self, newer_than: int, make: Callable[[Array], Made]) -> tuple[Snapshot, Made] | None:
        """Return the newest snapshot and `make` of its bytes; None if its version is not above `newer_than`.

        The result of `make` must not keep views of the bytes. `make` runs again if they changed meanwhile.
        """

    def pull(self, newer_than: int = 0) -> Snapshot | None:
        """Return the newest snapshot with its own copy of the bytes, or None as in `read`."""
        read = self.read(newer_than, np.copy)
        return None if read is None else Snapshot(read[0].version, read[0].step, read[0].stamp_ns, read[1])

    def publish(self, data: bytes, *, version: int, step: int, stamp_ns: int | None = None) -> None:
        """Publish `data` as the newest snapshot.

        Args:
            data: Bytes of the snapshot.
            version: Number of the snapshot.
            step: Learner updates behind it.
            stamp_ns: Learner's monotonic time in ns; None means now.
        """
        with self.slot(len(data), version=version, step=step, stamp_ns=stamp_ns) as slot:
            slot[:] = np.frombuffer(data, np.uint8)


class Channel(ABC):
    """The shared state of a run's processes; it is pickled into the start arguments of each."""

    counters: Counters
    floats: Weights
    """The learner's float32 numbers, in `Template`'s layout, for publisher and supervisor."""
    packed: Weights
    """The publisher's packed policies, for actors and supervisor."""
    dtype: np.dtype[Any]
    """Row type of a segment (segment.py)."""

    @abstractmethod
    def of(self, actor: int) -> Channel:
        """Return the channel of one actor: `room`, `num_sent`, `send` and `send_rows` are that actor's own."""

    @abstractmethod
    def room(self) -> int:
        """Return the number of segments that this actor can send before the learner takes some."""

    @abstractmethod
    def num_sent(self) -> int:
        """Return the number of segments that this actor and its predecessors have sent."""

    @abstractmethod
    def send(self, head: Head, action: Any, observation: Array, next_observation: Array) -> None:
        """Write one segment for the learner; the caller must have checked that there is room.

        Args:
            head: Fields of the row up to `truncated`.
            action: Action as replay stores it.
            observation: Observation before the step.
            next_observation: Observation after the step.
        """

    @abstractmethod
    def send_rows(self, rows: Array) -> None:
        """Write segments [n] of `dtype` for the learner; the caller must have checked that there is room for all."""

    @abstractmethod
    def num_waiting(self) -> int:
        """Return the number of segments that the learner could take now."""

    @abstractmethod
    def drain(self, rows: Array) -> int:
        """Take the learner's next segments into `rows` [n], at most n of them, and return their number.

        Each actor's segments are contiguous and in order. If more are waiting, those of the oldest weights are taken,
        so that none ages while newer ones are taken. Among equals, actors take turns.
        """

    @abstractmethod
    def observations(self, num: int, rng: np.random.Generator) -> Array | None:
        """Return about `num` recent observations of all actors, for the publisher; None before there are any."""

    @abstractmethod
    def alone(self) -> bool:
        """Return True if no other run shares this machine, so that cores may be assigned."""

    @abstractmethod
    def remove(self) -> None:
        """Remove the channel for all processes that use it."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """The start arguments that every process of a run has."""

    channel: Channel
    cores: frozenset[int] | None = None
    """Cores to pin the process to; None pins it to none."""


class Role:
    """A process of a run: pinned to cores if requested, and aware of its supervisor's end."""

    def __init__(self, start: Start) -> None:
        self.channel, self.counters = start.channel, start.channel.counters
        self._parent = parent_id()
        if start.cores is not None and hasattr(os, "sched_setaffinity"):
            with contextlib.suppress(OSError):  # some containers forbid it, and it only makes the run faster
                os.sched_setaffinity(0, start.cores)

    def orphaned(self) -> bool:
        """Return True if the supervisor has exited."""
        return os.getppid() != self._parent

    def stopped(self) -> bool:
        """Return True if the supervisor requests an end, or has exited."""
        return bool(self.counters.control[Control.STOP]) or self.orphaned()


class Learner(Role, ABC):
    """The role that inserts segments into replay, updates the model and pushes weights at the limiter's pace."""

    def run(self) -> None:
        """Run from the first weights, which actors wait for, to the last."""
        self.begin()
        while not self.finished():
            self.step()
        self.conclude()

    @abstractmethod
    def begin(self) -> None:
        """Push the first weights for the actors, and save them: there is always a valid checkpoint to return to."""

    @abstractmethod
    def finished(self) -> bool:
        """Return True when all steps or updates are done, or an end was requested."""

    @abstractmethod
    def step(self) -> None:
        """Make one update if the limiter allows it; otherwise take in segments, or wait a moment for some.

        Afterwards the counters show the progress, and an evaluation that was due is complete.
        """

    @abstractmethod
    def conclude(self) -> None:
        """Push and save the last weights, and write the model."""


class Publisher(Role, ABC):
    """The role that packs the newest float weights for actors. It never queues: if it is slow, it skips versions."""

    def run(self) -> None:
        """Publish until the run stops."""
        while not self.stopped():
            if not self.publish():
                time.sleep(LOOK_S)

    @abstractmethod
    def publish(self) -> bool:
        """Pack and publish the newest weights; return False if there are none newer than the last."""


class Actor(Role, ABC):
    """The role that acts in environments with the newest packed policy, and sends every step as a segment."""

    def run(self) -> None:
        """Act until the run stops."""
        while not self.stopped():
            if num_steps := self.allowed():
                self.act(num_steps)

    @abstractmethod
    def allowed(self) -> int:
        """Return the number of steps of all environments until the next check of the others; 0 after a short wait.

        Pull newer weights if a pull is due, or if the current ones would become too old.
        """

    @abstractmethod
    def act(self, num_steps: int) -> None:
        """Make at most `num_steps` steps of every environment, and send the segments."""


class Supervisor(ABC):
    """The role that owns the channel, the processes and the folder of a run."""

    channel: Channel

    @abstractmethod
    def run(self) -> Generator[dict[str, Any]]:
        """Yield a row of metrics every second while the others work; `result` is set when they end."""

    @abstractmethod
    def close(self) -> None:
        """End every process and free the memory; repeated calls are harmless."""
