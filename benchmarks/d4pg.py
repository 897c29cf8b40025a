"""D4PG alone on DM Control: one JSON per task and seed, returns of the final policy. Resumable: finished cells stay.

python benchmarks/d4pg.py [--only cartpole-balance-0 ...]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from stable_baselines3.common.callbacks import BaseCallback

from quarl import Agent
from quarl.algorithms.d4pg import D4PG
from quarl.envs import make
from quarl.machine import machine
from quarl.readers.extract import from_model

EPISODES = 20
SEEDS = (0, 1, 2)
PRECISIONS = ("fp32", "int8")
OPTIONS: dict[str, Any] = {
    "learning_starts": 2_000,
    "buffer_size": 300_000,
    "policy_kwargs": {"net_arch": {"pi": [256, 256], "qf": [256, 256]}},
}
"""For every task; what is not named is D4PG's default."""
TASKS: dict[str, tuple[int, float, dict[str, Any]]] = {
    "cartpole-balance": (25_000, 940.0, {"train_freq": 2}),
    # one place of the target an episode: the critic needs many episodes more than it needs updates
    "reacher-easy": (240_000, 900.0, {"train_freq": 8, "n_steps": 5}),
    "walker-stand": (60_000, 900.0, {"train_freq": 2}),
}
"""Environment steps, the return that is asked of the final policy, and the task's own options."""


class Curve(BaseCallback):
    """The training episodes: (environment steps, updates, seconds, return with exploration)."""

    def __init__(self) -> None:
        super().__init__()
        self.points: list[tuple[int, int, float, float]] = []
        self.start = time.perf_counter()

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:
                seconds = round(time.perf_counter() - self.start, 1)
                updates = self.model._n_updates
                self.points.append((self.num_timesteps, updates, seconds, float(info["episode"]["r"])))
                print(*self.points[-1], flush=True)
        return True


def measure(task: str, seed: int, agents: Path | None) -> dict[str, Any]:
    """One trained agent and its evaluation, at the learner's precision and at int8."""
    steps, target, own = TASKS[task]
    model = D4PG("MlpPolicy", make(f"dm_control/{task}-v0"), **OPTIONS, **own, seed=seed, device="cpu")
    curve = Curve()
    model.learn(steps, callback=curve, log_interval=1_000_000)
    seconds = time.perf_counter() - curve.start
    if agents is not None:
        model.save(agents / f"{task}-{seed}.zip")
    result = {
        "task": task,
        "seed": seed,
        "target": target,
        "env_steps": model.num_timesteps,
        "updates": model._n_updates,
        "minutes": round(seconds / 60, 2),
        "options": OPTIONS | own,
        "curve": curve.points,
    }
    agent = Agent(from_model(model))
    for precision in PRECISIONS:
        evaluation = agent.quantize(precision).evaluate(episodes=EPISODES, seed=seed)
        result[precision] = {
            "return": round(float(evaluation.returns.mean()), 2),
            "std": round(float(evaluation.returns.std(ddof=1)), 2),
            "returns": [round(float(x), 2) for x in evaluation.returns],
        }
    return result | {"reached": result["fp32"]["return"] >= target}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], help="cells, cartpole-balance-0; default: all")
    parser.add_argument("--agents", type=Path, help="folder for the trained agents' zips; default: they are not kept")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/d4pg"))
    options = parser.parse_args()
    torch.set_num_threads(1)  # these networks are too small for more
    for folder in (options.out, options.agents):
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
    for task in TASKS:
        for seed in SEEDS:
            cell = f"{task}-{seed}"
            path = options.out / f"{cell}.json"
            if not path.exists() and (not options.only or cell in options.only):
                print(cell, flush=True)
                result = measure(task, seed, options.agents)
                result |= {"command": f"python benchmarks/d4pg.py --only {cell}", "machine": machine()}
                path.write_text(json.dumps(result) + "\n")
            if path.exists():
                result = json.loads(path.read_text())
                returns = ", ".join(f"{precision} {result[precision]['return']}" for precision in PRECISIONS)
                print(f"{cell}: {returns} (asked {result['target']}) after {result['minutes']} min", flush=True)


if __name__ == "__main__":
    main()
