"""D4PG's support: by hand, from the rewards of real environments, and kept in whatever is saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.logger import Logger
from torch import Tensor

from quarl.algorithms.d4pg import D4PG
from quarl.algorithms.d4pg_support import find
from quarl.errors import QuarlError

OPTIONS: dict[str, Any] = {"learning_starts": 100, "batch_size": 64, "buffer_size": 1000, "seed": 0, "device": "cpu"}
OPTIONS |= {"policy_kwargs": {"net_arch": {"pi": [16], "qf": [16]}}}


class Raise(gymnasium.Env[np.ndarray, np.ndarray]):
    """Rewards of -0.1, and 50 a step from step 150 on: as when a goal is found at last."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)
    steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return np.zeros(1, np.float32), -0.1 if self.steps < 150 else 50.0, self.steps % 10 == 0, False, {}


def made(env: Any = "Pendulum-v1", **options: Any) -> tuple[D4PG, list[str]]:
    model = D4PG("MlpPolicy", env, **OPTIONS | options)
    said: list[str] = []
    model.say = said.append
    return model, said


@pytest.mark.parametrize(
    ("lasting", "left", "expected"),
    [
        ([0.0, 0.0], 0.01, (0, 100)),  # no reward yet: DM Control's bound
        ([0.0, 93.0], 0.01, (0, 100)),
        ([100.00001, 100.0], 0.01, (0, 100)),  # three rewards of 1, summed in float32
        ([-1.0, 0.0], 0.01, (-100, 0)),
        ([-60.0, 40.0], 0.01, (-100, 100)),
        ([-1600.0, -400.0], 0.01, (-2000, 0)),  # twice the mean of 1,000
        ([-50.0, 250.0], 0.02, (-300, 300)),
        ([300.0], 0.1, (0, 600)),
    ],
)
def test_the_support_by_hand(lasting: list[float], left: float, expected: tuple[float, float]):
    assert find(torch.tensor(lasting)[:, None], left) == pytest.approx(expected)


def test_pendulum_s_support_is_found_from_its_warm_up_and_kept_in_the_saved_model(tmp_path: Path):
    model, said = made()
    assert model.critic.support is None
    model.learn(110)
    low, high = model.critic.support or (0, 0)
    assert -2 * 1628 < low < -400  # rewards lie in [-16.28, 0], at gamma 0.99 returns in [-1628, 0]
    assert high == 0
    assert said == [
        f"D4PG's support of returns is [{low:.4g}, 0]: rewards so far are worth {low / 2:.4g} at gamma 0.99"
    ]
    assert torch.equal(model.critic.atoms, model.critic_target.atoms)
    assert torch.equal(model.critic.atoms, torch.linspace(low, 0, 51))
    model.save(tmp_path / "agent.zip")
    loaded = D4PG.load(tmp_path / "agent.zip", env=gymnasium.make("Pendulum-v1"), device="cpu")
    assert torch.equal(loaded.critic.atoms, model.critic.atoms)
    loaded.learn(20, reset_num_timesteps=False)
    assert loaded.critic.support == (low, 0)


def test_a_support_beside_the_rewards_is_refused_with_the_numbers_to_give():
    model, said = made(v_min=0, v_max=100)
    with pytest.raises(QuarlError, match=r"\[0, 100\] contains no return: .* set --params v_min:-[\d.]+ v_max:0, or"):
        model.learn(110)
    assert (model._n_updates, said) == (0, [])
    with pytest.raises(QuarlError, match=r"\[5, 0\] contains no return"):
        made(v_min=5)[0].learn(110)


@pytest.mark.slow
def test_a_support_that_is_too_narrow_is_told_and_kept():
    model, said = made(v_min=-200, v_max=0)
    model.learn(310)
    assert model.critic.support == (-200, 0)
    assert len(said) == 1
    assert "D4PG's support [-200, 0] does not match the rewards: rewards so far are worth -" in said[0]
    half, said = made(v_max=10)
    half.learn(110)
    low, high = half.critic.support or (0, 0)
    assert (low < -400, high) == (True, 10)


def test_weights_that_go_back_to_before_the_first_update_have_a_support_found_again():
    model, said = made()
    model.learn(110)
    for critic in (model.critic, model.critic_target):
        critic.atoms.zero_()
    model.train(1, 64)
    assert model.critic.support is not None
    assert len(said) == 2


@pytest.mark.slow
def test_a_support_grows_where_returns_do_and_the_critic_expects_what_it_did():
    model, said = made(Raise(), gamma=0.9, target_update_interval=20)
    model.learn(130)
    assert model.critic.support == (-10, 0)
    model.learn(300, reset_num_timesteps=False)
    low, high = model.critic.support or (0, 0)
    assert low == -10
    assert 50 < high <= 1000  # 50 a step to the end of an episode, at most 50 / (1 - gamma), twice
    assert said[1].startswith("D4PG's support of returns is [-10, ")


@pytest.mark.parametrize("wider", [(-20.0, 80.0), (-10.0, 400.0), (-300.0, 40.0)])
def test_moving_the_atoms_keeps_what_a_critic_expects(wider: tuple[float, float]):
    critic = made(v_min=-10, v_max=40)[0].critic
    generator = torch.Generator().manual_seed(0)
    observations, actions = torch.randn(200, 3, generator=generator), torch.rand(200, 1, generator=generator) * 2 - 1
    with torch.no_grad():
        critic.head.bias.copy_(-((critic.atoms - 12) ** 2) / 30)
        before: Tensor = critic.value(observations, actions)
        critic.support_on(*wider)
        after = critic.value(observations, actions)
    assert float(before.std()) > 0.1
    torch.testing.assert_close(after, before, rtol=0, atol=1.0)


def test_infinite_horizons_have_a_bound_too():
    model, _ = made(gamma=1.0)
    model.set_logger(Logger(None, []))
    model.learn(110)
    low, high = model.critic.support or (0, 0)
    assert -2 * 16_280 < low < -1000  # a thousand steps
    assert high == 0
