"""A robot's policy in few bits, in closed loop: python benchmarks/go1.py [--episodes 50] [--study go1]

The Go1 policy of MuJoCo Playground, read from its ONNX file, walks in C MuJoCo (examples/go1) in float32 and static
int8, 4, 3 and 2 bits, with equal layers and with edges of 8 bits; calibrated, and distilled from the same log of the
float policy's observations. Flash and instructions are those of a Cortex-M4, if its compiler and qemu are installed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

import quarl
import results
from quarl.envs.environment import home_of
from quarl.errors import QuarlError
from quarl.evaluation import record
from quarl.export.footprint import footprint
from quarl.judging import fidelity_on, judged
from quarl.policy import artifact
from quarl.policy.graph import QuantizedPolicy

ROOT = Path(__file__).resolve().parents[1] / "examples" / "go1"
ENV = "go1_joystick:Go1Joystick-v0"
PRECISIONS = ("int8", "int4e4", "int4e8", "int3e3", "int3e8", "int2e2", "int2e8")
LOGGED = 6_000
MARGIN = 5.0


def row(
    agent: quarl.Agent, exact: quarl.Agent, log: np.ndarray, method: str, episodes: int, fp32: np.ndarray | None
) -> dict[str, Any]:
    """Return the measurements of an agent as a row.

    Args:
        agent: The agent.
        exact: The agent in float32.
        log: Observations, of which the last tenth is held out.
        method: Origin of the weights: float, calibrated or distilled.
        episodes: Number of episodes.
        fp32: Returns of float32 on the same episodes; None for itself.
    """
    policy = agent.policy
    assert isinstance(policy, QuantizedPolicy)
    played = agent.evaluate(episodes=episodes, env_id=ENV)
    told = judged(played.returns, played.returns if fp32 is None else fp32, MARGIN, 0)
    told |= {"method": method, "precision": policy.spec.precision, "bytes": len(artifact.to_bytes(policy))}
    told |= {"falls": int(np.sum(played.successes == 0)), "steps": played.num_steps, "returns": played.returns.tolist()}
    if fp32 is not None:
        told |= fidelity_on(exact.policy, policy, log)[0]
        try:
            board = footprint(policy, "c")
            told |= {"flash": board.flash, "ram": board.ram, "instructions": board.instructions, "board": board.how}
        except QuarlError as error:
            told["board"] = str(error)
    print(f"{told['precision']:8}{method:12}{told['mean']:8.1f}  falls {told['falls']}", flush=True)
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--study", default="go1", help="folder below results/")
    parser.add_argument("--precisions", nargs="+", default=PRECISIONS)
    parser.add_argument("--rounds", type=int, default=8)
    asked = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    exact = quarl.load(ROOT / "policy.onnx")
    log = record(exact.policy, environment=home_of(exact.policy, ENV), num=LOGGED, min_episodes=12)
    made = [row(exact.quantize("fp32"), exact, log, "float", asked.episodes, None)]
    fp32 = np.array(made[0]["returns"])
    for precision in asked.precisions:
        words: Any = {"mode": "static", "observations": log}
        distilled = exact.distill(precision, rounds=asked.rounds, **words)
        for method, policy in (("calibrated", distilled.snapshots[0].policy), ("distilled", distilled.agent.policy)):
            made.append(row(quarl.Agent(policy), exact, log, method, asked.episodes, fp32))
    results.write(asked.study, "make bench-go1", arms=[{"name": f"{r['precision']}-{r['method']}", **r} for r in made])


if __name__ == "__main__":
    main()
