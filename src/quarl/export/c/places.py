"""Values of a policy in C, and their places in buffers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from quarl.arrays import Array
from quarl.policy.graph import ActivationGrid


class Place(NamedTuple):
    """Start of a value in a buffer."""

    buffer: str
    """x: the observation; y: the network's output; c: codes; r: real numbers; a: the action."""
    start: int = 0

    def after(self, start: int) -> Place:
        """Return the place that many numbers later."""
        return Place(self.buffer, self.start + start)


class Steps(NamedTuple):
    """A value as whole numbers of steps."""

    place: Place
    """Their int32_t, as bits of uint32_t, among real numbers."""
    scale: float
    """Size of a step, a power of two or its opposite."""
    reach: int
    """Largest number of steps on either side of 0."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Value:
    """A value of the policy in C."""

    size: int
    real: Place | None = None
    codes: Place | None = None
    """Place of the codes, counted from the zero point of `grid`."""
    grid: ActivationGrid | None = None
    steps: Steps | None = None
    """The value in fixed point."""
    bytes_as: Array | None = None
    """float32 number for each of the 256 bytes, if the value is bytes of the observation at `real`."""


@dataclass(slots=True)
class Buffer:
    """Places for the values that are needed at the same time."""

    size: int = 0
    taken: list[tuple[int, int, int]] = field(default_factory=list)
    """(start, end, the last operator that reads it)."""

    def place(self, size: int, now: int, until: int, *, over: bool = False) -> int:
        """Return the first free place of that size.

        A place is free if operator `now` and later ones do not read it. With `over`, operator `now` may read it too,
        since it reads each number before it writes one there.

        Args:
            size: Number of elements.
            now: Index of the current operator.
            until: Index of the last operator that reads the value.
            over: Allow the place of the operator's own input.
        """
        self.taken = sorted(block for block in self.taken if block[2] >= now + over)
        start = 0
        for begin, end, _ in self.taken:
            if start + size <= begin:
                break
            start = max(start, end)
        self.taken.append((start, start + size, until))
        self.size = max(self.size, start + size)
        return start
