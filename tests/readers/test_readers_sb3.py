"""The zip reader computes what Stable-Baselines3 computes."""

from __future__ import annotations

import pickle
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import A2C, DDPG, DQN, PPO

from quarl.engines.numpy_operators import as_float
from quarl.errors import QuarlError
from quarl.policy.graph import Policy
from quarl.policy.operators import Normalize
from quarl.readers import find, load, sb3
from sb3_archives import Still, assert_same, data_with, edit, space, tensors_with, write_run

AGENTS = [
    "a2c/CartPole-v1",
    "a2c/HalfCheetahBulletEnv-v0",
    "a2c/Hopper-v3",
    "ddpg/HopperBulletEnv-v0",
    "ddpg/MountainCarContinuous-v0",
    "dqn/Acrobot-v1",
    "dqn/CartPole-v1",
    "dqn/MountainCar-v0",
    "ppo/BipedalWalker-v3",
    "ppo/CartPole-v1",
    "ppo/HalfCheetah-v3",
    "ppo/HalfCheetahBulletEnv-v0",
    "ppo/LunarLander-v2",
    "ppo/MountainCarContinuous-v0",
]
ALGORITHMS = {"a2c": A2C, "ddpg": DDPG, "dqn": DQN, "ppo": PPO}


def actions(policy: Policy, observations: np.ndarray) -> np.ndarray:
    return policy.head(as_float(policy, observations)[policy.output])


@pytest.mark.parametrize("name", AGENTS)
def test_a_trained_agent_acts_as_sb3_does(agents: Path, name: str, monkeypatch: pytest.MonkeyPatch):
    algo, env_id = name.split("/")
    policy = sb3.read_zip(find.in_zoo(agents / "sb3", algo, env_id), algo=algo)
    for module in ("", ".spaces", ".spaces.box", ".spaces.discrete"):  # the oracle unpickles gym's old names
        monkeypatch.setitem(sys.modules, f"gym{module}", sys.modules[f"gymnasium{module}"])
    run = agents / "sb3" / algo / f"{env_id}_1"
    constants = {"learning_rate": 0.0, "lr_schedule": lambda _: 0.0, "clip_range": lambda _: 0.0}
    options = {} if algo in ("ppo", "a2c") else {"buffer_size": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = ALGORITHMS[algo].load(run / f"{env_id}.zip", custom_objects=constants, device="cpu", **options)
    rng = np.random.default_rng(0)
    raw = rng.standard_normal((400, *policy.observation_shape)).astype(np.float32)
    observations = raw
    statistics = run / env_id / "vecnormalize.pkl"
    if statistics.exists():
        normalizer = pickle.loads(statistics.read_bytes())
        raw = (normalizer.obs_rms.mean + raw * np.sqrt(normalizer.obs_rms.var)).astype(np.float32)
        observations = normalizer.normalize_obs(raw)
    else:
        assert not any(isinstance(op, Normalize) for op in policy.ops)
    expected, _ = model.predict(observations, deterministic=True)
    # Wider observations than a rollout's, on which these actors' sums are larger and so less exact: either side may be
    # 2e-5 from float64, as a processor's order of additions has it.
    np.testing.assert_allclose(actions(policy, raw), expected, rtol=0, atol=0 if policy.head.kind == "argmax" else 5e-5)
    assert (policy.provenance.algo, policy.provenance.env_id) == (algo, env_id)


def test_a_zoo_folder_says_what_the_environment_was(agents: Path):
    for path in ("ppo/HalfCheetahBulletEnv-v0_1", "ppo/HalfCheetahBulletEnv-v0_1/HalfCheetahBulletEnv-v0.zip"):
        provenance = load.read(agents / "sb3" / path).provenance
        assert provenance.env_id == "HalfCheetahBulletEnv-v0"
        assert provenance.wrappers == (("sb3_contrib.common.wrappers.TimeFeatureWrapper", {}),)
        assert not provenance.stochastic


def test_the_best_model_of_a_run_shares_its_statistics(agents: Path):
    policy = load.read(agents / "sb3/a2c/Hopper-v3_1/best_model.zip")
    assert policy.provenance.env_id == "Hopper-v3"
    assert isinstance(policy.ops[0], Normalize)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path)


def test_the_small_agent_is_whole(run: Path):
    policy = load.read(run)
    assert [op.name for op in policy.ops] == [
        "observation.normalize",
        "mlp_extractor.policy_net.0",
        "mlp_extractor.policy_net.0.relu",
        "action_net",
    ]
    assert policy.head.low.tolist() == [-1.0, -2.0]
    assert policy.head.log_std is not None
    assert policy.head.log_std.tolist() == [0.0, 0.0]


def test_exact_bounds_come_from_the_pickle_not_from_the_rounded_text(run: Path):
    bounds = np.float32([1 / 3, 2 / 3])
    edit(run, data_with(action_space=space(spaces.Box(-bounds, bounds))))
    assert load.read(run).head.high.tolist() == bounds.tolist()


def test_layers_that_old_versions_shared_come_before_the_policy_s_own(run: Path):
    """Stable-Baselines3 before 1.8: latent = policy_net(shared_net(x))."""

    def share(state: dict[str, Any]) -> None:
        for part in ("weight", "bias"):
            state[f"mlp_extractor.shared_net.0.{part}"] = state.pop(f"mlp_extractor.policy_net.0.{part}")
        state["mlp_extractor.policy_net.0.weight"] = torch.eye(4) * 2
        state["mlp_extractor.policy_net.0.bias"] = torch.zeros(4)

    observations = np.random.default_rng(0).standard_normal((20, 3)).astype(np.float32)
    before = as_float(load.read(run), observations)["mlp_extractor.policy_net.0.relu"]
    edit(run, tensors_with(share))
    after = as_float(load.read(run), observations)["mlp_extractor.policy_net.0.relu"]
    np.testing.assert_allclose(after, 2 * before, rtol=1e-6)


@pytest.mark.parametrize(
    "wrapped",
    [("", "_orig_mod."), ("mlp_extractor.", "mlp_extractor._orig_mod."), ("action_net.", "action_net.module.")],
)
def test_names_of_compiled_and_parallel_modules_are_read_as_without(run: Path, wrapped: tuple[str, str]):
    plain = load.read(run)

    def rename(state: dict[str, Any]) -> None:
        for name in [name for name in state if name.startswith(wrapped[0])]:
            state[name.replace(*wrapped, 1)] = state.pop(name)

    edit(run, tensors_with(rename))
    assert_same(load.read(run), plain)


def test_an_actor_with_continuous_actions_cannot_be_discrete(run: Path):
    model = DDPG("MlpPolicy", Still(spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (2,))), buffer_size=10, device="cpu")
    model.save(run / "Still-v0.zip")
    edit(run, data_with(action_space=space(spaces.Discrete(2))))
    with pytest.raises(QuarlError, match="Discrete, which ddpg cannot have"):
        load.read(run)


def test_ddpg_and_td3_share_a_network_and_go_by_the_name_that_is_asked_for(run: Path):
    model = DDPG("MlpPolicy", Still(spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (2,))), buffer_size=10, device="cpu")
    model.save(run / "Still-v0.zip")
    assert load.read(run).provenance.algo == "ddpg"
    with pytest.raises(QuarlError, match="it is a ddpg agent, not qrdqn"):
        sb3.read_zip(run / "Still-v0.zip", algo="qrdqn")
    assert sb3.read_zip(run / "Still-v0.zip", algo="td3").provenance.algo == "td3"
