"""Small training runs, and what they leave."""

from __future__ import annotations

import json
from functools import partial

import numpy as np

from quarl.algorithms.cpu import threads
from quarl.cli import main, parse
from quarl.runs.train import Training

SMALL = {
    "ppo": "n_steps:64 batch_size:64 n_epochs:2",
    "a2c": "n_steps:16",
    "dqn": "learning_starts:100 train_freq:16 gradient_steps:4 batch_size:16 buffer_size:2000",
    "ddpg": "learning_starts:100 batch_size:16 buffer_size:2000",
    "td3": "learning_starts:100 batch_size:16 buffer_size:2000",
    "sac": "learning_starts:100 batch_size:16 buffer_size:2000",
    "d4pg": "learning_starts:100 batch_size:16 buffer_size:2000 n_steps:3",
}
NETWORK = "policy_kwargs:dict(net_arch=[16])"
D4PG_NETWORK = "policy_kwargs:dict(net_arch=dict(pi=[16],qf=[16]))"
Threads = partial(threads, 1)
"""Torch on one thread inside, as training is."""
QUIET = ["--eval-freq", "0", "--eval-episodes", "2", "--save-freq", "0"]


def words(algo, env, steps, *more, folder="logs", evaluations=False):
    """The command line of a run that takes a second."""
    network = D4PG_NETWORK if algo == "d4pg" else NETWORK
    given = ["--algo", algo, "--env", env, "-n", steps, "-f", folder]
    given += [] if evaluations else QUIET
    return ["train", *map(str, given), "--params", *SMALL[algo].split(), network, *map(str, more)]


def train(tmp_path, *args, **kwargs):
    """The row of a run to its end."""
    path = tmp_path / "row.json"
    assert main([*words(*args, folder=tmp_path / "logs", **kwargs), "--json", str(path)]) == 0
    (row,) = json.loads(path.read_text())["rows"]
    return row


def session(*args):
    """What a command line begins, or goes on with."""
    config = parse([str(arg) for arg in args])
    config.check()
    return Training(config, lambda line: None)


def weights(model):
    """The policy's parameters and buffers by name, as numpy arrays."""
    return {name: tensor.detach().numpy().copy() for name, tensor in model.policy.state_dict().items()}


def same(one, other):
    """Bit for bit."""
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)
