"""Leaving: a process that is done ends, whatever threads an environment has left behind."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable

GRACE_S = 2.0
"""For threads that are about to end."""


def leave(code: int, say: Callable[[str], None]) -> None:
    """Ends the process with this exit code where threads would hold it for ever, which `say` hears of; else returns.

    For the end, when everything is written: a bridge to a simulator may have threads that are no daemons, and that its
    close() does not stop.
    """
    until = time.monotonic() + GRACE_S
    for thread in _holding():
        thread.join(max(until - time.monotonic(), 0))
    if not (threads := _holding()):
        return
    import multiprocessing  # here: whoever made such children has loaded it

    say(f"left behind threads that still run: {', '.join(thread.name for thread in threads)}")
    for child in multiprocessing.active_children():  # as the interpreter itself does in its own end
        child.terminate()
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            stream.flush()
    os._exit(code)


def _holding() -> list[threading.Thread]:
    """Threads that the interpreter would wait for."""
    return [thread for thread in threading.enumerate() if not thread.daemon and thread is not threading.main_thread()]
