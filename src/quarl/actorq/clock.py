"""Where an actor's time goes."""

from __future__ import annotations

import time
from typing import Any

from numpy.typing import NDArray

from quarl.actorq.counters import Actor

NAP_S = 0.0005
"""Between two looks at a number that another process will change."""


class Clock:
    """Adds up locally and books between steps."""

    def __init__(self, cells: NDArray[Any]) -> None:
        self.cells = cells
        self.inference_s = self.environment_s = self.insert_s = 0.0
        self._last = time.perf_counter()
        self._idle = 0.0

    def nap(self, column: Actor | None) -> None:
        """Waits a moment and books it in `column`.

        None: it belongs to no one. Evaluations and the wait for first weights are not on the clock.
        """
        start = time.perf_counter()
        time.sleep(NAP_S)
        waited_s = time.perf_counter() - start
        if column is None:
            self._idle += waited_s
        else:
            self.cells[column] += waited_s
        self.book()

    def book(self) -> None:
        """Writes what has added up since the last time."""
        now = time.perf_counter()
        self.cells[Actor.INFERENCE_S] += self.inference_s
        self.cells[Actor.ENVIRONMENT_S] += self.environment_s
        self.cells[Actor.INSERT_S] += self.insert_s
        self.cells[Actor.LOOP_S] += now - self._last - self._idle
        self._last, self._idle = now, 0.0
        self.inference_s = self.environment_s = self.insert_s = 0.0
