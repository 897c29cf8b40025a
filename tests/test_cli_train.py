"""`quarl train` on the command line: every mistake is one line and leaves nothing behind."""

from __future__ import annotations

import re

import gymnasium
import pytest

from quarl.cli import main, parse
from quarl.config import ActorQConfig, TrainConfig
from quarl.quant.spec import QatSpec
from refusals import refused

pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "--algo trpo",
            "trpo cannot be trained here (available: ppo, a2c, dqn, ddpg, td3, sac, d4pg): train it",
        ),
        ("--algo d4pg", "d4pg on CartPole-v1 is n/a"),
        ("--env Taxi-v3", " is Discrete, but training needs a Box"),
        ("--qat eight", "unknown precision 'eight'"),
        ("--qat 8 -n 512 --quant-delay 500", "the last rollout of this run starts at 256"),
        ("--qat 8 --quant-delay -1", "--quant-delay must not be negative"),
        ("--eval-episodes -1", "--eval-episodes must not be negative, got -1; 0 switches it off"),
        ("--params lr", "'lr' is not NAME:VALUE"),
        ("--params lr:open('x')", "is not NAME:VALUE"),
        ("--params lerning_rate:1e-3", "PPO has no hyper-parameter 'lerning_rate'; did you mean 'learning_rate'"),
        ("--params env_wrapper:os.system", "'os.system' is not supported"),
        ("--params policy_kwargs:dict(activation_fn=os.system)", "os.system, which is not supported"),
        ("--params noise_type:normal noise_std:0.1", "ppo takes no action noise"),
        ("--params double_q:True", "--params double_q requires --algo dqn"),
        ("--device cub", "--device is 'cub'; use auto, cpu, cuda"),
        ("-i file", "file is not a zip file: -i takes agents of Stable-Baselines3"),
        ("-i missing.zip --resume", "keep one"),
        ("--json nowhere/row.json", "cannot write --json"),
    ],
)
def test_mistakes_are_one_line_exit_with_2_and_leave_nothing(words, said, capsys, tmp_path):
    (tmp_path / "file").touch()
    assert said in refused(capsys, "train", *words.split())
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("words", "package", "extra"),
    [("--track tensorboard", "tensorboard", "tensorboard"), ("--energy", "codecarbon", "energy")],
)
def test_what_needs_an_extra_names_its_command(words, package, extra, capsys, monkeypatch, tmp_path):
    find = __import__("importlib.util").util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == package else find(name))
    said = refused(capsys, "train", *words.split())
    assert said == f"quarl: {words} needs an extra: pip install 'quarl[{extra}]'"
    assert list(tmp_path.iterdir()) == []


def test_the_zoo_s_short_options_are_understood():
    words = "train --algo sac --env Pendulum-v1 -n 5 -f here -i a.zip --hyperparams gamma:0.9 tau:1"
    config = parse(words.split())
    assert (config.n_timesteps, str(config.folder), str(config.trained_agent)) == (5, "here", "a.zip")
    assert config.hyperparameters() == {"gamma": 0.9, "tau": 1}
    assert parse(["train", "--log-folder", "there"]).folder.name == "there"


def test_every_option_of_quantisation_reaches_the_spec():
    words = "train --qat w3a6 --qat-output-bits 5 --qat-observation-bits 7 --qat-critic --qat-skip q_net.q_net.0 actor"
    expected = QatSpec(
        weight_bits=3,
        activation_bits=6,
        edge_bits=8,
        output_bits=5,
        observation_bits=7,
        critic=True,
        skip=("q_net.q_net.0", "actor"),
    )
    assert parse(words.split()).spec() == expected
    assert parse(["train"]).spec() is None
    same = parse(["train", "--qat", "2", "--edge-bits", "same", "--qat-mid-tread"]).spec()
    assert same == QatSpec(weight_bits=2, mid_rise_bits=0)
    assert same == QatSpec.from_json({"weight_bits": 2})  # a checkpoint of before
    assert parse(["train", "--qat", "w2a8e4"]).spec() == QatSpec(weight_bits=2, edge_bits=4)
    assert parse(["train", "--qat", "8"]).delay(1000) == 500
    assert parse(["train", "--qat", "8", "--quant-delay", "7"]).delay(1000) == 7


def test_values_are_read_as_data_in_both_verbs_that_train():
    params = ("gamma:0.9", "net:[64, 64]", "clip:None")
    expected = {"gamma": 0.9, "net": [64, 64], "clip": None}
    assert TrainConfig(params=params).hyperparameters() == ActorQConfig(params=params).hyperparameters() == expected


def test_help_names_what_training_from_a_file_changes(capsys):
    with pytest.raises(SystemExit):
        parse(["train", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "exploration at its final epsilon" in re.sub(r"[│|]\s*", "", shown)


def test_an_environment_of_the_user_s_module_is_trained_in(tmp_path, monkeypatch, capsys):
    (tmp_path / "my_module_for_train.py").write_text(
        "import gymnasium\n"
        "gymnasium.register('Mine-v0', entry_point='gymnasium.envs.classic_control:CartPoleEnv', max_episode_steps=9)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    words = "train --algo a2c --env my_module_for_train:Mine-v0 -n 64 --eval-episodes 2 --eval-freq 0"
    try:
        assert main(words.split()) == 0
    finally:
        gymnasium.registry.pop("Mine-v0", None)
    assert "Stable-Baselines3's defaults, as RL Zoo has none for a2c on my_module_for_train:Mine-v0" in (
        capsys.readouterr().err
    )
