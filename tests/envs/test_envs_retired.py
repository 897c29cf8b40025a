"""Agents of MuJoCo's older versions see what they were trained on, from the simulation that lives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3 import PPO

import require
from quarl import engines
from quarl.calibration import quantize
from quarl.cli import main
from quarl.envs import home_of
from quarl.envs.rollout import Play, play
from quarl.envs.seeds import episode_seed
from quarl.quant.spec import QuantSpec
from quarl.readers.load import read
from sb3_archives import Still

require.module("mujoco")
Array = NDArray[Any]
NUM_STEPS = 200
LASTS = {"terminate_when_unhealthy": False}
"""A random agent falls at once; it goes on seeing."""


def with_contacts(env: Any) -> Array:
    """Ant's position without x and y, velocity, and contact forces of all bodies, the world's first: 13 + 14 + 84."""
    data = env.data
    return np.concatenate([data.qpos[2:], data.qvel, np.clip(data.cfrc_ext, -1, 1).flat])


def without_contacts(env: Any) -> Array:
    return with_contacts(env)[:27]


def humanoid(env: Any) -> Array:
    """22 + 23 + 14 x 10 + 14 x 6 + 23 + 14 x 6, the world's rows among them."""
    data = env.data
    parts = (data.cinert, data.cvel, data.qfrc_actuator, data.cfrc_ext)
    return np.concatenate([data.qpos[2:], data.qvel, *(part.flatten() for part in parts)])


SEEN: list[tuple[str, str, int, Callable[[Any], Array], str]] = [
    ("Ant-v3", "Ant-v5", 111, with_contacts, "Ant-v5 is played with contact forces in its observations"),
    ("Ant-v2", "Ant-v5", 111, with_contacts, "Ant-v5 is played with contact forces in its observations"),
    ("Ant-v4", "Ant-v4", 111, with_contacts, "Ant-v4 is played with contact forces in its observations"),
    ("Ant-v3", "Ant-v5", 27, without_contacts, "Ant-v5 is played without contact forces in its observations"),
    ("Humanoid-v3", "Humanoid-v5", 376, humanoid, "Humanoid-v5 is played with contact forces in its observations"),
    ("HumanoidStandup-v2", "HumanoidStandup-v5", 376, humanoid, "HumanoidStandup-v5 is played with contact forces"),
]


def agent(folder: Path, env_id: str, observations: int) -> Path:
    """A random PPO agent in the zoo's layout."""
    living = gymnasium.make(env_id if env_id.endswith("v4") else f"{env_id[:-1]}5")
    path = folder / "ppo" / f"{env_id}_1" / f"{env_id}.zip"
    (path.parent / env_id).mkdir(parents=True)
    shape = Still(spaces.Box(-np.inf, np.inf, (observations,), np.float64), living.action_space)
    PPO("MlpPolicy", shape, policy_kwargs={"net_arch": [16]}, n_steps=8, batch_size=8, device="cpu", seed=0).save(path)
    kwargs = {} if "Standup" in env_id else LASTS
    lines = [f"env: {env_id}", "env_kwargs:" if kwargs else "", *(f"  {key}: {value}" for key, value in kwargs.items())]
    (path.parent / env_id / "args.yml").write_text("\n".join(lines))
    (path.parent / env_id / "config.yml").write_text("n_envs: 1\n")
    return path


@pytest.mark.filterwarnings("ignore:.*out of date")
@pytest.mark.parametrize(("asked", "living", "size", "expected", "said"), SEEN)
def test_an_agent_sees_what_it_was_trained_on(
    asked: str, living: str, size: int, expected: Callable[[Any], Array], said: str, tmp_path: Path
) -> None:
    policy = read(agent(tmp_path, asked, size))
    acting = quantize(policy, QuantSpec.parse("fp32"))
    engine = engines.load(acting, "reference", batch=1)
    fed: list[Array] = []

    def run(observations: Array) -> Array:
        fed.append(observations[0].copy())
        return engine.run(observations)

    def short() -> gymnasium.Env[Any, Any]:
        return gymnasium.wrappers.TimeLimit(home_of(policy).make_for(policy), NUM_STEPS)

    assert short().get_wrapper_attr("older_observation").startswith(said)
    told = Play(policy=acting, make=short, batch=1, stream="evaluation", seed=0, fresh=False)
    (episode,) = play(told, run, range(1))
    assert episode.length == NUM_STEPS
    kwargs = {"include_cfrc_ext_in_observation": True} if living == "Ant-v5" else {}
    plain = gymnasium.make(living, **kwargs, **({} if "Standup" in living else LASTS))
    shown = plain.reset(seed=episode_seed("evaluation", 0, 0))[0]
    touched = 0
    for k, seen in enumerate(fed):
        ours = expected(plain.unwrapped)
        assert ours.shape == (size,)
        np.testing.assert_array_equal(seen, ours.astype(np.float32))
        if living == "Ant-v5":  # version 5's own observation is the same numbers without the world's row
            both = np.concatenate([seen[:27], seen[33:]])
            np.testing.assert_array_equal(both, shown[: len(both)].astype(np.float32))
        touched += bool(np.any(plain.unwrapped.data.cfrc_ext))
        if k < NUM_STEPS - 1:
            shown = plain.step(acting.head(engine.run(seen[None]))[0])[0]
    assert touched > 50


def test_eval_says_what_it_plays_and_an_agent_of_version_5_is_played_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--episodes", "2", "--max-episode-steps", "20"]
    assert main(["eval", str(agent(tmp_path, "Humanoid-v3", 376)), *options]) == 0
    err = capsys.readouterr().err
    assert err.count("Humanoid-v5 is played with contact forces in its observations") == 1
    assert main(["eval", str(agent(tmp_path, "Ant-v5", 105)), *options]) == 0
    assert "is played" not in capsys.readouterr().err
    assert main(["eval", str(agent(tmp_path, "Ant-v1", 80)), *options]) == 2
    assert "the policy's observations (float32 (80,)) are not those of Ant-v5 (" in capsys.readouterr().err
