"""`quarl doctor`: checks this machine for problems before they occur."""

from __future__ import annotations

import importlib
import platform
from dataclasses import dataclass
from typing import Annotated

from quarl import __version__
from quarl.commands import terminal
from quarl.config import DoctorConfig
from quarl.errors import MissingPackageError, QuarlError
from quarl.machine import INT8_DOT, PACKAGES, cpu_name, instruction_sets, memory_gib, usable_cores, version
from quarl.rows import Column, Row

MAX_ERROR = 1e-3
"""Largest accepted error; a code on the other side of a rounding boundary moves the small policy's output by less."""


@dataclass(frozen=True, slots=True)
class Check(Row):
    """One check."""

    command = "doctor"
    check: Annotated[str, Column("check")]
    found: Annotated[str, Column("found")]
    ok: Annotated[bool, Column("", lambda ok: "ok" if ok else "!")]
    """False if an engine is broken; one that is not installed is fine."""
    advice: Annotated[str, Column("advice")]
    """How to fix it, or its meaning; empty if there is no advice."""


def run(config: DoctorConfig) -> None:
    """Print one row per check; raise QuarlError after the table if one failed."""
    checks = examine()
    terminal.tell(config, Check, checks, "This machine")
    if failed := [check.check for check in checks if not check.ok]:
        checks_failed = "1 check" if len(failed) == 1 else f"{len(failed)} checks"
        raise QuarlError(f"{checks_failed} failed: {', '.join(failed)}; see the advice in the table's last column")


def examine() -> list[Check]:
    """Return all checks in reading order."""
    return [*_hardware(), _packages(), *_engines()]


def _hardware() -> list[Check]:
    sets = instruction_sets()
    dot = [name for name in sets if name in INT8_DOT]
    no_dot = (
        "8-bit products gain less over float32 without them; ONNX Runtime's kernels for signed weights may saturate "
        "here, so QuaRL's .onnx files hold unsigned ones"
    )
    memory = memory_gib()
    amount = "" if memory is None else f", {memory:g} GiB"
    return [
        Check("processor", f"{cpu_name()}, {usable_cores()} cores{amount}", True, ""),
        Check("instruction sets", " ".join(sets) or "none relevant", True, ""),
        Check("8-bit dot products", " ".join(dot) or "none", True, "" if dot else no_dot),
    ]


def _packages() -> Check:
    """Return the versions on which measured numbers depend; `pip check` and `pip list` know about the others."""
    versions = {"python": platform.python_version(), "quarl": __version__}
    versions |= {package: number for package in PACKAGES if (number := version(package)) is not None}
    return Check("versions", ", ".join(f"{name} {number}" for name, number in versions.items()), True, "")


def _engines() -> list[Check]:
    """Run a small int8 policy on every engine and compare it with the reference."""
    rows = []
    for name in importlib.import_module("quarl.engines").ENGINES:
        try:
            error, measured = _try(name)
        except MissingPackageError as missing:
            rows.append(Check(f"engine {name}", "not installed", True, str(missing).partition(": ")[2]))
            continue
        except Exception as problem:  # a broken installation of a runtime may raise any exception
            advice = f"{type(problem).__name__}: {str(problem).partition(chr(10))[0]}"
            rows.append(Check(f"engine {name}", "does not run", False, advice))
            continue
        close = error <= MAX_ERROR
        says = f"{'runs' if measured else 'simulates'} int8, {error:.1g} from the integer reference at most"
        rows.append(Check(f"engine {name}", says, close, "" if close else "its results are unreliable on this machine"))
    return rows


def _try(engine: str) -> tuple[float, bool]:
    """Run a small int8 policy on the engine.

    Return the largest difference to the integer reference's outputs, and True if its kernels are real.
    """
    import numpy as np

    from quarl import engines
    from quarl.calibration import quantize
    from quarl.latency.networks import Network, build, observations
    from quarl.quant.spec import QuantSpec

    policy = build(Network(name="", observation_shape=(4,), hidden=(16,), num_actions=2))
    quantized, x = quantize(policy, QuantSpec.parse("int8", scheme="per-channel")), observations(policy, num=32)
    tried, exact = (engines.load(quantized, name, batch=32) for name in (engine, "reference"))
    return float(np.abs(tried.run(x) - exact.run(x)).max()), tried.measured
