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
