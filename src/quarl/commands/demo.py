"""`quarl demo`: trains an agent, then does with its file what `quarl ptq` does with anybody's.

The agent is a DQN on CartPole-v1, trained in under a minute on one core.
"""

from __future__ import annotations

import os
import shlex
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback

from quarl.commands import ptq, terminal
from quarl.config import DemoConfig, PtqConfig
from quarl.envs.seeds import episode_seed
from quarl.files import staged
from quarl.runs.checkpoint import export

ENV_ID = "CartPole-v1"
SOLVED = 475.0
"""Gymnasium's reward threshold of the environment."""
MAX_STEPS = 50_000
"""The zoo's budget; training stops as soon as the greedy policy is good, usually long before."""
CHECK_INTERVAL_STEPS = 256
"""A rollout and its updates: the zoo's train_freq."""
SCREENING, CONFIRMING = 4, 32
"""Episodes that decide whether to look closer, and those that decide to stop."""
SLIPS = 0.1
"""Share of random actions in them: a policy that only just balances would fail at the slightest change."""
HYPERPARAMETERS: Mapping[str, Any] = {
    "learning_rate": 2.3e-3,
    "batch_size": 64,
    "buffer_size": 100_000,
    "learning_starts": 1000,
    "gamma": 0.99,
    "target_update_interval": 10,
    "train_freq": CHECK_INTERVAL_STEPS,
    "gradient_steps": 128,
    "exploration_fraction": 0.16,
    "exploration_final_eps": 0.04,
    "policy_kwargs": {"net_arch": [256, 256]},
}
"""RL Zoo's tuned ones for this environment."""


def run(config: DemoConfig) -> int:
    """Train and save the agent, quantize it, print the table and the report's path; return the exit code."""
    path = config.output / f"{ENV_ID}.zip"
    start = time.perf_counter()
    with staged(config.output) as folder, terminal.progress(MAX_STEPS) as progress:
        steps = train(folder / path.name, config.seed, progress)
    terminal.say(f"trained DQN on {ENV_ID}: {steps:,} steps in {time.perf_counter() - start:.0f} s, saved {path}")
    code = ptq.run(PtqConfig(model=(str(path),), seed=config.seed, output=config.output, json=config.json))
    if sys.prefix not in (sys.base_prefix, os.environ.get("VIRTUAL_ENV")):  # as after `make demo`
        script = f"{sysconfig.get_path('scripts')}/activate"
        terminal.say(f"next: . {shlex.quote(min(script, os.path.relpath(script), key=len))}")
    return code


def train(path: Path, seed: int, progress: Callable[[str, int], None]) -> int:
    """Saves a trained agent as a Stable-Baselines3 zip at `path`; returns the environment steps it took.

    The last DQN of a run is often a bad one, so training ends at the first policy that plays CONFIRMING episodes with
    a mean of SOLVED, with and without slips; where none does, the best one seen is saved.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        agent = DQN("MlpPolicy", gymnasium.make(ENV_ID), seed=seed, device="cpu", **HYPERPARAMETERS)
        best = _BestPolicy(seed, progress)
        agent.learn(MAX_STEPS, callback=best)
    finally:
        torch.set_num_threads(threads)
    agent.policy.load_state_dict(best.tensors)
    export(path.parent, agent, path.name)
    return agent.num_timesteps


class _BestPolicy(BaseCallback):
    """Remembers the best policy and ends training at a good one."""

    model: DQN

    def __init__(self, seed: int, progress: Callable[[str, int], None]) -> None:
        super().__init__()
        self.progress = progress
        self.seeds = [episode_seed("development", seed, index) for index in range(CONFIRMING)]
        self.envs = [gymnasium.make(ENV_ID) for _ in self.seeds]
        self.tensors: dict[str, torch.Tensor] = {}
        self.best_mean = -np.inf

    def _on_step(self) -> bool:
        """False ends training."""
        if self.num_timesteps % CHECK_INTERVAL_STEPS:
            return True
        mean = self._mean_return(SCREENING, SLIPS)
        if mean >= SOLVED:
            mean = min(self._mean_return(CONFIRMING, slips) for slips in (SLIPS, 0.0))
        if mean > self.best_mean:
            self.best_mean = mean
            self.tensors = {name: tensor.clone() for name, tensor in self.model.policy.state_dict().items()}
        self.progress(f"training DQN, best return {self.best_mean:.0f}", CHECK_INTERVAL_STEPS)
        return mean < SOLVED

    def _mean_return(self, num: int, slips: float) -> float:
        """Mean return of the greedy policy with a share of random actions over `num` episodes, side by side."""
        rng = np.random.default_rng(self.seeds[0])
        envs = self.envs[:num]
        observations = np.stack([env.reset(seed=seed)[0] for env, seed in zip(envs, self.seeds, strict=False)])
        returns = np.zeros(num)
        live = set(range(num))
        while live:
            with torch.inference_mode():
                actions = self.model.q_net(torch.from_numpy(observations)).argmax(dim=1).tolist()
            for index in tuple(live):
                action = int(rng.integers(2)) if rng.random() < slips else actions[index]
                observation, reward, terminated, truncated, _ = envs[index].step(action)
                observations[index] = observation
                returns[index] += float(reward)
                if terminated or truncated:
                    live.remove(index)
        return float(returns.mean())
