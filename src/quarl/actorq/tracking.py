"""Metrics as TensorBoard events."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from quarl.actorq.metrics import scalars
from quarl.errors import QuarlError


class Tracker:
    """Writes rows of metrics below `folder`/tensorboard, by environment steps.

    A full disk costs the events and not the run: `say` hears of it, and nothing more is written.
    """

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise QuarlError("--track tensorboard needs an extra: pip install 'quarl[tensorboard]'") from None
        self._folder, self._say, self._make = folder / "tensorboard", say, SummaryWriter
        self._writer: Any = None
        self._is_full = False

    def write(self, row: dict[str, Any]) -> None:
        """One point for every number of the row."""
        if not self._is_full:
            self._attempt(lambda: self._add(row))

    def close(self) -> None:
        """Writes what is still to be written."""
        if self._writer is not None:
            self._attempt(self._writer.close)

    def _add(self, row: dict[str, Any]) -> None:
        if self._writer is None:  # the folder is the run's from its first row on
            self._writer = self._make(str(self._folder))
        for name, value in scalars(row).items():
            self._writer.add_scalar(name, value, row["timesteps"])

    def _attempt(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            if not self._is_full:
                self._say(
                    f"cannot write {self._folder}: {error.strerror or error}; training goes on without its events"
                )
            self._is_full = True
