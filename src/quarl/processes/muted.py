"""What libraries print past Python, to the process's file descriptors, kept from the terminal."""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress


@contextmanager
def muted(descriptors: Sequence[int] = (1, 2)) -> Iterator[Callable[[], str]]:
    """Keeps what is written to these file descriptors inside, and gives what tells it."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()
    with tempfile.TemporaryFile() as file:
        kept = {descriptor: os.dup(descriptor) for descriptor in descriptors}
        try:
            for descriptor in kept:
                os.dup2(file.fileno(), descriptor)
            yield lambda: os.pread(file.fileno(), 2**16, 0).decode("utf-8", "replace")
        finally:
            with suppress(OSError, AttributeError, TypeError):  # no C library to ask for on some systems
                ctypes.CDLL(None).fflush(None)  # its buffer would otherwise come out after the descriptors are back
            for descriptor, original in kept.items():
                os.dup2(original, descriptor)
                os.close(original)
