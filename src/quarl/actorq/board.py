"""Board: one writer puts up numbered snapshots, any number of readers take the newest whole one.

Three slots and a sequence number each (a seqlock): the writer never waits, a reader that is overtaken takes the newer
one, and neither can be blocked by the death of the other. An odd sequence number marks a slot that is being written.
Stores become visible in program order on x86-64; elsewhere a torn artifact is caught by its sha256.
"""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from quarl.actorq.roles import Made, Snapshot, Weights
from quarl.actorq.shared_memory import Block, Memory
from quarl.arrays import Array
from quarl.errors import QuarlError

SLOTS = 3
"""The newest, the one before it, which a slow reader may still be copying, and the one being written."""
ORDERED = platform.machine().lower() in ("x86_64", "amd64")
"""Whether sequence numbers alone say that a snapshot is whole."""
HEADER = np.dtype([("sequence", "i8"), ("version", "i8"), ("step", "i8"), ("size", "i8"), ("stamp_ns", "i8")])


@dataclass(frozen=True, eq=False, slots=True)
class _Held(Snapshot):
    """A snapshot in place."""

    slot: int
    """Where on the board it lies."""
    sequence: int
    """The slot's number while it does."""


class Board(Weights):
    """One side's handle on a board in shared memory."""

    def __init__(self, memory: Memory, name: str) -> None:
        self._headers = memory.array(f"{name}.headers")
        self._newest = memory.array(f"{name}.newest")  # [slot + 1, version]; slot + 1 is 0 while there is nothing
        self._data = memory.array(f"{name}.data")

    @staticmethod
    def blocks(name: str, capacity: int) -> dict[str, Block]:
        """The memory of a board whose snapshots have up to `capacity` bytes."""
        return {
            f"{name}.headers": Block(HEADER, (SLOTS,)),
            f"{name}.newest": Block(np.dtype("i8"), (2,)),
            f"{name}.data": Block(np.dtype("u1"), (SLOTS, capacity)),
        }

    def begin(self) -> Array:
        """uint8 [capacity]: the slot to write the next snapshot into, which no reader takes before `commit`."""
        slot = self._free_slot()
        # From even to odd, or, where a writer died in here, from odd to the next odd.
        self._headers["sequence"][slot] += 1 + self._headers["sequence"][slot] % 2
        data: Array = self._data[slot]
        return data

    def commit(self, size: int, *, version: int, step: int, stamp_ns: int | None = None) -> None:
        """Makes what was written after `begin` the newest snapshot."""
        slot = self._free_slot()
        header = self._headers[slot]
        header["version"], header["step"], header["size"] = version, step, size
        header["stamp_ns"] = time.monotonic_ns() if stamp_ns is None else stamp_ns
        header["sequence"] += 1
        # The slot first: a writer that dies in between has published, and its successor may do so once more.
        self._newest[0] = slot + 1
        self._newest[1] = version

    @contextlib.contextmanager
    def slot(self, size: int, *, version: int, step: int, stamp_ns: int | None = None) -> Iterator[Array]:
        """The board's own bytes; where the block raises, they are never seen."""
        yield self.begin()[:size]
        self.commit(size, version=version, step=step, stamp_ns=stamp_ns)

    @property
    def version(self) -> int:
        return int(self._newest[1])

    def read(self, newer_than: int, make: Callable[[Array], Made]) -> tuple[Snapshot, Made] | None:
        """In place; where the writer began to write over it meanwhile, once more, from a copy of the newest."""
        overtaken = False
        while (snapshot := self.peek(newer_than)) is not None:
            if overtaken:
                snapshot = replace(snapshot, data=snapshot.data.copy())
                if not self.holds(snapshot):
                    continue
                return snapshot, make(snapshot.data)
            try:
                value = make(snapshot.data)
            except QuarlError:
                if self.holds(snapshot):
                    raise
            else:
                if self.holds(snapshot):
                    return snapshot, value
            overtaken = True
        return None

    def peek(self, newer_than: int = 0) -> _Held | None:
        """The newest snapshot in place: whatever was made of its data counts only where `holds` is true afterwards."""
        while (slot := int(self._newest[0]) - 1) >= 0:
            header = self._headers[slot].copy()
            if header["sequence"] % 2 == 0:
                if header["version"] <= newer_than:
                    return None
                return _Held(
                    version=int(header["version"]),
                    step=int(header["step"]),
                    stamp_ns=int(header["stamp_ns"]),
                    data=self._data[slot, : int(header["size"])],
                    slot=slot,
                    sequence=int(header["sequence"]),
                )
        return None

    def holds(self, snapshot: _Held) -> bool:
        """Whether the writer has not begun to write over it."""
        return bool(self._headers["sequence"][snapshot.slot] == snapshot.sequence)

    def _free_slot(self) -> int:
        return int(self._newest[0]) % SLOTS
