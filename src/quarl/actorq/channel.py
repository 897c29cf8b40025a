"""Channel: what learner, publisher and actors say to each other on one machine."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import Any

import numpy as np

from quarl.actorq.board import Board
from quarl.actorq.memory import Block, Memory
from quarl.actorq.ring import Ring
from quarl.arrays import Array

LEARNER_BOARD, ACTOR_BOARD = "float", "packed"
ARTEFACT_SLACK = 2**20
"""Bytes that an artefact may have beyond its float32 weights: names, scales, zero points."""


class LocalChannel:
    """Boards and rings in shared memory."""

    def __init__(self, memory: Memory, num_actors: int, actor: int | None = None) -> None:
        self.floats = Board(memory, LEARNER_BOARD)
        """The learner's float32 tensors on their way to the publisher."""
        self.packed = Board(memory, ACTOR_BOARD)
        self.rings = [Ring(memory, f"ring{i}") for i in range(num_actors)]
        self._ring = None if actor is None else self.rings[actor]
        self._next = 0

    @staticmethod
    def blocks(num_floats: int, dtype: np.dtype[Any], num_actors: int, ring_rows: int) -> dict[str, Block]:
        """The memory of a channel for snapshots of `num_floats` numbers and rings of `ring_rows` segments."""
        blocks = Board.blocks(LEARNER_BOARD, 4 * num_floats)
        blocks |= Board.blocks(ACTOR_BOARD, 4 * num_floats + ARTEFACT_SLACK)
        for i in range(num_actors):
            blocks |= Ring.blocks(f"ring{i}", dtype, ring_rows)
        return blocks

    def send(self, rows: Array) -> bool:
        ring = self.ring
        if ring.free() < len(rows):
            return False
        for k, row in enumerate(rows):
            ring.rows[ring.index(k)] = row
        ring.commit(len(rows))
        return True

    @property
    def ring(self) -> Ring:
        """The actor's own ring: its loop writes rows in place, field by field, which is `send` without the copy."""
        assert self._ring is not None
        return self._ring

    def receive(self, most: int) -> Iterator[Array]:
        """Oldest weights first, so that no segment ages while younger ones are taken; among equals, actors in turn."""
        while most > 0:
            order = [(self._next + i) % len(self.rings) for i in range(len(self.rings))]
            heads = [(int(rows["version"][0]), i) for i in order if len(rows := self.rings[i].peek(1))]
            if not heads:
                return
            _, chosen = min(heads, key=itemgetter(0))
            ring = self.rings[chosen]
            rows = ring.peek(most)
            if others := [version for version, i in heads if i != chosen]:
                rows = rows[: max(np.searchsorted(rows["version"], min(others), "right"), 1)]
            yield rows
            ring.take(len(rows))
            most -= len(rows)
            self._next = (chosen + 1) % len(self.rings)
