"""Cells of `quarl bench`: measured one after the other in this process, and kept in the store that studies have."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from quarl.energy import OFF, Meter
from quarl.errors import QuarlError
from quarl.files import make_folder
from quarl.lab.cells import Cell as Asked
from quarl.lab.store import Store
from quarl.machine import machine

Cell = Mapping[str, Any]
Say = Callable[[str], None]
Item = TypeVar("Item")


class Cells:
    """Finished cells in a folder. A cell measured under other settings is another cell."""

    def __init__(self, folder: Path, minutes: float, say: Say, meter: Meter = OFF) -> None:
        """meter: for measurements that say what they cost; cells that are there already are not measured anew."""
        make_folder(folder)
        self.store, self.say, self.meter = Store(folder, create=True), say, meter
        self.deadline = time.monotonic() + 60 * minutes
        self.missing = 0
        """Cells that were asked for after the time was over."""
        self.elsewhere: list[str] = []
        """Names of cells that were asked for on another processor than that of their group."""
        self._groups: dict[str, tuple[str, str]] = {}

    def get(
        self,
        name: str,
        settings: Mapping[str, Any],
        measure: Callable[[], Mapping[str, Any]],
        *,
        group: str | None = None,
        usable: Callable[[Cell], bool] = lambda cell: True,
    ) -> Cell | None:
        """The cell of that name, measured now where it is not there or not usable; None where the time is over.

        group: cells whose seconds are compared. They are all of the processor of the first one that is asked for: none
        is measured on another (None), and one that was is a QuarlError.
        """
        work = {"name": name, **json.loads(json.dumps(settings))}
        about = {"algo": work.get("algo", ""), "env_id": work.get("env", ""), "source": name, "episodes": 0}
        precision = work.get("actor_precision", "fp32")
        asked = Asked(**about, method="bench", precision=precision, seed=work.get("seed", 0), work=work)
        cell = self.store.result(asked.key)
        group = group or asked.key
        if not cell or not usable(cell):
            if time.monotonic() > self.deadline:
                self.missing += 1
                return None
            here = machine()
            if group in self._groups and self._groups[group][0] != here["cpu"]:
                self.elsewhere.append(name)
                return None
            self.say(name)
            self.store.put(asked, {"settings": settings, "machine": here, **measure()})
            cell = self.store.result(asked.key)
        # seconds of another processor are not compared
        cpu = str(cell["machine"].get("cpu"))
        others, first = self._groups.setdefault(group, (cpu, name))
        if others != cpu:
            why = "their seconds cannot be compared; choose another -o"
            raise QuarlError(f"{name} was measured on {cpu}, {first} on {others}: {why}")
        return cell

    def left(self) -> list[str]:
        """What there is to say of cells that were not measured."""
        lines = []
        if self.elsewhere:
            lines.append(
                f"{len(self.elsewhere)} cells are left out, as those that they are compared with were measured on "
                "another processor: repeat the command there, or choose another -o"
            )
        if self.missing:
            lines.append(f"the time is over with {self.missing} cells to go: repeat the command to go on")
        return lines


def turned(items: Sequence[Item], by: int) -> Sequence[Item]:
    """The items, beginning with another at every turn."""
    by %= max(len(items), 1)
    return (*items[by:], *items[:by])
