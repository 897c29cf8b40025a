"""Finished measurements, one JSON file each, so that long ones can be stopped and gone on with."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from quarl.energy import OFF, Meter
from quarl.errors import QuarlError
from quarl.files import make_folder, write_bytes
from quarl.machine import machine

Cell = dict[str, Any]
RETIRED = ("save_freq",)
"""Settings that older cells hold and that determine nothing that is measured."""
OPTIONS = {"ptq": "bits"}
"""What users call a setting, where it is not its name."""
Say = Callable[[str], None]
Item = TypeVar("Item")


class Cells:
    """Finished cells in a folder. A cell measured under other settings is never taken for one of these."""

    def __init__(self, folder: Path, minutes: float, say: Say, meter: Meter = OFF) -> None:
        """meter: for measurements that say what they cost; cells that are there already are not measured anew."""
        self.folder, self.say, self.meter = folder / "cells", say, meter
        make_folder(self.folder)
        self.deadline = time.monotonic() + 60 * minutes
        self.missing = 0
        """Cells that were asked for after the time was over."""
        self.elsewhere: list[str] = []
        """Names of cells that were asked for on another processor than that of their group."""
        self.failed: list[str] = []
        """Names of cells that could not be measured, where that is no reason to stop."""
        self._groups: dict[str, tuple[str, Path]] = {}

    def get(
        self, name: str, settings: Mapping[str, Any], measure: Callable[[], Cell], *, group: str | None = None
    ) -> Cell | None:
        """The cell of that name, measured now where it is not there; None where the time is over.

        group: cells whose seconds are compared. They are all of the processor of the first one that is asked for: none
        is measured on another (None), and one that was is a QuarlError.
        """
        path = self.path(name)
        wanted = json.loads(json.dumps(settings))
        if path.exists():
            found: Cell = _read(path)
            other = [
                OPTIONS.get(key, key)
                for key in wanted | found["settings"]
                if key not in RETIRED and wanted.get(key) != found["settings"].get(key)
            ]
            if other:
                raise QuarlError(
                    f"{path} was measured with another {', '.join(other)}: choose another -o, or remove it"
                )
            self._same_processor(group, str(found.get("machine", {}).get("cpu")), path)
            return found
        if time.monotonic() > self.deadline:
            self.missing += 1
            return None
        here = machine()
        if group in self._groups and self._groups[group][0] != here["cpu"]:
            self.elsewhere.append(name)
            return None
        self.say(name)
        measured = {"settings": wanted, "machine": here, **measure()}
        write_bytes(json.dumps(measured).encode() + b"\n", path)
        self._same_processor(group, str(here["cpu"]), path)
        return measured

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def _same_processor(self, group: str | None, cpu: str, path: Path) -> None:
        if group is None:
            return
        others, first = self._groups.setdefault(group, (cpu, path))
        if others != cpu:
            raise QuarlError(
                f"{path} was measured on {cpu}, {first.name} on {others}: their seconds cannot be compared; "
                "remove one of them, or choose another -o"
            )


def turned(items: Sequence[Item], by: int) -> Sequence[Item]:
    """The items, beginning with another at every turn."""
    by %= max(len(items), 1)
    return (*items[by:], *items[:by])


def _read(path: Path) -> Cell:
    try:
        found: Cell = json.loads(path.read_text())
        if isinstance(found["settings"], dict):
            return found
    except (ValueError, KeyError, TypeError, OSError, RecursionError):
        pass
    raise QuarlError(f"{path} is no cell of this benchmark: remove it to measure it again")
