"""RL Zoo's hyper-parameters: found for every environment under any version, and read as data."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import require
from quarl.algorithms import tuned
from quarl.errors import UnsupportedError
from quarl.inert.yaml import read_yaml
from quarl.readers.zoo import PREPROCESSING
from quarl.runs.hyperparameters import interpret

ALGORITHMS = ("ppo", "a2c", "dqn", "ddpg", "td3", "sac")
NOT_DATA = {
    ("sac", "FetchReach-v1"): "replay_buffer_class",
}
"""Entries that ask for more than quarl train does, and what it names in refusing them."""


zoo = pytest.mark.usefixtures("rl_zoo")


@pytest.fixture
def rl_zoo():
    """RL Zoo's files of hyperparameters."""
    require.package("rl_zoo3")


CLASSIC = [
    (algo, env_id, written)
    for algo, entries in read_yaml(tuned.PACKAGED, merging=True).items()
    for env_id, written in entries.items()
    if env_id != "atari" and algo in ALGORITHMS
]


@zoo
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_entry_of_the_zoo_s_files_becomes_a_recipe_or_is_refused_by_name(algo):
    path = tuned.file_of(algo)
    entries = read_yaml(path, merging=True)
    assert len(entries) > 4
    for name, written in entries.items():
        if (algo, name) in NOT_DATA:
            with pytest.raises(UnsupportedError, match=NOT_DATA[algo, name]):
                interpret(written, path)
        else:
            recipe = interpret(written, path)
            assert recipe.n_timesteps == int(float(written["n_timesteps"]))
            assert recipe.n_envs == written.get("n_envs", 1)


@zoo
@pytest.mark.parametrize(
    ("algo", "env_id", "origin"),
    [
        ("ppo", "CartPole-v1", "RL Zoo's for CartPole-v1"),
        ("ppo", "HalfCheetah-v5", "RL Zoo's for HalfCheetah-v4"),
        ("ppo", "LunarLander-v2", "RL Zoo's for LunarLander-v3"),
        ("ppo", "Taxi-v3", "Stable-Baselines3's defaults, as RL Zoo has none for ppo on Taxi-v3"),
        ("d4pg", "Pendulum-v1", "D4PG's defaults"),
    ],
)
def test_the_origin_is_said(algo, env_id, origin):
    assert tuned.read(algo, env_id).origin == origin


@zoo
@pytest.mark.parametrize("algo", ["dqn", "ppo", "a2c"])
@pytest.mark.parametrize("env_id", ["PongNoFrameskip-v4", "Pong-v4", "mine:MyPong-v0"])
def test_a_game_of_atari_is_preprocessed_with_and_without_the_zoo(algo, env_id, monkeypatch):
    of_the_zoo = tuned.read(algo, env_id, atari=True)
    assert of_the_zoo.written == read_yaml(tuned.file_of(algo), merging=True)["atari"]
    monkeypatch.setitem(sys.modules, "rl_zoo3", None)
    packaged = tuned.read(algo, env_id, atari=True)
    assert packaged.written == of_the_zoo.written
    assert packaged.origin == "RL Zoo's for atari, from QuaRL's copy"
    (wrapper, _), (stack, arguments) = interpret(packaged.written, Path("x")).environment.wrappers
    assert (wrapper.rpartition(".")[2], stack.rpartition(".")[2]) == ("AtariWrapper", "VecFrameStack")
    assert arguments == {"n_stack": 4}


def test_a_game_is_preprocessed_for_an_algorithm_that_nobody_tuned_for_it():
    found = tuned.read("sac", "ALE/Pong-v5", atari=True).written
    assert found == {**PREPROCESSING, "n_timesteps": 100_000}


def test_without_the_zoo_the_defaults_are_stable_baselines3_s_and_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "rl_zoo3", None)
    found = tuned.read("ppo", "LunarLander-v3")
    assert found.written == {"n_timesteps": 100_000}
    assert "pip install 'quarl[zoo]'" in found.origin
    assert tuned.read("td3", "BipedalWalker-v3").written["noise_std"] == 0.1  # it would not explore


@zoo
@pytest.mark.parametrize(("algo", "env_id", "written"), CLASSIC)
def test_the_classic_tasks_numbers_are_the_zoo_s_without_it_too(algo, env_id, written, monkeypatch):
    of_the_zoo = tuned.read(algo, env_id)
    monkeypatch.setitem(sys.modules, "rl_zoo3", None)
    packaged = tuned.read(algo, env_id)
    assert packaged.written == of_the_zoo.written == written
    assert packaged.origin == f"RL Zoo's for {env_id}, from QuaRL's copy"


def test_every_algorithm_has_numbers_for_the_classic_tasks_that_it_can_learn():
    tasks = {algo: {name for which, name, _ in CLASSIC if which == algo} for algo in ALGORITHMS}
    discrete = {"CartPole-v1", "Acrobot-v1", "MountainCar-v0"}
    continuous = {"MountainCarContinuous-v0", "Pendulum-v1"}
    assert tasks["ppo"] == tasks["a2c"] == discrete | continuous
    assert tasks["dqn"] == discrete
    assert tasks["ddpg"] == tasks["td3"] == tasks["sac"] == continuous


@pytest.mark.slow
@zoo
def test_the_zoo_s_package_is_read_and_not_imported():
    code = (
        "import sys\nfrom quarl.algorithms import tuned\n"
        "assert tuned.read('ppo', 'CartPole-v1').written['n_envs'] == 8\n"
        "print(sorted(set(sys.modules) & {'rl_zoo3', 'torch', 'optuna', 'stable_baselines3'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
