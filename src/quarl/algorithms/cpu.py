"""What torch computes with on a CPU: how many threads, and without denormal numbers while it learns."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

ENOUGH = 1 << 20
"""Numbers that torch shares among its threads."""


@contextlib.contextmanager
def threads(number: int) -> Iterator[None]:
    """Torch computes on so many threads inside."""
    before = torch.get_num_threads()
    start_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def start_threads(number: int) -> None:
    """So many threads from now on; those that this starts flush denormals, as `flushed` says, for good."""
    torch.set_num_threads(number)
    with flushed():  # the setting is each thread's own: a new one has that of the thread that starts it
        torch.zeros(ENOUGH).add_(1)


@contextlib.contextmanager
def flushed() -> Iterator[None]:
    """Inside, numbers below float32's smallest normal one, 1.2e-38, count as 0 in this thread.

    Adam's moments of a weight that gets no gradient any more shrink until they are such numbers, and stay; a CPU takes
    ten times as long for them. Six in ten are, in a network that DQN trains on Pong.
    """
    before = float(torch.full((), 1e-40) * 1) == 0.0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
