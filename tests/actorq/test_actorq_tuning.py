"""RL Zoo's tuned numbers as options of `quarl actorq`: what is taken, what is translated, and what wins over them."""

from __future__ import annotations

import shlex
import sys

import pytest

import require
from quarl.actorq.build import build, hyperparameters, samples_per_insert
from quarl.actorq.environments import environment_of
from quarl.actorq.run_options import adopt, begun
from quarl.algorithms import tuned
from quarl.algorithms.tuned import Tuned
from quarl.cli import main, parse
from quarl.config import ActorQConfig
from quarl.errors import QuarlError
from quarl.inert.yaml import read_yaml


def adopted(*words: str) -> tuple[ActorQConfig, list[str]]:
    said: list[str] = []
    return adopt(parse(["actorq", *words]), said.append), said


@pytest.mark.parametrize("installed", [True, False])
def test_cartpole_has_the_zoo_s_numbers_and_its_ratio_whether_or_not_it_is_installed(installed, monkeypatch, tmp_path):
    if not installed:
        monkeypatch.setitem(sys.modules, "rl_zoo3", None)
    else:
        require.package("rl_zoo3")
    config, said = adopted("--algo", "dqn", "--env", "CartPole-v1", "-o", str(tmp_path))
    assert said == [
        "hyper-parameters: RL Zoo's for CartPole-v1" + ("" if installed else ", from QuaRL's copy"),
        "for actors, learning_rate lin_2.3e-3, for a good last policy; n_steps 3, for a good last policy",
    ]
    assert config.steps == 50_000
    model = build(config)
    assert (model.batch_size, model.gamma, model.learning_starts, model.n_steps) == (64, 0.99, 1000, 3)
    assert (model.lr_schedule(1.0), model.lr_schedule(0.5), model.lr_schedule(0.0)) == (2.3e-3, 1.15e-3, 0)
    assert (model.exploration_fraction, model.exploration_final_eps, model.target_update_interval) == (0.16, 0.04, 10)
    assert [layer.out_features for layer in model.policy.q_net.q_net[::2]] == [256, 256, 2]
    assert samples_per_insert(model) == 64 * 128 / 256
    # the command that repeats the run needs no tuned numbers, and what it adopts is itself
    again = parse(shlex.split(config.command_line())[1:])
    assert adopt(again, said.append) == again == config
    assert len(said) == 2


def test_what_is_given_wins_over_the_tuned_numbers():
    words = ("--params", "gamma:0.5", "learning_starts:7", "--batch-size", "8", "--n-steps", "3", "-n", "77")
    config, said = adopted(*words, "--net-arch", "16,16", "--samples-per-insert", "2")
    assert said[1] == "for actors, learning_rate lin_2.3e-3, for a good last policy"
    given = config.hyperparameters()
    assert (given["gamma"], given["learning_starts"], given["learning_rate"]) == (0.5, 7, "lin_2.3e-3")
    assert (config.steps, config.batch_size, config.n_steps, config.net_arch) == (77, 8, 3, "16,16")
    assert given.keys().isdisjoint({"batch_size", "n_steps", "train_freq", "gradient_steps"})
    assert given["policy_kwargs"] == {}
    assert adopted("--params", "learning_rate:1e-3")[0].hyperparameters()["learning_rate"] == 1e-3


def test_environments_noise_and_normalisation_become_those_of_actors(monkeypatch, tmp_path):
    written = {"n_timesteps": 2e4, "policy": "MlpPolicy", "n_envs": 4, "train_freq": 2, "gradient_steps": 8}
    written |= {
        "noise_type": "ornstein-uhlenbeck",
        "noise_std": 0.5,
        "normalize": "{'norm_reward': False}",
        "vec_env_wrapper": ["x.Y"],
    }
    written |= {"env_kwargs": {"g": 9.0}}
    monkeypatch.setattr(tuned, "read", lambda algo, env_id, **options: Tuned(written, "somebody's"))
    config, said = adopted("--algo", "td3", "--env", "Pendulum-v1")
    assert said == [
        "hyper-parameters: somebody's",
        "for actors, normalize is --normalize (observations and rewards); ornstein-uhlenbeck noise is --sigma 0.5, "
        "drawn at every step; train_freq of 4 environments is 8; vec_env_wrapper left out",
    ]
    assert (config.sigma, config.normalize, config.steps) == (0.5, True, 20_000)
    assert config.hyperparameters() == {"train_freq": 8, "gradient_steps": 8, "env_kwargs": {"g": 9.0}}
    assert environment_of(config).env_kwargs == {"g": 9.0}
    for sigma in (0.3, 0.2):
        config, said = adopted("--algo", "td3", "--env", "Pendulum-v1", "--sigma", str(sigma))
        assert (config.sigma, "noise" in said[1]) == (sigma, False)
    # as it is where a run that was to go on has nothing to go on from
    words = ["actorq", "--resume", "--algo", "td3", "--env", "Pendulum-v1", "--sigma", "0.2", "-o", str(tmp_path)]
    assert begun(parse(words), said.append).sigma == 0.2
    assert "noise" not in adopted("--algo", "sac", "--env", "Pendulum-v1")[1][1]  # samples its distribution


def test_without_tuned_numbers_and_without_the_preset_all_is_stable_baselines3_s(monkeypatch):
    monkeypatch.setitem(sys.modules, "rl_zoo3", None)
    config, said = adopted("--algo", "ddpg", "--env", "BipedalWalker-v3")
    assert (config.params, config.steps, config.sigma) == ((), 100_000, 0.2)
    assert said == ["hyper-parameters: Stable-Baselines3's defaults (pip install 'quarl[zoo]' brings RL Zoo's)"]
    config, said = adopted("--preset", "none")
    assert (config.params, said) == ((), [])


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["dqn", "ddpg", "td3", "sac"])
def test_every_entry_of_the_zoo_s_files_is_one_that_actorq_takes(algo, monkeypatch):
    require.package("rl_zoo3")
    for name, written in read_yaml(tuned.file_of(algo), merging=True).items():
        monkeypatch.setattr(tuned, "read", lambda *_, found=written, name=name, **options: Tuned(found, name))
        config, _ = adopted("--algo", algo, "--env", "CartPole-v1")
        assert config.steps == written["n_timesteps"]
        assert hyperparameters(config)


def test_a_run_with_no_update_is_refused_before_it_begins(tmp_path, capsys):
    for params, said in (
        (["learning_starts:50000"], "learning starts after step 50,000 and the run ends at 50,000: nothing would be"),
        (["train_freq:60000"], "learning starts after step 59,999 and the run ends at 50,000: nothing would be"),
        (["gradient_steps:0"], "gradient_steps:0 would train nothing"),
    ):
        assert main(["actorq", "-n", "50000", "-o", str(tmp_path / "out"), "--params", *params]) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_delay_beyond_the_tuned_length_is_refused():
    with pytest.raises(QuarlError, match="is beyond the run's 50,000 steps"):
        adopted("--qat", "w8a8", "--quant-delay", "60000")
