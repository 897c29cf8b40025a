"""D4PG: the projection by hand, the clocks of its targets, and environments whose optimum is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from stable_baselines3.common.buffers import NStepReplayBuffer
from stable_baselines3.common.envs import FakeImageEnv
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.torch_layers import NatureCNN
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from torch import Tensor

import quarl
from quarl.algorithms.d4pg import D4PG, QUARL_2020, clip_rows, project
from quarl.algorithms.d4pg_policy import D4PGPolicy
from quarl.errors import QuarlError

SMALL = {"net_arch": {"pi": [32], "qf": [32, 32]}}
ROWS = 64


class Bandit(gymnasium.Env[np.ndarray, np.ndarray]):
    """One step, two actions of range ±2: the reward is minus the squared distance from (0.6, -1.2)."""

    best = np.array([0.6, -1.2])
    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    action_space = spaces.Box(-2, 2, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward = -float(((action - self.best) ** 2).sum())
        return np.zeros(3, np.float32), reward, True, False, {}


class Batch:
    """A replay that gives the same rows at every draw."""

    def __init__(self, samples: ReplayBufferSamples) -> None:
        self.samples = samples

    def sample(self, batch_size: int, env: Any = None) -> ReplayBufferSamples:
        return self.samples


def model(**kwargs: Any) -> D4PG:
    options = {"policy_kwargs": SMALL, "buffer_size": 1000, "learning_rate": 1e-3, "seed": 0, "device": "cpu"}
    built = D4PG("MlpPolicy", Bandit(), **{**options, **kwargs})
    built.set_logger(Logger(None, []))
    return built


def fill(learner: D4PG, *, done: float = 0.0, discounts: float | None = 0.5, reward: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(0)
    column = torch.ones(ROWS, 1)
    learner.replay_buffer = Batch(  # type: ignore[assignment]  # all that train() asks of a replay
        ReplayBufferSamples(
            observations=torch.rand(ROWS, 3, generator=generator) * 2 - 1,
            actions=torch.rand(ROWS, 2, generator=generator) * 2 - 1,
            next_observations=torch.rand(ROWS, 3, generator=generator) * 2 - 1,
            dones=done * column,
            rewards=reward * column,
            discounts=None if discounts is None else discounts * column,
        )
    )


def weights(module: torch.nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


def test_a_return_between_two_atoms_is_shared_by_nearness():
    atoms = torch.tensor([-1.0, 0.0, 1.0, 2.0])
    returns = torch.tensor([[-0.75, 0.0, 0.5, 2.0], [-9.0, -1.0, 1.9, 7.0]])
    probabilities = torch.tensor([[0.4, 0.1, 0.2, 0.3], [0.1, 0.2, 0.3, 0.4]])
    expected = [
        [0.3, 0.1 + 0.1 + 0.1, 0.1, 0.3],  # -0.75: three quarters to -1; 0.5: halves
        [0.3, 0.0, 0.03, 0.27 + 0.4],  # beyond the ends counts as the ends; 1.9: a tenth to 1
    ]
    torch.testing.assert_close(project(returns, probabilities, atoms), torch.tensor(expected))


@given(
    st.integers(2, 60), st.floats(-200, 200), st.floats(0.1, 300), st.floats(-50, 50), st.floats(0, 1), st.integers(0)
)
def test_projection_keeps_probability_and_the_mean_of_returns_inside_the_support(
    num_atoms: int, low: float, width: float, reward: float, discount: float, seed: int
):
    generator = torch.Generator().manual_seed(seed % 2**32)
    atoms = torch.linspace(low, low + width, num_atoms, dtype=torch.float64)
    probabilities = torch.rand(5, num_atoms, generator=generator, dtype=torch.float64).softmax(dim=1)
    returns = reward + discount * atoms.expand(5, -1)
    projected = project(returns, probabilities, atoms)
    assert (projected >= 0).all()
    torch.testing.assert_close(projected.sum(dim=1), torch.ones(5, dtype=torch.float64))
    mean = (probabilities * returns.clamp(atoms[0], atoms[-1])).sum(dim=1)
    torch.testing.assert_close(projected @ atoms, mean, rtol=1e-6, atol=1e-6 * width)
    # the plain way: every atom takes from every return what a triangle of one atom's width around it lets through
    distance = (returns.clamp(atoms[0], atoms[-1])[:, None, :] - atoms[None, :, None]).abs() / (atoms[1] - atoms[0])
    plain = ((1 - distance).clamp(min=0) * probabilities[:, None, :]).sum(dim=2)
    torch.testing.assert_close(projected, plain, rtol=1e-6, atol=1e-6)


def test_rows_are_shortened_to_the_norm_and_never_lengthened():
    gradient = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0], [-6e20, 8e20]])
    expected = torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0], [-0.6, 0.8]])
    torch.testing.assert_close(clip_rows(gradient.double(), 1.0), expected.double())


@pytest.mark.slow
@pytest.mark.parametrize(("done", "discounts", "expected"), [(0.0, 0.5, 5.0), (1.0, 0.5, 1.0), (0.0, None, 7.0)])
def test_the_critic_learns_reward_plus_the_replay_s_discount_times_the_target(
    done: float, discounts: float | None, expected: float
):
    """The target is certain of 8: 1 + 0.5 · 8, 1 where the episode ended, 1 + gamma · 8 from a one-step replay."""
    learner = model(v_min=0, v_max=10, num_atoms=11, gamma=0.75, target_update_interval=10**9)
    fill(learner, done=done, discounts=discounts)
    with torch.no_grad():
        learner.critic_target.head.weight.zero_()
        learner.critic_target.head.bias.copy_(torch.where(learner.critic.atoms == 8, 50.0, 0.0))
    learner.train(200, ROWS)
    batch = learner.replay_buffer.sample(ROWS)  # type: ignore[union-attr]
    values = learner.critic.value(batch.observations, batch.actions)
    torch.testing.assert_close(values, torch.full((ROWS,), expected), rtol=0, atol=0.1)


def test_no_row_of_the_actor_s_gradient_is_longer_than_one():
    learner = model(saturation_penalty=0.0)
    fill(learner)
    with torch.no_grad():
        learner.critic.head.weight.mul_(100)  # a steep critic
    seen: list[Tensor] = []
    learner.actor.mu[-2].register_full_backward_hook(lambda _module, _inputs, outputs: seen.append(outputs[0]))
    learner.train(1, ROWS)
    norms = torch.linalg.vector_norm(seen[0] * ROWS, dim=1)
    assert norms.max() <= 1 + 1e-5
    assert norms.max() > 0.9


def test_the_actor_s_update_leaves_no_gradient_in_the_critic():
    learner = model()
    fill(learner)
    learner.critic.optimizer.zero_grad()
    learner._update_actor(learner.replay_buffer.sample(ROWS).observations)  # type: ignore[union-attr]
    assert all(parameter.grad is None for parameter in learner.critic.parameters())
    assert all(parameter.grad is not None for parameter in learner.actor.parameters())


@pytest.mark.parametrize("tau", [1.0, 0.25])
def test_targets_move_by_tau_once_in_an_interval(tau: float):
    learner = model(target_update_interval=3, tau=tau)
    fill(learner)
    start = weights(learner.critic_target), weights(learner.actor_target)
    learner.train(2, ROWS)
    assert torch.equal(weights(learner.critic_target), start[0])
    learner.train(1, ROWS)
    for before, online, target in zip(
        start, (learner.critic, learner.actor), (learner.critic_target, learner.actor_target), strict=True
    ):
        expected = before + tau * (weights(online) - before)
        torch.testing.assert_close(weights(target), expected)
        assert not torch.equal(expected, before)


def test_a_fresh_actor_starts_in_the_middle_of_the_range():
    actor = model(policy_kwargs={"net_arch": [256, 256]}).actor
    observations = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
    assert actor(observations).abs().max() < 0.05


def test_bfloat16_leaves_a_saturated_action_its_gradient_and_weights_their_float32():
    learner = model()
    fill(learner)
    with torch.no_grad():
        learner.actor.mu[-2].bias.fill_(5.0)  # tanh(5) is 1 in bfloat16
    before = weights(learner.actor)
    with torch.autocast("cpu", torch.bfloat16):
        actions = learner.actor(torch.zeros(ROWS, 3))
        learner.train(1, ROWS)
    assert actions.dtype == torch.float32
    assert (actions < 1).all()
    gradient = learner.actor.mu[-2].bias.grad
    assert gradient is not None
    assert (gradient != 0).all()
    assert weights(learner.actor).dtype == torch.float32
    assert not torch.equal(weights(learner.actor), before)


def test_bfloat16_keeps_atoms_that_are_no_numbers_of_its_own():
    critic = model(v_min=0.0, v_max=1.0, num_atoms=51).policy.critic
    with torch.no_grad():
        critic.head.weight.zero_()
        critic.head.bias.copy_(-(critic.atoms - 0.86).abs() * 1000)
        with torch.autocast("cpu", torch.bfloat16):
            found = critic.value(torch.zeros(1, 3), torch.zeros(1, 2)).item()
    assert found == pytest.approx(0.86, abs=1e-4)  # bfloat16 has 0.859


@pytest.mark.slow
@pytest.mark.parametrize(("penalty", "comes_back"), [(0.02, True), (0.0, False)])
def test_a_saturated_actor_comes_back_where_the_critic_sees_no_difference(penalty: float, comes_back: bool):
    learner = model(saturation_penalty=penalty)
    fill(learner)
    with torch.no_grad():
        learner.critic.head.weight.zero_()
        learner.actor.mu[-2].bias.fill_(6.0)
    observations = learner.replay_buffer.sample(ROWS).observations  # type: ignore[union-attr]
    for _ in range(300):
        learner._update_actor(observations)
    assert bool((learner.actor.before_tanh(observations) < 4).all()) == comes_back


@pytest.mark.parametrize(("v_min", "v_max", "expected"), [(0, 100, 0), (-150, 150, 0), (5, 10, 5), (-9, -3, -3)])
def test_a_fresh_critic_expects_about_nothing(v_min: float, v_max: float, expected: float):
    critic = model(v_min=v_min, v_max=v_max).critic
    values = critic.value(torch.zeros(1, 3), torch.zeros(1, 2))
    assert abs(values.item() - expected) < 0.05 * (v_max - v_min)


def test_large_gradients_are_clipped_to_the_norm():
    learner = model(max_grad_norm=1e-3)
    fill(learner)
    learner.train(1, ROWS)
    for network in (learner.actor, learner.critic):
        norm = torch.nn.utils.get_total_norm([p.grad for p in network.parameters() if p.grad is not None])
        assert norm <= 1.001e-3


@pytest.mark.slow
def test_the_best_action_of_a_bandit_is_found():
    learner = model(v_min=-12, v_max=0, learning_rate=2e-3, train_freq=2, batch_size=64, learning_starts=100)
    learner.learn(2200)
    action, _ = learner.predict(np.zeros((1, 3), np.float32), deterministic=True)
    np.testing.assert_allclose(action[0], Bandit.best, atol=0.1)  # 2.5 % of the range


def test_equal_seeds_give_equal_weights_and_other_seeds_others():
    def trained(seed: int) -> Tensor:
        learner = model(seed=seed, learning_starts=20, batch_size=16)
        learner.learn(60)
        return weights(learner.policy)

    first = trained(1)
    assert torch.equal(first, trained(1))
    assert not torch.equal(first, trained(2))


def test_a_loaded_model_acts_as_the_saved_one_and_goes_on(tmp_path: Path):
    learner = model(v_min=-9, v_max=1, num_atoms=21, learning_starts=20, batch_size=16)
    learner.learn(60)
    learner.save(tmp_path / "agent.zip")
    loaded = D4PG.load(tmp_path / "agent.zip", env=Bandit(), device="cpu")
    observations = np.random.default_rng(0).uniform(-1, 1, (50, 3)).astype(np.float32)
    np.testing.assert_array_equal(loaded.predict(observations)[0], learner.predict(observations)[0])
    assert loaded.critic.atoms.tolist() == learner.critic.atoms.tolist()
    assert len(loaded.critic.atoms) == 21
    assert loaded.action_noise is not None
    updates = loaded._n_updates
    assert updates == learner._n_updates
    loaded.learn(30, reset_num_timesteps=False)
    assert loaded._n_updates > updates
    policy = learner.policy
    policy.save(str(tmp_path / "policy.pth"))
    alone = D4PGPolicy.load(str(tmp_path / "policy.pth"), device="cpu")
    np.testing.assert_array_equal(alone.predict(observations)[0], policy.predict(observations)[0])


@pytest.mark.slow
def test_on_images_each_network_begins_with_a_cnn_of_its_own(tmp_path: Path):
    images = FakeImageEnv(discrete=False, n_channels=3, channel_first=True)
    learner = D4PG("CnnPolicy", images, device="cpu", learning_starts=8, batch_size=8, buffer_size=100)
    networks = (learner.actor, learner.critic)
    before = [weights(network).clone() for network in networks]
    learner.learn(12)
    assert isinstance(learner.actor.features_extractor, NatureCNN)
    assert learner.actor.features_extractor is not learner.critic.features_extractor
    assert not any(torch.equal(old, weights(new)) for old, new in zip(before, networks, strict=True))
    learner.save(tmp_path / "agent.zip")
    rows = np.stack([images.observation_space.sample() for _ in range(20)])
    expected, _ = D4PG.load(tmp_path / "agent.zip", device="cpu").predict(rows, deterministic=True)
    actions, _ = quarl.load(tmp_path / "agent.zip").predict(rows)
    np.testing.assert_allclose(actions, expected, atol=1e-5)


def test_n_steps_choose_a_replay_that_sums_them():
    replay = model(n_steps=4, gamma=0.9).replay_buffer
    assert isinstance(replay, NStepReplayBuffer)
    assert (replay.n_steps, replay.gamma) == (4, 0.9)


def test_the_preset_is_the_original_s():
    learner = D4PG("MlpPolicy", Bandit(), **QUARL_2020, device="cpu")
    assert [layer.out_features for layer in learner.actor.mu if hasattr(layer, "out_features")] == [2048] * 3 + [2]
    assert isinstance(learner.actor.mu[1], torch.nn.Tanh)
    assert (learner.critic.atoms[0], learner.critic.atoms[-1], len(learner.critic.atoms)) == (-150, 150, 51)
    assert (learner.tau, learner.target_update_interval, learner.n_steps) == (1.0, 100, 5)


def test_arguments_are_the_caller_s_and_stay_so():
    kwargs: dict[str, Any] = {"net_arch": [8]}
    model(policy_kwargs=kwargs)
    assert kwargs == {"net_arch": [8]}


@pytest.mark.parametrize("wrong", [{"v_min": 1, "v_max": 1}, {"num_atoms": 1}, {"target_update_interval": 0}])
def test_an_impossible_support_or_interval_is_refused(wrong: dict[str, Any]):
    with pytest.raises(QuarlError):
        model(**wrong)
