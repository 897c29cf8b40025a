"""Flash, RAM and instructions of a policy on a small board.

They are counted if the tools are installed; otherwise instructions are estimated, and memory is unknown.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from quarl.errors import QuarlError, UnsupportedError
from quarl.export import runtimes
from quarl.export.c.lowering import Lowering
from quarl.export.c.program import Program
from quarl.export.c.weight_words import KERNELS, by_fours
from quarl.export.targets import WRITERS
from quarl.files import temporary_folder, write_bytes
from quarl.policy.graph import QuantizedPolicy, macs

BOARD = "c-m4"
CPI = (1.0, 1.8)
"""Cycles per instruction of a Cortex-M4: it starts at most one a cycle, and the inner loop takes up to 9 for 5.

The second is inferred from published timings of other kernels, with flash that never waits.
"""
CALL, ROW, REAL, LOOK_UP, MOVE, SEEN = 300, 36, 86, 12, 8, 25
"""Instructions of an action, a requantized sum, a float32 operation, a number that is looked up or copied, one of a
convolution's window, and one that is compared with the calibrated box.

These and the next are for gcc -O2, fitted to 24 policies on a Cortex-M4.
"""
STEPS = "look_up", "products", "widen", "accumulate", "narrow", "quantize_power", "to_real"
"""Kernels of whole numbers, which take about as long as looking one up."""
ESTIMATE = 0.06
"""Largest error of estimated instructions, as a share of those counted."""
MAC = {2: 1.43, 3: 2.35, 4: 1.49, 8: 1.25}
"""Instructions of a product and its sum, by the bits of weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Requirements of a policy on a board: memory in bytes, and the work of an action; None is unknown."""

    flash: int | None
    ram: int | None
    macs: int
    instructions: int | None
    flash_os: int | None = None
    """The same for code that the compiler makes small with -Os in place of -O2, if it was asked for."""
    ram_os: int | None = None
    instructions_os: int | None = None
    how: str


def footprint(policy: QuantizedPolicy, target: str, file: Path | None = None, *, small: bool = False) -> Footprint:
    """Return the requirements of a policy as "c", or as "tflite" in TFLite Micro, whose own code is not included.

    Args:
        policy: The policy.
        target: Target, "c" or "tflite".
        file: File of the policy; None writes a temporary one.
        small: Count the code made with -Os too.

    Raises:
        UnsupportedError: The target is another one, or cannot run the policy.
        QuarlError: TFLite Micro, which alone can measure its memory, is not installed or does not run the policy.
    """
    work = sum(macs(policy).values())
    if target != "c" and not target.startswith("tflite"):
        raise UnsupportedError(f"footprints are computed for boards, not for {target}; use c or tflite")
    if file is None:
        with temporary_folder() as folder:
            file = folder / f"policy.{target}"
            content = None if target == "c" else importlib.import_module(WRITERS[target]).write(policy, acts=True)
            write_bytes(content or Lowering(policy).program("").source().encode(), file)
            return footprint(policy, target, file, small=small)
    if target != "c":
        how = "the file, without the interpreter; arena as measured with 64-bit pointers"
        return Footprint(
            flash=file.stat().st_size, ram=runtimes.arena(file, policy.spec), macs=work, instructions=None, how=how
        )
    try:
        return _counted(policy, file, work, small)
    except QuarlError as error:
        return _estimated(Lowering(policy).program(""), work, str(error))


def _counted(policy: QuantizedPolicy, file: Path, work: int, small: bool) -> Footprint:
    from quarl.export.c import boards

    numbers = np.random.default_rng(0).normal(size=(4, *policy.observation_shape))
    rows = 127 * numbers.clip(0, 2) if policy.observation_dtype == "uint8" else numbers
    takes: dict[str, int] = {}
    for suffix in ("", "_os")[: 1 + small]:
        board = boards.load(BOARD, file, small=suffix == "_os")
        board.run(rows.astype(policy.observation_dtype))
        takes |= {f"flash{suffix}": board.flash(), f"ram{suffix}": board.deepest() + 4 * policy.state.size}
        takes[f"instructions{suffix}"] = board.instructions
    return Footprint(macs=work, how=f"counted on a Cortex-M4 in qemu, {board.version} -O2", **takes)


def _estimated(program: Program, work: int, why: str) -> Footprint:
    total = float(CALL)
    for call in program.calls:
        s = call.sizes
        if "words" in s:
            conv, bits = call.kernel == "convolve", KERNELS[call.arguments[0]]
            k, windows = (s["c"] * s["kh"] * s["kw"], s["oh"] * s["ow"]) if conv else (s["k"], 1)
            rows, columns = by_fours(s["n"]), by_fours(k)
            row = 2 * REAL if call.kernel == "last" else ROW
            total += windows * (rows * MAC[bits] * columns + s["n"] * row + MOVE * k * conv)
        else:
            each = {"layer_norm": 7 * REAL, "l2_norm": 3 * REAL, "outside": SEEN, **dict.fromkeys(STEPS, LOOK_UP)}
            total += s["n"] * each.get(call.kernel, REAL)
    how = f"instructions estimated for a Cortex-M4, the rest unknown ({why})"
    return Footprint(flash=None, ram=None, macs=work, instructions=round(total), how=how)
