"""Where joules come from: counters of processor and GPUs, or processor time times watts."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quarl.machine import is_virtual

JOULES_PER_KWH = 3.6e6
POWERCAP = Path("/sys/class/powercap/intel-rapl/subsystem")
"""Where Linux shows the processor's counters."""
SAMPLE_S = 20.0
"""Between two looks at them: the smallest begin anew after some minutes of full power."""


class Source(ABC):
    """Counts from when it is made."""

    method: str
    watts: float | None = None
    """Of a busy core; None where energy is counted."""

    @abstractmethod
    def joules(self) -> float:
        """So far."""

    def close(self) -> None:  # noqa: B027  # most have nothing to let go
        """Counts no more."""


def find(watts: float | None, *, gpus: bool) -> Sequence[Source]:
    """What measures a run on this machine.

    watts: of a busy core, stated; None asks the counters, and guesses where there are none.
    gpus: whether it may use them; where NVML counts their energy, all of them are counted.
    """
    processor: Source | None = ProcessorTime(watts, "stated") if watts is not None else Counters.find(POWERCAP)
    if processor is None:
        processor = ProcessorTime(_guess(), "codecarbon's guess")
    beside = Gpus.find() if gpus else None
    return (processor,) if beside is None else (processor, beside)


def cpu_seconds() -> float:
    """Processor time of this process, of its children that have ended, killed ones too, and of those that live."""
    psutil = importlib.import_module("psutil")  # codecarbon brings it
    living = 0.0
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended since
            times = child.cpu_times()
            living += times.user + times.system + times.children_user + times.children_system
    ended = os.times()
    return time.process_time() + ended.children_user + ended.children_system + living


class ProcessorTime(Source):
    """Processor time times watts."""

    def __init__(self, watts: float, origin: str) -> None:
        """watts: of a busy core; origin: where they are from."""
        self.watts = watts
        self.method = f"CPU time × {watts:.3g} W a core, {origin}"
        self._watts, self._began = watts, cpu_seconds()

    def joules(self) -> float:
        return self._watts * (cpu_seconds() - self._began)


class Counters(Source):
    """The processor's energy counters, which count for everyone on the machine."""

    def __init__(self, folder: Path) -> None:
        """folder: in the form of POWERCAP."""
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
        """Those in the folder; None where there are none, or none that this user may read."""
        if not folder.is_dir() or not _codecarbon("codecarbon.core.cpu").is_rapl_available(str(folder)):
            return None
        return cls(folder)

    def joules(self) -> float:
        with self._lock:
            now = time.monotonic()
            deltas = self._reader.get_cpu_details(self._seconds(max(now - self._read, 1e-3)))
            # one for each package; beside it stands the power of the same
            self._sum += sum(kwh for name, kwh in deltas.items() if "Energy" in name) * JOULES_PER_KWH
            self._read = now
            return self._sum

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _look(self) -> None:
        """Often enough that no counter comes around unseen."""
        while not self._closed.wait(SAMPLE_S):
            self.joules()


class Gpus(Source):
    """The energy counters of all NVIDIA GPUs, which count for everyone on the machine."""

    def __init__(self, nvml: Any) -> None:
        """nvml: the module, initialised."""
        self._nvml = nvml
        self._handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        self.method = f"NVML of {len(self._handles)} GPU{'s' if len(self._handles) > 1 else ''}"
        self._began = self._millijoules()

    @classmethod
    def find(cls) -> Gpus | None:
        """Those of this machine; None where there are none, or some that count no energy."""
        try:
            nvml = importlib.import_module("pynvml")  # codecarbon brings it
            nvml.nvmlInit()
        except Exception:  # no module, no driver, no rights: then there is nothing to count
            return None
        try:
            gpus = cls(nvml)
        except nvml.NVMLError:
            return None
        return gpus if gpus._handles else None

    def joules(self) -> float:
        return (self._millijoules() - self._began) / 1e3

    def close(self) -> None:
        self._nvml.nvmlShutdown()

    def _millijoules(self) -> float:
        return float(sum(map(self._nvml.nvmlDeviceGetTotalEnergyConsumption, self._handles)))


def _guess() -> float:
    """Watts of a busy core: the processor's thermal design power over its cores, as codecarbon knows it.

    A virtual machine does not show how many cores share that power: there, and for a processor that it does not know,
    codecarbon's watts of any core.
    """
    cpu = _codecarbon("codecarbon.core.cpu")
    any_core = float(cpu.DEFAULT_POWER_PER_CORE)
    if is_virtual():
        return any_core
    power = cpu.TDP().tdp
    return power / (os.cpu_count() or 1) if power else any_core


def _codecarbon(module: str) -> Any:
    """One of its modules, which keeps quiet."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        imported = importlib.import_module(module)
    logging.getLogger("codecarbon").setLevel(logging.CRITICAL)
    return imported
