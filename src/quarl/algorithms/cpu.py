"""Torch's settings on a CPU: number of threads, memory allocation, and flushed denormal numbers during learning."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

import torch

ENOUGH = 1 << 20
"""Number of elements that torch splits among its threads."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt(3)."""
KEPT_BYTES, MAPPED_BYTES = 2**30, 2**25
"""Bytes of freed memory that a process keeps, and block size that always returns to the system (glibc's maximum)."""


@contextlib.contextmanager
def threads(number: int) -> Iterator[None]:
    """Run the block with `number` torch threads."""
    before = torch.get_num_threads()
    start_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def start_threads(number: int) -> None:
    """Use `number` torch threads from now on; newly started threads flush denormals permanently (see `flushed`)."""
    torch.set_num_threads(number)
    keep_memory()
    with flushed():  # the setting is per thread: a new thread inherits it from the thread that starts it
        torch.zeros(ENOUGH).add_(1)


def keep_memory() -> None:
    """Keep freed memory in this process for its next use; on glibc only.

    An update frees the gradients and casts of a wide layer, 17 MB each, and the next one requests as much. If the
    memory returned to the system in between, every page would have to be mapped and zeroed again. This takes a fifth of
    the time of an update in bfloat16.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):  # not glibc; on Windows CDLL(None) is not a library
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)
        library.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


@contextlib.contextmanager
def flushed() -> Iterator[None]:
    """Run the block with numbers below float32's smallest normal number, 1.2e-38, flushed to 0 in this thread.

    Adam's moments of a weight without further gradients shrink to such numbers, and stay; a CPU takes ten times as long
    for them. Six in ten are, in a network that DQN trains on Pong.
    """
    before = float(torch.full((), 1e-40) * 1) == 0.0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
