"""Small models of every algorithm, and an environment of images, for tests of quantisation-aware training."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

from quarl import qat
from quarl.algorithms.d4pg import D4PG

NOISE = NormalActionNoise(np.zeros(1), np.full(1, 0.1))
SMALL = {"learning_starts": 64, "buffer_size": 2_000, "batch_size": 32, "device": "cpu"}
ALGORITHMS: dict[str, tuple[type[BaseAlgorithm], str, dict[str, Any]]] = {
    "ppo": (PPO, "CartPole-v1", {"n_steps": 128, "batch_size": 64, "n_epochs": 4, "device": "cpu"}),
    "a2c": (A2C, "CartPole-v1", {"device": "cpu"}),
    "dqn": (DQN, "CartPole-v1", {**SMALL, "target_update_interval": 50, "learning_rate": 1e-3}),
    "ddpg": (DDPG, "Pendulum-v1", {**SMALL, "action_noise": NOISE}),
    "td3": (TD3, "Pendulum-v1", {**SMALL, "action_noise": NOISE}),
    "sac": (SAC, "Pendulum-v1", dict(SMALL)),
    "d4pg": (D4PG, "Pendulum-v1", {**SMALL, "v_min": -200.0, "v_max": 0.0, "target_update_interval": 20}),
}
"""By name: (class, environment, arguments)."""
NETS: dict[str, Any] = {"ddpg": [32, 32], "td3": [32, 32], "sac": [32, 32], "d4pg": [32, 32], "dqn": [32, 32]}


def make(algo: str, *, seed: int = 0, **kwargs: Any) -> Any:
    """A fresh model of an algorithm."""
    cls, env, settings = ALGORITHMS[algo]
    if algo in NETS:
        kwargs = {"policy_kwargs": {"net_arch": NETS[algo]}, **kwargs}
    return cls("MlpPolicy", env, seed=seed, **{**settings, **kwargs})


def prepared(algo: str, spec: Any, **kwargs: Any) -> Any:
    """A fresh model that is prepared for a precision."""
    model = make(algo, **kwargs)
    qat.prepare(model, spec)
    return model


def watched(algo: str, spec: Any, steps: int = 128, **kwargs: Any) -> Any:
    """A model whose ranges are known from so many steps, and whose quantisation has not acted."""
    return prepared(algo, spec, **kwargs).learn(steps, callback=qat.QuantDelay(10**6, allow_inactive=True))


class Normalised(BaseFeaturesExtractor):
    """A dense layer with batch normalisation behind it."""

    def __init__(self, space: Any, features_dim: int = 8) -> None:
        super().__init__(space, features_dim)
        self.net = torch.nn.Sequential(torch.nn.Linear(*space.shape, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU())

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.net(observations)


class Pictures(gymnasium.Env[np.ndarray, Any]):
    """Bytes that drift with the action taken; 36 x 36, the smallest that NatureCNN takes."""

    def __init__(self, *, continuous: bool = False) -> None:
        self.observation_space = spaces.Box(0, 255, (1, 36, 36), np.uint8)
        self.continuous = continuous
        low = np.full(1, -1, np.float32)
        self.action_space = spaces.Box(low, -low) if continuous else spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.step_number = 0
        return self._picture(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.step_number += 1
        reward = float(np.asarray(action).reshape(-1)[0])
        return self._picture(), reward, False, self.step_number >= 20, {}

    def _picture(self) -> np.ndarray:
        return self.np_random.integers(0, 256, (1, 36, 36), dtype=np.uint8)
