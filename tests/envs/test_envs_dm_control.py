"""DM Control: the flat observation, the ends of an episode, and shimmy's numbers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import registry
from zeros import linear

import require
from quarl.envs import check_spaces, make, resolve
from quarl.envs.suites import TASKS
from quarl.errors import QuarlError
from quarl.policy.graph import ActionHead
from waiting import PATIENCE_S

require.module("dm_control")


def named(env: gymnasium.Env[Any, Any]) -> dict[str, np.ndarray]:
    """What dm_control itself says of the present state."""
    inner = env.unwrapped._env
    return dict(inner.task.get_observation(inner.physics))


def trace(env: gymnasium.Env[Any, Any], seed: int, steps: int) -> list[Any]:
    """First observation, then observation, reward and ends of every step, as bytes and plain numbers."""
    rng = np.random.default_rng(seed)
    said: list[Any] = [np.asarray(env.reset(seed=seed)[0], np.float32).tobytes()]
    for _ in range(steps):
        action = rng.uniform(-1, 1, env.action_space.shape).astype(np.float32)
        observation, reward, terminated, truncated, _ = env.step(action)
        said.append((np.asarray(observation, np.float32).tobytes(), float(reward), terminated, truncated))
    return said


@pytest.fixture
def shimmy() -> Iterator[Any]:
    """The module, whose registrations are taken back afterwards."""
    make("dm_control/cheetah-run-v0").close()  # imports dm_control without a renderer
    before = dict(registry)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = require.module("shimmy")
        module.registration.register_gymnasium_envs()
    yield module
    registry.clear()
    registry.update(before)


def test_the_tasks_listed_are_those_of_the_suite() -> None:
    make("dm_control/cheetah-run-v0").close()
    suite = sys.modules["dm_control.suite"]
    assert sorted(TASKS.values()) == sorted(suite.ALL_TASKS)


def test_the_ids_listed_are_those_that_shimmy_registers(shimmy: Any) -> None:
    # locomotion and manipulation are no part of the suite: their ids have no domain before a hyphen
    registered = {known for known in registry if re.fullmatch(r"dm_control/\w+-\w+-v0", known)}
    assert set(TASKS) == registered - {"dm_control/compatibility-env-v0"}


def test_shimmy_in_the_process_does_not_take_the_ids_over(shimmy: Any) -> None:
    assert isinstance(make("dm_control/fish-swim-v0").observation_space, gymnasium.spaces.Box)


@pytest.mark.parametrize(
    ("env_id", "steps"),
    [
        ("dm_control/cheetah-run-v0", 1000),
        ("dm_control/finger-turn_easy-v0", 50),
        ("dm_control/fish-swim-v0", 50),
        ("dm_control/quadruped-walk-v0", 50),
        ("dm_control/manipulator-bring_ball-v0", 50),
        ("dm_control/walker-stand-v0", 50),
    ],
)
def test_observations_rewards_and_ends_are_those_of_shimmy_bit_for_bit(env_id: str, steps: int, shimmy: Any) -> None:
    ours = make(env_id)
    theirs = gymnasium.wrappers.FlattenObservation(gymnasium.make(env_id, disable_env_checker=True))
    assert ours.observation_space.shape == theirs.observation_space.shape
    for seed in (0, 2**31 - 1):
        assert trace(ours, seed, steps) == trace(theirs, seed, steps)


@pytest.mark.parametrize("env_id", ["dm_control/reacher-easy-v0", "dm_control/quadruped-walk-v0"])
def test_spaces_are_float32_and_hold_what_is_said(env_id: str) -> None:
    env = make(env_id)
    assert env.observation_space.dtype == env.action_space.dtype == np.float32
    assert env.observation_space.contains(env.reset(seed=0)[0])
    assert env.observation_space.contains(env.step(env.action_space.sample())[0])


def test_a_policy_of_the_same_spaces_fits_and_another_does_not() -> None:
    head = ActionHead("clip", -np.ones(6, np.float32), np.ones(6, np.float32))
    env = make("dm_control/cheetah-run-v0")
    check_spaces(linear((17,), 6, head), env)
    with pytest.raises(QuarlError, match="are not those of dm_control/cheetah-run-v0"):
        check_spaces(linear((16,), 6, head), env)


@pytest.mark.parametrize("env_id", ["dm_control/point_mass-easy-v0", "dm_control/lqr-lqr_2_1-v0"])
def test_an_episode_is_truncated_after_1000_steps_and_never_terminated(env_id: str) -> None:
    env = make(env_id)
    env.reset(seed=4)
    action = np.zeros(env.action_space.shape, np.float32)
    ends = []
    for _ in range(1000):
        observation, _, terminated, truncated, _ = env.step(action)
        ends.append((terminated, truncated))
    assert ends == [(False, False)] * 999 + [(False, True)]
    assert (
        observation.tolist() == np.concatenate([named(env)[n] for n in sorted(named(env))], dtype=np.float32).tolist()
    )
    last = observation.copy()
    env.reset(seed=5)
    assert observation.tolist() == last.tolist()  # the array is the caller's own


def test_lqr_at_rest_is_terminated() -> None:
    env = make("dm_control/lqr-lqr_2_1-v0")
    env.reset(seed=0)
    with env.unwrapped._env.physics.reset_context():
        pass  # all positions and velocities are zero
    assert env.step(np.zeros(1, np.float32))[2:4] == (True, False)


def test_lqr_has_the_same_springs_wherever_it_is_made() -> None:
    first, second = (make("dm_control/lqr-lqr_2_1-v0").unwrapped._env.physics.model.jnt_stiffness for _ in range(2))
    assert first.tolist() == second.tolist()


def test_a_step_past_the_end_is_refused() -> None:
    env = make("dm_control/cartpole-balance-v0", env_kwargs={"task_kwargs": {"time_limit": 0.03}})
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(np.zeros(1, np.float32))
    env.reset(seed=0)
    assert [env.step(np.zeros(1, np.float32))[3] for _ in range(3)] == [False, False, True]
    with pytest.raises(gymnasium.error.ResetNeeded, match="the episode has ended"):
        env.step(np.zeros(1, np.float32))


def test_equal_seeds_give_equal_traces_and_no_seed_gives_another_start() -> None:
    used, new = make("dm_control/reacher-easy-v0"), make("dm_control/reacher-easy-v0")
    assert used.reset()[0].tolist() != new.reset()[0].tolist()
    trace(used, 1, 70)
    assert trace(used, 2, 70) == trace(new, 2, 70)
    assert trace(used, 3, 1) != trace(used, 2, 1)
    assert used.reset()[0].tolist() == (new.reset(seed=2)[0], new.reset()[0])[1].tolist()


@pytest.mark.parametrize("kwargs", [{"no_such_argument": 1}, {"task_kwargs": {"size": 2}}, {"task": "hop"}])
def test_arguments_that_a_task_refuses_are_one_line(kwargs: dict[str, Any]) -> None:
    with pytest.raises(QuarlError, match="environment 'dm_control/cheetah-run-v0' cannot be made with") as caught:
        make("dm_control/cheetah-run-v0", env_kwargs=kwargs)
    assert "\n" not in str(caught.value)


def test_a_simulation_that_breaks_down_is_one_line() -> None:
    env = make("dm_control/hopper-stand-v0")
    env.reset(seed=0)
    env.unwrapped._env.physics.data.qpos[:] = np.nan
    with pytest.raises(QuarlError, match=r"the simulation of .*hopper-stand-v0 became unstable: .*mjWARN") as caught:
        env.step(np.zeros(4, np.float32))
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_new_process_is_silent_without_a_display_and_plays_the_same(tmp_path: Path) -> None:
    # humanoid_CMU's model makes MuJoCo warn, and quadruped-escape shows its terrain to the renderer
    code = (
        "import os, sys\n"
        "from quarl.envs import make, resolve\n"
        "resolve('dm_control,ball_in_cup_catch')\n"
        "assert not {'dm_control', 'shimmy', 'mujoco', 'quarl.envs.dm_control'} & set(sys.modules)\n"
        "for name in ('humanoid_CMU_stand', 'quadruped_escape', 'hopper_stand'):\n"
        "    env = make(f'dm_control,{name}')\n"
        "    observation, _ = env.reset(seed=9)\n"
        "    env.step(env.action_space.sample())\n"
        "    env.close()\n"
        "assert 'MUJOCO_GL' not in os.environ and 'shimmy' not in sys.modules\n"
        "print(observation.tobytes().hex())\n"
    )
    environ = {name: value for name, value in os.environ.items() if name not in ("MUJOCO_GL", "DISPLAY")}
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(
        command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout.strip() == make("dm_control/hopper-stand-v0").reset(seed=9)[0].tobytes().hex()
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_says_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dm_control.suite", None)
    with pytest.raises(QuarlError) as caught:
        make("dm_control,cheetah_run")
    expected = "environment 'dm_control/cheetah-run-v0' needs an extra: pip install 'quarl[dm-control]'"
    assert str(caught.value) == expected


def test_every_id_has_its_spelling_of_2020() -> None:
    assert [resolve(f"dm_control,{domain}_{task}") for domain, task in TASKS.values()] == list(TASKS)
