"""D4PG's agents are read like Stable-Baselines3's own: the live model, its zip and its predict agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from quarl.algorithms.d4pg import D4PG
from quarl.engines.numpy_operators import as_float
from quarl.errors import QuarlError, UnsupportedError
from quarl.policy.graph import Policy
from quarl.readers import sb3
from quarl.readers.extract import from_model
from quarl.readers.load import read
from sb3_archives import Still, data_with, edit


@pytest.fixture(params=[{}, {"activation_fn": nn.Tanh, "net_arch": {"pi": [24, 16], "qf": [8]}}], ids=["relu", "tanh"])
def model(request: pytest.FixtureRequest) -> D4PG:
    env: gymnasium.Env[Any, Any] = Still(spaces.Box(-3, 3, (5,)), spaces.Box(np.float32([-2, -1]), np.float32([1, 3])))
    learner = D4PG("MlpPolicy", env, buffer_size=10, seed=0, device="cpu", policy_kwargs=request.param)
    with torch.no_grad():  # a fresh actor gives almost 0, where a missing tanh would not show
        learner.actor.mu[-2].weight.mul_(2000)
    return learner


@pytest.fixture
def archive(model: D4PG, tmp_path: Path) -> Path:
    model.save(tmp_path / "Still-v0.zip")
    return tmp_path / "Still-v0.zip"


@pytest.mark.parametrize("saved", [False, True])
def test_the_policy_acts_as_the_model_does(saved: bool, archive: Path, model: D4PG):
    policy = read(archive) if saved else from_model(model)
    assert isinstance(policy, Policy)
    observations = np.random.default_rng(1).standard_normal((200, 5)).astype(np.float32)
    expected, _ = model.predict(observations, deterministic=True)
    assert (np.ptp(expected, axis=0) > 0.05).all()
    output = as_float(policy, observations)[policy.output]
    np.testing.assert_allclose(policy.head(output), expected, rtol=0, atol=1e-5)
    assert (policy.provenance.algo, policy.head.kind) == ("d4pg", "tanh")
    assert [op.name for op in policy.ops] == [op.name for op in from_model(model).ops]


def test_it_is_no_ddpg_agent(archive: Path):
    assert sb3.read_zip(archive, algo="d4pg").provenance.algo == "d4pg"
    with pytest.raises(QuarlError, match="it is a d4pg agent, not ddpg"):
        sb3.read_zip(archive, algo="ddpg")


def test_a_policy_class_from_elsewhere_in_the_package_s_neighbourhood_is_refused(archive: Path):
    edit(archive.parent, data_with(policy_class={"__module__": "quarl.algorithms_of_somebody"}))
    with pytest.raises(UnsupportedError, match=r"the policy class is from quarl\.algorithms_of_somebody"):
        sb3.read_zip(archive)
