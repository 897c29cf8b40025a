"""What all child processes of a run have in common."""

from __future__ import annotations

import contextlib
import os
import signal
import time


class Worker:
    """A child that the supervisor started: deaf to Ctrl-C, pinned where asked, and gone when its supervisor is."""

    def __init__(self, cpu: int | None = None) -> None:
        # Ctrl-C reaches the whole process group; what to do about it is the supervisor's to say.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._parent = os.getppid()
        self._checked = time.monotonic()
        if cpu is not None and hasattr(os, "sched_setaffinity"):
            with contextlib.suppress(OSError):  # not every container allows it, and it is only faster
                os.sched_setaffinity(0, {cpu})

    def orphaned(self) -> bool:
        """True when the supervisor is no more; looked up once a second."""
        now = time.monotonic()
        if now - self._checked > 1:
            self._checked = now
            return os.getppid() != self._parent
        return False
