"""Evaluation speed: environment steps per second of `quarl.evaluation.evaluate` against SB3's `evaluate_policy`.

    python benchmarks/eval_speed.py [AGENT] [--out results]

AGENT is the run folder of a Stable-Baselines3 DQN trained on CartPole-v1. Both sides play the same episodes of the same
fp32 policy on one thread: every episode has its own reset seed, and returns are compared. SB3 steps a DummyVecEnv of
Monitor-wrapped environments (what its documentation prescribes), and once more without the Monitor. Runs alternate, so
that a slow moment of the machine meets both; the ratio is the median of the pairs' ratios. Making environments and
loading the policy is counted on neither side.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

import agents
from fidelity import sb3_model
from quarl.calibration import quantize
from quarl.envs.environment import home_of
from quarl.envs.seeds import episode_seed
from quarl.evaluation import evaluate
from quarl.policy.graph import QuantizedPolicy
from quarl.quant.spec import QuantSpec
from quarl.readers.load import read
from results import RESULTS, write

ENV_ID = "CartPole-v1"
AGENT = agents.DEFAULT_FOLDER / "sb3" / "dqn" / "CartPole-v1_1"
BARS = {1: 8.0, 4: 4.0, 16: 2.0}
"""Required ratio by the number of environments side by side."""


class SeededResets(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that resets with the given seeds in order: SB3 itself seeds an environment's first episode only."""

    def __init__(self, env: gymnasium.Env[Any, Any], seeds: list[int]) -> None:
        super().__init__(env)
        self.seeds = iter(seeds)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        # after the last episode SB3 resets once more, and discards the observation
        return self.env.reset(seed=next(self.seeds, None), options=options)


def sb3_run(model: DQN, num_envs: int, episodes: int, *, monitor: bool) -> tuple[float, list[float]]:
    """Return (microseconds per environment step, sorted episode returns)."""

    def make(first: int) -> Callable[[], gymnasium.Env[Any, Any]]:
        seeds = [episode_seed("evaluation", 0, k) for k in range(first, episodes, num_envs)]

        def build() -> gymnasium.Env[Any, Any]:
            env = SeededResets(gymnasium.make(ENV_ID), seeds)
            return Monitor(env) if monitor else env

        return build

    envs = DummyVecEnv([make(first) for first in range(num_envs)])
    start = time.perf_counter()
    returns, lengths = evaluate_policy(model, envs, episodes, return_episode_rewards=True, warn=False)
    elapsed = time.perf_counter() - start
    envs.close()
    return 1e6 * elapsed / sum(lengths), sorted(float(total) for total in returns)


def compare(model: DQN, policy: QuantizedPolicy, num_envs: int, episodes: int, pairs: int) -> dict[str, Any]:
    """Return one row: medians over `pairs` alternating runs."""
    ours: list[float] = []
    engine: list[float] = []
    theirs: list[float] = []
    bare: list[float] = []
    equal = True
    for _ in range(pairs):
        us, returns = sb3_run(model, num_envs, episodes, monitor=True)
        evaluation = evaluate(policy, home_of(policy, ENV_ID), episodes=episodes, batch=num_envs)
        us_bare, _ = sb3_run(model, num_envs, episodes, monitor=False)
        theirs.append(us)
        bare.append(us_bare)
        ours.append(evaluation.us_per_step)
        engine.append(evaluation.engine_us_per_step)
        equal = equal and returns == sorted(evaluation.returns.tolist())
    ratio = statistics.median(t / o for t, o in zip(theirs, ours, strict=True))
    return {
        "environments": num_envs,
        "quarl_us_per_step": round(statistics.median(ours), 2),
        "quarl_engine_us_per_step": round(statistics.median(engine), 2),
        "sb3_us_per_step": round(statistics.median(theirs), 2),
        "ratio": round(ratio, 2),
        "ratio_without_monitor": round(statistics.median(b / o for b, o in zip(bare, ours, strict=True)), 2),
        "bar": BARS[num_envs],
        "met": ratio >= BARS[num_envs],
        "returns_equal": equal,
        "mean_return": float(evaluation.returns.mean()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Evaluation speed against Stable-Baselines3, on CartPole-v1.")
    parser.add_argument(
        "agent", type=Path, nargs="?", default=AGENT, help="run folder of an SB3 DQN trained on CartPole-v1"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--episodes", type=int, default=32, help="episodes of each run")
    parser.add_argument("--pairs", type=int, default=7, help="alternating runs of each side")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = sb3_model(agents.Trained("sb3", "dqn", ENV_ID, options.agent, None))
    policy = quantize(read(options.agent), QuantSpec.parse("fp32"))
    rows = []
    for num_envs in BARS:
        rows.append(compare(model, policy, num_envs, options.episodes, options.pairs))
        print(rows[-1])
    summary = {"policy": f"{options.agent.name}, fp32, engine litert, one thread", "env_id": ENV_ID}
    summary |= {"episodes": options.episodes, "pairs": options.pairs}
    print(write("eval-speed", "make bench-eval-speed", root=options.out, summary=[summary], rows=rows))


if __name__ == "__main__":
    main()
