"""Waiting for what happens in other processes and threads: for the event, not for a number of seconds."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 600.0
"""After which what has not happened never will, on a machine with whatever else to do."""


def until(condition: Callable[[], object]) -> None:
    """Returns when `condition` holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen in {PATIENCE_S:g} s"
        time.sleep(0.01)
