"""`quarl train` is Stable-Baselines3's own training, and leaves what the zoo's scripts and QuaRL's readers expect."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
import yaml
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from training_runs import Threads, same, train, weights, words

import quarl
import require
from quarl.algorithms.d4pg import D4PG
from quarl.algorithms.precision import Precision
from quarl.cli import main
from quarl.policy.graph import QuantizedPolicy
from quarl.readers import load

pytestmark = pytest.mark.slow

CLASSES = {"ppo": PPO, "a2c": A2C, "dqn": DQN, "ddpg": DDPG, "td3": TD3, "sac": SAC, "d4pg": D4PG}


def plain(env_id, num):
    """Environments as any user of Stable-Baselines3 makes them."""
    return DummyVecEnv([lambda: Monitor(gymnasium.make(env_id))] * num)


def assert_is_that_of_stable_baselines3(tmp_path, algo, env_id, steps, **arguments):
    """The agent of a run has the bits of its own training with these arguments, which is given back."""
    given = {"env": plain(env_id, 1), "policy_kwargs": {"net_arch": [16]}, "seed": 0} | arguments
    with Threads():
        theirs = CLASSES[algo]("MlpPolicy", device="cpu", **given).learn(steps)
    ours = CLASSES[algo].load(tmp_path / f"logs/{algo}/{env_id}_1/{env_id}.zip", device="cpu")
    assert same(weights(ours), weights(theirs))
    return theirs


def test_ppo_equals_stable_baselines3_bit_for_bit_with_evaluations_and_checkpoints_in_between(tmp_path):
    more = ["learning_rate:lin_1e-2", "clip_range:lin_0.2", "normalize:True", "gamma:0.9", "--n-envs", "2"]
    more += ["--eval-freq", "200", "--save-freq", "200", "--eval-episodes", "2", "--seed", "3"]
    row = train(tmp_path, "ppo", "CartPole-v1", 512, *more, evaluations=True)
    assert_is_that_of_stable_baselines3(
        *(tmp_path, "ppo", "CartPole-v1", 512),
        env=VecNormalize(plain("CartPole-v1", 2), gamma=0.9),
        learning_rate=LinearSchedule(1e-2, 0.0, 1.0),
        clip_range=LinearSchedule(0.2, 0.0, 1.0),
        n_steps=64,
        batch_size=64,
        n_epochs=2,
        gamma=0.9,
        gae_lambda=0.8,  # the zoo's, as the next two
        ent_coef=0.0,
        seed=3,
    )
    assert (row["timesteps"], row["updates"], row["seed"]) == (512, 8, 3)


def test_dqn_equals_stable_baselines3_bit_for_bit(tmp_path):
    row = train(tmp_path, "dqn", "CartPole-v1", 1000)
    theirs = assert_is_that_of_stable_baselines3(
        *(tmp_path, "dqn", "CartPole-v1", 1000),
        learning_rate=2.3e-3,
        learning_starts=100,
        train_freq=16,
        gradient_steps=4,
        batch_size=16,
        buffer_size=2000,
        gamma=0.99,
        target_update_interval=10,
        exploration_fraction=0.16,
        exploration_final_eps=0.04,
    )
    assert row["updates"] == theirs._n_updates


def test_sac_and_noise_equal_stable_baselines3_bit_for_bit(tmp_path):
    more = ["noise_type:normal", "noise_std:0.2", "learning_rate:1e-3"]
    train(tmp_path, "sac", "Pendulum-v1", 300, *more)
    assert_is_that_of_stable_baselines3(
        *(tmp_path, "sac", "Pendulum-v1", 300),
        learning_rate=1e-3,
        learning_starts=100,
        batch_size=16,
        buffer_size=2000,
        action_noise=NormalActionNoise(np.zeros(1), 0.2 * np.ones(1)),
    )


@pytest.mark.parametrize(
    ("algo", "env"),
    [("a2c", "CartPole-v1"), ("ddpg", "Pendulum-v1"), ("td3", "Pendulum-v1"), ("d4pg", "Pendulum-v1")],
)
def test_every_learner_trains_and_its_agent_is_read_back(algo, env, tmp_path):
    row = train(tmp_path, algo, env, 256)
    assert row["timesteps"] == 256
    assert row["updates"] > 0
    assert row["precision"] == "fp32"
    path = tmp_path / f"logs/{algo}/{env}_1/{env}.zip"
    assert load.read(path, algo).provenance.env_id == env
    assert isinstance(CLASSES[algo].load(path, device="cpu"), CLASSES[algo])


def test_the_folder_is_one_of_the_zoo_s(tmp_path):
    more = ["normalize:True", "--eval-freq", "128", "--eval-episodes", "3", "--save-freq", "128"]
    row = train(tmp_path, "ppo", "CartPole-v1", 256, *more, evaluations=True)
    run = tmp_path / "logs/ppo/CartPole-v1_1"
    assert row["folder"] == str(run)
    assert {path.name for path in run.iterdir() if not path.name.startswith("checkpoint-")} == {
        *("CartPole-v1", "CartPole-v1.zip", "best_model.zip", "best_model_vecnormalize.pkl", "evaluations.npz"),
        *("best_model.yml", "command.txt", "metrics.jsonl", "report.html", "tables.tex", "curve.png"),
    }
    assert {path.name for path in (run / "CartPole-v1").iterdir()} == {"config.yml", "args.yml", "vecnormalize.pkl"}
    assert len(list(run.glob("checkpoint-*"))) == 2
    args = yaml.safe_load((run / "CartPole-v1/args.yml").read_text())  # the zoo's own scripts ask for these
    assert (args["algo"], args["env"], args["env_kwargs"], args["seed"]) == ("ppo", "CartPole-v1", None, 0)
    config = yaml.safe_load((run / "CartPole-v1/config.yml").read_text())
    assert (config["normalize"], config["n_timesteps"], config["clip_range"]) == (True, 256, "lin_0.2")
    assert config["policy_kwargs"] == {"net_arch": [16]}
    assert None not in config.values()  # the zoo takes what is there for set
    found = np.load(run / "evaluations.npz")
    assert found["timesteps"].tolist() == [512]  # 8 environments of 64 steps: evaluated when the rollout had ended
    assert found["results"].shape == found["ep_lengths"].shape == (1, 3)
    assert row["best_mean"] == found["results"].mean()
    assert main(shlex.split((run / "command.txt").read_text())[1:]) == 0
    assert (tmp_path / "logs/ppo/CartPole-v1_2/CartPole-v1.zip").is_file()


def test_the_agent_is_evaluated_with_its_statistics_and_quarl_reads_the_run(tmp_path, capsys):
    row = train(tmp_path, "ppo", "CartPole-v1", 512, "normalize:True", "--n-envs", "2")
    agent = quarl.load(tmp_path / "logs/ppo/CartPole-v1_1")
    played = agent.evaluate(episodes=2, seed=0)
    assert played.returns.mean() == row["mean"]
    assert agent.policy.ops[0].name == "observation.normalize"
    capsys.readouterr()
    command = ["ptq", "ppo", "CartPole-v1", "-f", "logs", "--bits", "fp32", "8", "--episodes", "2"]
    assert main(command) == 0


def test_an_environment_s_wrappers_are_the_agent_s_too(tmp_path):
    wrapper = "env_wrapper:sb3_contrib.common.wrappers.TimeFeatureWrapper"
    train(tmp_path, "a2c", "CartPole-v1", 64, wrapper, "--n-envs", "2")
    policy = load.read(tmp_path / "logs/a2c/CartPole-v1_1")
    assert policy.observation_shape == (5,)
    assert policy.provenance.wrappers == (("sb3_contrib.common.wrappers.TimeFeatureWrapper", {}),)


def test_unchanged_options_give_the_same_agent_again(tmp_path):
    for _ in range(2):
        train(tmp_path, "dqn", "CartPole-v1", 300)
    one, other = (weights(DQN.load(tmp_path / f"logs/dqn/CartPole-v1_{k}/CartPole-v1.zip")) for k in (1, 2))
    assert same(one, other)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_updates_in_half_floats_stay_near_those_in_float32(dtype, tmp_path):
    chance = ["exploration_fraction:1.0", "exploration_final_eps:1.0"]  # so that both see the same
    train(tmp_path, "dqn", "CartPole-v1", 300, *chance)
    train(tmp_path, "dqn", "CartPole-v1", 300, *chance, "--learner-dtype", dtype)
    exact, half = (weights(DQN.load(tmp_path / f"logs/dqn/CartPole-v1_{k}/CartPole-v1.zip")) for k in (1, 2))
    assert not same(exact, half)
    for name, array in exact.items():
        np.testing.assert_allclose(half[name], array, atol=0.05)


def entropy_gradient(dtype):
    """What the first update of SAC steps its entropy coefficient by."""
    found = []
    model = SAC("MlpPolicy", "Pendulum-v1", learning_starts=20, policy_kwargs={"net_arch": [16]}, seed=0)
    model.learn(20)
    model.ent_coef_optimizer.step = lambda: found.append(model.log_ent_coef.grad.item())
    with Precision.of(model, dtype, scale=16.0).update():
        model.train(gradient_steps=1, batch_size=16)
    return found[0]


def test_sac_s_entropy_coefficient_has_its_own_gradient_in_float16():
    assert entropy_gradient("fp16") == pytest.approx(entropy_gradient("fp32"), rel=0.01)


@pytest.mark.parametrize(
    ("algo", "env", "value"),
    [
        (DQN, "CartPole-v1", lambda policy, x, a: policy.q_net(x)),
        (DQN, "CartPole-v1", lambda policy, x, a: policy.q_net_target(x)),
        (SAC, "Pendulum-v1", lambda policy, x, a: policy.critic(x, a)[1]),
        (PPO, "CartPole-v1", lambda policy, x, a: policy.predict_values(x)),
    ],
)
def test_values_keep_the_digits_in_which_actions_differ(algo, env, value):
    """bfloat16 would leave few different numbers."""
    model = algo("MlpPolicy", env, policy_kwargs={"net_arch": [16]}, seed=0, device="cpu")
    x = torch.linspace(0, 0.01, 100)[:, None] + torch.zeros(model.observation_space.shape)
    with Precision.of(model, "bf16").update(), torch.no_grad():
        found = value(model.policy, x, torch.zeros(100, 1))
    assert found.dtype == torch.float32
    assert (found.bfloat16() != found).float().mean() > 0.9
    assert "forward" not in {name for module in model.policy.modules() for name in vars(module)}


def test_a_step_of_ppo_in_bfloat16_goes_where_one_in_float32_goes(tmp_path):
    """With rounded log-probabilities the ratios of old and new are 1, and the policy stands still."""
    options = [*("n_epochs:8", "ent_coef:0.0", "learning_rate:1e-3"), "--n-envs", "2"]
    for dtype in ("fp32", "bf16"):
        train(tmp_path, "ppo", "CartPole-v1", 128, *options, "--learner-dtype", dtype)
    first = PPO("MlpPolicy", plain("CartPole-v1", 2), policy_kwargs={"net_arch": [16]}, seed=0, device="cpu")
    name = "mlp_extractor.policy_net.0.weight"
    start, exact, half = (
        weights(model)[name].ravel()
        for model in (first, *(PPO.load(tmp_path / f"logs/ppo/CartPole-v1_{k}/CartPole-v1.zip") for k in (1, 2)))
    )
    assert np.corrcoef(exact - start, half - start)[0, 1] > 0.9


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize(("algo", "env"), [("ppo", "CartPole-v1"), ("dqn", "CartPole-v1"), ("ddpg", "Pendulum-v1")])
def test_updates_in_half_floats_train_for_integers_too(algo, env, dtype, tmp_path):
    options = ("--qat", "w4a8", "--quant-delay", "128", "--n-envs", "1")
    arch = "policy_kwargs:dict(net_arch=[16, 300])"  # sums of 300 products and of 16
    row = train(tmp_path, algo, env, 512, arch, *options, "--learner-dtype", dtype)
    assert (row["precision"], row["learner_dtype"], row["switched_at"]) == ("w4a8e8", dtype, 128)
    policy = load.read(tmp_path / f"logs/{algo}/{env}_1/{env}.quarl")
    assert all(grid.scale > 0 for grid in policy.grids.values())
    assert {"observation"} < set(policy.grids)


@pytest.mark.parametrize(("algo", "env"), [("ppo", "CartPole-v1"), ("ddpg", "Pendulum-v1")])
def test_quantisation_aware_training_leaves_integers_and_their_return(algo, env, tmp_path):
    options = ("--qat", "w4a8", "--quant-delay", "128", "--n-envs", "1")
    row = train(tmp_path, algo, env, 512, "policy_kwargs:dict(net_arch=[16, 16])", *options)
    assert (row["precision"], row["quant_delay"], row["measured_quantised"]) == ("w4a8e8", 128, True)
    assert row["ci_low_quantised"] <= row["mean_quantised"] <= row["ci_high_quantised"]
    policy = load.read(tmp_path / f"logs/{algo}/{env}_1/{env}.quarl")
    assert isinstance(policy, QuantizedPolicy)
    assert (policy.spec.weight_bits, policy.spec.mode, policy.provenance.env_id) == (4, "static", env)
    assert isinstance(load.read(tmp_path / f"logs/{algo}/{env}_1/{env}.zip"), QuantizedPolicy)


def test_tensorboard_events_are_written_where_they_are_asked_for(tmp_path):
    require.module("tensorboard")
    train(tmp_path, "a2c", "CartPole-v1", 512, "--track", "tensorboard")
    assert list((tmp_path / "logs/a2c/CartPole-v1_1/tensorboard").glob("events.out.tfevents.*"))


def test_the_command_that_is_printed_repeats_the_run(tmp_path, capsys):
    assert main(words("a2c", "CartPole-v1", 64)) == 0
    captured = capsys.readouterr()
    assert "trained a2c on CartPole-v1" in captured.out
    assert "agent: logs/a2c/CartPole-v1_1/CartPole-v1.zip" in captured.out
    assert captured.err == "quarl: hyper-parameters: RL Zoo's for CartPole-v1\n"


def test_arguments_and_limit_of_the_environment_hold_for_training_resuming_and_every_evaluation(
    needs, tmp_path, capsys
):
    told = ("--env-kwargs", "target:0.25", "--max-episode-steps", "8")
    run = ["eval", "ppo", "Needs-v0", "-f", "logs", "--env", needs, "--episodes", "2", "--json", "rows.json"]

    def played(*more):
        assert main([*run, *more]) == 0
        (row,) = json.loads(Path("rows.json").read_text())["rows"]
        return row["steps"], row["mean"]

    assert train(tmp_path, "ppo", needs, 128, *told)["mean"] == 2.0
    settings = tmp_path / "logs" / "ppo" / "Needs-v0_1" / "Needs-v0"
    kwargs = {"target": 0.25, "max_episode_steps": 8}
    assert yaml.safe_load((settings / "config.yml").read_text())["env_kwargs"] == kwargs
    assert yaml.safe_load((settings / "args.yml").read_text())["env_kwargs"] == kwargs  # where the zoo looks
    assert played() == (16, 2.0)
    assert played("--env-kwargs", "target:0.5", "--max-episode-steps", "4") == (8, 2.0)
    goes_on = [words("ppo", needs, steps, "--resume") for steps in (256, 384)]
    assert main([*goes_on[0], "--json", "row.json"]) == 0
    assert json.loads(Path("row.json").read_text())["rows"][0]["mean"] == 2.0
    assert main([*goes_on[1], "--env-kwargs", "target:1.0", "--json", "row.json"]) == 0
    assert json.loads(Path("row.json").read_text())["rows"][0]["mean"] == 8.0
    assert played() == (16, 8.0)
    capsys.readouterr()
    assert main(words("ppo", needs, 128)) == 2
    assert "missing 1 required positional argument: 'target'" in capsys.readouterr().err


def test_wrappers_and_frames_replace_those_of_the_tuned_hyper_parameters(tmp_path):
    told = ("--wrapper", "TimeLimit:max_episode_steps=7", "TimeAwareObservation", "--frame-stack", "3")
    assert train(tmp_path, "ppo", "CartPole-v1", 64, *told)["mean"] <= 7
    settings = tmp_path / "logs" / "ppo" / "CartPole-v1_1" / "CartPole-v1"
    config = yaml.safe_load((settings / "config.yml").read_text())
    assert config["env_wrapper"] == [
        {"gymnasium.wrappers.TimeLimit": {"max_episode_steps": 7}},
        {"gymnasium.wrappers.TimeAwareObservation": {}},
    ]
    assert config["frame_stack"] == 3
    agent = quarl.load(settings.parent)
    assert agent.policy.observation_shape == (15,)
    assert agent.evaluate(episodes=3).lengths.max() == 7
