"""A context manager that keeps library output on file descriptors, past Python, off the terminal."""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress


@contextmanager
def muted(descriptors: Sequence[int] = (1, 2)) -> Iterator[Callable[[], str]]:
    """Redirect these file descriptors inside the block, and yield a function that returns their output."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()
    with tempfile.TemporaryFile() as file:
        kept = {descriptor: os.dup(descriptor) for descriptor in descriptors}
        try:
            for descriptor in kept:
                os.dup2(file.fileno(), descriptor)
            yield lambda: os.pread(file.fileno(), 2**16, 0).decode("utf-8", "replace")
        finally:
            with suppress(OSError, AttributeError, TypeError):  # some systems have no C library to call
                # Otherwise its buffer would be printed after the descriptors are restored.
                ctypes.CDLL(None).fflush(None)
            for descriptor, original in kept.items():
                os.dup2(original, descriptor)
                os.close(original)
