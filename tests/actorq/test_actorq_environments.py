"""What an actor's environments may do, and what reaches replay whatever they do."""

from __future__ import annotations

import sys
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import require
from quarl.actorq.build import build
from quarl.actorq.counters import Actor
from quarl.actorq.environments import Environments, environment_of
from quarl.actorq.exploration import Explorer
from quarl.actorq.run_options import adopt
from quarl.config import ActorQConfig
from quarl.envs import Environment
from quarl.envs.checked import BrokenEnvironmentError
from quarl.policy.graph import ActionHead


class Fixed(gymnasium.Env):
    """Shows one observation after a reset and another after a step."""

    def __init__(self, space, first, then):
        self.observation_space, self.action_space = space, spaces.Box(-1, 1, (2,))
        self._first, self._then = first, then

    def reset(self, *, seed=None, options=None):
        return self._first, {}

    def step(self, action):
        action *= 0.5  # as some do
        return self._then, 0.0, False, False, {}


def made(monkeypatch, env, shape, dtype):
    monkeypatch.setattr(Environment, "make", lambda *args, **kwargs: env)
    return Environments(
        Environment.from_file("any"), 2, 0, 0, np.zeros(len(Actor)), np.zeros((2, *shape), dtype), print
    )


def test_a_reset_that_gives_integers_does_not_round_the_steps_behind_it(monkeypatch):
    env = Fixed(spaces.Box(-1, 1, (3,)), np.array([0, 0, 0]), np.float32([0.25, -0.5, 0.75]))
    found = made(monkeypatch, env, (3,), np.float32)
    assert found.observations.dtype == np.float32
    found.observations[1] = env.step(np.zeros(2, np.float32))[0]
    assert found.observations.tolist() == [[0, 0, 0], [0.25, -0.5, 0.75]]


def test_images_reach_the_policy_in_its_order_of_axes(monkeypatch):
    image = np.arange(2 * 4 * 3, dtype=np.uint8).reshape(2, 4, 3)
    env = Fixed(spaces.Box(0, 255, (2, 4, 3), np.uint8), image, image)
    found = made(monkeypatch, env, (3, 2, 4), np.uint8)
    assert np.array_equal(found.observations[0], np.moveaxis(image, -1, 0))
    found.reset(1)
    assert np.array_equal(found.observations[1], np.moveaxis(image, -1, 0))


@pytest.mark.slow
def test_games_of_atari_are_preprocessed_for_learner_and_actors_unless_the_user_says_otherwise():
    require.module("ale_py")
    config = ActorQConfig(env="PongNoFrameskip-v4", params=("buffer_size:50", "env_kwargs:dict(mode=0)"))
    assert build(config).observation_space.shape == (4, 84, 84)
    seen = np.zeros((1, 4, 84, 84), np.uint8)
    found = Environments(environment_of(config), 1, 0, 0, np.zeros(len(Actor)), seen, print)
    assert found.observations.any()
    rewards = [found.envs[0].step(0)[1] for _ in range(400)]  # who stands still loses point after point
    assert set(rewards) == {0.0, -1.0}
    assert 5 < rewards.count(-1.0) < 21
    found.envs[0].close()
    said = []
    adopted = adopt(config, said.append)
    assert said[0] == "Atari game: PongNoFrameskip-v4, mode=0, AtariWrapper, VecFrameStack(n_stack=4)"
    assert not any("env_wrapper" in line or "frame_stack" in line for line in (*said, *adopted.params))
    raw = replace(config, params=("env_wrapper:None", "frame_stack:0"))
    assert environment_of(raw).wrappers == ()


@pytest.mark.parametrize("chosen", ["act", "random"])
def test_an_environment_that_changes_its_action_does_not_change_what_is_stored(chosen):
    env = Fixed(spaces.Box(-1, 1, (3,)), np.zeros(3), np.zeros(3))
    bounds = np.ones(2, np.float32)
    explorer = Explorer(ActionHead("tanh", -bounds, bounds), env.action_space, 0.1, np.random.default_rng(0))
    actions, stored = explorer.act(np.float32([[0.3, -2.0]]), 0.0) if chosen == "act" else explorer.random(1)
    before = stored.copy()
    env.step(actions[0])
    assert np.array_equal(stored, before)
    assert not np.array_equal(actions, stored)


def test_an_actor_with_slow_environments_is_alive_between_their_steps(monkeypatch):
    env = Fixed(spaces.Box(-1, 1, (3,)), np.zeros(3), np.zeros(3))
    found = made(monkeypatch, env, (3,), np.float32)
    found._cells[Actor.HEARTBEAT_S] = 0
    found.reset(0)
    assert found._cells[Actor.HEARTBEAT_S] > 0


class Away(Fixed):
    """Cannot be made or reset for a while, as where a server is restarted."""

    failures = 0

    def reset(self, *, seed=None, options=None):
        if Away.failures:
            Away.failures -= 1
            raise ConnectionError("the server is away")
        return super().reset(seed=seed, options=options)


@pytest.mark.parametrize("failures", [4, 5])
def test_an_environment_that_cannot_be_made_anew_at_once_is_tried_again(monkeypatch, failures):
    env = Away(spaces.Box(-1, 1, (3,)), np.ones(3), np.zeros(3))
    said, slept = [], []
    monkeypatch.setattr("quarl.actorq.environments.time.sleep", slept.append)
    found = made(monkeypatch, env, (3,), np.float32)
    found._say = said.append
    found.length[1], found.total[1] = 7, 3.0
    Away.failures = failures
    if failures == 5:
        with pytest.raises(ConnectionError):
            found.replace(1, RuntimeError("it broke"))
    else:
        found.replace(1, RuntimeError("it broke"))
        assert (found.sequence, found.length[1], found.total[1]) == ([0, 2], 0, 0.0)
        assert found._cells[Actor.DROPPED] == 7
    Away.failures = 0
    assert found._cells[Actor.ERRORS] == 5
    away = ["an environment raised ConnectionError: the server is away"]  # once, not for each of them
    assert said == ["an environment raised RuntimeError: it broke", *away]
    assert slept == [0.1, 0.2, 0.4, 0.8, 1.6][:failures]


class Exits(Fixed):
    """Leaves the process at its `left`-th call."""

    def __init__(self, left):
        super().__init__(spaces.Box(-1, 1, (3,)), np.zeros(3, np.float32), np.zeros(3, np.float32))
        self._left = left

    def reset(self, *, seed=None, options=None):
        self._left -= 1
        if self._left < 0:
            sys.exit(3)
        return super().reset()


def test_an_actor_s_environment_that_exits_is_replaced_and_at_last_named(monkeypatch):
    monkeypatch.setattr("quarl.actorq.environments.PAUSE_S", 0.0)
    found = made(monkeypatch, Exits(left=3), (3,), np.float32)
    found.replace(0, SystemExit(3))  # the third reset is its last
    assert found.sequence == [2, 0]
    with pytest.raises(BrokenEnvironmentError, match="Exits raised SystemExit: 3"):
        found.reset(1)
    with pytest.raises(BrokenEnvironmentError, match="Exits raised SystemExit: 3"):
        made(monkeypatch, Exits(left=0), (3,), np.float32)
