"""make: the bare environment inside its time limit, silent, with the file's arguments as data."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.envs.registration import EnvSpec, registry
from zeros import linear

import require
from quarl.envs import Environment, home_of, make
from quarl.errors import QuarlError
from quarl.policy.graph import ActionHead, Policy, Provenance
from quarl.policy.operators import Conv2d, Dense, Flatten
from waiting import PATIENCE_S


def test_an_environment_has_its_time_limit_and_no_other_wrapper() -> None:
    env = make("CartPole-v1")
    assert isinstance(env, gymnasium.wrappers.TimeLimit)
    assert env.env is env.unwrapped


def test_a_step_returns_what_gymnasium_returns() -> None:
    ours, theirs = make("CartPole-v1"), gymnasium.make("CartPole-v1")
    assert np.array_equal(ours.reset(seed=3)[0], theirs.reset(seed=3)[0])
    for action in [0, 1, 1, 0, 1]:
        mine, reference = ours.step(action), theirs.step(action)
        assert np.array_equal(mine[0], reference[0])
        assert mine[1:] == reference[1:]


def test_arguments_reach_the_environment_and_a_window_is_never_opened() -> None:
    env = make("LunarLander-v2", env_kwargs={"continuous": True, "render_mode": "human"})
    assert isinstance(env.action_space, gymnasium.spaces.Box)
    assert env.render_mode is None


def register(monkeypatch: pytest.MonkeyPatch, env_id: str, entry_point: Callable[..., Any]) -> None:
    """Registers it until the test is over."""
    monkeypatch.setitem(registry, env_id, EnvSpec(env_id, entry_point))


def test_an_environment_whose_constructor_takes_no_arguments_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    class Bare(CartPoleEnv):
        def __init__(self) -> None:
            super().__init__()

    register(monkeypatch, "Bare-v0", Bare)
    assert make("Bare-v0").reset(seed=0)[0].shape == (4,)


@pytest.mark.parametrize("kwargs", [{"no_such_argument": 1}, {"entry_point": "os:system"}, {"id": "Acrobot-v1"}])
def test_arguments_that_the_environment_refuses_are_one_line(kwargs: dict[str, object]) -> None:
    with pytest.raises(QuarlError, match="environment 'CartPole-v1' cannot be made with") as caught:
        make("CartPole-v1", env_kwargs=kwargs)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_no_simulator_prints_warns_or_leaves_a_file(tmp_path: Path) -> None:
    require.module("pybullet_envs_gymnasium")
    require.module("mujoco")
    require.module("Box2D")
    code = (
        "from quarl.envs import make\n"
        "names = ['HalfCheetah-v3', 'HalfCheetah-v4', 'HopperBulletEnv-v0', 'LunarLander-v2', 'BipedalWalker-v2']\n"
        "for name in names:\n"
        "    env = make(name)\n"
        "    env.reset(seed=1)\n"
        "    env.step(env.action_space.sample())\n"
        "    env.close()\n"
    )
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)
    assert list(tmp_path.iterdir()) == []


def test_a_policy_is_given_its_environment_wrappers_and_arguments() -> None:
    policy = linear(
        (9,),
        head=ActionHead("clip", -np.ones(2, np.float32), np.ones(2, np.float32)),
        env_id="LunarLander-v2",
        env_kwargs={"continuous": True},
        wrappers=(("gymnasium.wrappers.TimeAwareObservation", {}),),
    )
    env = home_of(policy).make_for(policy)
    assert env.observation_space.shape == (9,)


def test_a_policy_without_an_environment_asks_for_one() -> None:
    with pytest.raises(QuarlError, match="does not name the environment it was trained on; name one with --env"):
        home_of(linear((4,)))


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module in the working directory that registers Mine-v0 and leaves a file when it is imported."""
    (tmp_path / "users_module.py").write_text(
        "import pathlib, gymnasium\n"
        "pathlib.Path('imported').touch()\n"
        "gymnasium.register('Mine-v0', 'gymnasium.envs.classic_control:CartPoleEnv', max_episode_steps=9)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield "users_module"
    sys.modules.pop("users_module", None)
    registry.pop("Mine-v0", None)


def test_the_users_own_module_is_imported_where_the_user_names_it(module: str) -> None:
    asked = f"{module}:Mine-v0"
    assert Environment.typed_by_user(asked).env_id == asked
    assert not Path("imported").exists()  # to resolve is not to import
    spec = Environment.typed_by_user(asked).make().spec
    assert spec is not None
    assert spec.max_episode_steps == 9
    with pytest.raises(QuarlError, match=r"registers no environment 'Other-v0'; call gymnasium\.register in it"):
        Environment.typed_by_user(f"{module}:Other-v0").make()
    with pytest.raises(QuarlError, match=r"cannot import 'no_such_module' .* ModuleNotFoundError"):
        Environment.typed_by_user("no_such_module:Any-v0").make()


def test_a_policy_file_that_names_a_module_is_refused_and_the_users_choice_stands(module: str) -> None:
    policy = linear((4,), env_id=f"{module}:Mine-v0")
    with pytest.raises(QuarlError, match="only a typed id may name a module, as in --env"):
        home_of(policy).make_for(policy)
    home_of(policy, "CartPole-v1").make_for(policy).close()
    assert not Path("imported").exists()
    home_of(policy, f"{module}:Mine-v0").make_for(policy).close()
    assert Path("imported").exists()


def test_a_constructor_that_raises_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ValueError("no display\nand more")

    register(monkeypatch, "Broken-v0", broken)
    with pytest.raises(QuarlError, match=r"'Broken-v0' cannot be made \(ValueError\): no display$"):
        make("Broken-v0")


def test_images_reach_a_convolution_policy_channels_first(monkeypatch: pytest.MonkeyPatch) -> None:
    space = gymnasium.spaces.Box(0, 255, (5, 4, 3), np.uint8)

    class Picture(gymnasium.Env[np.ndarray, int]):
        observation_space = space
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: object = None) -> tuple[np.ndarray, dict[str, object]]:
            return np.arange(60, dtype=np.uint8).reshape(5, 4, 3), {}

    register(monkeypatch, "Picture-v0", Picture)
    weight = np.zeros((1, 3, 5, 4), np.float32)
    policy = Policy(
        observation_shape=(3, 5, 4),
        observation_dtype="uint8",
        ops=(
            Conv2d("conv", ("observation",), weight, np.zeros(1, np.float32)),
            Flatten("flat", ("conv",)),
            Dense("out", ("flat",), np.zeros((2, 1), np.float32), np.zeros(2, np.float32)),
        ),
        head=ActionHead("argmax"),
        provenance=Provenance(env_id="Picture-v0"),
    )
    env = home_of(policy).make_for(policy)
    observation, _ = env.reset(seed=0)
    assert observation.shape == env.observation_space.shape == (3, 5, 4)
    assert observation[1, 0].tolist() == [1, 4, 7, 10]
