"""A file in one of its runtimes, as an engine to time, and the memory that it adds to a process with the runtime."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from quarl.arrays import Array
from quarl.errors import QuarlError
from quarl.export import runtimes

CHILD = "import sys; from quarl.latency import memory; print(memory.added(*sys.argv[1:]))"
STATUS = Path("/proc/self/status")


class File:
    """A file in one runtime, one row at a time, from numpy to numpy."""

    batch, measured = 1, True

    def __init__(self, path: Path, runtime: str) -> None:
        """Load the file; raise QuarlError if the runtime rejects it."""
        self.name, self.path, self.file_bytes = runtime, path, path.stat().st_size
        loaded: Any = runtimes.load(runtime, path)
        self.run: Callable[[Array], Any] = getattr(loaded, "row", loaded.run)


def bytes_added(file: File, tiny: File, observation: Array) -> int | None:
    """Measure the peak resident memory that loading the file and its first call add, in a process of its own.

    Args:
        file: the file to measure.
        tiny: another file of the runtime, with one float32 observation [1, 1], which the process loads first.
        observation: a row [1, *shape] for the call.

    Returns:
        Bytes, or None on systems without /proc.

    Raises:
        QuarlError: if the process fails; a damaged file can crash a runtime.
    """
    if not STATUS.exists():
        return None
    about = (str(tiny.path), str(file.path), file.name, observation.dtype.name, *map(str, observation.shape))
    done = subprocess.run([sys.executable, "-c", CHILD, *about], capture_output=True, text=True, errors="replace")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise QuarlError(f"{file.path.name} cannot be called in {file.name}: {last[:200]}")
    return int(done.stdout.split()[-1])


def added(tiny: str, path: str, runtime: str, dtype: str, *shape: str) -> int:
    """Return the bytes that `bytes_added` reports, measured in this process.

    Args:
        tiny: Path of a tiny file, which loads the runtime first.
        path: Path of the file to measure.
        runtime: Name of the runtime.
        dtype: Type of the observations.
        *shape: Shape of the observations, as words of a command line.
    """
    warm, observation = File(Path(tiny), runtime), np.zeros([int(n) for n in shape], dtype)
    warm.run(np.zeros((1, 1), np.float32))
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak so far was that of imports
    before = _kilobytes("VmRSS")
    File(Path(path), runtime).run(observation)
    return 1024 * max(_kilobytes("VmHWM") - before, 0)


def _kilobytes(field: str) -> int:
    return int(re.findall(rf"{field}:\s+(\d+) kB", STATUS.read_text())[0])
