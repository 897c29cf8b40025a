"""The quadrotor: its physics by hand numbers, what counts as an arrival, and equal flights for equal seeds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from zeros import linear

import require
from quarl.cli import main
from quarl.envs import make
from quarl.envs.reseed import needs_fresh
from quarl.policy import artifact
from quarl.policy.graph import ActionHead

ID = "quarl/Quadrotor-v0"
mujoco = require.module("mujoco")


def at_rest(**changes: Any) -> Any:
    """Level, heading along x, at rest 2 m high in still air, its goal 3 m ahead; changes: of qpos and qvel."""
    env = make(ID, env_kwargs={"wind": 0.0}).unwrapped
    env.reset(seed=0)
    data: Any = env._data
    data.qpos[:] = 0, 0, 2, 1, 0, 0, 0
    data.qvel[:] = 0
    for name, value in changes.items():
        getattr(data, name)[: len(value)] = value
    mujoco.mj_forward(env._model, data)
    env._goal = np.array([3.0, 0.0, 2.0])
    env._distance = env._away()
    return env


def fly(env: Any, action: Any, steps: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
    """The last of so many steps with one action."""
    for _ in range(steps):
        step = env.step(np.asarray(action, np.float32))
    return step  # type: ignore[no-any-return]


@pytest.mark.slow
def test_the_simulator_is_loaded_for_an_environment_and_not_for_its_id():
    code = (
        "import sys; from quarl.envs import make, resolve; "
        f"assert resolve({ID!r}) == {ID!r} and 'mujoco' not in sys.modules; "
        f"assert make({ID!r}).spec.max_episode_steps == 125 and 'mujoco' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.filterwarnings("ignore:.*A Box observation space:UserWarning")
def test_it_is_an_environment_as_gymnasium_has_them():
    check_env(gymnasium.make(f"quarl.envs.quadrotor:{ID}").unwrapped, skip_render_check=True)


def test_equal_seeds_are_equal_flights_in_a_used_environment_too():
    def flight(env: Any) -> list[Any]:
        observations, rng = [env.reset(seed=5)[0]], np.random.default_rng(0)
        return observations + [env.step(rng.uniform(-1, 1, 4).astype(np.float32))[0] for _ in range(60)]

    used = make(ID)
    fly(used, [1, 1, 1, 1], 3) if used.reset(seed=9) else None
    one, other = flight(used), flight(make(ID))
    assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    assert not needs_fresh(lambda: make(ID), ID)


def test_rotors_without_an_action_carry_the_weight():
    env = at_rest()
    observation, reward, terminated, _, info = fly(env, [0, 0, 0, 0], 50)
    np.testing.assert_allclose(observation, [3, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0], atol=1e-6)
    assert (round(reward, 6), terminated, info) == (0.0, False, {"is_success": False})


def test_full_thrust_climbs_with_six_tenths_of_gravity_behind_a_lag_of_40_ms():
    observation = fly(at_rest(), [1, 1, 1, 1], 25)[0]
    assert observation[14] == pytest.approx(0.6 * 9.81 * (0.5 - 0.04), rel=0.02)  # m/s after 0.5 s, less the drag


@pytest.mark.parametrize(("action", "axis"), [([1, 1, -1, -1], 0), ([-1, 1, 1, -1], 1), ([1, -1, 1, -1], 2)])
def test_rotors_left_behind_and_of_one_sense_roll_pitch_and_yaw(action, axis):
    turning = fly(at_rest(), np.array(action) / 20, 2)[0][15:]
    assert turning[axis] > 0
    np.testing.assert_allclose(np.delete(turning, axis), 0, atol=1e-6)


def test_goal_and_velocity_are_seen_from_the_body():
    half = np.sqrt(0.5)
    env = at_rest(qpos=(0, 0, 2, half, 0, 0, half), qvel=(2, 0, 0))  # heading along y
    np.testing.assert_allclose(env._observation()[[0, 1, 2, 12, 13, 14]], [0, -3, 0, 0, -2, 0], atol=1e-6)


def test_an_arrival_is_half_a_second_near_the_goal_and_slow():
    env = at_rest(qpos=(2.8, 0, 2))
    assert fly(env, [0, 0, 0, 0], 24)[2:] == (False, False, {"is_success": False})
    observation, reward, *ends = env.step(np.zeros(4, np.float32))
    assert ends == [True, False, {"is_success": True}]
    assert reward == pytest.approx(5.03, abs=1e-4)
    assert observation[0] == pytest.approx(0.2, abs=1e-4)
    assert env._stayed == 25


@pytest.mark.parametrize("changes", [{"qpos": (2.65, 0, 2)}, {"qpos": (2.8, 0, 2), "qvel": (0, 0, 0.55)}])
def test_farther_or_faster_counts_for_nothing(changes):
    env = at_rest(**changes)
    env.step(np.zeros(4, np.float32))
    assert env._stayed == 0


@pytest.mark.parametrize("changes", [{"qpos": (0, 0, 0.02)}, {"qpos": (0, 0, 2, 0, 1, 0, 0)}, {"qpos": (-9.1, 0, 2)}])
def test_contact_upside_down_and_far_away_are_crashes(changes):
    _, reward, terminated, _, info = at_rest(**changes).step(np.zeros(4, np.float32))
    assert (terminated, info) == (True, {"is_success": False})
    assert reward == pytest.approx(-5, abs=0.05)


def test_a_metre_of_approach_is_a_reward_of_one_less_small_costs():
    env = at_rest(qvel=(1, 0, 0))
    total = sum(env.step(np.zeros(4, np.float32))[1] for _ in range(50))
    assert total == pytest.approx(3 - env._away(), abs=1e-3)
    assert 0.9 < total < 1


def test_wind_carries_it_along_and_is_another_in_every_episode():
    env = make(ID, env_kwargs={"wind": 8.0}).unwrapped
    env.reset(seed=1)
    first = env._model.opt.wind[:2].copy()
    env._data.qvel[:] = 0
    drift = env._data.qpos[:2].copy()
    fly(env, [0, 0, 0, 0], 50)
    drift = env._data.qpos[:2] - drift
    assert drift @ first > 0.95 * np.linalg.norm(drift) * np.linalg.norm(first) > 0
    env.reset()
    assert not np.allclose(env._model.opt.wind[:2], first)


def test_starts_are_as_far_from_goals_as_is_said():
    env = make(ID)
    away = [float(np.linalg.norm(env.reset(seed=seed)[0][:3])) for seed in range(200)]
    assert 1.5 < min(away) < 2 < 5 < max(away) < np.hypot(np.hypot(5, 5), 3)


@pytest.mark.slow
def test_a_picture_shows_the_flight():
    code = f"""
import sys
from quarl.envs import make
env = make({ID!r}, render_mode="rgb_array")
env.reset(seed=0)
try:
    before = env.render()
except Exception as error:
    sys.exit(f"no OpenGL: {{error}}")
for _ in range(10):
    env.step([1, 1, 1, 1])
after = env.render()
assert before.shape == after.shape == (480, 480, 3) and before.std() > 10 and (before != after).any()
env.close()
"""
    environ = {**os.environ, "MUJOCO_GL": "egl"}  # which is read when MuJoCo is imported
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True)
    if done.stderr.startswith("no OpenGL"):
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_verbs_say_how_many_flights_arrive_and_what_a_precision_loses_of_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    head = ActionHead("clip", low=-np.ones(4, np.float32), high=np.ones(4, np.float32))
    artifact.write(linear((18,), 4, head, env_id=ID, origin="module"), tmp_path / "p.safetensors")
    assert main(["eval", "p.safetensors", "--episodes", "4", "--json", "eval.json"]) == 0
    assert main(["ptq", "p.safetensors", "--episodes", "2", "--bits", "8", "-o", "out"]) == 0
    (row,) = json.loads(Path("eval.json").read_text())["rows"]
    assert (row["success"], row["success_low"], round(row["success_high"], 4)) == (
        0.0,
        0.0,
        0.4899,
    )  # 1.96² / (4 + 1.96²)
    exact, int8 = json.loads(Path("out/rows.json").read_text())["rows"]
    assert (exact["drop"], int8["drop"], int8["success"]) == (None, 0.0, 0.0)
    assert int8["drop_high"] == pytest.approx(1.96 * np.sqrt(2 / 4 / 4), rel=1e-4)
