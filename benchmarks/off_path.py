"""Errors of static policies off the path of their agents, calibrated on the path alone and on --envelope env.

For discrete actions an error is fp32's gap between its best two scores where the action differs, in medians of the gap
on the path; for continuous ones the largest difference of an action's numbers, in percent of the range. A row has the
99.9th percentile of the errors of each kind of state, and of all states off the path.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import agents
from quarl.calibration import Calibrated
from quarl.engines import load, run_all
from quarl.engines.numpy_operators import as_float
from quarl.envelope import met_in
from quarl.envs import home_of
from quarl.errors import UnsupportedError
from quarl.evaluation import record
from quarl.off_path import KINDS, off_path
from quarl.policy.graph import Policy
from quarl.quant.spec import QuantSpec
from quarl.readers.load import read
from results import RESULTS, write

CALIBRATED = (("dynamic", "path"), ("static", "path"), ("static", "env"))
"""Modes and envelopes."""


def states(policy: Policy, count: int) -> dict[str, np.ndarray]:
    """Return states on the path, and of each kind off it; the box is missing if there is none."""
    home = home_of(policy)
    found = {"path": record(policy, "fidelity", environment=home, num=count)}
    for kind in KINDS:
        try:
            found[kind] = off_path(policy, home, kind, count=count)
        except UnsupportedError as error:
            print(f"{kind}: {error}", flush=True)
    return found


def distances(policy: Policy, exact: np.ndarray, outputs: np.ndarray, unit: float) -> np.ndarray:
    """Return the error of each state."""
    if policy.head.is_discrete:
        best = np.sort(exact, axis=1)[:, -2:]
        return np.ptp(best, axis=1) * (exact.argmax(axis=1) != outputs.argmax(axis=1)) / unit
    return 100 * policy.head.distance(policy.head(exact), policy.head(outputs)).reshape(len(exact), -1).max(axis=1)


def rows(agent: agents.Trained, count: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each precision, mode and envelope."""
    policy = read(agent.path)
    found = states(policy, count)
    exact = {kind: as_float(policy, x)[policy.output] for kind, x in found.items()}
    unit = float(np.median(np.ptp(np.sort(exact["path"], axis=1)[:, -2:], axis=1))) if policy.head.is_discrete else 1.0
    made = {envelope: Calibrated(policy, met_in(envelope, policy)) for envelope in ("path", "env")}
    for bits in ("8", "4", "2"):
        for mode, envelope in CALIBRATED:
            quantized = made[envelope].quantize(QuantSpec.parse(bits, mode=mode))
            outputs = {kind: run_all(load(quantized, "reference", batch=1000), x) for kind, x in found.items()}
            away = {kind: distances(policy, exact[kind], outputs[kind], unit) for kind in found}
            error = outputs["path"] - exact["path"]
            error = error - error.mean(axis=1, keepdims=True) * policy.head.is_discrete  # common parts decide nothing
            row = {"name": agent.name, "precision": quantized.spec.precision, "mode": mode, "envelope": envelope}
            row |= {"discrete": policy.head.is_discrete, "rms_path": float(np.sqrt(np.square(error).mean()))}
            row |= {kind: float(np.percentile(each, 99.9)) for kind, each in away.items()}
            off = np.concatenate([each for kind, each in away.items() if kind != "path"])
            yield row | {"states": len(off), "off_path": float(np.percentile(off, 99.9)), "largest": float(off.max())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("agents", type=Path, nargs="?", default=agents.DEFAULT_FOLDER)
    parser.add_argument("--states", type=int, default=10_000, help="states of each kind")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    for agent in agents.find(options.agents):
        measured = list(rows(agent, options.states))
        write("off-path", "make bench-off-path", root=options.out, rows=measured)
        print(*measured, sep="\n", flush=True)


if __name__ == "__main__":
    main()
