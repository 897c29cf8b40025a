"""Weight decay and other arguments of the optimiser: read as data, used as given, or refused."""

from __future__ import annotations

import pytest

from quarl.cli import main
from quarl.config import TrainConfig
from quarl.runs.train import Training


def model(algo, kwargs, env="CartPole-v1"):
    config = TrainConfig(algo=algo, env=env, n_timesteps=20_000, params=(f"policy_kwargs:{kwargs}",))
    session = Training(config, lambda line: None)
    session.model.env.close()
    return session.model


@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_the_zoo_s_spelling_of_weight_decay_reaches_the_optimiser(algo):
    found = model(algo, "dict(net_arch=[8], optimizer_kwargs=dict(weight_decay=1e-4))")
    assert found.policy.optimizer.defaults["weight_decay"] == 1e-4


def test_another_optimiser_has_it_too():
    found = model("a2c", "dict(optimizer_class=RMSprop, optimizer_kwargs=dict(weight_decay=1e-3))")
    assert type(found.policy.optimizer).__name__ == "RMSprop"
    assert found.policy.optimizer.defaults["weight_decay"] == 1e-3


def test_actor_and_critic_both_decay():
    found = model("ddpg", "dict(net_arch=[8], optimizer_kwargs=dict(weight_decay=1e-4))", "Pendulum-v1")
    for network in (found.actor, found.critic):
        assert network.optimizer.defaults["weight_decay"] == 1e-4


def test_what_a2c_would_drop_in_silence_is_refused(capsys, tmp_path):
    words = ["train", "--algo", "a2c", "--params", "policy_kwargs:dict(optimizer_kwargs=dict(weight_decay=1e-4))"]
    assert main(words) == 2
    assert "a2c ignores optimizer_kwargs without an optimizer_class" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
