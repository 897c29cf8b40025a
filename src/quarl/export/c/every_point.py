"""All points of a policy's first grid inside a box, run by its own C on this machine."""

from __future__ import annotations

import importlib.resources
import math
import shutil
import time
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from quarl.arrays import Array
from quarl.errors import MissingPackageError, UnsupportedError, note
from quarl.export.c.boards import ran
from quarl.export.c.bounds import Grid, Run
from quarl.export.c.program import Call, Program, parameters, without_counts
from quarl.files import temporary_folder

TRIED = 4096
"""Points by which the time of all is estimated."""
FINER = 4
"""Observations tried per point of the first grid."""


class Enumeration(NamedTuple):
    """Result of all points."""

    points: int
    outputs: Array
    """Smallest and largest value of each output, float32 [outputs, 2]."""
    saturating: dict[int, tuple[int, Array]]
    """By index of a grid that some point saturates: how many do, and the observation of the first."""


def run_all(program: Program, box: Array, most: int) -> Enumeration:
    """Run all points of the first grid inside a box.

    Args:
        program: The policy.
        box: Ends of the observations, [2, n].
        most: Largest number of points.

    Raises:
        UnsupportedError: There are more points, or the outputs do not depend on the first grid alone.
        MissingPackageError: gcc is missing.
    """
    grids = Run(program, box[:, None]).grids
    total = math.prod(int(high - low) + 1 for low, high in grids[0].codes[:, 0].clip(grids[0].low, grids[0].high).T)
    if total > most:
        number = f"{total:,}" if total < 2**64 else f"about 10^{math.log10(total):.0f}"
        raise UnsupportedError(f"{number} of them are in the box, --calls allows {most:,}")
    if shutil.which("gcc") is None:
        raise MissingPackageError("gcc is missing: apt install gcc libc6-dev")
    values = _values(program, box, grids[0])
    with temporary_folder() as folder:
        sizes = np.array([len(each) for each in values], np.uint32)
        (folder / "points").write_bytes(b"".join([sizes.tobytes(), *(each.tobytes() for each in values)]))
        (folder / f"{program.name}.h").write_text(program.header())
        (folder / "policy.c").write_text(_unclipped(program, grids))
        text = importlib.resources.files(__package__).joinpath("every_point.c").read_text()
        text = text.replace("policy_raw", f"{program.name}_raw").replace("POLICY", program.name.upper())
        (folder / "main.c").write_text(text)
        ran(f"gcc -std=c99 -O3 -march=native -DGRIDS={len(grids)} main.c -o main", folder)
        begin = time.perf_counter()
        ran(f"./main {min(TRIED, total)}", folder)
        each = (time.perf_counter() - begin) / min(TRIED, total)
        note(f"{total:,} points of the first grid are run, which takes about {each * total:.0f} s")
        words = np.array(ran(f"./main {total}", folder, limit_s=None).split(), np.uint64).reshape(-1, 2)
    outputs, clips = words[: program.raw].astype(np.uint32).view(np.float32), words[program.raw :].tolist()
    states = [np.array([v[i] for v, i in zip(values, np.unravel_index(at, sizes), strict=True)]) for _, at in clips]
    return Enumeration(total, outputs, {i: (n, states[i]) for i, (n, _) in enumerate(clips) if n})


def _values(program: Program, box: Array, grid: Grid) -> list[Array]:
    """Return observations' numbers, float32, that give each code of the first grid inside the box once."""
    calls = without_counts(program.network)
    later = [(call, p) for call in calls[grid.call + 1 :] for p in parameters(call.kernel)]
    alone = not any(p.extent and p.const and call.place(p.name)[0] in ("x", "r") for call, p in later)
    begin = calls[grid.call].place("y")[1]
    start = replace(program, network=tuple(calls[: grid.call + 1]), codes=begin + grid.codes.shape[-1])
    values, steps = [], FINER * int(np.ptp(grid.codes.clip(grid.low, grid.high), axis=0).max() + 1)
    for place, (low, high) in enumerate(box.T):
        x = np.repeat(box[:1], steps, axis=0)
        x[:, place] = np.linspace(low, high, steps).astype(np.float32)
        codes_of = Run(start, x[None]).values["c"][0, :, begin:]
        moved = np.abs(codes_of[-1] - codes_of[0])
        kept = np.flatnonzero(np.append(True, (np.diff(codes_of, axis=0) != 0).any(axis=1)))
        alone &= bool(np.count_nonzero(moved) <= 1 and len(kept) == moved.sum() + 1)
        values.append(x[kept, place].astype(np.float32))
    if not alone:
        raise UnsupportedError("its outputs do not depend on the codes of the first grid alone, each of one number")
    return values


def _unclipped(program: Program, grids: list[Grid]) -> str:
    """Return policy.c with layers that report codes beyond their grids."""
    text = program.source()
    for index, grid in enumerate(grids[1:], 1):
        call = without_counts(program.network)[grid.call]
        wider = {"low": str(grid.low - (not grid.relu)), "high": str(grid.high + 1)}
        wide = Call(call.kernel, tuple(wider.get(name, argument) for name, argument in call.named.items()))
        clip = f"    clipped({index}, {grid.codes.shape[-1]}, {grid.low}, {grid.high}, {call.named['y']});"
        text = text.replace(f"{call}\n", f"{wide}\n{clip}\n")
    return text
