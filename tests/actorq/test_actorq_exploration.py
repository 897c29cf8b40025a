"""What actors do is the learner's policy, plus exploration that is defined."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from quarl import engines
from quarl.actorq import wire
from quarl.actorq.build import build
from quarl.actorq.exploration import Explorer, ladder
from quarl.actorq.replay_insert import Statistics
from quarl.actorq.segment import segment_dtype
from quarl.actorq.weights import Template
from quarl.config import ActorQConfig
from quarl.envs import make
from quarl.errors import UnsupportedError
from quarl.policy.graph import ActionHead

RNG = np.random.default_rng
BOX = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32))
TANH = ActionHead("tanh", BOX.low, BOX.high)


@pytest.mark.parametrize("algo", ["dqn", "ddpg", "td3", "sac", "d4pg"])
@pytest.mark.parametrize("engine", ["litert", "torch"])
def test_an_fp32_actor_without_exploration_acts_as_the_learner_predicts(algo, engine):
    env = "CartPole-v1" if algo == "dqn" else "Pendulum-v1"
    model = build(ActorQConfig(algo=algo, env=env, normalize=algo == "td3", seed=1))
    if algo == "td3":
        model.get_vec_normalize_env().obs_rms.update(RNG(0).normal(1.0, 2.0, (50, 3)))
    template = Template(model)
    flat = np.empty(template.num_floats, np.float32)
    template.flatten_into(model, flat)
    policy = wire.unpack(wire.Packer("fp32").pack(template.policy(flat)))
    runner = engines.load(policy, engine, batch=64)
    observations = RNG(1).normal(size=(64, *policy.observation_shape)).astype(np.float32)
    explorer = Explorer(policy.head, model.action_space, 1.0 if algo == "dqn" else 0.0, RNG(0))
    outputs = runner.run(observations)
    if algo == "sac":  # its actors sample; the mean of the distribution is what predict returns
        actions = policy.head(outputs)
    else:
        actions, _ = explorer.act(outputs, epsilon=0.0)
    seen = model.get_vec_normalize_env().normalize_obs(observations) if algo == "td3" else observations
    expected, _ = model.predict(seen, deterministic=True)
    np.testing.assert_allclose(actions, expected, atol=1e-5)


def test_sac_actors_sample_the_learners_distribution():
    head = ActionHead("gaussian", BOX.low, BOX.high)
    outputs = np.tile(np.array([[0.3, -0.2, -1.0, 0.5]], np.float32), (20_000, 1))  # means, then log_std
    actions, stored = Explorer(head, BOX, 1.0, RNG(0)).act(outputs, epsilon=0.0)
    before = np.arctanh(stored.astype(np.float64).clip(-0.999999, 0.999999))
    np.testing.assert_allclose(np.median(before, axis=0), [0.3, -0.2], atol=0.03)
    spread = (np.quantile(before, 0.8413, axis=0) - np.quantile(before, 0.1587, axis=0)) / 2
    np.testing.assert_allclose(spread, np.exp([-1.0, 0.5]), rtol=0.03)
    np.testing.assert_allclose(actions, BOX.low + (stored + 1) / 2 * (BOX.high - BOX.low), atol=1e-6)


def test_noise_is_gaussian_in_the_scaled_space_and_clipped_to_it():
    outputs = np.zeros((50_000, 2), np.float32)
    _, stored = Explorer(TANH, BOX, 0.2, RNG(0)).act(outputs, epsilon=0.0)
    assert stored.std() == pytest.approx(0.2, rel=0.02)
    _, wide = Explorer(TANH, BOX, 5.0, RNG(0)).act(outputs, epsilon=0.0)
    assert (wide.min(), wide.max()) == (-1.0, 1.0)


def test_epsilon_is_raised_to_the_actors_power():
    outputs = np.tile(np.array([[0.0, 1.0]], np.float32), (40_000, 1))
    head = ActionHead("argmax")
    for rung, share in ((1.0, 0.5 / 2), (3.0, 0.125 / 2)):  # half of the random actions are the greedy one
        _, chosen = Explorer(head, spaces.Discrete(2), rung, RNG(0)).act(outputs, epsilon=0.5)
        assert (chosen == 0).mean() == pytest.approx(share, rel=0.05)


@pytest.mark.parametrize("rows", [1, 3, 600])
def test_a_row_explores_with_epsilon_and_then_takes_each_action_alike_however_many_a_call_has(rows):
    explorer = Explorer(ActionHead("argmax"), spaces.Discrete(4), 1.0, RNG(0))
    outputs = np.tile(np.array([[0.0, 0.0, 0.0, 1.0]], np.float32), (rows, 1))
    chosen = np.concatenate([explorer.act(outputs, epsilon=0.4)[0] for _ in range(30_000 // rows)])
    shares = np.bincount(chosen, minlength=4) / len(chosen)
    np.testing.assert_allclose(shares, [0.1, 0.1, 0.1, 0.7], atol=0.01)  # the greedy one is among the random ones
    greedy = chosen == 3
    assert (greedy[1:] & greedy[:-1]).mean() == pytest.approx(0.49, abs=0.01)  # independent of the row before


def test_discrete_actions_count_from_the_spaces_start():
    space = spaces.Discrete(3, start=5)
    explorer = Explorer(ActionHead("argmax", start=5), space, 1.0, RNG(0))
    assert explorer.act(np.array([[0.0, 9.0, 1.0]]), epsilon=0.0)[0] == [6]
    drawn, _ = explorer.random(3000)
    assert sorted(set(drawn)) == [5, 6, 7]


def test_random_actions_are_uniform_between_the_bounds():
    actions, stored = Explorer(TANH, BOX, 0.2, RNG(0)).random(20_000)
    assert (np.abs(stored) <= 1).all()
    np.testing.assert_allclose(actions.mean(axis=0), [0.0, 0.5], atol=0.03)
    np.testing.assert_allclose(actions.std(axis=0), np.array([4.0, 1.0]) / np.sqrt(12), rtol=0.02)


def test_ladders():
    assert ladder("argmax", 3, 0.2) == [1.0, 4.5, 8.0]
    assert ladder("argmax", 1, 0.2) == [1.0]
    assert ladder("tanh", 4, 0.2) == pytest.approx([0.05, 0.1, 0.15, 0.2])
    assert ladder("gaussian", 2, 0.2) == [1.0, 1.0]
    with pytest.raises(UnsupportedError, match="no exploration is defined for a clip"):
        ladder("clip", 2, 0.2)


def test_statistics_are_those_of_vecnormalize(tmp_path):
    """The same steps through VecNormalize's own `step`, and as segments: equal means, variances and counts."""
    plain = VecNormalize(DummyVecEnv([lambda: make("Pendulum-v1")]), gamma=0.9)
    plain.venv.seed(0)
    first = plain.venv.reset()  # past VecNormalize, which would count the first observation of every episode
    plain.returns = np.zeros(1)
    model = build(ActorQConfig(algo="td3", env="Pendulum-v1", normalize=True, params=("gamma:0.9",), output=Path("x")))
    statistics, rng = Statistics(model.get_vec_normalize_env()), RNG(0)
    rows = np.zeros(450, segment_dtype(model.observation_space, model.action_space))
    seen = first
    for number, row in enumerate(rows):
        row["sequence"], row["observation"] = number, seen[0]
        action = rng.uniform(-2, 2, (1, 1)).astype(np.float32)
        plain.venv.step_async(action)
        seen, reward, done, _ = plain.venv.step_wait()
        row["reward"], row["truncated"] = reward[0], done[0]
        plain._update_reward(reward)
        plain.returns[done] = 0
    plain.obs_rms.update(rows["observation"].astype(np.float64))
    for block in np.split(rows, 9):
        statistics.update(block)
    for ours, theirs in ((statistics.normalize.ret_rms, plain.ret_rms), (statistics.normalize.obs_rms, plain.obs_rms)):
        np.testing.assert_allclose(ours.mean, theirs.mean, rtol=1e-6, atol=1e-4)
        np.testing.assert_allclose(ours.var, theirs.var, rtol=1e-3)


def test_no_return_goes_on_where_steps_are_missing(tmp_path):
    """An environment that was replaced leaves a gap, a successor of a dead actor is another incarnation."""
    model = build(ActorQConfig(algo="td3", env="Pendulum-v1", normalize=True, params=("gamma:0.5",), output=tmp_path))
    statistics, seen = Statistics(model.get_vec_normalize_env()), []
    statistics.normalize.ret_rms.update = lambda returns: seen.extend(returns.tolist())
    rows = np.zeros(7, segment_dtype(model.observation_space, model.action_space))
    rows["reward"] = 8.0
    rows["sequence"] = [0, 1, 3, 4, 0, 1, 2]
    rows["incarnation"] = [0, 0, 0, 0, 1, 1, 1]
    rows["truncated"][5] = True
    for block in np.split(rows, [1, 4, 6]):
        statistics.update(block)
    assert seen == [8, 12, 8, 12, 8, 12, 8]


@pytest.mark.parametrize("most", [1, 7, 600])
def test_returns_of_many_rows_at_once_are_those_of_one_after_the_other(tmp_path, most):
    """Four actors of three environments: rows side by side, gaps, ends of episodes, and new incarnations."""
    model = build(ActorQConfig(algo="td3", env="Pendulum-v1", normalize=True, params=("gamma:0.98",), output=tmp_path))
    statistics, rng, state = Statistics(model.get_vec_normalize_env()), RNG(most), {}
    plain = RunningMeanStd(shape=())
    dtype = segment_dtype(model.observation_space, model.action_space)
    while plain.count < 5000:
        rows = np.zeros(rng.integers(1, most + 1), dtype)
        expected = []
        for row in rows:
            stream = int(rng.integers(4)), int(rng.integers(3))
            incarnation, sequence, before = state.get(stream, (0, 0, 0.0))
            if rng.random() < 0.02:  # an environment was lost, or an actor
                incarnation, sequence, before = (
                    (incarnation, sequence + 2, 0.0) if rng.random() < 0.5 else (incarnation + 1, 0, 0.0)
                )
            reward, over = rng.normal(), rng.random() < 0.03
            before = 0.98 * before + reward
            expected.append(before)
            state[stream] = incarnation, sequence + 1, 0.0 if over else before
            row["actor"], row["environment"] = stream
            row["incarnation"], row["sequence"], row["reward"] = incarnation, sequence, reward
            row["truncated" if sequence % 2 else "terminated"] = over
        statistics.update(rows)
        for each in expected:
            plain.update(np.array([each]))
    ours = statistics.normalize.ret_rms
    np.testing.assert_allclose([ours.mean, ours.var, ours.count], [plain.mean, plain.var, plain.count], rtol=1e-6)


@pytest.mark.parametrize("kind", ["tanh", "gaussian"])
def test_actions_of_several_axes_are_explored_in_their_shape(kind: str):
    box = spaces.Box(np.float32([[-1, -2], [-3, -4]]), np.float32([[1, 2], [3, 5]]))
    outputs = RNG(0).normal(size=(6, 4)).astype(np.float32)
    outputs = np.concatenate([outputs, np.full_like(outputs, -20)], axis=1) if kind == "gaussian" else outputs
    explorer = Explorer(ActionHead(kind, box.low, box.high), box, 0.0, RNG(0))  # type: ignore[arg-type]
    actions, stored = explorer.act(outputs, epsilon=0.0)
    np.testing.assert_allclose(stored, np.tanh(outputs[:, :4]).reshape(6, 2, 2), atol=1e-6)
    np.testing.assert_allclose(actions, box.low + (stored + 1) / 2 * (box.high - box.low), atol=1e-6)
    assert explorer.random(6)[0].shape == (6, 2, 2)
