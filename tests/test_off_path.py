"""States off the path: where they come from, and that seeds determine them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import registry

import networks
import require
from quarl.envs import home_of
from quarl.errors import UnsupportedError
from quarl.evaluation import record
from quarl.off_path import RANDOM, STEPS, _Leaving, away, off_path
from quarl.policy.graph import ActionHead, Policy, Provenance
from quarl.policy.operators import Dense


class Steps(gymnasium.Env[Any, Any]):
    """Shows (the last action, steps taken) and ends after 120 steps; its actions are kept."""

    observation_space, action_space = gymnasium.spaces.Box(0, 200, (2,), np.float32), gymnasium.spaces.Discrete(4)
    actions: ClassVar[list[int]] = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.taken = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.taken += 1
        self.actions.append(int(action))
        return np.float32([action, self.taken]), 0.0, False, self.taken >= 120, {}


class Masked(Steps):
    """It allows actions 1 and 2."""

    def action_masks(self):
        return np.array([False, True, True, False])


@pytest.fixture(autouse=True)
def registered():
    for entry in (Steps, Masked):
        gymnasium.register(f"{entry.__name__}-v0", entry)
    Steps.actions.clear()
    yield
    for entry in (Steps, Masked):
        registry.pop(f"{entry.__name__}-v0")


def linear(env_id: str, inputs: int, bias: list[float], head: ActionHead | None = None, **about: Any) -> Policy:
    """A policy that always chooses the same action."""
    layer = Dense("out", ("observation",), np.zeros((len(bias), inputs), np.float32), np.float32(bias))
    provenance = Provenance(env_id=env_id, **about)
    return Policy(observation_shape=(inputs,), ops=(layer,), head=head or ActionHead("argmax"), provenance=provenance)


def states(policy: Policy, kind: Any, count: int = 300, **options: Any) -> np.ndarray:
    return off_path(policy, home_of(policy), kind, count=count, engine="reference", **options)


def test_perturbed_rollouts_replace_the_share_of_actions_with_any_of_the_space() -> None:
    policy = linear("Steps-v0", 2, [0, 0, 1, 0])
    home_of(policy).playing(policy)  # its probe takes actions, too
    Steps.actions.clear()
    states(policy, "perturbed")
    share = np.bincount(Steps.actions, minlength=4) / len(Steps.actions)
    assert share == pytest.approx([RANDOM / 4, RANDOM / 4, 1 - RANDOM * 3 / 4, RANDOM / 4], abs=0.03)


def test_random_actions_are_those_that_masks_allow() -> None:
    states(linear("Masked-v0", 2, [0, 0, 1, 0], algo="maskableppo"), "perturbed")
    assert set(Steps.actions) == {1, 2}


def test_a_start_that_cannot_be_set_follows_random_actions() -> None:
    policy = linear("Steps-v0", 2, [0, 0, 1, 0])
    taken, action = states(policy, "starts", 10_000)[:, ::-1].T.astype(int)
    assert taken.max() == STEPS - 1
    random = [np.mean(action[taken == t] != 2) for t in range(1, STEPS)]
    assert random[:10] == pytest.approx([0.75] * 10, abs=0.13)
    assert random[15] == pytest.approx(0.75 * 15 / 21, abs=0.13)
    assert not any(random[30:])


@pytest.mark.parametrize("kind", ["perturbed", "starts", "box"])
def test_states_depend_on_the_seed_and_the_stream_alone(kind: str) -> None:
    policy = replace(networks.dense([2, 8, 3]), provenance=Provenance(env_id="MountainCar-v0"))
    seen = states(policy, kind)
    assert (seen.shape, seen.dtype) == ((300, 2), np.float32)
    assert np.array_equal(states(policy, kind), seen)
    assert not np.array_equal(states(policy, kind, seed=1), seen)
    assert not np.array_equal(states(policy, kind, stream="calibration"), seen)


def test_random_starts_of_classic_control_spread_between_the_bounds() -> None:
    policy = linear("MountainCar-v0", 2, [0, 1, 0])
    on_path, seen = record(policy, engine="reference", num=300), states(policy, "starts", 2000)
    assert (np.ptp(on_path, axis=0) < [0.3, 0.03]).all()
    assert (np.ptp(seen, axis=0) > [1.5, 0.12]).all()
    assert (np.abs(states(linear("CartPole-v1", 4, [1, 0]), "starts", 500)) > 0.5)[:, :2].any(axis=0).all()


def test_random_starts_of_mujoco_kick_velocities() -> None:
    require.module("mujoco")
    head = ActionHead("clip", np.full(3, -1, np.float32), np.ones(3, np.float32))
    seen = states(linear("Hopper-v5", 11, [0, 0, 0], head), "starts")
    assert np.abs(seen[:, 5:]).max() > 1.5


def test_random_actions_of_continuous_spaces_are_uniform_between_their_bounds() -> None:
    for kind in ("clip", "tanh", "gaussian"):
        head = ActionHead(kind, np.full(1, -2, np.float32), np.full(1, 2, np.float32))
        policy = linear("Pendulum-v1", 3, [0.5, 0] if kind == "gaussian" else [0.5], head)
        leaving = _Leaving(gymnasium.make("Pendulum-v1"), policy, starts=False)
        leaving.reset(seed=0)
        drawn = np.array([leaving._random() for _ in range(4000)])
        assert np.histogram(drawn, 4, (-2, 2))[0] == pytest.approx(np.full(4, 1000), abs=100)


def test_a_box_is_sampled_between_the_bounds_of_the_environment() -> None:
    seen = states(linear("MountainCar-v0", 2, [0, 1, 0]), "box", 2000)
    assert seen.min(axis=0) == pytest.approx([-1.2, -0.07], abs=0.01)
    assert seen.max(axis=0) == pytest.approx([0.6, 0.07], abs=0.01)
    with pytest.raises(UnsupportedError, match=r"^no box: .* 8 numbers or fewer, and bounds"):
        states(linear("CartPole-v1", 4, [1, 0]), "box")


def test_wrappers_show_the_states_off_the_path() -> None:
    wrappers = (("sb3_contrib.common.wrappers.TimeFeatureWrapper", {}),)
    seen = states(linear("MountainCar-v0", 3, [0, 1, 0], wrappers=wrappers), "starts")
    assert seen[:, 2].max() == 1
    assert seen[:, 2].min() == np.float32(1 - (STEPS - 1) / 200)


def test_rows_move_away_from_their_mean_by_up_to_the_factor() -> None:
    rows = np.random.default_rng(0).normal(3, 1, (500, 2)).astype(np.float32)
    mean = rows.mean(axis=0)
    factors = (away(rows, 2.0) - mean) / (rows - mean)
    assert factors.min() == pytest.approx(1, abs=0.02)
    assert factors.max() == pytest.approx(2, abs=0.02)
    assert np.allclose(factors[:, 0], factors[:, 1], atol=1e-2)
    images = np.uint8([[0, 255], [255, 0]])
    assert np.array_equal(away(images), images)
