"""Description of this computer: the header of every measured result, and half of the output of `quarl doctor`."""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import importlib.util
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

INSTRUCTION_SETS = {
    "avx2": "avx2",
    "fma": "fma",
    "f16c": "f16c",
    "avx512f": "avx512",
    "avx_vnni": "avx-vnni",
    "avx512_vnni": "avx512-vnni",
    "avx512_bf16": "avx512-bf16",
    "avx512_fp16": "avx512-fp16",
    "amx_int8": "amx-int8",
    "amx_bf16": "amx-bf16",
    "asimd": "neon",
    "asimddp": "neon-dotprod",
    "i8mm": "neon-i8mm",
    "bf16": "neon-bf16",
    "sve": "sve",
    "FEAT_DotProd": "neon-dotprod",
    "FEAT_I8MM": "neon-i8mm",
    "FEAT_BF16": "neon-bf16",
}
"""Names of the relevant instruction sets, by the system's name for them."""
INT8_DOT = ("avx-vnni", "avx512-vnni", "amx-int8", "neon-dotprod", "neon-i8mm")
"""Instruction sets that multiply and add four 8-bit integers in one step, without saturation in between."""
MULTIPLIERS = {"bf16": {"amx-bf16", "avx512-bf16", "neon-bf16"}, "fp16": {"avx512-fp16"}}
"""Instruction sets that multiply numbers of each type."""
PACKAGES = (
    "numpy",
    "torch",
    "onnx",
    "onnxruntime",
    "ai-edge-litert",
    "stable-baselines3",
    "gymnasium",
    "mujoco",
    "dm-control",
    "pybullet",
    "pybullet-envs-gymnasium",
    "gymnasium-robotics",
    "panda-gym",
    "box2d",
    "ale-py",
)
"""Packages on which a measured number may depend."""


GROUP_FILES = {
    "": ("memory.max", "memory.current", r"^file (\d+)"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", r"^total_cache (\d+)"),
}
"""Files of a control group, version 2 and 1: its limit, its usage, and the part of the usage that can be reclaimed."""


def machine() -> dict[str, Any]:
    """Return processor, memory, system, versions, commit and date, ready for JSON; None if one is unknown."""
    return {
        "cpu": cpu_name(),
        "instruction_sets": instruction_sets(),
        "cores": usable_cores(),
        "memory_gib": memory_gib(),
        "os": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: number for name in PACKAGES if (number := version(name)) is not None},
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def version(package: str) -> str | None:
    """Return the installed version of a distribution without importing it; None if it is missing."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def package_folder(name: str) -> Path | None:
    """Return the folder of an installed package without importing it; None if it is not installed."""
    spec = importlib.util.find_spec(name)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(places[0]) if places else None


def cpu_name() -> str:
    """Return the processor's name from the system, with family and model numbers if the system reports them."""
    facts = _cpuinfo()
    name = facts.get("model name") or _output("sysctl", "-n", "machdep.cpu.brand_string")
    name = name or platform.processor() or platform.machine()
    if "cpu family" in facts:
        name += f" (family {facts['cpu family']}, model {facts.get('model', '?')})"
    return name


def instruction_sets() -> list[str]:
    """Return the names of the sets in INSTRUCTION_SETS that this processor has."""
    facts = _cpuinfo()
    flags = set((facts.get("flags") or facts.get("Features") or "").split())
    if sys.platform == "darwin":
        lines = _output("sysctl", "hw.optional").splitlines()
        flags = {line.split(":")[0].rpartition(".")[2] for line in lines if line.endswith(": 1")}
        flags = {flag.removesuffix("_0") for flag in flags} | ({"asimd"} if platform.machine() == "arm64" else set())
    return list(dict.fromkeys(ours for theirs, ours in INSTRUCTION_SETS.items() if theirs in flags))


def multiplies(dtype: str) -> bool:
    """Return whether the processor multiplies fp32, bf16 or fp16 numbers itself.

    It converts others to fp32 and back.
    """
    return dtype == "fp32" or bool(MULTIPLIERS[dtype] & set(instruction_sets()))


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def is_virtual() -> bool:
    """Return whether this is a virtual machine, which shows only some of its processor's cores."""
    return "hypervisor" in _cpuinfo().get("flags", "").split()


def memory_gib() -> float | None:
    """Return the physical memory in GiB."""
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, ValueError, OSError):
        return None


def free_bytes(root: Path = Path("/")) -> int | None:
    """Return the memory in bytes that is still available to this process.

    It is the system's, or the rest of the process's control groups (cgroups(7)).
    """
    kib = _found(root / "proc/meminfo", r"^MemAvailable: +(\d+) kB")
    bounds = [1024 * int(kib)] if kib else []
    for controllers, (limit, used, cache) in GROUP_FILES.items():
        top = root / "sys/fs/cgroup" / controllers
        group = top / _found(root / "proc/self/cgroup", rf"^\d+:{controllers}:/(.*)$")
        for folder in (group, *group.parents):  # a group's limit also applies to the groups inside it
            bound, taken = (_found(folder / file, r"^(\d+)$") for file in (limit, used))
            if bound and taken:
                bounds.append(int(bound) - int(taken) + int(_found(folder / "memory.stat", cache) or 0))
            if folder == top:
                break
    return min(bounds, default=None)


def commit() -> str | None:
    """Return the commit of the checkout that contains this package, followed by "+" if files have changed since."""
    package = Path(__file__).resolve().parent
    top = package.parents[1]
    # A checkout that merely contains the virtual environment of this package is not its source.
    if top / "src" / "quarl" != package or not (top / ".git").exists():
        return None
    head = _output("git", "-C", str(top), "rev-parse", "--verify", "--quiet", "HEAD")
    changed = _output("git", "-C", str(top), "status", "--porcelain", "--untracked-files=no")
    return head + ("+" if changed else "") if head else None


def _cpuinfo() -> dict[str, str]:
    """Return Linux's description of the first core; empty on other systems."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _found(file: Path, pattern: str) -> str:
    """Return the first group of the pattern in the first matching line of the file; "" if there is none."""
    with contextlib.suppress(OSError):
        if match := re.search(pattern, file.read_text(), re.MULTILINE):
            return match[1]
    return ""


def _output(*command: str) -> str:
    """Return the command's output; "" if it fails or does not exist."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
