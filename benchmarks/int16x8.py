"""Error of int8 weights with int16 activations, per agent: python benchmarks/int16x8.py [AGENTS] [--wild FOLDER]

Agents of Stable-Baselines3 and the robot of examples/go1 are compared with float32 on episodes other than those of the
calibration. Unitree's G1 has no environment here: its policies see normal random numbers. The reference computes the
actions, to whose bits `quarl verify` holds LiteRT and TFLite Micro. Three arithmetics show where the error comes from:
the file's, the same weights with the usual 16-bit grids, and 16-bit weights on these.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import agents
import results
from quarl.calibration import Calibrated
from quarl.engines import reference
from quarl.envs.environment import home_of
from quarl.errors import UnsupportedError
from quarl.evaluation import record
from quarl.judging import fidelity
from quarl.policy.graph import Policy
from quarl.quant.spec import EXACT, QuantSpec
from quarl.readers.load import read

GO1 = Path(__file__).resolve().parents[1] / "examples" / "go1"
G1 = {"unitree-g1-velocity": "unitree-g1-velocity.onnx", "mjlab-g1-velocity": "mjlab-g1-velocity/policy.onnx"}
ARITHMETICS = (("int16x8", "w8a16", "int16x8"), ("w8a16", "w8a16", "f32-rne"), ("w16a16", "w16a16", "f32-rne"))
"""Name of a column, precision, and arithmetic of the reference."""
ERROR, AGREEMENT = 0.005, 0.995
"""Bars: RMS error as a share of the range of actions, and share of discrete actions that agree."""


def policies(folder: Path, wild: Path) -> Iterator[tuple[str, Policy, str | None]]:
    """Yield the name of each agent, its policy, and its environment; None is the policy's own, "" is none."""
    for agent in agents.find(folder):
        if agent.kind == "sb3":
            yield agent.name, read(agent.path), None
    yield "playground-go1", read(GO1 / "policy.onnx"), "go1_joystick:Go1Joystick-v0"
    for name, file in G1.items():
        yield name, read(wild / file), ""


def measured(policy: Policy, calibration: np.ndarray, held_out: np.ndarray) -> dict[str, Any]:
    """Return the error on held-out observations, by arithmetic."""
    calibrated = Calibrated(policy, calibration)
    exact = reference.load(calibrated.quantize(EXACT), 64).run(held_out)
    errors = {}
    for name, precision, arithmetic in ARITHMETICS:
        engine = reference.load(calibrated.quantize(QuantSpec.parse(precision, mode="static")), 64, arithmetic)
        errors[name] = fidelity(policy, *map(policy.head, (exact, engine.run(held_out))))
    met = [e["agreement"] >= AGREEMENT if policy.head.is_discrete else e["error_rms"] <= ERROR for e in errors.values()]
    return {"observations": len(held_out), **errors, "met": met[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("agents", type=Path, nargs="?", default=agents.DEFAULT_FOLDER)
    parser.add_argument("--wild", type=Path, default=agents.DEFAULT_FOLDER.parent / "agents-wild" / "onnx")
    parser.add_argument("--out", type=Path, default=results.RESULTS)
    asked = parser.parse_args()
    sys.path.insert(0, str(GO1))
    rows = []
    for name, policy, env_id in policies(asked.agents, asked.wild):
        if env_id == "":
            rng = np.random.default_rng(0)
            calibration, held_out = rng.normal(size=(2, 2_000, *policy.observation_shape)).astype(np.float32)
        else:
            home = home_of(policy, env_id)
            calibration = record(policy, environment=home)
            held_out = record(policy, "fidelity", environment=home, num=2_000)
        try:
            rows.append({"name": name, **measured(policy, calibration, held_out)})
        except UnsupportedError as error:
            rows.append({"name": name, "refused": str(error)})
        print(rows[-1], flush=True)
    results.write("int16x8", "python benchmarks/int16x8.py", root=asked.out, agents=rows)


if __name__ == "__main__":
    main()
