"""The torch baseline against hand numbers and the reference."""

from __future__ import annotations

import numpy as np
import torch

import networks
from quarl import engines
from quarl.calibration import quantize
from quarl.policy.graph import ActionHead, Policy
from quarl.policy.operators import mlp
from quarl.quant.spec import QuantSpec


def quantized(policy, precision="fp32", **options):
    spec = QuantSpec.parse(precision, scheme="per-channel", **options)
    return quantize(policy, spec, networks.observations(policy, 32, seed=5))


def outputs(policy, x, engine="torch"):
    return engines.load(policy, engine, batch=len(x)).run(x)


def test_a_network_of_two_layers_by_hand():
    layers = [
        ("a", np.array([[1.0, -1.0], [2.0, 0.0]]), np.array([0.0, -1.0])),
        ("b", np.array([[3.0, 5.0]]), np.ones(1)),
    ]
    policy = Policy(observation_shape=(2,), ops=tuple(mlp(layers, "relu")), head=ActionHead("argmax"))
    # relu(1 - 2) = 0 and relu(2 - 1) = 1; then relu(2 - 1) = 1 and relu(4 - 1) = 3
    assert outputs(quantized(policy), np.float32([[1, 2], [2, 1]])).tolist() == [[6.0], [19.0]]


def test_one_thread_and_no_gradients():
    torch.set_num_threads(2)
    engine = engines.load(quantized(networks.dense([5, 8, 3])), "torch")
    assert torch.get_num_threads() == 1
    engine.run(np.zeros((1, 5), np.float32))
    assert torch.is_grad_enabled()
    assert engine.file_bytes == 4 * (5 * 8 + 8 + 8 * 3 + 3)


def test_observations_that_are_read_only_or_strided_are_taken():
    policy = networks.dense([5, 8, 3])
    engine = engines.load(quantized(policy), "torch", batch=2)
    x = networks.observations(policy, 4)
    strided = x[::-2]
    strided.flags.writeable = False
    np.testing.assert_array_equal(engine.run(strided), engine.run(np.ascontiguousarray(strided)))
