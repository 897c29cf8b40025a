"""What torch computes with on a CPU: how many threads, which memory, and without denormal numbers while it learns."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

import torch

ENOUGH = 1 << 20
"""Numbers that torch shares among its threads."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Of mallopt(3)."""
KEPT_BYTES, MAPPED_BYTES = 2**30, 2**25
"""Freed memory that a process keeps; blocks from this size on go back to the system all the same (glibc's maximum)."""


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
    keep_memory()
    with flushed():  # the setting is each thread's own: a new one has that of the thread that starts it
        torch.zeros(ENOUGH).add_(1)


def keep_memory() -> None:
    """This process keeps memory that it frees, for its next use; on glibc, elsewhere nothing changes.

    An update frees the gradients and casts of a wide layer, 17 MB each, and asks for as much in the next one. Handed
    back to the system in between, every page comes anew, and zeroed: a fifth of the time of an update in bfloat16.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):  # not glibc; CDLL(None) is no library on Windows
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)
        library.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


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
