"""Metrics as TensorBoard events."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from quarl.actorq.metrics import scalars
from quarl.errors import QuarlError


class Tracker:
    """Writes rows of metrics below `folder`/tensorboard, by environment steps."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise QuarlError("--track tensorboard needs an extra: pip install 'quarl[tensorboard]'") from None
        self._writer = SummaryWriter(str(folder / "tensorboard"))

    def write(self, row: dict[str, Any]) -> None:
        """One point for every number of the row."""
        for name, value in scalars(row).items():
            self._writer.add_scalar(name, value, row["timesteps"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()
