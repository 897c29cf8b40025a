"""Frames stacked for one environment are those that Stable-Baselines3 stacks for many."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecFrameStack, VecTransposeImage

from quarl.envs import make
from quarl.envs.wrappers import FrameStack
from quarl.errors import QuarlError

Array = NDArray[Any]
STACK = "stable_baselines3.common.vec_env.VecFrameStack"


class Numbered(gymnasium.Env[Array, int]):
    """Shows its episode's number and its step's in every place of an observation, and ends after `length` steps."""

    action_space = spaces.Discrete(2)

    def __init__(self, space: spaces.Box, length: int = 6) -> None:
        self.observation_space = space
        self.length, self.episode = length, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        self.episode, self.taken = self.episode + 1, 0
        return self.show(), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self.taken += 1
        ends = self.taken == self.length
        return self.show(), 1.0, ends and self.episode % 2 == 0, ends and self.episode % 2 == 1, {}

    def show(self) -> Array:
        shape = self.observation_space.shape
        places = np.arange(np.prod(shape)).reshape(shape) % 7
        return (places + 10 * self.taken + 100 * (self.episode % 2)).astype(self.observation_space.dtype)


def image(*shape: int) -> spaces.Box:
    return spaces.Box(0, 255, shape, np.uint8)


def test_a_stack_is_oldest_first_with_zeros_before_the_start():
    env = FrameStack(Numbered(image(5, 4, 1)), 4)
    observation, _ = env.reset()
    assert observation.shape == env.observation_space.shape == (4, 5, 4)
    assert observation[:, 0, 0].tolist() == [0, 0, 0, 100]
    assert [env.step(0)[0][:, 0, 0].tolist() for _ in range(4)] == [
        [0, 0, 100, 110],
        [0, 100, 110, 120],
        [100, 110, 120, 130],
        [110, 120, 130, 140],
    ]
    assert env.reset()[0][:, 0, 0].tolist() == [0, 0, 0, 0]  # the second episode shows 0 first
    assert env.step(0)[0][:, 0, 0].tolist() == [0, 0, 0, 10]


def test_a_vector_is_stacked_along_its_last_axis():
    env = FrameStack(Numbered(spaces.Box(-1000, 1000, (2,), np.float32)), 3)
    env.reset()
    env.step(0)
    assert env.step(0)[0].tolist() == [100, 101, 110, 111, 120, 121]
    assert env.observation_space.low.tolist() == [-1000] * 6


def test_what_was_shown_stays_the_caller_s():
    env = FrameStack(Numbered(image(3, 3, 1)), 2)
    first, _ = env.reset()
    kept = first.copy()
    env.step(0)
    assert np.array_equal(first, kept)


@pytest.mark.parametrize("n_stack", [1, 2, 4])
@pytest.mark.parametrize(
    "space",
    [
        image(30, 20, 1),
        image(30, 20, 3),
        image(1, 30, 20),
        spaces.Box(-9, 999, (3,), np.float32),
        spaces.Box(0, 1, (2, 3)),
    ],
    ids=str,
)
def test_observations_and_last_observations_are_stable_baselines3_s_bit_for_bit(space: spaces.Box, n_stack: int):
    theirs: VecEnv = VecFrameStack(DummyVecEnv([lambda: Numbered(space), lambda: Numbered(space, 4)]), n_stack)
    stacked = theirs.observation_space
    if is_image_space(stacked) and stacked.shape[0] == 30:
        theirs = VecTransposeImage(theirs)
    ours = DummyVecEnv([lambda: FrameStack(Numbered(space), n_stack), lambda: FrameStack(Numbered(space, 4), n_stack)])
    assert ours.observation_space.shape == theirs.observation_space.shape
    assert np.array_equal(ours.reset(), theirs.reset())
    for _ in range(30):
        mine, reference = (env.step(np.zeros(2, np.int64)) for env in (ours, theirs))
        assert np.array_equal(mine[0], reference[0])
        assert mine[2].tolist() == reference[2].tolist()
        for here, there in zip(mine[3], reference[3], strict=True):
            assert here.keys() == there.keys()
            if "terminal_observation" in here:
                assert np.array_equal(here["terminal_observation"], there["terminal_observation"])


def test_the_zoo_s_name_of_it_stacks_a_single_environment_s_frames():
    env = make("CartPole-v1", wrappers=[(STACK, {"n_stack": 3})])
    first, _ = env.reset(seed=1)
    assert first[:8].tolist() == [0] * 8
    second = env.step(0)[0]
    assert second[4:8].tolist() == first[8:].tolist()


@pytest.mark.parametrize("kwargs", [{"n_stack": 0}, {"n_stack": True}, {"n_stack": 2, "channels_order": "middle"}, {}])
def test_stacks_that_cannot_be_are_one_line(kwargs: dict[str, Any]):
    with pytest.raises(QuarlError, match="VecFrameStack cannot be applied") as caught:
        make("CartPole-v1", wrappers=[(STACK, kwargs)])
    assert "\n" not in str(caught.value)
    with pytest.raises(QuarlError, match="only a Box"):
        make("FrozenLake-v1", wrappers=[(STACK, {"n_stack": 2})])
