"""WideCNN: the Nature CNN's shapes in other widths, and policies that are read back from a zip."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3 import DQN

from quarl import engines
from quarl.algorithms.wide_cnn import WideCNN
from quarl.calibration import quantize
from quarl.errors import QuarlError
from quarl.quant.spec import QuantSpec
from quarl.readers.load import read
from sb3_archives import Still

IMAGES = gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8)


def test_three_convolutions_of_the_same_width_and_a_dense_layer():
    network = WideCNN(IMAGES, features_dim=16, filters=5)
    shapes = [tuple(parameter.shape) for parameter in network.parameters() if parameter.ndim > 1]
    assert shapes == [(5, 4, 8, 8), (5, 5, 4, 4), (5, 5, 3, 3), (16, 5 * 7 * 7)]
    found = network(torch.zeros(2, 4, 84, 84))
    assert found.shape == (2, 16)
    assert network.features_dim == 16


@pytest.mark.parametrize("shape", [(4, 20, 20), (8,)])
def test_what_it_cannot_see_is_one_line(shape):
    with pytest.raises(QuarlError, match=r"too small|requires images"):
        WideCNN(gymnasium.spaces.Box(0, 255, shape, np.uint8))


def test_a_saved_agent_computes_what_it_learned(tmp_path):
    kwargs = {"features_extractor_class": WideCNN, "net_arch": []}
    kwargs["features_extractor_kwargs"] = {"filters": 5, "features_dim": 16}
    env = Still(IMAGES, gymnasium.spaces.Discrete(3))
    model = DQN("CnnPolicy", env, policy_kwargs=kwargs, buffer_size=1, device="cpu", seed=0)
    model.save(tmp_path / "agent.zip")
    policy = quantize(read(tmp_path / "agent.zip"), QuantSpec.parse("fp32"))
    images = np.random.default_rng(0).integers(0, 256, (4, 4, 84, 84), dtype=np.uint8)
    with torch.no_grad():
        expected = model.q_net(torch.as_tensor(images)).numpy()
    found = engines.run_all(engines.load(policy, "litert", batch=4), images)
    np.testing.assert_allclose(found, expected, atol=1e-5)
