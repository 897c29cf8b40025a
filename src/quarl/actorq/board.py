"""Board: one writer publishes numbered snapshots, and any number of readers take the newest complete one.

Three slots with a sequence number each (a seqlock). The writer never waits, a reader that is overtaken takes the newer
snapshot, and neither can be blocked by the death of the other. An odd sequence number marks a slot that is being
written. Stores become visible in program order on x86-64; elsewhere a torn artifact is caught by its sha256.
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
"""Number of slots: the newest, the previous one that a slow reader may still copy, and the one being written."""
ORDERED = platform.machine().lower() in ("x86_64", "amd64")
"""True if the sequence numbers alone prove that a snapshot is complete."""
HEADER = np.dtype([("sequence", "i8"), ("version", "i8"), ("step", "i8"), ("size", "i8"), ("stamp_ns", "i8")])


@dataclass(frozen=True, eq=False, slots=True)
class _Held(Snapshot):
    """A snapshot that is read in place."""

    slot: int
    """Index of its slot on the board."""
    sequence: int
    """Sequence number of the slot while it holds this snapshot."""


class Board(Weights):
    """One process's handle on a board in shared memory."""

    def __init__(self, memory: Memory, name: str) -> None:
        self._headers = memory.array(f"{name}.headers")
        self._newest = memory.array(f"{name}.newest")  # [slot + 1, version]; slot + 1 is 0 while the board is empty
        self._data = memory.array(f"{name}.data")

    @staticmethod
    def blocks(name: str, capacity: int) -> dict[str, Block]:
        """Return the memory layout of a board whose snapshots have up to `capacity` bytes."""
        return {
            f"{name}.headers": Block(HEADER, (SLOTS,)),
            f"{name}.newest": Block(np.dtype("i8"), (2,)),
            f"{name}.data": Block(np.dtype("u1"), (SLOTS, capacity)),
        }

    def begin(self) -> Array:
        """Return the slot uint8 [capacity] for the next snapshot, which no reader takes before `commit`."""
        slot = self._free_slot()
        # Make an even number odd; if a writer died in between, make an odd number the next odd one.
        self._headers["sequence"][slot] += 1 + self._headers["sequence"][slot] % 2
        data: Array = self._data[slot]
        return data

    def commit(self, size: int, *, version: int, step: int, stamp_ns: int | None = None) -> None:
        """Publish the bytes written after `begin` as the newest snapshot.

        Args:
            size: Number of bytes written.
            version: Number of the snapshot.
            step: Learner updates behind it.
            stamp_ns: Learner's monotonic time in ns; None means now.
        """
        slot = self._free_slot()
        header = self._headers[slot]
        header["version"], header["step"], header["size"] = version, step, size
        header["stamp_ns"] = time.monotonic_ns() if stamp_ns is None else stamp_ns
        header["sequence"] += 1
        # Store the slot first: a writer that dies between the two stores has published, and its successor may publish
        # that version again.
        self._newest[0] = slot + 1
        self._newest[1] = version

    @contextlib.contextmanager
    def slot(self, size: int, *, version: int, step: int, stamp_ns: int | None = None) -> Iterator[Array]:
        """Yield the next slot's bytes uint8 [size] and publish them; if the block raises, readers never see them.

        Args:
            size: Number of bytes to write.
            version: Number of the snapshot.
            step: Learner updates behind it.
            stamp_ns: Learner's monotonic time in ns; None means now.
        """
        yield self.begin()[:size]
        self.commit(size, version=version, step=step, stamp_ns=stamp_ns)

    @property
    def version(self) -> int:
        return int(self._newest[1])

    def read(self, newer_than: int, make: Callable[[Array], Made]) -> tuple[Snapshot, Made] | None:
        """Read the newest snapshot in place; if it is overwritten meanwhile, read the then newest from a copy."""
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
        """Return the newest snapshot in place; results from its data are valid only if `holds` is true afterwards."""
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
        """Return True while the writer has not begun to overwrite the snapshot."""
        return bool(self._headers["sequence"][snapshot.slot] == snapshot.sequence)

    def _free_slot(self) -> int:
        return int(self._newest[0]) % SLOTS
