"""Which algorithm fits which actions: one rule, and what it says is what Stable-Baselines3 refuses."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from quarl.algorithms.learners import learner_class
from quarl.config.train import LEARNERS
from quarl.envs.spaces import fits, fitting

CHOICE = spaces.Discrete(3)
VECTOR = spaces.Box(-1, 1, (2,), np.float32)
UNBOUNDED = spaces.Box(-np.inf, np.inf, (2,), np.float32)


def test_every_algorithm_either_fits_or_says_why_not():
    assert fitting(CHOICE) == ("ppo", "a2c", "dqn")
    assert fitting(VECTOR) == ("ppo", "a2c", "ddpg", "td3", "sac", "d4pg")
    assert fitting(UNBOUNDED) == ("ppo", "a2c")
    for algo in LEARNERS:
        for space in (CHOICE, VECTOR, UNBOUNDED):
            assert (fits(algo, space) is None) == (algo in fitting(space))


def test_the_reasons_are_one_line_and_name_what_is_missing():
    assert fits("ddpg", CHOICE) == "ddpg needs a continuous action space"
    assert fits("dqn", VECTOR) == "dqn needs a discrete action space"
    assert fits("sac", UNBOUNDED) == (
        "the action space is unbounded, but the policy's output is a fraction of its range"
    )
    assert fits("dqn", spaces.MultiBinary(3)) == "dqn needs a discrete action space, of one number"
    assert fits("sac", spaces.MultiDiscrete([2, 3])) == "sac needs a continuous action space"
    assert fitting(spaces.MultiDiscrete([2, 3])) == fitting(spaces.MultiBinary(3)) == ("ppo", "a2c")
    for space in (spaces.MultiDiscrete([2, 3], start=[0, 1]), spaces.Dict({"a": CHOICE}), spaces.Box(0, 1, (2, 2))):
        assert fitting(space) == ()
        for algo in LEARNERS:
            assert "\n" not in str(fits(algo, space))


@pytest.mark.parametrize("algo", LEARNERS)
def test_what_does_not_fit_is_refused_by_the_learner_itself(algo: str):
    for env_id, space in (("CartPole-v1", spaces.Discrete(2)), ("Pendulum-v1", spaces.Box(-2, 2, (1,)))):
        if fits(algo, space) is None:
            learner_class(algo)("MlpPolicy", env_id, device="cpu")
        else:
            with pytest.raises(AssertionError):
                learner_class(algo)("MlpPolicy", env_id, device="cpu")
