"""Disturbances: their size, their seed, which is that of the episode, and environments that have no such thing."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest

import networks
import require
from quarl.calibration import quantize
from quarl.envs.environment import Environment
from quarl.errors import QuarlError
from quarl.evaluation import evaluate
from quarl.lab import disturbances
from quarl.lab.disturbances import Disturbance, velocity_deviations
from quarl.policy.graph import ActionHead
from quarl.quant.spec import EXACT

DEVIATIONS = np.array([0.5, 0.0, 1.0, 2.0])


def steps(env: gymnasium.Env[Any, Any], actions: list[int], seed: int = 7) -> np.ndarray:
    """The observations of an episode, the first one included."""
    return np.array([env.reset(seed=seed)[0], *(env.step(action)[0] for action in actions)])


def disturbed(env_id: str, levels: dict[str, float], **scales: np.ndarray) -> Disturbance:
    return Disturbance(gymnasium.make(env_id, disable_env_checker=True), levels, scales)


def test_noise_is_the_level_times_the_deviation_and_drawn_by_the_seed():
    env = disturbed("CartPole-v1", {"noise": 0.1}, noise=DEVIATIONS)
    clean, seen = steps(gymnasium.make("CartPole-v1"), [0, 1] * 5), steps(env, [0, 1] * 5)
    assert seen.dtype == np.float32
    np.testing.assert_array_equal(seen[:, 1], clean[:, 1])  # an input that never varied on the path
    env.env.step = lambda action: (np.zeros(4, np.float32), 0.0, False, False, {})  # any number of steps
    noise = steps(env, [0] * 400)[1:]
    np.testing.assert_allclose(noise.std(axis=0), 0.1 * DEVIATIONS, rtol=0.15)
    np.testing.assert_allclose(noise.mean(axis=0), 0, atol=0.03)
    np.testing.assert_allclose(noise[:10], (seen - clean)[1:], atol=1e-6)
    np.testing.assert_array_equal(steps(env, [1] * 400)[1:], noise)  # whatever the policy does
    assert not np.array_equal(steps(env, [0] * 400, seed=8)[1:], noise)


def test_a_delayed_action_takes_effect_whole_steps_later():
    env, taken = disturbed("CartPole-v1", {"delay": 2}), []
    env.env.step = lambda action: taken.append(int(action)) or (np.zeros(4), 0.0, False, False, {})
    for _ in range(2):  # a reset forgets what was to come
        steps(env, [5, 1, 2, 3, 4])
    assert taken == [5, 5, 5, 1, 2] * 2


def test_a_constant_is_multiplied_with_those_that_follow():
    cartpole = disturbed("CartPole-v1", {"length": 2.0, "masspole": 3.0}).unwrapped
    assert (cartpole.length, cartpole.masspole, cartpole.masscart) == pytest.approx((1.0, 0.3, 1.0))
    assert (cartpole.total_mass, cartpole.polemass_length) == pytest.approx((1.3, 0.3))
    acrobot = disturbed("Acrobot-v1", {"LINK_MASS_2": 2.0}).unwrapped
    assert (acrobot.LINK_MASS_1, acrobot.LINK_MASS_2, type(acrobot).LINK_MASS_2) == (1.0, 2.0, 1.0)


def test_a_parameter_of_mujoco_is_multiplied_in_the_model():
    require.module("mujoco")
    env, usual = disturbed("InvertedPendulum-v5", {"mass": 2.0, "gravity": 0.5}), gymnasium.make("InvertedPendulum-v5")
    model, before = env.unwrapped.model, usual.unwrapped.model
    np.testing.assert_allclose(model.body_mass, 2 * before.body_mass)
    np.testing.assert_allclose(model.body_subtreemass, 2 * before.body_subtreemass)  # what follows from it
    np.testing.assert_allclose(model.opt.gravity, 0.5 * before.opt.gravity)
    with pytest.raises(QuarlError, match="has no parameter 'wind'; it has mass, friction, damping, gravity, beside"):
        disturbed("InvertedPendulum-v5", {"wind": 2.0})


def test_a_control_rate_is_a_whole_number_of_physics_steps():
    require.module("mujoco")
    env = disturbed("InvertedPendulum-v5", {"control-hz": 12.5})
    assert (env.usual["control-hz"], env.unwrapped.frame_skip) == (pytest.approx(25), 4)
    env.reset(seed=0)
    env.step(np.zeros(1))
    assert env.unwrapped.data.time == pytest.approx(0.08)
    with pytest.raises(QuarlError, match=r"control-hz 20 is not a whole number of physics steps of 0.02 s .* 25"):
        disturbed("InvertedPendulum-v5", {"control-hz": 20.0})


def test_a_push_kicks_velocities_by_their_deviation_on_the_path(monkeypatch: pytest.MonkeyPatch):
    require.module("mujoco")
    policy = replace(networks.dense([4, 8, 1]), head=ActionHead("clip", np.array([-3.0]), np.array([3.0])))
    monkeypatch.setattr("quarl.evaluation.NUM_OBSERVATIONS", 64)
    monkeypatch.setattr(disturbances, "PUSH_STEPS", 10)
    deviations = velocity_deviations(policy, Environment.typed_by_user("InvertedPendulum-v5"), seed=0)
    assert (deviations.shape, deviations.min() > 0) == ((2,), True)
    env = disturbed("InvertedPendulum-v5", {"push": 2.0}, push=np.array([3.0, 0.0]))
    kicks = []
    env.env.step = lambda action: kicks.append(env.unwrapped.data.qvel.copy()) or ((), 0, 0, 0, {})
    env.reset(seed=1)
    env.unwrapped.data.qvel[:] = 0
    for _ in range(4_000):
        env.step(np.zeros(1))
    pushes = np.diff(np.array(kicks)[:, 0])
    assert np.count_nonzero(pushes) == pytest.approx(400, rel=0.15)
    assert pushes[pushes != 0].std() == pytest.approx(6.0, rel=0.15)
    assert not np.any(np.array(kicks)[:, 1])


def test_a_push_kicks_the_joints_of_a_robot_in_pybullet(monkeypatch: pytest.MonkeyPatch):
    require.module("pybullet_envs_gymnasium")
    monkeypatch.setattr(disturbances, "PUSH_STEPS", 1)
    env = disturbed("HalfCheetahBulletEnv-v0", {"push": 2.0}, push=np.array([3.0, *[0.0] * 5]))
    env.reset(seed=1)
    before, met = disturbances.velocities(env.unwrapped), []
    positions = [joint.get_position() for joint in env.unwrapped.robot.ordered_joints]
    env.env.step = lambda action: met.append(disturbances.velocities(env.unwrapped)) or ((), 0, 0, 0, {})
    for _ in range(400):
        env.step(np.zeros(6))
    pushes = np.diff([before, *met], axis=0)
    assert pushes[:, 0].std() == pytest.approx(6.0, rel=0.15)
    assert not pushes[:, 1:].any()
    assert positions == [joint.get_position() for joint in env.unwrapped.robot.ordered_joints]


def test_images_take_no_noise():
    pixels = gymnasium.spaces.Box(0, 255, (8, 8, 3), np.uint8)
    env = gymnasium.wrappers.TransformObservation(gymnasium.make("CartPole-v1"), lambda seen: seen, pixels)
    with pytest.raises(QuarlError, match="noise requires observations of float numbers, and CartPole-v1 gives uint8"):
        Disturbance(env, {"noise": 1.0}, {})


@pytest.mark.slow
def test_disturbed_returns_do_not_depend_on_batch_or_processes():
    outside = partial(Disturbance, levels={"noise": 0.1, "delay": 2}, scales={"noise": DEVIATIONS})
    environment = replace(Environment.typed_by_user("CartPole-v1"), outside=outside)
    play = partial(evaluate, quantize(networks.cartpole(), EXACT), episodes=6)
    one = play(environment, batch=1)
    for other in (play(environment), play(environment, num_workers=2)):
        np.testing.assert_array_equal(one.returns, other.returns)
    assert not np.array_equal(one.returns, play(Environment.typed_by_user("CartPole-v1")).returns)
