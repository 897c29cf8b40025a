"""check_spaces: a policy that does not fit an environment is refused in one line that names both."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from zeros import linear

from quarl.envs import check_spaces, make
from quarl.envs.wrappers import shown_to
from quarl.errors import QuarlError
from quarl.policy.graph import ActionHead, Policy
from quarl.policy.inputs import Input


def box(size: int, limit: float) -> ActionHead:
    return ActionHead("clip", -limit * np.ones(size, np.float32), limit * np.ones(size, np.float32))


@pytest.mark.parametrize(
    ("env_id", "fitting"),
    [
        ("CartPole-v1", linear((4,))),
        ("Pendulum-v1", linear((3,), 1, box(1, 2.0))),
        ("MountainCarContinuous-v0", linear((2,), 1, box(1, 1.0))),
    ],
)
def test_a_fitting_policy_is_accepted(env_id: str, fitting: Policy) -> None:
    check_spaces(fitting, make(env_id))


def test_bytes_that_are_no_image_are_numbers_to_a_policy() -> None:
    env = gymnasium.Env[Any, Any]()
    env.observation_space, env.action_space = spaces.Box(0, 255, (4,), np.uint8), spaces.Discrete(2)
    check_spaces(linear((4,)), env)


def test_a_dict_is_shown_as_one_row_and_a_misfit_names_its_key() -> None:
    env = gymnasium.Env[Any, Any]()
    env.observation_space = spaces.Dict({"goal": spaces.Box(-1, 1, (1,)), "mode": spaces.Discrete(3)})
    env.action_space = spaces.Discrete(2)
    goal, mode = Input("goal", "Box", (1,)), Input("mode", "Discrete", (), (3,))
    policy = replace(linear((4,)), inputs=(goal, mode))
    shown: Any = shown_to(policy, env)
    check_spaces(policy, shown)
    assert shown.observation({"mode": 1, "goal": [0.5]}).tolist() == [0.5, 0, 1, 0]
    for other in (replace(goal, key="aim"), replace(goal, shape=(2,)), replace(mode, values=(2,))):
        misfit = replace(linear((other.size,)), inputs=(other,))
        with pytest.raises(QuarlError, match=re.escape(f"observations (with {other}) are not those of Env")):
            check_spaces(misfit, shown_to(misfit, env))
    env.action_space = spaces.Text(3)
    with pytest.raises(QuarlError, match=r"actions \(2 discrete ones from 0\) are not those of Env \(Text"):
        check_spaces(policy, shown)


@pytest.mark.parametrize(
    ("env_id", "misfit", "words"),
    [
        ("Acrobot-v1", linear((4,), 3), ["float32 (4,)", "Acrobot-v1", "(6,)"]),
        ("FrozenLake-v1", linear((16,), 4), ["float32 (16,)", "Discrete(16)"]),
        ("CartPole-v1", linear((4,), 3), ["3 discrete ones from 0", "Discrete(2)"]),
        ("CartPole-v1", linear((4,), 2, ActionHead("argmax", start=1)), ["2 discrete ones from 1", "Discrete(2)"]),
        ("CartPole-v1", linear((4,), 1, box(1, 1.0)), ["1 numbers in [-1, 1]", "Discrete(2)"]),
        ("Pendulum-v1", linear((3,), 1, box(1, 1.0)), ["1 numbers in [-1, 1]", "Box(-2.0, 2.0, (1,), float32)"]),
    ],
)
def test_a_misfit_is_one_line_naming_both_sides(env_id: str, misfit: Policy, words: list[str]) -> None:
    with pytest.raises(QuarlError) as caught:
        check_spaces(misfit, make(env_id))
    message = str(caught.value)
    assert all(word in message for word in [*words, env_id, "--env"])
    assert "\n" not in message


def test_an_image_policy_is_refused_float_observations() -> None:
    images = replace(linear((4,)), observation_dtype="uint8")
    with pytest.raises(QuarlError, match=r"observations \(uint8 \(4,\)\) are not those of CartPole-v1"):
        check_spaces(images, make("CartPole-v1"))
