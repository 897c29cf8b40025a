"""The channel between processes of one machine: boards, rings and counters in shared memory."""

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
"""Bytes that an artifact may need beyond its float32 weights: names, scales, zero points."""
_STRIDE = LINE // 8


class Ring:
    """One process's handle on a bounded queue of segments from one actor to the learner, in shared memory.

    It has one writer, one reader and two counters: rows below `head` are written, rows below `tail` are taken. Each
    counter has one writer and its own cache line, so neither side ever locks. If either process dies, only complete
    rows remain.
    """

    def __init__(self, memory: Memory, name: str) -> None:
        self.rows = memory.array(f"{name}.rows")
        """The segments; the writer fills row `index(k)` for the k-th row after `head`, then commits."""
        self.capacity = len(self.rows)
        counters = memory.array(f"{name}.counters")
        self._head, self._tail = counters[:1], counters[_STRIDE : _STRIDE + 1]
        self._written = int(self._head[0])
        self._bytes = self.rows.view(np.uint8).reshape(self.capacity, -1)

    @staticmethod
    def blocks(name: str, dtype: np.dtype[Any], capacity: int) -> dict[str, Block]:
        """Return the memory layout of a ring.

        Args:
            name: Prefix of the arrays.
            dtype: Row type of a segment.
            capacity: Number of rows.
        """
        return {
            f"{name}.rows": Block(dtype, (capacity,)),
            f"{name}.counters": Block(np.dtype("i8"), (2 * _STRIDE,)),
        }

    def free(self) -> int:
        """Return the number of rows that can be written before the reader must take some."""
        return self.capacity - (self._written - int(self._tail[0]))

    def index(self, k: int) -> int:
        """Return the index in `rows` of the k-th uncommitted row."""
        return (self._written + k) % self.capacity

    def put(self, rows: Array) -> None:
        """Write and commit rows uint8 [n, bytes of a row]; the ring must have room for them."""
        start, num = self.index(0), len(rows)
        first = min(num, self.capacity - start)
        self._bytes[start : start + first] = rows[:first]
        if first < num:
            self._bytes[: num - first] = rows[first:]
        self.commit(num)

    def commit(self, num: int) -> None:
        """Commit the next `num` rows, which have been filled."""
        self._written += num
        self._head[0] = self._written

    @property
    def num_written(self) -> int:
        """Total number of committed rows."""
        return int(self._head[0])

    @property
    def num_waiting(self) -> int:
        """Number of committed rows that the reader has not taken."""
        return int(self._head[0]) - int(self._tail[0])

    def versions(self, num: int) -> Array:
        """Return the weight versions of the oldest `num` rows."""
        versions: Array = self.rows["version"].take(np.arange(self._tail[0], self._tail[0] + num), mode="wrap")
        return versions

    def take_into(self, rows: Array) -> None:
        """Take the oldest rows into `rows` uint8 [n, bytes of a row]; at least n rows must be waiting."""
        start, num = int(self._tail[0]) % self.capacity, len(rows)
        first = min(num, self.capacity - start)
        rows[:first] = self._bytes[start : start + first]
        if first < num:
            rows[first:] = self._bytes[: num - first]
        self._tail[0] += num


class LocalChannel(Channel):
    """A channel in shared memory; an unpickled copy is the same channel in another process."""

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
        """Allocate memory for the weights and for each actor's segments in transit.

        Args:
            num_actors: Number of actors, each with its own ring.
            num_floats: Number of float32 weights.
            dtype: Row type of a segment.
            ring_rows: Capacity of each ring in segments.
            num_nodes: Machines of the cluster, if this is the learner's end of one.
            named: As in `Memory.create`.
        """
        blocks = Counters.blocks(num_actors, num_nodes)
        blocks |= Board.blocks(LEARNER_BOARD, 4 * num_floats)
        blocks |= Board.blocks(ACTOR_BOARD, 4 * num_floats + ARTEFACT_SLACK)
        for i in range(num_actors):
            blocks |= Ring.blocks(f"ring{i}", dtype, ring_rows)
        return cls(Memory.create(blocks, named=named))

    @property
    def sizes(self) -> tuple[int, np.dtype[Any], int]:
        """Number of weights, dtype of segments and capacity of a ring, as passed to `create`."""
        return self._memory.array(f"{LEARNER_BOARD}.data").shape[1] // 4, self.dtype, self._rings[0].capacity

    def __reduce__(self) -> tuple[type[LocalChannel], tuple[Memory, int | None]]:
        return LocalChannel, (self._memory, self._actor)

    def of(self, actor: int) -> LocalChannel:
        """Return the same channel for an actor, which sends through its own ring."""
        return LocalChannel(self._memory, actor)

    def room(self) -> int:
        """Return the number of free rows of this actor's ring."""
        return self._ring.free()

    def num_sent(self) -> int:
        """Return the number of rows ever committed to this actor's ring."""
        return self._ring.num_written

    def send(self, head: Head, action: Any, observation: Array, next_observation: Array) -> None:
        """Write the next row of this actor's ring in place, and commit it.

        Args:
            head: Fields of the row up to `truncated`.
            action: Action as replay stores it.
            observation: Observation before the step.
            next_observation: Observation after the step.
        """
        place = self._ring.index(0)
        HEAD.pack_into(self._bytes, place * self._stride, *head)
        self._actions[place] = action
        self._observations[place] = observation
        self._next_observations[place] = next_observation
        self._ring.commit(1)

    def send_rows(self, rows: Array) -> None:
        """Copy the rows once, or twice if the ring wraps around."""
        self._ring.put(rows.view(np.uint8).reshape(len(rows), self._stride))

    def num_waiting(self) -> int:
        """Return the number of waiting rows of all rings."""
        return sum(ring.num_waiting for ring in self._rings)

    def drain(self, rows: Array) -> int:
        """Copy the rows of each ring once, or twice if it wraps around."""
        waiting, last = [ring.num_waiting for ring in self._rings], 0
        if sum(waiting) > len(rows):  # take the oldest versions first, and equal ones in turn
            versions = [ring.versions(min(num, len(rows))) for ring, num in zip(self._rings, waiting, strict=True)]
            rings = np.repeat(np.arange(len(versions)), [len(each) for each in versions])
            places = np.concatenate([np.arange(len(each)) for each in versions])
            turns = (rings - self._next) % len(versions)
            # Copy the chosen number of rows from each ring.
            chosen = rings[np.lexsort((turns, places, np.concatenate(versions)))[: len(rows)]]
            waiting = np.bincount(chosen, minlength=len(versions)).tolist()
            last = int(chosen[-1])
        taken = 0
        copied = rows.view(np.uint8).reshape(len(rows), self.dtype.itemsize)  # rows as bytes: one copy per row
        for ring, num in zip(self._rings, waiting, strict=True):
            if num:
                ring.take_into(copied[taken : taken + num])
                taken += num
        self._next = (last + 1) % len(self._rings)
        return taken

    def observations(self, num: int, rng: np.random.Generator) -> Array | None:
        """Sample from all rows in the rings, taken or not; equally many from each."""
        rings = [ring for ring in self._rings if ring.num_written]
        pieces = []
        for ring in rings:
            whole = min(ring.num_written, ring.capacity)
            chosen = rng.integers(whole, size=-(-num // len(rings)))
            pieces.append(ring.rows["observation"][chosen])
        return np.concatenate(pieces) if pieces else None

    def alone(self) -> bool:
        """Return True if no other run has memory on this machine."""
        return self._memory.alone()

    def remove(self) -> None:
        """Delete the file; processes that have it mapped keep their memory until they end."""
        self._memory.remove()
