"""Atari: training is Stable-Baselines3's preprocessing bit for bit, evaluation is whole games for their points."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import registry
from gymnasium.wrappers import RecordEpisodeStatistics
from numpy.typing import NDArray
from stable_baselines3.common.atari_wrappers import AtariWrapper
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack, VecTransposeImage

import require
from quarl.envs import Environment, home_of, make
from quarl.envs.atari import WholeGame
from quarl.envs.reseed import needs_fresh
from quarl.envs.suites import ATARI
from quarl.errors import QuarlError
from quarl.latency.networks import STANDARD, build
from quarl.policy.graph import Policy, Provenance
from quarl.runs.hyperparameters import Recipe, interpret
from quarl.runs.new_model import make_environments
from waiting import PATIENCE_S

pytestmark = pytest.mark.slow

require.module("ale_py")
require.module("cv2")

Array = NDArray[Any]
ZOO = {"n_timesteps": 1, "env_wrapper": ["stable_baselines3.common.atari_wrappers.AtariWrapper"], "frame_stack": 4}


def recipe(**more: Any) -> Recipe:
    """As the zoo's entry for all games says it."""
    return interpret(ZOO | more, Path("ppo.yml"))


def theirs(env_id: str, num: int, seed: int, **wrapper_kwargs: Any) -> VecEnv:
    """The environments that the zoo trains in."""
    make(env_id).close()  # registers the games
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        env = make_atari_env(env_id, n_envs=num, seed=seed, wrapper_kwargs=wrapper_kwargs)
    return VecTransposeImage(VecFrameStack(env, 4))


def policy(env_id: str, actions: int) -> Policy:
    """A Nature CNN that observes the game as the zoo's agents do."""
    network = build(next(one for one in STANDARD if one.name == "nature-cnn"))
    last = network.ops[-1]
    weight, bias = np.resize(last.weight, (actions, 512)), np.resize(last.bias, actions)
    return Policy(
        observation_shape=network.observation_shape,
        observation_dtype="uint8",
        ops=(*network.ops[:-1], type(last)(last.name, last.inputs, weight, bias)),
        head=network.head,
        provenance=Provenance(env_id=env_id, wrappers=recipe().environment.making["wrappers"]),
    )


def test_the_ids_listed_are_those_that_the_package_registers():
    make("PongNoFrameskip-v4").close()
    registered = {known for known, spec in registry.items() if str(spec.entry_point).startswith("ale_py")}
    assert set(ATARI.ids) == registered
    assert len(ATARI.ids) == len(registered)


def test_an_id_is_understood_before_the_package_is_imported_and_nothing_is_printed(tmp_path: Path):
    code = (
        "import sys\n"
        "from quarl.envs import make, resolve\n"
        "assert resolve('PongNoFrameskip-v4') == 'PongNoFrameskip-v4'\n"
        "assert resolve('ALE/Breakout-v5') == resolve('ALE/Breakout') == 'ALE/Breakout-v5'\n"
        "assert not {'ale_py', 'cv2', 'stable_baselines3', 'torch'} & set(sys.modules)\n"
        "env = make('ALE/Breakout-v5')\n"
        "env.reset(seed=1)\n"
        "env.step(1)\n"
    )
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


@pytest.mark.parametrize("env_id", ["PongNoFrameskip-v4", "BreakoutNoFrameskip-v4"])
def test_300_steps_of_training_are_stable_baselines3_s_bit_for_bit(env_id: str):
    ours = make_environments(Environment.from_file(env_id, recipe().environment), recipe(n_envs=2))
    reference = theirs(env_id, 2, seed=5)
    ours.seed(5)
    assert ours.observation_space == reference.observation_space
    assert ours.action_space == reference.action_space
    assert np.array_equal(ours.reset(), reference.reset())
    rng = np.random.default_rng(0)
    ends = 0
    for _ in range(300):
        actions = rng.integers(ours.action_space.n, size=2)
        mine, expected = ours.step(actions), reference.step(actions)
        assert mine[0].dtype == np.uint8
        assert np.array_equal(mine[0], expected[0])
        assert mine[1].tolist() == expected[1].tolist()
        assert mine[2].tolist() == expected[2].tolist()
        ends += int(mine[2].sum())
        for here, there in zip(mine[3], expected[3], strict=True):
            assert here["TimeLimit.truncated"] == there["TimeLimit.truncated"]
            assert here.get("episode", {}).get("r") == there.get("episode", {}).get("r")
            if "terminal_observation" in there:
                assert np.array_equal(here["terminal_observation"], there["terminal_observation"])
    assert ends > 0 or env_id.startswith("Pong")  # Breakout's lives end


@pytest.mark.parametrize(
    ("env_id", "actions", "seed"), [("BreakoutNoFrameskip-v4", 4, 3), ("SpaceInvadersNoFrameskip-v4", 6, 11)]
)
def test_a_whole_game_is_the_zoo_s_to_the_last_life_and_its_points_are_the_monitor_s(
    env_id: str, actions: int, seed: int
):
    ours = home_of(policy(env_id, actions)).make_for(policy(env_id, actions))
    reference = theirs(env_id, 1, seed)
    mine, _ = ours.reset(seed=seed)
    assert np.array_equal(mine, reference.reset()[0])
    rng = np.random.default_rng(seed)
    total, lives, terminated, infos = 0.0, 0, False, [{}]
    while not terminated:
        action = int(rng.integers(actions))
        mine, reward, terminated, truncated, _ = ours.step(action)
        expected, _, dones, infos = reference.step(np.array([action]))
        total += float(reward)
        lives += int(dones[0])
        assert not truncated
        assert terminated == ("episode" in infos[0])
        if not terminated:
            assert np.array_equal(mine, expected[0])
    assert np.array_equal(mine, infos[0]["terminal_observation"])
    assert total == infos[0]["episode"]["r"] > 1
    assert lives >= 3  # the episode went on over lost ones


def test_points_are_not_clipped_in_evaluation_and_are_in_training():
    env_id = "SpaceInvadersNoFrameskip-v4"
    whole = home_of(policy(env_id, 6)).make_for(policy(env_id, 6))
    training = make(env_id, wrappers=recipe().environment.making["wrappers"])
    paid: list[set[float]] = []
    for env in (whole, training):
        env.reset(seed=2)
        rng = np.random.default_rng(1)
        rewards = set()
        for _ in range(200):
            _, reward, terminated, truncated, _ = env.step(int(rng.integers(6)))
            rewards.add(float(reward))
            if terminated or truncated:
                env.reset()
        paid.append(rewards)
    assert max(paid[0]) >= 5
    assert paid[1] == {0.0, 1.0}


def test_a_game_left_in_its_middle_begins_anew_from_its_seed():
    subject = policy("BreakoutNoFrameskip-v4", 4)
    assert not needs_fresh(lambda: home_of(subject).make_for(subject), "test of whole games")


def test_a_bare_game_counts_as_one_too():
    env = WholeGame(make("PongNoFrameskip-v4", inside=(RecordEpisodeStatistics,)))
    env.reset(seed=0)
    assert env.step(0)[1] == 0.0
    with pytest.raises(AssertionError):
        WholeGame(make("PongNoFrameskip-v4"))


@pytest.mark.parametrize(
    ("env_id", "wrapped", "kwargs", "frames"),
    [
        ("PongNoFrameskip-v4", True, {}, 4),
        ("PongNoFrameskip-v4", False, {}, 1),
        ("ALE/Pong-v5", True, {}, 4),
        ("ALE/Pong-v5", False, {}, 4),
        ("ALE/Pong-v5", True, {"frameskip": 2}, 8),
    ],
)
def test_frames_are_skipped_once(env_id: str, wrapped: bool, kwargs: dict[str, Any], frames: int):
    env = make(env_id, wrappers=recipe().environment.making["wrappers"] if wrapped else (), env_kwargs=kwargs)
    env.reset(seed=0)
    numbers = [env.step(0)[4]["episode_frame_number"] for _ in range(3)]
    assert np.diff(numbers).tolist() == [frames, frames]


def test_the_newer_family_keeps_its_sticky_actions_under_stable_baselines3_s_wrapper():
    ours = make("ALE/Pong-v5", wrappers=recipe().environment.making["wrappers"][:1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reference = AtariWrapper(gymnasium.make("ALE/Pong-v5", frameskip=1))
    assert ours.spec is not None
    assert ours.spec.kwargs["repeat_action_probability"] == 0.25
    assert np.array_equal(ours.reset(seed=9)[0], reference.reset(seed=9)[0])
    rng = np.random.default_rng(0)
    for _ in range(100):
        action = int(rng.integers(6))
        mine, expected = ours.step(action), reference.step(action)
        assert np.array_equal(mine[0], expected[0])
        assert mine[1:4] == expected[1:4]


def test_a_stochastic_skip_survives_a_file_that_knows_no_tuples():
    env = make("Pong-v4", env_kwargs={"frameskip": [2, 5]})
    env.reset(seed=0)
    assert env.step(0)[4]["episode_frame_number"] in (2, 3, 4)


def test_a_missing_image_library_is_named_with_its_pip_command(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(QuarlError, match=r"needs a package: pip install 'quarl\[atari\]'"):
        make("PongNoFrameskip-v4", wrappers=recipe().environment.making["wrappers"])
