"""Quantisation-aware training inside ActorQ: actors run the integers that the learner trains for."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from stable_baselines3 import DQN, SAC
from torch import nn

from quarl import engines, qat
from quarl.actorq.weights import Template
from quarl.actorq.wire import Packer, unpack
from quarl.config import ActorQConfig
from quarl.errors import QuarlError


def learner(cls: Any, env: str, delay: int) -> Any:
    small = {"learning_starts": 32, "buffer_size": 500, "policy_kwargs": {"net_arch": [16, 16]}}
    model = cls("MlpPolicy", env, seed=0, device="cpu", **small)
    qat.prepare(model, "w4a8")
    return model.learn(160, callback=qat.QuantDelay(delay, allow_inactive=True))


def sent(model: Any) -> tuple[Template, np.ndarray]:
    """The template as another process gets it, and the vector of the weights now."""
    template = pickle.loads(pickle.dumps(Template(model)))
    flat = np.empty(template.num_floats, np.float32)
    Template(model).flatten_into(model, flat)
    return template, flat


@pytest.mark.slow
@pytest.mark.parametrize(("cls", "env"), [(DQN, "CartPole-v1"), (SAC, "Pendulum-v1")])
def test_actors_get_the_integers_that_the_model_converts_to(cls: Any, env: str):
    model = learner(cls, env, 64)
    template, flat = sent(model)
    grids = template.grids(flat)
    assert grids is not None
    assert template.trained is not None
    packer = Packer("int4")
    packed = unpack(packer.to_bytes(packer.quantize_trained(template.policy(flat), template.trained, grids)))
    expected = qat.quantized_policy(model, distribution=cls is SAC)
    rows = np.random.default_rng(0).standard_normal((64, *packed.observation_shape)).astype(np.float32)
    outputs = [engines.run_all(engines.load(policy, "litert", batch=16), rows) for policy in (packed, expected)]
    assert np.array_equal(*outputs)


def test_values_that_training_leaves_alone_have_no_grids_here_either():
    small = {"learning_starts": 32, "buffer_size": 500, "policy_kwargs": {"net_arch": [16], "activation_fn": nn.Tanh}}
    model = DQN("MlpPolicy", "CartPole-v1", seed=0, device="cpu", **small)
    qat.prepare(model, qat.QatSpec.parse("w4a8", skip=("q_net.q_net.2",)))
    template, flat = sent(model.learn(160, callback=qat.QuantDelay(64)))
    grids = template.grids(flat)
    assert grids is not None
    assert grids.keys() == qat.quantized_policy(model).grids.keys() == {"observation", "q_net.q_net.0"}


def test_before_quantisation_acts_there_are_no_grids():
    template, flat = sent(learner(DQN, "CartPole-v1", 10**6))
    assert template.trained is not None
    assert template.grids(flat) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"qat": "w4a8"}, "does not match --actor-precision int8; use --qat w8a8"),
        ({"qat": "w8a6"}, "does not match --actor-precision int8; use --qat w8a8"),
        ({"qat": "w8a8", "comm_bits": 4}, "--comm-bits"),
        ({"qat": "w8a8", "quant_delay": 200_000}, "--quant-delay"),
        ({"quant_delay": 5}, "--quant-delay"),
        ({"qat": "w1a8"}, "must be 2..16"),
    ],
)
def test_contradictions_are_refused(options: Any, message: str):
    with pytest.raises(QuarlError, match=message):
        ActorQConfig(**options).check()
