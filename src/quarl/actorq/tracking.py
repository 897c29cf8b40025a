"""Metrics as TensorBoard events."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from quarl.actorq.metrics import scalars
from quarl.errors import QuarlError
from quarl.folder import Dispensable


class Tracker:
    """Writes rows of metrics below `folder`/tensorboard, by environment steps.

    After a full disk nothing more is written: the writer's thread is dead.
    """

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise QuarlError("--track tensorboard needs an extra: pip install 'quarl[tensorboard]'") from None
        self._folder, self._make = folder / "tensorboard", SummaryWriter
        self._files = Dispensable(say)
        self._writer: Any = None
        self._is_full = False

    def write(self, row: dict[str, Any]) -> None:
        """One point for every number of the row."""
        if not self._is_full:
            self._is_full = not self._files.write(lambda: self._attempt(lambda: self._add(row)))

    def close(self) -> None:
        """Writes what is still to be written."""
        if self._writer is not None:
            self._files.write(lambda: self._attempt(self._writer.close))

    def _add(self, row: dict[str, Any]) -> None:
        if self._writer is None:  # the folder is the run's from its first row on
            self._writer = self._make(str(self._folder))
        for name, value in scalars(row).items():
            self._writer.add_scalar(name, value, row["timesteps"])

    def _attempt(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            raise QuarlError(f"no more events in {self._folder}: {error.strerror or error}") from None
