"""StreamLinks: which stored row follows which, in a store of fixed size that many streams fill in turns.

A stream is (actor, incarnation, environment). Rows are numbered from 0 as they arrive, and row n lies at index
n % capacity. A row links to the next of its stream iff no sequence is missing between them and the episode went on. A
successor is younger than its row, hence overwritten later: no link of a living row points at one that is gone.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from quarl.arrays import Array

SMALL_BLOCK = 6
"""Rows up to which one by one is faster than the fixed cost of a block."""
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
        return self._append_each(rows) if len(rows) <= SMALL_BLOCK else self._append_block(rows)

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

    def _append_each(self, rows: Array) -> Array:
        """The plain `append`: row by row, also where some are duplicates."""
        fresh = []
        ends = (rows["terminated"] | rows["truncated"]).tolist()
        for place, (stream, sequence) in enumerate(zip(_streams(rows), rows["sequence"].tolist(), strict=True)):
            last, number = self._streams.get(stream, UNKNOWN)
            if sequence <= last:
                self.num_duplicates += 1
                continue
            fresh.append(place)
            index = self.num_rows % self.capacity
            self._streams[stream] = (sequence, self.num_rows)
            self.successor[index] = -1
            self.num_rows += 1
            if sequence != last + 1:
                self.num_gaps += 1
            elif number >= self.num_rows - self.capacity and not self._ends[number % self.capacity]:
                self.successor[number % self.capacity] = index
            self._ends[index] = ends[place]
        return rows if len(fresh) == len(rows) else rows[fresh]

    def _append_block(self, rows: Array) -> Array:
        """`_append_each` in one pass over all streams of the block, with a dict look-up for each stream."""
        order, heads = _by_stream(rows)
        streams = _streams(rows[order[heads]])
        last = np.array([self._streams.get(stream, UNKNOWN) for stream in streams])  # [streams, 2]
        sequence = rows["sequence"][order]
        step = np.empty(len(rows), np.int64)
        step[1:] = sequence[1:] - sequence[:-1]
        step[heads] = sequence[heads] - last[:, 0]
        if step.min() <= 0:
            return self._append_each(rows)
        self.num_gaps += int(np.count_nonzero(step != 1))
        numbers = self.num_rows + order
        indices = numbers % self.capacity
        self.num_rows += len(rows)
        # The row before each in its stream: the one before it in `order`, or the stream's last if that still lives.
        before = np.empty(len(rows), np.int64)
        before[1:] = indices[:-1]
        before[heads] = last[:, 1] % self.capacity
        linked = step == 1
        linked[heads] &= last[:, 1] >= self.num_rows - self.capacity
        self._ends[indices] = (rows["terminated"] | rows["truncated"])[order]
        linked &= ~self._ends[before]
        self.successor[indices] = -1
        self.successor[before[linked]] = indices[linked]
        tails = np.empty_like(heads)
        tails[:-1], tails[-1] = heads[1:] - 1, len(rows) - 1
        newest = zip(sequence[tails].tolist(), numbers[tails].tolist(), strict=True)
        self._streams.update(zip(streams, newest, strict=True))
        return rows


def _streams(rows: Array) -> list[tuple[int, int, int]]:
    """The stream of each row."""
    return list(zip(*(rows[name].tolist() for name in ("actor", "incarnation", "environment")), strict=True))


def _by_stream(rows: Array) -> tuple[Array, Array]:
    """(order of rows by stream, and by arrival within; where in that order each stream begins)."""
    streams = np.array([rows["environment"], rows["incarnation"], rows["actor"]])
    order = np.arange(len(rows))
    if (streams == streams[:, :1]).all():  # the usual block needs no sorting
        return order, order[:1]
    order = np.lexsort(streams)
    streams = streams[:, order]
    changes = (streams[:, 1:] != streams[:, :-1]).any(axis=0)
    return order, np.append(0, np.flatnonzero(changes) + 1)
