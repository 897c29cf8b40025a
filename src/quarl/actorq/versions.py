"""Version numbers of a run's weights: they never decrease, even after a learner was killed and resumed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from quarl.arrays import Array
from quarl.errors import QuarlError
from quarl.files import write_bytes

RESERVED = 10_000
"""Numbers that are reserved in the file at a time, so that it is seldom written."""


class Versions:
    """A source of version numbers from 1, with the learner update of each.

    A killed learner has published numbers that no checkpoint records: its successor starts above all reserved ones.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "versions.json"
        self.first = self._reserved() + 1
        """First number of this learner."""
        self.newest = self.first - 1
        self._top = self.newest
        self._steps = np.zeros(64, np.int64)

    def next(self, step: int) -> int:
        """Return a new number for weights after `step` updates."""
        if self.newest >= self._top:
            self._reserve()
        self.newest += 1
        place = self.newest - self.first
        if place == len(self._steps):
            self._steps = np.concatenate((self._steps, np.zeros_like(self._steps)))
        self._steps[place] = step
        return self.newest

    def steps_of(self, versions: Array) -> Array:
        """Return the update of each version as int64; -1 for versions of other learners and for random actions (-1)."""
        place = versions - self.first
        inside = (place >= 0) & (versions <= self.newest)
        return np.where(inside, self._steps[np.where(inside, place, 0)], -1)

    def _reserve(self) -> None:
        """Reserve further numbers; a full disk matters only for the first ones, since every push tries again."""
        top = self.newest + RESERVED
        try:
            write_bytes(json.dumps({"reserved": top}).encode(), self._path)
        except QuarlError:
            if self.newest < self.first:
                raise
        else:
            self._top = top

    def _reserved(self) -> int:
        if not self._path.exists():
            return 0
        try:
            return int(json.loads(self._path.read_text())["reserved"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            raise QuarlError(
                f'{self._path} is damaged; write {{"reserved": N}} into it, N above every "version" in metrics.jsonl'
            ) from None
