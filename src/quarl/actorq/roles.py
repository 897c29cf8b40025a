"""Who does what in a run of ActorQ, and through what they speak: read this first.

    supervisor    starts the others, revives the dead, evaluates while they stand still, and ends the run

    learner ──── floats ────► publisher ──── packed ────► actors
       ▲                                                     │
       └────────────────────── segments ─────────────────────┘

Each is a process. They share nothing but a Channel: two boards of weights, a queue of segments from each actor, and the
counters, of which each has one writer. None waits for another inside of it: a board has its newest weights, a
queue has room or not, and how far each may go stands in the counters.
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
"""Between two looks at a board, which cost 65 us beside two busy cores; where packing takes long, a push comes every
second or so."""


@dataclass(frozen=True, eq=False, slots=True)
class Snapshot:
    """Weights that were published."""

    version: int
    step: int
    """Learner updates behind them."""
    stamp_ns: int
    """time.monotonic_ns() of the learner when they came to be."""
    data: Array
    """uint8 [size]."""


class Weights(ABC):
    """One writer publishes numbered snapshots, and any number of readers take the newest; older ones are gone."""

    @property
    @abstractmethod
    def version(self) -> int:
        """Of the newest snapshot; 0 while there is none."""

    @abstractmethod
    def slot(self, size: int, *, version: int, step: int, stamp_ns: int | None = None) -> AbstractContextManager[Array]:
        """uint8 [size] to write the next snapshot into, which is published at the end of the block; never waits."""

    @abstractmethod
    def read(self, newer_than: int, make: Callable[[Array], Made]) -> tuple[Snapshot, Made] | None:
        """The newest snapshot and what `make` makes of its bytes; None where its version is not above `newer_than`.

        What is made keeps no views of the bytes. It is made once more where they changed meanwhile.
        """

    def pull(self, newer_than: int = 0) -> Snapshot | None:
        """The newest snapshot with bytes of its own, or None as in `read`."""
        read = self.read(newer_than, np.copy)
        return None if read is None else Snapshot(read[0].version, read[0].step, read[0].stamp_ns, read[1])

    def publish(self, data: bytes, *, version: int, step: int, stamp_ns: int | None = None) -> None:
        """Makes `data` the newest snapshot."""
        with self.slot(len(data), version=version, step=step, stamp_ns=stamp_ns) as slot:
            slot[:] = np.frombuffer(data, np.uint8)


class Channel(ABC):
    """All that the processes of a run say to each other. It is pickled into what each is told at its start."""

    counters: Counters
    floats: Weights
    """The learner's float32 numbers, as `Template` has them, for publisher and supervisor."""
    packed: Weights
    """The publisher's packed policies, for actors and supervisor."""
    dtype: np.dtype[Any]
    """Of a segment (segment.py)."""

    @abstractmethod
    def of(self, actor: int) -> Channel:
        """The same, for the actor of that number, who sends: `room`, `num_sent`, `send` and `send_rows` are its own."""

    @abstractmethod
    def room(self) -> int:
        """Segments that this actor can send before the learner takes some."""

    @abstractmethod
    def num_sent(self) -> int:
        """Segments that this actor and those before it in its place have sent."""

    @abstractmethod
    def send(self, head: Head, action: Any, observation: Array, next_observation: Array) -> None:
        """Writes one segment where the learner will read it; only where there is room."""

    @abstractmethod
    def send_rows(self, rows: Array) -> None:
        """Writes segments [n], of `dtype`, where the learner will read them; only where there is room for all."""

    @abstractmethod
    def num_waiting(self) -> int:
        """Segments that the learner could take now."""

    @abstractmethod
    def drain(self, rows: Array) -> int:
        """Copies the learner's next segments into `rows` [n], at most n of them, and takes them; how many there were.

        Each actor's lie together, in their order. Where there are more, those of the oldest weights are taken, so that
        none ages while younger ones are, and among equals actors in turn.
        """

    @abstractmethod
    def observations(self, num: int, rng: np.random.Generator) -> Array | None:
        """About `num` recent observations of all actors, for the publisher; None before there are any."""

    @abstractmethod
    def alone(self) -> bool:
        """Whether no other run shares this machine, so that cores may be given out."""

    @abstractmethod
    def remove(self) -> None:
        """Ends it, for all who have it."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """What a process of a run is told when it is started."""

    channel: Channel
    cores: frozenset[int] | None = None
    """It is pinned to; None: to none."""


class Role:
    """A process of a run: pinned where asked, and aware of its supervisor's end."""

    def __init__(self, start: Start) -> None:
        self.channel, self.counters = start.channel, start.channel.counters
        self._parent = parent_id()
        if start.cores is not None and hasattr(os, "sched_setaffinity"):
            with contextlib.suppress(OSError):  # not every container allows it, and it is only faster
                os.sched_setaffinity(0, start.cores)

    def orphaned(self) -> bool:
        """True when the supervisor is no more."""
        return os.getppid() != self._parent

    def stopped(self) -> bool:
        """Whether the supervisor wants an end, or is no more."""
        return bool(self.counters.control[Control.STOP]) or self.orphaned()


class Learner(Role, ABC):
    """Takes segments into replay, updates the model and pushes its float weights, as fast as the limiter allows."""

    def run(self) -> None:
        """From the first weights, which actors wait for, to the last."""
        self.begin()
        while not self.finished():
            self.step()
        self.conclude()

    @abstractmethod
    def begin(self) -> None:
        """Pushes the first weights for the actors, and saves: there is always something sound to go back to."""

    @abstractmethod
    def finished(self) -> bool:
        """True when steps or updates are done, or someone wants an end."""

    @abstractmethod
    def step(self) -> None:
        """One update where the limiter allows it; else the segments that have come in, or a moment's wait for them.

        Afterwards the counters say how far it came, and an evaluation that was due is over.
        """

    @abstractmethod
    def conclude(self) -> None:
        """Pushes and saves the last weights, and writes the model."""


class Publisher(Role, ABC):
    """Packs the newest float weights for actors. It never queues: when it is slow, versions are left out."""

    def run(self) -> None:
        """Publishes until it is told to stop."""
        while not self.stopped():
            if not self.publish():
                time.sleep(LOOK_S)

    @abstractmethod
    def publish(self) -> bool:
        """Packs and publishes the newest weights; False where there are none that are newer than the last."""


class Actor(Role, ABC):
    """Acts in environments with the newest packed policy, and sends every step as a segment."""

    def run(self) -> None:
        """Acts until it is told to stop."""
        while not self.stopped():
            if num_steps := self.allowed():
                self.act(num_steps)

    @abstractmethod
    def allowed(self) -> int:
        """Steps of all environments that may be made before the next look at the others; 0 after a moment's wait.

        Pulls newer weights where it is time to look for some, or those it has would become too old.
        """

    @abstractmethod
    def act(self, num_steps: int) -> None:
        """Makes at most so many steps of every environment, and sends what comes of them."""


class Supervisor(ABC):
    """Owns the channel, the processes and the folder of a run."""

    channel: Channel

    @abstractmethod
    def run(self) -> Generator[dict[str, Any]]:
        """Rows of metrics, one a second, while the others work; `result` is there when they end."""

    @abstractmethod
    def close(self) -> None:
        """Ends every process and gives the memory back; more than once does no harm."""
