"""SamplableRows: the rows of a replay that may still be sampled, when each may be sampled only so many times.

The original's "samples per insert" is this rule (Reverb's max_times_sampled), without deleting the row: rows before it
still reach it by their n-step links.
"""

from __future__ import annotations

import numpy as np

from quarl.arrays import Array
from quarl.errors import QuarlError


class SamplableRows:
    """A set of row indices with O(batch) draws and removals: members fill a prefix, and the last ones fill holes."""

    def __init__(self, num_rows: int, max_times: int) -> None:
        self.max_times = max_times
        self.clear(num_rows)

    def clear(self, num_rows: int) -> None:
        """Makes the set empty."""
        self.times = np.zeros(num_rows, np.int64)
        """Samples of every row so far."""
        self._members = np.zeros(num_rows, np.int64)
        self._place = np.full(num_rows, -1, np.int64)  # of a row in _members; -1: not a member
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def members(self) -> Array:
        """Indices of the rows in the set, int64, in the order that draws depend on."""
        return self._members[: self._size]

    def renew(self, rows: Array) -> None:
        """Rows (distinct indices) hold new transitions, never sampled; those that had left come back."""
        self.times[rows] = 0
        missing = rows[self._place[rows] < 0]
        places = np.arange(self._size, self._size + len(missing))
        self._members[places] = missing
        self._place[missing] = places
        self._size += len(missing)

    def draw(self, count: int, generator: np.random.Generator) -> Array:
        """count indices, each uniform over the rows that remain at its turn; a row leaves with its last sample.

        Turns are taken together: numbers drawn for a row beyond its last sample are void and drawn again, from the
        rows that remain by then. The result is sorted in parts.
        """
        # Fewer members than draws may not have so many samples left; counting them is O(count) then.
        if self._size < count and self._size * self.max_times - self.times[self.members].sum() < count:
            raise QuarlError(f"{self._size} rows are left to sample, too few for a batch of {count}; insert more first")
        drawn: list[Array] = []
        while count > 0:
            rows, times = np.unique(self._members[generator.integers(0, self._size, count)], return_counts=True)
            times = np.minimum(times, self.max_times - self.times[rows])
            self.times[rows] += times
            self._remove(rows[self.times[rows] >= self.max_times])
            drawn.append(np.repeat(rows, times))
            count -= len(drawn[-1])
        return np.concatenate(drawn) if drawn else np.zeros(0, np.int64)

    def restore(self, members: Array, times: Array) -> None:
        """The set as it was saved; rows that a smaller max_times has used up by now stay out."""
        self.clear(len(self.times))
        self.times[: len(times)] = times
        members = members[self.times[members] < self.max_times]
        self._size = len(members)
        self._members[: self._size] = members
        self._place[members] = np.arange(self._size)

    def _remove(self, rows: Array) -> None:
        places = self._place[rows]
        self._place[rows] = -1
        self._size -= len(rows)
        tail = self._members[self._size : self._size + len(rows)]
        movers = tail[self._place[tail] >= 0]
        holes = places[places < self._size]
        self._members[holes] = movers
        self._place[movers] = holes
