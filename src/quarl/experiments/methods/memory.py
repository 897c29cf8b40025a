"""Exported files as engines that are timed, and what each adds to the memory of a process that has its runtime."""

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

DTYPES = {"tensor(float)": np.float32, "tensor(uint8)": np.uint8, "tensor(int8)": np.int8}
"""What ONNX Runtime calls the types of observations."""
CHILD = "import sys; from quarl.experiments.methods import memory; print(memory.added(*sys.argv[1:]))"
STATUS = Path("/proc/self/status")


class File:
    """A file in one runtime, one row at a time, from numpy to numpy."""

    batch, measured = 1, True

    def __init__(self, path: Path, runtime: str) -> None:
        """QuarlError where the runtime does not take the file."""
        self.name, self.path, self.file_bytes = runtime, path, path.stat().st_size
        loaded: Any = runtimes.load(runtime, path)
        self.run: Callable[[Array], Any] = getattr(loaded, "row", loaded.run)


def blank(path: Path) -> Array:
    """Zeros [1, *shape], in its type, of the observation that the file reads; QuarlError where it reads several."""
    if path.suffix.lower() == ".onnx":
        import onnxruntime

        sources = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).get_inputs()
        found = [(each.shape, DTYPES.get(each.type)) for each in sources]
    else:
        from ai_edge_litert.interpreter import Interpreter

        details = Interpreter(str(path)).get_input_details()
        found = [(each["shape"].tolist(), each["dtype"]) for each in details]
    if len(found) != 1 or found[0][1] is None or not all(isinstance(n, int) for n in found[0][0][1:]):
        raise QuarlError(f"{path} does not read one observation of a fixed shape, so nothing is timed")
    return np.zeros((1, *found[0][0][1:]), found[0][1])


def bytes_added(file: File, tiny: Path, observation: Array) -> int | None:
    """Bytes of peak resident memory that loading the file and its first call add, in a process of its own.

    tiny: another file of the format, of one float32 observation [1, 1], which the process has loaded before. None on
    systems without /proc. QuarlError where the process does not come to its end: a file can bring a runtime down.
    """
    if not STATUS.exists():
        return None
    about = (str(tiny), str(file.path), file.name, observation.dtype.name, *map(str, observation.shape))
    done = subprocess.run([sys.executable, "-c", CHILD, *about], capture_output=True, text=True, errors="replace")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise QuarlError(f"{file.path.name} cannot be called in {file.name}: {last[:200]}")
    return int(done.stdout.split()[-1])


def added(tiny: str, path: str, runtime: str, dtype: str, *shape: str) -> int:
    """What `bytes_added` returns, of this process."""
    warm, observation = File(Path(tiny), runtime), np.zeros([int(n) for n in shape], dtype)
    warm.run(np.zeros((1, 1), np.float32))
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak so far was that of imports
    before = _kilobytes("VmRSS")
    File(Path(path), runtime).run(observation)
    return 1024 * max(_kilobytes("VmHWM") - before, 0)


def _kilobytes(field: str) -> int:
    (value,) = re.findall(rf"{field}:\s+(\d+) kB", STATUS.read_text())
    return int(value)
