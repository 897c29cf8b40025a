"""Ring: a bounded queue of segments from one actor to the learner.

One writer, one reader, two counters: the rows below `head` are written, those below `tail` are taken. Each counter has
one writer and a cache line of its own, so neither side ever locks, and whichever dies leaves only whole rows behind.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from quarl.actorq.memory import LINE, Block, Memory
from quarl.arrays import Array

_STRIDE = LINE // 8


class Ring:
    """One side's handle on a ring in shared memory."""

    def __init__(self, memory: Memory, name: str) -> None:
        self.rows = memory.array(f"{name}.rows")
        """The segments themselves; the writer fills row `index(k)` for the k-th row after `head`, then commits."""
        self.capacity = len(self.rows)
        counters = memory.array(f"{name}.counters")
        self._head, self._tail = counters[:1], counters[_STRIDE : _STRIDE + 1]
        self._written = int(self._head[0])

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

    def commit(self, num: int) -> None:
        """Hands over the next `num` rows, which have been filled."""
        self._written += num
        self._head[0] = self._written

    @property
    def num_written(self) -> int:
        """Rows that were ever handed over."""
        return int(self._head[0])

    def peek(self, most: int) -> Array:
        """Up to `most` of the oldest rows, in place and contiguous; `take` acknowledges them."""
        tail = int(self._tail[0])
        start = tail % self.capacity
        stop = min(start + min(most, int(self._head[0]) - tail), self.capacity)
        rows: Array = self.rows[start:stop]
        return rows

    def take(self, num: int) -> None:
        """Acknowledges `num` rows: the writer may overwrite them."""
        self._tail[0] += num
