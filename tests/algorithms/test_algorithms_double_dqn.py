"""Double DQN: the online network chooses, the target network values."""

from __future__ import annotations

import numpy as np
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.logger import Logger

from quarl.algorithms.double_dqn import DoubleDQN


def model(cls):
    made = cls("MlpPolicy", "CartPole-v1", seed=0, learning_starts=0, buffer_size=64, policy_kwargs={"net_arch": [8]})
    made.set_logger(Logger(folder=None, output_formats=[]))
    made._current_progress_remaining = 1.0
    observation = np.zeros((1, 4), np.float32)
    made.replay_buffer.add(observation, observation, np.array([[0]]), np.array([1.0]), np.array([False]), [{}])
    return made


def constant(network, values):
    """Makes the network answer `values` whatever it sees."""
    with torch.no_grad():
        network.q_net[-1].weight.zero_()
        network.q_net[-1].bias.copy_(torch.tensor(values))


def loss_of(made):
    constant(made.q_net, [3.0, 1.0])  # chooses action 0
    constant(made.q_net_target, [2.0, 10.0])  # which is worth 2; the other would be worth 10
    made.train(1, batch_size=4)
    return made.logger.name_to_value["train/loss"]


def test_the_target_is_what_the_target_network_says_of_the_online_choice():
    # reward 1, gamma 0.99; Huber loss beyond 1 is |error| - 0.5
    assert np.isclose(loss_of(model(DoubleDQN)), abs(3.0 - (1 + 0.99 * 2)) ** 2 / 2, atol=1e-6)
    assert np.isclose(loss_of(model(DQN)), abs(3.0 - (1 + 0.99 * 10)) - 0.5)


def test_its_zip_is_one_that_dqn_loads(tmp_path):
    made = model(DoubleDQN)
    made.save(tmp_path / "model.zip")
    observations = np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32)
    again = DQN.load(tmp_path / "model.zip")
    assert (
        again.predict(observations, deterministic=True)[0] == made.predict(observations, deterministic=True)[0]
    ).all()
