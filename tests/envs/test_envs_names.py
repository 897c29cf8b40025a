"""Environment ids: living, retired, misspelt, and of suites whose package is missing."""

from __future__ import annotations

import sys

import gymnasium
import pytest
from gymnasium.envs.registration import registry

import require
from quarl.envs import Environment, make, resolve
from quarl.envs.names import of_module
from quarl.envs.suites import SUITES
from quarl.errors import QuarlError


@pytest.mark.parametrize(
    ("asked", "living"),
    [
        ("CartPole-v1", "CartPole-v1"),
        ("CartPole-v0", "CartPole-v0"),
        ("LunarLander-v2", "LunarLander-v3"),
        ("LunarLanderContinuous-v2", "LunarLanderContinuous-v3"),
        ("BipedalWalker-v2", "BipedalWalker-v3"),
        ("Hopper-v1", "Hopper-v5"),
        ("Hopper-v3", "Hopper-v5"),
        ("HalfCheetah-v2", "HalfCheetah-v5"),
        ("HalfCheetah-v4", "HalfCheetah-v4"),
        ("HalfCheetahBulletEnv-v0", "HalfCheetahBulletEnv-v0"),
        ("Acrobot", "Acrobot-v1"),
        ("PongNoFrameskip-v4", "PongNoFrameskip-v4"),
        ("PongNoFrameskip-v0", "PongNoFrameskip-v0"),
        ("PongNoFrameskip-v3", "PongNoFrameskip-v4"),
        ("ALE/Pong-v4", "ALE/Pong-v5"),
        ("dm_control/cheetah-run-v0", "dm_control/cheetah-run-v0"),
        ("dm_control/cheetah-run", "dm_control/cheetah-run-v0"),
        ("dm_control,cheetah_run", "dm_control/cheetah-run-v0"),
        ("dm_control,ball_in_cup_catch", "dm_control/ball_in_cup-catch-v0"),
        ("dm_control,cartpole_swingup_sparse", "dm_control/cartpole-swingup_sparse-v0"),
        ("dm_control,finger_turn_easy", "dm_control/finger-turn_easy-v0"),
        ("dm_control,point_mass_easy", "dm_control/point_mass-easy-v0"),
        ("dm_control,humanoid_run_pure_state", "dm_control/humanoid-run_pure_state-v0"),
        ("dm_control,humanoid_CMU_run", "dm_control/humanoid_CMU-run-v0"),
        ("gym,CartPole-v1", "CartPole-v1"),
        ("gym,LunarLander-v2", "LunarLander-v3"),
    ],
)
def test_a_retired_version_becomes_the_newest_and_a_living_one_stays(asked: str, living: str) -> None:
    assert resolve(asked) == living


@pytest.mark.parametrize(
    ("asked", "nearest"),
    [
        ("CartPol-v1", "CartPole-v1"),
        ("HopperBullet-v0", "HopperBulletEnv-v0"),
        ("gym,CartPol-v1", "CartPole-v1"),
        ("dm_control/cheeta-run-v0", "dm_control/cheetah-run-v0"),
        ("dm_control,cheeta_run", "dm_control/cheetah-run-v0"),
        ("dm_control,walker_stnd", "dm_control/walker-stand-v0"),
        ("Walker-v2", "Walker2d-v5"),
        ("Breakout-v5", "ALE/Breakout-v5"),
    ],
)
def test_an_unknown_id_is_answered_with_the_nearest_in_one_line(asked: str, nearest: str) -> None:
    with pytest.raises(QuarlError) as caught:
        resolve(asked)
    assert str(caught.value) == f"unknown environment {asked!r}; did you mean {nearest!r}?"


def test_a_name_far_from_every_id_gets_no_suggestion() -> None:
    with pytest.raises(QuarlError, match="unknown environment 'xyzzy'; it is in no suite"):
        resolve("xyzzy")


@pytest.mark.parametrize("asked", ["Point-v0", "FetchBall-v4", "MyCartPole-v0", "AntMaze-v3", "CartPoleCustom-v0"])
def test_an_environment_of_somebody_elses_is_no_misspelt_one(asked: str) -> None:
    with pytest.raises(QuarlError) as caught:
        _ = Environment.typed_by_user(asked).env_id
    own = f"name an environment of your own with --env module:{asked}"
    assert str(caught.value) == f"unknown environment {asked!r}; it is in no suite that QuaRL supports; {own}"


def test_a_module_in_an_id_is_never_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "this", raising=False)
    with pytest.raises(QuarlError, match="unknown environment"):
        make("this:CartPole-v1")
    assert "this" not in sys.modules


def test_of_module_names_the_module_of_its_own_environments_alone() -> None:
    called = [of_module("difficult_environments", env_id) for env_id in ("Line-v0", "CartPole-v1", "Nothing-v0")]
    assert called == ["difficult_environments:Line-v0", "CartPole-v1", "Nothing-v0"]


def test_the_ids_listed_for_a_suite_are_those_its_package_registers() -> None:
    require.module("pybullet_envs_gymnasium")
    make("HopperBulletEnv-v0").close()
    bullet = next(suite for suite in SUITES if suite.extra == "pybullet")
    assert set(bullet.ids) == {known for known in registry if "BulletEnv" in known}


@pytest.mark.parametrize(
    ("env_id", "module", "extra"),
    [
        ("LunarLander-v3", "Box2D", "box2d"),
        ("Hopper-v5", "mujoco", "mujoco"),
        ("HopperBulletEnv-v0", "pybullet_envs_gymnasium", "pybullet"),
        ("PongNoFrameskip-v4", "ale_py", "atari"),
        ("ALE/Pong-v5", "ale_py", "atari"),
    ],
)
def test_a_missing_extra_is_named_with_its_pip_command(
    env_id: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for loaded in [name for name in sys.modules if name.startswith(f"gymnasium.envs.{extra}")]:
        monkeypatch.delitem(sys.modules, loaded)
        monkeypatch.delattr(gymnasium.envs, extra, raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    if extra in ("pybullet", "atari"):
        monkeypatch.delitem(registry, env_id, raising=False)
    with pytest.raises(QuarlError) as caught:
        make(env_id)
    assert str(caught.value) == f"environment {env_id!r} needs an extra: pip install 'quarl[{extra}]'"
