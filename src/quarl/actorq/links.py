"""StreamLinks: which stored row follows which, in a store of fixed size that many streams fill in turns.

A stream is (actor, incarnation, environment). Rows are numbered from 0 as they arrive, and row n lies at index
n % capacity. A row links to the next of its stream iff no sequence is missing between them and the episode went on. A
successor is younger than its row, hence overwritten later: no link of a living row points at one that is gone.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from quarl.arrays import Array

NEVER = -(2**62)
"""Number of a row that was not stored: below that of every living one."""
UNKNOWN = (-1, NEVER)
"""(last sequence, its row's number) of a stream not seen yet."""


class StreamLinks:
    """The links of `capacity` rows, and how far every stream has come."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.successor = np.full(capacity, -1, np.int64)
        """Index of the next row of the same stream and episode; -1: none."""
        self.num_rows = 0
        """Rows ever stored."""
        self.num_duplicates = 0
        """Rows refused because their stream had reached their sequence."""
        self.num_gaps = 0
        """Rows before which at least one of their stream is missing."""
        self._ends = np.zeros(capacity, bool)
        self._streams: dict[tuple[int, int, int], tuple[int, int]] = {}

    def append(self, rows: Array) -> Array:
        """Links segments [n <= capacity], in order of arrival; those to be stored now: all but duplicates."""
        streams = zip(*(rows[name].tolist() for name in ("actor", "incarnation", "environment")), strict=True)
        fresh: list[int] = []
        numbers_before: list[int] = []
        # what is new, and the number of the row that each follows
        for place, (stream, sequence) in enumerate(zip(streams, rows["sequence"].tolist(), strict=True)):
            last, number = self._streams.get(stream, UNKNOWN)
            if sequence <= last:
                self.num_duplicates += 1
                continue
            if sequence != last + 1:
                self.num_gaps += 1
                number = NEVER
            self._streams[stream] = (sequence, self.num_rows + len(fresh))
            fresh.append(place)
            numbers_before.append(number)
        rows = rows if len(fresh) == len(rows) else rows[fresh]
        # the new rows end the links of those that they overwrite, and are the last of their streams for now
        indices = (self.num_rows + np.arange(len(rows))) % self.capacity
        self.num_rows += len(rows)
        self.successor[indices] = -1
        self._ends[indices] = rows["terminated"] | rows["truncated"]
        # a row before them links to them where it still lives and its episode went on
        before = np.array(numbers_before, np.int64)
        living = before >= self.num_rows - self.capacity
        before %= self.capacity
        linked = living & ~self._ends[before]
        self.successor[before[linked]] = indices[linked]
        return rows

    def paths(self, first: Array, num_steps: int) -> tuple[Array, Array]:
        """(indices [B, num_steps] along the links from `first` [B], the last one repeated; rows used [B, 1])."""
        indices = np.empty((len(first), num_steps), np.int64)
        used = np.ones((len(first), 1), np.int64)
        indices[:, 0] = current = first
        for step in range(1, num_steps):
            following = self.successor[current]
            goes_on = following >= 0
            indices[:, step] = current = np.where(goes_on, following, current)
            used[:, 0] += goes_on
        return indices, used

    def forget(self) -> None:
        """Drops every row; streams go on from their sequences."""
        self.successor.fill(-1)
        self.num_rows = 0
        self._streams = {stream: (sequence, NEVER) for stream, (sequence, _) in self._streams.items()}

    def state(self) -> dict[str, Array]:
        """Arrays that `load_state` takes; views of the links of the rows there are."""
        size = min(self.num_rows, self.capacity)
        return {
            "successor": self.successor[:size],
            "ends": self._ends[:size],
            "streams": np.array([(*key, *last) for key, last in self._streams.items()], np.int64).reshape(-1, 5),
            "counters": np.array([self.num_rows, self.capacity, self.num_duplicates, self.num_gaps], np.int64),
        }

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Goes on from a state of the same capacity."""
        self.num_rows, _, self.num_duplicates, self.num_gaps = state["counters"].tolist()
        size = len(state["successor"])
        self.successor[:size], self.successor[size:] = state["successor"], -1
        self._ends[:size] = state["ends"]
        self._streams = {(a, i, e): (sequence, number) for a, i, e, sequence, number in state["streams"].tolist()}
