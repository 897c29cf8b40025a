"""Sources of joules: counters of the processor, or processor time times watts."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import threading
import time
import warnings
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from quarl.machine import is_virtual

JOULES_PER_KWH = 3.6e6
POWERCAP = Path("/sys/class/powercap/intel-rapl/subsystem")
"""Folder in which Linux shows the processor's counters."""
SAMPLE_S = 20.0
"""Seconds between two readings: the smallest counters wrap around after some minutes of full power."""


class Source(ABC):
    """A source of joules, counted from its creation."""

    method: str
    watts: float | None = None
    """Watts of a busy core; None if energy is counted."""

    @abstractmethod
    def joules(self) -> float:
        """Return the joules so far."""

    def close(self) -> None:  # noqa: B027  # most have nothing to let go
        """Stop counting."""


def find(watts: float | None) -> Source:
    """Return the source that measures a run on this machine.

    watts: of a busy core, as stated; None reads the counters, and estimates if there are none.
    """
    if watts is not None:
        return ProcessorTime(watts, "stated")
    return Counters.find(POWERCAP) or ProcessorTime(_guess(), "codecarbon's guess")


def cpu_seconds() -> float:
    """Return the processor time of this process, its ended children (also killed ones) and its living ones."""
    psutil = importlib.import_module("psutil")  # codecarbon depends on it
    living = 0.0
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            times = child.cpu_times()
            living += times.user + times.system + times.children_user + times.children_system
    ended = os.times()
    return time.process_time() + ended.children_user + ended.children_system + living


class ProcessorTime(Source):
    """Processor time times watts."""

    def __init__(self, watts: float, origin: str) -> None:
        """Start counting; `watts` are of a busy core, from `origin`."""
        self.watts = watts
        self.method = f"CPU time × {watts:.3g} W a core, {origin}"
        self._watts, self._began = watts, cpu_seconds()

    def joules(self) -> float:
        return self._watts * (cpu_seconds() - self._began)


class Counters(Source):
    """The processor's energy counters, which count all work on the machine."""

    def __init__(self, folder: Path) -> None:
        """Start reading the counters of `folder`, which has the form of POWERCAP."""
        self.method = "RAPL of the whole processor"
        self._reader = _codecarbon("codecarbon.core.cpu").IntelRAPL(rapl_dir=str(folder))
        self._seconds = _codecarbon("codecarbon.core.units").Time.from_seconds
        self._reader.start()
        self._sum, self._read = 0.0, time.monotonic()
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._look, name="quarl-energy", daemon=True)
        self._thread.start()

    @classmethod
    def find(cls, folder: Path) -> Counters | None:
        """Return the counters of the folder; None if there are none, or none that this user may read."""
        if not folder.is_dir() or not _codecarbon("codecarbon.core.cpu").is_rapl_available(str(folder)):
            return None
        return cls(folder)

    def joules(self) -> float:
        with self._lock:
            now = time.monotonic()
            deltas = self._reader.get_cpu_details(self._seconds(max(now - self._read, 1e-3)))
            # one for each package, beside its power
            self._sum += sum(kwh for name, kwh in deltas.items() if "Energy" in name) * JOULES_PER_KWH
            self._read = now
            return self._sum

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _look(self) -> None:
        """Read often enough that no counter wraps around unnoticed."""
        while not self._closed.wait(SAMPLE_S):
            self.joules()


def _guess() -> float:
    """Return the watts of a busy core: the processor's thermal design power over its cores, from codecarbon.

    A virtual machine does not show the number of cores that share that power. There, and for an unknown processor, the
    result is codecarbon's default for any core.
    """
    cpu = _codecarbon("codecarbon.core.cpu")
    any_core = float(cpu.DEFAULT_POWER_PER_CORE)
    if is_virtual():
        return any_core
    power = cpu.TDP().tdp
    return power / (os.cpu_count() or 1) if power else any_core


def _codecarbon(module: str) -> Any:
    """Import one of codecarbon's modules, and silence it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        imported = importlib.import_module(module)
    logging.getLogger("codecarbon").setLevel(logging.CRITICAL)
    return imported
