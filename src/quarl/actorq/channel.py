"""The channel of processes on one machine: boards, rings and counters in memory that they share."""

from __future__ import annotations

from typing import Any

import numpy as np

from quarl.actorq.board import Board
from quarl.actorq.counters import Counters
from quarl.actorq.roles import Channel
from quarl.actorq.segment import HEAD, Head
from quarl.actorq.shared_memory import LINE, Block, Memory
from quarl.arrays import Array

LEARNER_BOARD, ACTOR_BOARD = "float", "packed"
ARTEFACT_SLACK = 2**20
"""Bytes that an artifact may have beyond its float32 weights: names, scales, zero points."""
_STRIDE = LINE // 8


class Ring:
    """One side's handle on a bounded queue of segments from one actor to the learner, in shared memory.

    One writer, one reader, two counters: the rows below `head` are written, those below `tail` are taken. Each counter
    has one writer and a cache line of its own, so neither side ever locks, and whichever dies leaves only whole rows
    behind.
    """

    def __init__(self, memory: Memory, name: str) -> None:
        self.rows = memory.array(f"{name}.rows")
        """The segments themselves; the writer fills row `index(k)` for the k-th row after `head`, then commits."""
        self.capacity = len(self.rows)
        counters = memory.array(f"{name}.counters")
        self._head, self._tail = counters[:1], counters[_STRIDE : _STRIDE + 1]
        self._written = int(self._head[0])
        self._bytes = self.rows.view(np.uint8).reshape(self.capacity, -1)

    @staticmethod
    def blocks(name: str, dtype: np.dtype[Any], capacity: int) -> dict[str, Block]:
        """The memory of a ring of `capacity` rows."""
        return {
            f"{name}.rows": Block(dtype, (capacity,)),
            f"{name}.counters": Block(np.dtype("i8"), (2 * _STRIDE,)),
        }

    def free(self) -> int:
        """Rows that can be written before the reader must take some."""
        return self.capacity - (self._written - int(self._tail[0]))

    def index(self, k: int) -> int:
        """Where the k-th uncommitted row lies in `rows`."""
        return (self._written + k) % self.capacity

    def put(self, rows: Array) -> None:
        """Writes uint8 [n, bytes of a row], for which there must be room, and hands them over at once."""
        start, num = self.index(0), len(rows)
        first = min(num, self.capacity - start)
        self._bytes[start : start + first] = rows[:first]
        if first < num:
            self._bytes[: num - first] = rows[first:]
        self.commit(num)

    def commit(self, num: int) -> None:
        """Hands over the next `num` rows, which have been filled."""
        self._written += num
        self._head[0] = self._written

    @property
    def num_written(self) -> int:
        """Rows that were ever handed over."""
        return int(self._head[0])

    @property
    def num_waiting(self) -> int:
        """Rows that are written and not taken."""
        return int(self._head[0]) - int(self._tail[0])

    def versions(self, num: int) -> Array:
        """Those of the weights behind the oldest `num` rows."""
        versions: Array = self.rows["version"].take(np.arange(self._tail[0], self._tail[0] + num), mode="wrap")
        return versions

    def take_into(self, rows: Array) -> None:
        """Takes as many of the oldest rows, which must be there, as uint8 [n, bytes of a row] has room for."""
        start, num = int(self._tail[0]) % self.capacity, len(rows)
        first = min(num, self.capacity - start)
        rows[:first] = self._bytes[start : start + first]
        if first < num:
            rows[first:] = self._bytes[: num - first]
        self._tail[0] += num


class LocalChannel(Channel):
    """Pickled, it is the same channel in another process."""

    def __init__(self, memory: Memory, actor: int | None = None) -> None:
        self._memory, self._actor, self._next = memory, actor, 0
        self.counters = Counters(memory)
        self.floats, self.packed = Board(memory, LEARNER_BOARD), Board(memory, ACTOR_BOARD)
        self._rings = [Ring(memory, f"ring{i}") for i in range(len(self.counters.actors))]
        self.dtype = self._rings[0].rows.dtype
        if actor is not None:
            self._ring = ring = self._rings[actor]
            self._bytes, self._stride = ring.rows.view(np.uint8).data, self.dtype.itemsize
            self._actions, self._observations = ring.rows["action"], ring.rows["observation"]
            self._next_observations = ring.rows["next_observation"]

    @classmethod
    def create(
        cls,
        num_actors: int,
        num_floats: int,
        dtype: np.dtype[Any],
        ring_rows: int,
        *,
        num_nodes: int = 0,
        named: bool = True,
    ) -> LocalChannel:
        """New memory for weights of so many numbers, and for so many segments of each actor on their way.

        num_nodes: machines of the cluster that it is the learner's end of. named: as for `Memory.create`.
        """
        blocks = Counters.blocks(num_actors, num_nodes)
        blocks |= Board.blocks(LEARNER_BOARD, 4 * num_floats)
        blocks |= Board.blocks(ACTOR_BOARD, 4 * num_floats + ARTEFACT_SLACK)
        for i in range(num_actors):
            blocks |= Ring.blocks(f"ring{i}", dtype, ring_rows)
        return cls(Memory.create(blocks, named=named))

    @property
    def sizes(self) -> tuple[int, np.dtype[Any], int]:
        """Numbers of the weights, dtype of segments and rows of a ring, as `create` was told."""
        return self._memory.array(f"{LEARNER_BOARD}.data").shape[1] // 4, self.dtype, self._rings[0].capacity

    def __reduce__(self) -> tuple[type[LocalChannel], tuple[Memory, int | None]]:
        return LocalChannel, (self._memory, self._actor)

    def of(self, actor: int) -> LocalChannel:
        """The same memory, and that actor's ring to send through."""
        return LocalChannel(self._memory, actor)

    def room(self) -> int:
        """Free rows of this actor's ring."""
        return self._ring.free()

    def num_sent(self) -> int:
        """Rows ever committed to this actor's ring."""
        return self._ring.num_written

    def send(self, head: Head, action: Any, observation: Array, next_observation: Array) -> None:
        """Writes the next row of this actor's ring in place, and commits it."""
        place = self._ring.index(0)
        HEAD.pack_into(self._bytes, place * self._stride, *head)
        self._actions[place] = action
        self._observations[place] = observation
        self._next_observations[place] = next_observation
        self._ring.commit(1)

    def send_rows(self, rows: Array) -> None:
        """One copy, or two where the ring begins anew."""
        self._ring.put(rows.view(np.uint8).reshape(len(rows), self._stride))

    def num_waiting(self) -> int:
        """Of all rings."""
        return sum(ring.num_waiting for ring in self._rings)

    def drain(self, rows: Array) -> int:
        """One copy, or two where a ring begins anew, for each ring."""
        waiting, last = [ring.num_waiting for ring in self._rings], 0
        if sum(waiting) > len(rows):  # oldest first, and equals in turn
            versions = [ring.versions(min(num, len(rows))) for ring, num in zip(self._rings, waiting, strict=True)]
            rings = np.repeat(np.arange(len(versions)), [len(each) for each in versions])
            places = np.concatenate([np.arange(len(each)) for each in versions])
            turns = (rings - self._next) % len(versions)
            chosen = rings[np.lexsort((turns, places, np.concatenate(versions)))[: len(rows)]]
            waiting = np.bincount(chosen, minlength=len(versions)).tolist()
            last = int(chosen[-1])
        taken = 0
        copied = rows.view(np.uint8).reshape(len(rows), self.dtype.itemsize)  # whole, and not one field after the other
        for ring, num in zip(self._rings, waiting, strict=True):
            if num:
                ring.take_into(copied[taken : taken + num])
                taken += num
        self._next = (last + 1) % len(self._rings)
        return taken

    def observations(self, num: int, rng: np.random.Generator) -> Array | None:
        """Drawn from what lies in the rings, taken or not; equally many of each."""
        rings = [ring for ring in self._rings if ring.num_written]
        pieces = []
        for ring in rings:
            whole = min(ring.num_written, ring.capacity)
            chosen = rng.integers(whole, size=-(-num // len(rings)))
            pieces.append(ring.rows["observation"][chosen])
        return np.concatenate(pieces) if pieces else None

    def alone(self) -> bool:
        """Whether no other run has memory on this machine."""
        return self._memory.alone()

    def remove(self) -> None:
        """Deletes the file; processes that have it mapped keep their memory until they end."""
        self._memory.remove()
