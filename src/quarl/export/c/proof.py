"""`quarl verify --prove`: bounds of a policy.c for all observations, and its clipping inside the calibrated box."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from quarl import __version__
from quarl.arrays import Array
from quarl.engines import reference
from quarl.errors import MissingPackageError, QuarlError, UnsupportedError, short
from quarl.export.c.bounds import NORMAL, Grid, Run
from quarl.export.c.every_point import Enumeration, run_all
from quarl.export.c.program import Program, check
from quarl.export.contract import CONTRACT, POLICY, sha256
from quarl.export.equal import NOT_PROVEN, VerifyRow
from quarl.export.targets import file_of
from quarl.export.verification import read_document
from quarl.files import write_bytes
from quarl.policy import artifact
from quarl.policy.graph import QuantizedPolicy

PROOF, POINTS, NO_BOX = "proof.json", "points of the first grid", "there is no box of calibration observations"
STARTS, GOALS, PASSES = 512, 8, 2
"""Corners of the box from which the search starts, numbers that it maximizes, and passes over the coordinates."""


def source_of(folder: Path) -> Path:
    """Return the C file of an exported folder; raise QuarlError if the folder has none."""
    if not folder.is_dir():
        raise QuarlError(f"--prove requires the folder of {folder.name}, with its contract and its policy")
    full = read_document(folder / CONTRACT)
    if full.get("target") != "c":
        raise UnsupportedError("--prove requires C in static integers: export the policy again with --to c")
    return folder / file_of("c", full["name"], full["package"])


def prove(path: Path, most: int = 0) -> Iterator[VerifyRow | str]:
    """Prove that no sum, shift or index of a policy.c leaves its range, and decide which of its grids can saturate.

    The folder gets proof.json with all bounds.

    Args:
        path: The C file in its folder, as `source_of` returns it.
        most: Largest number of points of the first grid to run, all of them; then every grid is decided.

    Yields:
        A row for the calls, one for each grid, and one for the points, or the reason for leaving some out.

    Raises:
        QuarlError: `quarl export` writes no such file, or the folder is read-only.
    """
    program, policy = check(path.read_text("ascii", errors="replace")), artifact.read(path.parent / POLICY)
    assert isinstance(policy, QuantizedPolicy)
    everything = np.reshape((0.0, 255.0) if program.x == "uint8_t" else (-NORMAL[1], NORMAL[1]), (2, 1, 1))
    run = Run(program, np.repeat(everything, program.observation, axis=2))
    calls = [
        {"call": str(call).strip(" ;"), "layer": program.layers.get(call.named.get("w", ""), ""), "bounds": claims}
        for call, claims in zip(program.calls, run.claims, strict=True)
    ]
    broken = [
        f"{call['call']}: {name} from {low:.10g} to {high:.10g} leaves {least:.10g} to {most:.10g}"
        for call, claims in zip(calls, run.claims, strict=True)
        for name, (low, high, least, most) in claims.items()
        if not least <= low <= high <= most
    ]
    detail = broken[0] if broken else "for all observations"
    rows = [VerifyRow(check="32-bit sums", count=len(calls), result=NOT_PROVEN if broken else "proven", detail=detail)]
    yield rows[0]
    box, every, grids = None if program.state else run.box, None, []
    if broken or box is None:
        reason = "a call is not proven" if broken else NO_BOX + " and states" * (program.state > 0)
        yield f"left out: whether grids saturate ({reason})"
    else:
        try:
            every = run_all(program, box, most)
            outputs = ", ".join(f"{low:.9g} to {high:.9g}" for low, high in every.outputs)
            rows.append(VerifyRow(check=POINTS, runtime="c", count=every.points, result="all run", detail=outputs))
        except (UnsupportedError, MissingPackageError) as error:
            yield f"left out: {POINTS} ({error})"
        grids = _grids(program, policy, box, every)
        fields = [{name: grid[name] for name in ("count", "result", "detail")} for grid in grids]
        rows += [VerifyRow(check=f"grid of {g['layer']}", **each) for g, each in zip(grids, fields, strict=True)]
    yield from rows[1:]
    tables = {name: sha256(table.tobytes()) for name, table in program.tables.items()}
    proof = {
        "quarl": __version__,
        "sha256": {path.name: sha256(path.read_bytes()), **tables},
        "result": rows[0].result,
        "calls": calls,
        "box": None if box is None else box.tolist(),
        "points": None if every is None else {"count": every.points, "outputs": every.outputs.tolist()},
        "grids": grids,
    }
    write_bytes((json.dumps(proof, indent=1) + "\n").encode(), path.parent / PROOF)


def _grids(program: Program, policy: QuantizedPolicy, box: Array, every: Enumeration | None) -> list[dict[str, Any]]:
    """Return the fields of each grid on the box.

    A grid saturates if an observation is found at which it does, and the reference has the program's output there.

    Args:
        program: The policy in C.
        policy: The policy.
        box: Ends of the observations [2, n].
        every: Result of all points of the first grid; None searches.
    """
    grids = []
    for index, grid in enumerate(Run(program, box[:, None]).grids):
        shown, observation, at = grid.codes, None, ""
        if every is None or index == 0:
            state = _saturating(program, box, index, grid)
            result = "not decided" if grid.beyond.max() > 0 else "cannot saturate"
        else:
            count, state = every.saturating.get(index, (0, None))
            result, at = (
                ("not decided", f"; {count:,} points saturate, the first") if count else ("cannot saturate", "")
            )
        if state is not None:
            run, row = Run(program, state[None, None]), state.astype(np.float32).reshape(1, *policy.observation_shape)
            if np.array_equal(reference.load(policy, 1).run(row), run.values["y"][0]):
                result, shown, observation = "saturates", run.grids[index].codes, state.tolist()
                at += f" at {short(', '.join(f'{x:.9g}' for x in state), 120)}"
        fields = {"call": grid.call, "layer": grid.layer, "low": grid.low, "high": grid.high}
        fields |= {"count": shown.shape[-1], "codes": [float(grid.codes.min()), float(grid.codes.max())]}
        detail = f"codes {shown.min():.0f} to {shown.max():.0f} of {grid.low} to {grid.high}{at}"
        grids.append({**fields, "result": result, "observation": observation, "detail": detail})
    return grids


def _saturating(program: Program, box: Array, index: int, grid: Grid) -> Array | None:
    """Return an observation of the box at which a grid clips a code; None if an ascent along coordinates finds none.

    The codes of the first layer are monotonic in each number of the observation, so their maxima are found.

    Args:
        program: The policy.
        box: Ends of the observations [2, n].
        index: Index of the grid.
        grid: The grid on the whole box.
    """
    goals, count = np.argsort(-grid.beyond[0])[:GOALS], box.shape[1]
    goals = goals[grid.beyond[0, goals] > 0]

    def beyond(x: Array) -> Array:
        return Run(program, x.reshape(1, -1, count)).grids[index].beyond[:, goals].reshape(*x.shape[:-1], -1)

    starts = box[np.random.default_rng(0).integers(2, size=(STARTS, count)), np.arange(count)]
    x = starts[beyond(starts).argmax(axis=0)]
    for place in [*range(count)] * PASSES if len(goals) else []:
        tried = np.stack([x, x, x])
        tried[1:, :, place] = box[:, None, place]
        found = np.diagonal(beyond(tried), axis1=1, axis2=2)
        if found.max() > 0:
            return np.asarray(tried[np.unravel_index(found.argmax(), found.shape)])
        x = tried[found.argmax(axis=0), np.arange(len(goals))]
    return None
