"""Zoo wrappers: looked up by name, applied as the zoo applies them, and nothing else imported."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from sb3_contrib.common.wrappers import TimeFeatureWrapper

import require
from quarl.envs import make
from quarl.envs.wrappers import FAMILIES, TimeFeature, wrap, wrapper_class
from quarl.errors import QuarlError


@pytest.mark.parametrize(
    "dotted",
    [
        "sb3_contrib.common.wrappers.TimeFeatureWrapper",
        "sb3_contrib.common.wrappers.time_feature.TimeFeatureWrapper",
        "rl_zoo3.wrappers.TimeFeatureWrapper",
        "utils.wrappers.TimeFeatureWrapper",
    ],
)
def test_every_zoo_spelling_of_the_time_feature_counts_down_from_one(dotted: str) -> None:
    env = make("Pendulum-v1", wrappers=[(dotted, {})])
    observation, _ = env.reset(seed=0)
    assert observation.shape == env.observation_space.shape == (4,)
    assert observation.dtype == np.float32
    assert observation[3] == 1.0
    for step in range(1, 201):
        observation, _, terminated, truncated, _ = env.step(np.zeros(1, np.float32))
        assert observation[3] == np.float32(1 - step / 200)
    assert (terminated, truncated, observation[3]) == (False, True, 0.0)


class Goal(gymnasium.Env[Any, Any]):
    """Observations of a Dict, as those of tasks with goals, without a time limit."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        parts = {
            "goal": gymnasium.spaces.Box(-1, 1, (1,)),
            "observation": gymnasium.spaces.Box(-2, 3, (2,), np.float64),
        }
        self.observation_space = gymnasium.spaces.Dict(parts)  # of each its own: sb3-contrib's wrapper changes it

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        return {"goal": np.ones(1, np.float32), "observation": np.array([0.5, -1.5])}, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.reset()[0], 0.0, False, False, {}


@pytest.mark.parametrize("options", [{}, {"max_steps": 7}, {"test_mode": True}])
@pytest.mark.parametrize("env", [Goal, partial(gymnasium.make, "Pendulum-v1")])
def test_the_time_feature_has_the_bits_and_spaces_of_sb3_contrib_s(env: Any, options: dict[str, Any]) -> None:
    ours, theirs = TimeFeature(env(), **options), TimeFeatureWrapper(env(), **options)
    assert ours.observation_space == theirs.observation_space
    for _ in range(2):
        rows = [[wrapped.reset(seed=3)[0]] for wrapped in (ours, theirs)]
        for row, wrapped in zip(rows, (ours, theirs), strict=True):
            row += [wrapped.step(np.zeros(1, np.float32))[0] for _ in range(10)]
        assert ours.observation_space.contains(rows[0][1])
        np.testing.assert_equal(*rows)
        assert len({str(row) for row in rows[0]}) > 1 or options.get("test_mode")


def test_what_is_no_vector_of_numbers_gets_no_time_feature() -> None:
    with pytest.raises(ValueError, match=r"it adds to a vector of numbers, not to Discrete\(16\)"):
        TimeFeature(gymnasium.make("FrozenLake-v1"))


def test_keyword_arguments_of_the_file_are_honoured() -> None:
    env = make("Pendulum-v1", wrappers=[("sb3_contrib.common.wrappers.TimeFeatureWrapper", {"test_mode": True})])
    env.reset(seed=0)
    assert env.step(np.zeros(1, np.float32))[0][3] == 1.0


def test_wrappers_are_applied_in_order_the_last_outermost() -> None:
    scale = ("gym.wrappers.RescaleAction", {"min_action": -1, "max_action": 1})
    feature = ("utils.wrappers.TimeFeatureWrapper", {})
    assert type(make("Pendulum-v1", wrappers=[scale, feature])) is TimeFeature
    assert type(make("Pendulum-v1", wrappers=[feature, scale])).__name__ == "RescaleAction"


def test_gymnasium_wrappers_are_found_whatever_file_a_version_kept_them_in() -> None:
    for dotted in ("gym.wrappers.time_limit.TimeLimit", "gymnasium.wrappers.common.TimeLimit"):
        assert wrapper_class(dotted) is wrapper_class("gymnasium.wrappers.TimeLimit")


def test_every_name_in_the_table_exists_where_the_table_says() -> None:
    require.module("rl_zoo3")
    require.module("cv2")
    for prefix, family in FAMILIES.items():
        for name in family:
            assert issubclass(wrapper_class(f"{prefix}.{name}"), gymnasium.Wrapper)


@pytest.mark.parametrize("dotted", ["utils.wrappers.DoneOnSuccessWrapper", "rl_zoo3.wrappers.DoneOnSuccessWrapper"])
def test_done_on_success_ends_an_episode_and_moves_its_rewards(dotted: str) -> None:
    require.package("rl_zoo3")

    class Reach(gymnasium.Wrapper[Any, Any, Any, Any]):
        taken = 0

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            self.taken += 1
            return (*self.env.step(action)[:1], -1.0, False, False, {"is_success": self.taken > 2})

    env = wrap(Reach(gymnasium.make("Pendulum-v1")), [(dotted, {"reward_offset": 1.0, "n_successes": 2})])
    env.reset(seed=0)
    steps = [env.step(np.zeros(1, np.float32)) for _ in range(4)]
    assert [(reward, over or cut) for _, reward, over, cut, _ in steps] == [(0.0, False)] * 3 + [(0.0, True)]


@pytest.mark.parametrize("dotted", ["this.Wrapper", "os.system", "gymnasium.wrappers.Autoreset", "TimeLimit", ""])
def test_an_unknown_wrapper_is_one_line_and_imports_nothing(dotted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "this", raising=False)
    with pytest.raises(QuarlError, match=r"environment wrapper '.*' is not supported; known ones: ") as caught:
        make("Pendulum-v1", wrappers=[(dotted, {})])
    assert "\n" not in str(caught.value)
    assert "this" not in sys.modules


def test_preprocessing_of_colours_refuses_other_observations_at_once() -> None:
    require.module("cv2")
    with pytest.raises(
        QuarlError, match=r"^.*AtariWrapper cannot be applied.*: it reads images in color, not .* \(3,\); drop it.*\Z"
    ):
        make("Pendulum-v1", wrappers=[("stable_baselines3.common.atari_wrappers.AtariWrapper", {})])


def test_arguments_that_a_wrapper_refuses_are_one_line() -> None:
    with pytest.raises(QuarlError, match=r"wrapper utils.wrappers.FrameSkip cannot be applied with \{'skips': 2\}: "):
        make("Pendulum-v1", wrappers=[("utils.wrappers.FrameSkip", {"skips": 2})])
    with pytest.raises(QuarlError, match="Velocity masking not implemented for Acrobot-v1"):
        make("Acrobot-v1", wrappers=[("rl_zoo3.wrappers.MaskVelocityWrapper", {})])


def test_a_wrapper_of_a_missing_package_says_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rl_zoo3.wrappers", None)
    with pytest.raises(QuarlError, match="needs a package: pip install rl-zoo3"):
        wrapper_class("utils.wrappers.FrameSkip")
