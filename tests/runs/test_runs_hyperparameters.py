"""Hyper-parameters: each of the zoo's spellings means what the zoo makes of it, and no other is guessed at."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from quarl.cli import main
from quarl.config import TrainConfig
from quarl.errors import QuarlError
from quarl.runs.hyperparameters import interpret
from quarl.runs.train import Training

BASE = {"n_timesteps": 1000}
WHERE = Path("config.yml")


def of(**written):
    return interpret(BASE | written, WHERE)


def test_a_linear_schedule_falls_to_zero_with_the_training_that_remains():
    schedule = of(learning_rate="lin_2.3e-4").arguments["learning_rate"]
    assert schedule(1.0) == 2.3e-4
    assert schedule(0.5) == pytest.approx(1.15e-4)
    assert schedule(0.0) == 0.0
    assert type(schedule).__module__.startswith("stable_baselines3.")  # a saved model loads without us
    assert of(learning_rate=1e-3).arguments["learning_rate"] == 1e-3


def test_what_is_the_environments_is_not_the_learner_s():
    recipe = of(
        n_envs=4,
        normalize="dict(norm_obs=True, norm_reward=False)",
        gamma=0.9,
        env_wrapper=[{"gymnasium.wrappers.TimeLimit": {"max_episode_steps": 5}}],
        env_kwargs="dict(g=9.0)",
        noise_type="normal",
        noise_std=0.3,
        train_freq=[1, "episode"],
        policy_kwargs={"net_arch": [8]},
    )
    assert (recipe.n_timesteps, recipe.n_envs, recipe.noise) == (1000, 4, ("normal", 0.3))
    assert recipe.normalize == {"norm_obs": True, "norm_reward": False, "gamma": 0.9}
    assert recipe.environment.wrappers == (("gymnasium.wrappers.TimeLimit", {"max_episode_steps": 5}),)
    assert recipe.environment.env_kwargs == {"g": 9.0}
    assert recipe.arguments == {"gamma": 0.9, "train_freq": (1, "episode"), "policy_kwargs": {"net_arch": [8]}}


def test_normalisation_can_be_on_off_or_partial():
    assert of(normalize=True).normalize == {}
    assert of(normalize=False).normalize is None
    assert of().normalize is None
    assert of(normalize="{'norm_obs': False}").normalize == {"norm_obs": False}


@pytest.mark.parametrize("name", ["ReLU", "nn.ReLU", "th.nn.ReLU", "torch.nn.ReLU"])
def test_classes_go_by_all_their_usual_names(name):
    recipe = of(policy_kwargs=f"dict(activation_fn={name}, optimizer_class=RMSpropTFLike, net_arch=dict(pi=[4]))")
    kwargs = recipe.arguments["policy_kwargs"]
    assert kwargs["activation_fn"] is torch.nn.ReLU
    assert kwargs["optimizer_class"].__name__ == "RMSpropTFLike"


def test_stacked_frames_are_the_outermost_wrapper():
    recipe = of(env_wrapper="gymnasium.wrappers.ClipAction", frame_stack=4, normalize="dict(norm_obs=False)")
    assert recipe.environment.wrappers == (
        ("gymnasium.wrappers.ClipAction", {}),
        ("stable_baselines3.common.vec_env.VecFrameStack", {"n_stack": 4}),
    )
    assert recipe.arguments == {}


def test_none_takes_an_entry_away():
    assert of(callback=None, frame_stack=0, noise_type=None).arguments == {}


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"learning_rate": "exp_1e-3"}, "learning_rate is 'exp_1e-3'; write a number or lin_NUMBER"),
        ({"clip_range": "lin_nan"}, "clip_range"),
        ({"n_envs": 10**9}, "n_envs is 1,000,000,000"),
        ({"n_timesteps": float("nan")}, "n_timesteps is 'nan'"),
        ({"frame_stack": "many"}, "frame_stack is 'many'"),
        ({"frame_stack": 4, "normalize": True}, "frames are stacked as they are, not normalized"),
        ({"policy": "MultiInputPolicy"}, "MultiInputPolicy"),
        ({"replay_buffer_class": "HerReplayBuffer"}, "replay_buffer_class refers to code"),
        ({"device": "cuda"}, "device is not a hyper-parameter"),
        ({"policy_kwargs": "dict(activation_fn=os.system)"}, "os.system, which is not supported; ReLU, Tanh"),
        ({"policy_kwargs": "dict(activation_fn=nn.Softsign)"}, "nn.Softsign"),
        ({"policy_kwargs": "__import__('os').system('true')"}, "policy_kwargs"),
        ({"replay_buffer_kwargs": "dict(a=nn.ReLU)"}, "replay_buffer_kwargs"),
        ({"normalize": "dict(norm_obs=open('x'))"}, "normalize"),
        ({"env_kwargs": "dict(a=nn.ReLU)"}, "env_kwargs"),
        ({"noise_type": "pink", "noise_std": 0.1}, "noise_type is 'pink'"),
        ({"noise_type": "normal", "noise_std": float("inf")}, "noise_std"),
        ({"env_wrapper": 3}, "env_wrapper"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(written, said):
    with pytest.raises(QuarlError, match=said.replace("(", r"\(").replace("[", r"\[")) as caught:
        of(**written)
    assert str(caught.value).startswith("config.yml: ")


def model(algo, kwargs, env="CartPole-v1"):
    config = TrainConfig(algo=algo, env=env, n_timesteps=20_000, params=(f"policy_kwargs:{kwargs}",))
    session = Training(config, lambda line: None)
    session.model.env.close()
    return session.model


@pytest.mark.parametrize(
    ("algo", "env", "chosen", "name"),
    [
        ("dqn", "CartPole-v1", "", "Adam"),
        ("ppo", "CartPole-v1", "", "Adam"),
        ("a2c", "CartPole-v1", "optimizer_class=RMSprop, ", "RMSprop"),
        ("ddpg", "Pendulum-v1", "", "Adam"),
    ],
)
def test_the_zoo_s_spelling_of_weight_decay_reaches_every_optimiser(algo, env, chosen, name):
    found = model(algo, f"dict({chosen}net_arch=[8], optimizer_kwargs=dict(weight_decay=1e-4))", env)
    for network in (found.actor, found.critic) if algo == "ddpg" else (found.policy,):
        assert (type(network.optimizer).__name__, network.optimizer.defaults["weight_decay"]) == (name, 1e-4)


def test_what_a2c_would_drop_in_silence_is_refused(capsys, tmp_path):
    words = ["train", "--algo", "a2c", "--params", "policy_kwargs:dict(optimizer_kwargs=dict(weight_decay=1e-4))"]
    assert main(words) == 2
    assert "a2c ignores optimizer_kwargs without an optimizer_class" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
