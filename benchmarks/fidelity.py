"""Our fp32 actions against Stable-Baselines3's own, on observations from each agent's rollouts.

Stable-Baselines3 loads and predicts by itself: its zip, its unpickled VecNormalize statistics. It executes what those
files hold, as it always does; give it only files you trust.
"""

from __future__ import annotations

import argparse
import pickle
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import gymnasium.spaces.box
import gymnasium.spaces.discrete
import numpy as np
import stable_baselines3
import torch

import agents
from quarl import engines
from quarl.calibration import quantize
from quarl.evaluation import record
from quarl.quant.spec import EXACT
from quarl.readers.load import read
from results import RESULTS, write

CONSTANTS = {"learning_rate": 0.0, "lr_schedule": lambda _: 0.0, "clip_range": lambda _: 0.0}
TOLERANCE = 1e-5
"""Tolerance, absolute and relative to the action."""


def sb3_model(agent: agents.Trained) -> Any:
    """Return the agent as Stable-Baselines3 itself loads it."""
    for module in ("", ".spaces", ".spaces.box", ".spaces.discrete"):  # zips of its first years name gym's classes
        sys.modules.setdefault(f"gym{module}", sys.modules[f"gymnasium{module}"])
    options = {} if agent.algo in ("ppo", "a2c") else {"buffer_size": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kind = getattr(stable_baselines3, agent.algo.upper())
        zipped = agent.path / f"{agent.env_id}.zip"
        return kind.load(zipped, custom_objects=CONSTANTS, device="cpu", **options)


def sb3_actions(agent: agents.Trained, observations: np.ndarray) -> np.ndarray:
    """Return the actions of Stable-Baselines3 itself, deterministically."""
    model = sb3_model(agent)
    statistics = agent.path / agent.env_id / "vecnormalize.pkl"
    if statistics.exists():
        observations = pickle.loads(statistics.read_bytes()).normalize_obs(observations)
    actions, _ = model.predict(observations, deterministic=True)
    return np.asarray(actions)


def compare(agent: agents.Trained, count: int) -> dict[str, Any]:
    """Return one row: the largest difference in continuous actions, or the number of discrete ones that differ."""
    policy = read(agent.path)
    observations = record(policy, "fidelity", num=count)
    expected = sb3_actions(agent, observations)
    exact = quantize(policy, EXACT)
    row: dict[str, Any] = {"agent": agent.name, "observations": len(observations)}
    for name in ("reference", "litert"):
        actions = policy.head(engines.run_all(engines.load(exact, name, batch=64), observations))
        if policy.head.kind == "argmax":
            row[name] = {"different": int((actions != expected).sum())}
            row[name]["equal"] = row[name]["different"] == 0
        else:
            close = bool(np.allclose(actions, expected, rtol=TOLERANCE, atol=TOLERANCE))
            row[name] = {"max_error": float(np.abs(actions - expected).max()), "equal": close}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("agents", type=Path, nargs="?", default=agents.DEFAULT_FOLDER)
    parser.add_argument("--observations", type=int, default=10_000)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    assert gymnasium.spaces
    rows = []
    for agent in agents.find(options.agents):
        if agent.kind == "sb3":
            rows.append(compare(agent, options.observations))
            print(rows[-1], flush=True)
    write("fidelity", "make bench-fidelity", root=options.out, rows=rows)
    equal = all(row[name]["equal"] for row in rows for name in ("reference", "litert"))
    print(f"{len(rows)} agents, all equal: {equal}")


if __name__ == "__main__":
    main()
