"""Agents of sb3-contrib, and of Stable-Baselines3 beside them: the live model, its zip and its own predict agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from sb3_contrib import ARS, QRDQN, TQC, TRPO, CrossQ, MaskablePPO
from stable_baselines3.common.torch_layers import NatureCNN
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

import quarl
from quarl import engines
from quarl.calibration import quantize
from quarl.config import learner_options
from quarl.config.train import LEARNERS
from quarl.policy.operators import OBSERVATION, Dense, as_float32
from quarl.quant.spec import EXACT
from quarl.readers import load
from quarl.readers.extract import from_model
from quarl.readers.fold import fold_renorm, mean_over_quantiles
from quarl.readers.sb3_network import LAYOUTS, Parameters
from sb3_archives import Still, assert_same

STEPS = 2_000
BOX, CHOICE = "Pendulum-v1", "Acrobot-v1"
OFF_POLICY = {"buffer_size": 1_000, "learning_starts": 50}
SMALL = {"net_arch": [16, 16]}
CONTRIB: list[tuple[type[Any], str, dict[str, Any], dict[str, Any]]] = [
    (TRPO, BOX, SMALL, {"n_steps": 128}),
    (TRPO, CHOICE, SMALL | {"activation_fn": torch.nn.ReLU}, {"n_steps": 128}),
    (TQC, BOX, SMALL, OFF_POLICY),
    (TQC, BOX, SMALL | {"clip_mean": 0.5}, OFF_POLICY | {"use_sde": True}),
    (QRDQN, CHOICE, SMALL | {"n_quantiles": 7}, OFF_POLICY),
    (ARS, BOX, SMALL, {"n_delta": 1, "zero_policy": False}),
    (ARS, BOX, SMALL | {"squash_output": False, "with_bias": False}, {"n_delta": 1, "zero_policy": False}),
    (ARS, BOX, {}, {"n_delta": 1, "zero_policy": False, "policy": "LinearPolicy"}),
    (
        ARS,
        BOX,
        {"with_bias": True, "squash_output": True},
        {"n_delta": 1, "zero_policy": False, "policy": "LinearPolicy"},
    ),
    (ARS, CHOICE, SMALL, {"n_delta": 1, "zero_policy": False}),
    (ARS, CHOICE, {}, {"n_delta": 1, "zero_policy": False, "policy": "LinearPolicy"}),
    (MaskablePPO, CHOICE, SMALL, {"n_steps": 128}),
    (CrossQ, BOX, SMALL, OFF_POLICY),
    (CrossQ, BOX, {"net_arch": {"pi": [], "qf": [16]}}, OFF_POLICY),
    (CrossQ, BOX, SMALL | {"batch_norm": False}, OFF_POLICY),
    (CrossQ, BOX, SMALL | {"batch_norm_eps": 0.5, "activation_fn": torch.nn.Tanh}, OFF_POLICY | {"use_sde": True}),
]


class Masked(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Forbids the action of the number of steps so far."""

    steps = 0

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.env.step(action)

    def action_masks(self) -> np.ndarray:
        return np.arange(3) != self.steps % 3


def identify(case: tuple[Any, ...]) -> str:
    words = (f"{key}={value}" for key, value in (case[2] | case[3]).items() if key not in ("net_arch", *OFF_POLICY))
    return "-".join((case[0].__name__, case[1], *words))


@pytest.fixture(scope="module", params=CONTRIB, ids=identify)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path, np.ndarray]:
    """(a model that was trained for a moment, its zip, observations of its own episodes)."""
    algorithm, env_id, policy_kwargs, options = request.param
    env: Any = DummyVecEnv([lambda: Masked(gymnasium.make(env_id))])
    model = algorithm(
        **({"policy": "MlpPolicy", "seed": 1, "device": "cpu"} | options),
        env=VecNormalize(env, clip_obs=2.0, norm_reward=False),
        policy_kwargs=dict(policy_kwargs),
    )
    model.learn(150)
    with torch.no_grad():  # after so short a training outputs are almost 0, where a missing tanh would not show
        for layer in (module for module in model.policy.modules() if isinstance(module, torch.nn.Linear)):
            layer.weight.mul_(2.0)
    folder = tmp_path_factory.mktemp("agent") / f"{env_id}_1"
    (folder / env_id).mkdir(parents=True)
    model.save(folder / f"{env_id}.zip")
    model.get_env().save(str(folder / env_id / "vecnormalize.pkl"))
    model.get_env().training = False
    return model, folder / f"{env_id}.zip", np.concatenate([*rollout(model)])


def rollout(model: Any) -> Any:
    """Raw observations [1, n] of STEPS steps."""
    env = model.get_env()
    observation = env.reset()
    for _ in range(STEPS):
        yield env.get_original_obs().astype(np.float32)
        observation = env.step(model.predict(observation, deterministic=True)[0])[0]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["reference", "litert"])
def test_zip_live_model_and_predict_agree_on_a_rollout(trained: tuple[Any, Path, np.ndarray], engine: str):
    model, path, observations = trained
    read, live = load.read(path), from_model(model)
    assert_same(read, live)
    algo = type(model).__name__.lower()
    assert (read.provenance.algo, live.provenance.algo) == (algo, algo)
    expected, _ = model.predict(model.get_env().normalize_obs(observations), deterministic=True)
    policy = quantize(read, EXACT)
    outputs = engines.run_all(engines.load(policy, engine, batch=100), observations)
    assert (np.ptp(outputs, axis=0) > 1e-3).all()  # not saturated: the comparison means something
    if policy.head.kind == "argmax":
        np.testing.assert_array_equal(policy.head(outputs), expected)
    else:
        away = np.abs(policy.head(outputs) - expected)
        assert away.max() < 1e-5 * (policy.head.high - policy.head.low).min()


@pytest.mark.slow
def test_twenty_paired_episodes_have_the_returns_of_the_library_s_own(trained: tuple[Any, Path, np.ndarray]):
    model, path, _ = trained
    env = gymnasium.make(path.stem, max_episode_steps=100)
    played = quarl.evaluate(path, episodes=20, max_episode_steps=100)
    returns = []
    for seed in played.seeds:
        observation, total, ended = env.reset(seed=int(seed))[0], 0.0, False
        while not ended:
            action, _ = model.predict(model.get_env().normalize_obs(observation), deterministic=True)
            observation, reward, terminated, truncated, _ = env.step(action)
            total, ended = total + float(reward), terminated or truncated
        returns.append(total)
    np.testing.assert_allclose(played.returns, returns, rtol=0 if path.stem == CHOICE else 1e-4)


IMAGES: list[tuple[type[Any], spaces.Space[Any], dict[str, Any]]] = [
    (QRDQN, spaces.Discrete(3), {"buffer_size": 10}),
    (MaskablePPO, spaces.Discrete(3), {}),
    (TQC, spaces.Box(-1, 1, (2,)), {"buffer_size": 10}),
    (CrossQ, spaces.Box(-1, 1, (2,)), {"buffer_size": 10}),
]


@pytest.mark.parametrize("case", IMAGES, ids=lambda case: case[0].__name__)
def test_images_are_read_as_the_library_sees_them(case: tuple[Any, ...], tmp_path: Path):
    algorithm, actions, options = case
    env = Still(spaces.Box(0, 255, (3, 36, 36), np.uint8), actions)
    kwargs: dict[str, Any] = {"features_extractor_kwargs": {"features_dim": 16}, "net_arch": [8]}
    kwargs |= {"features_extractor_class": NatureCNN}  # CrossQ has no policy for images of its own
    model = algorithm("MlpPolicy", env, policy_kwargs=kwargs, seed=0, device="cpu", **options)
    with torch.no_grad():
        for module in model.policy.modules():
            if hasattr(module, "ra_mean"):  # as if it had been trained
                module.ra_mean.normal_(0, 0.1)
                module.ra_var.uniform_(0.001, 0.01)
    model.save(tmp_path / "agent.zip")
    read = load.read(tmp_path / "agent.zip")
    assert_same(read, from_model(model))
    images = np.random.default_rng(0).integers(0, 256, (100, 3, 36, 36), np.uint8)
    expected, _ = model.predict(images, deterministic=True)
    assert read.head.distance(expected, engines.greedy(quantize(read, EXACT), images)).max() < 1e-5


def test_the_mean_over_quantiles_is_one_layer_of_mean_weights():
    layer = Dense("q", (OBSERVATION,), np.float32([[1, 0], [2, 0], [3, 8], [6, 0]]), np.float32([0, 1, 2, 3]))
    (folded,) = mean_over_quantiles([layer], 2)  # rows are quantile 0's actions, then quantile 1's
    assert isinstance(folded, Dense)
    assert as_float32(folded.weight).tolist() == [[2, 4], [4, 0]]
    assert folded.bias.tolist() == [1, 2]


def test_renormalisation_is_an_affine_part_of_the_layer_behind_it():
    layer = Dense("actor.mu", (OBSERVATION,), np.float32([[1, 2]]), np.float32([0.5]))
    first = Dense("actor.latent_pi.1", (OBSERVATION,), np.float32([[1], [1]]), np.float32([0, 0]))
    numbers = {"ra_mean": [2.0, 4], "ra_var": [3.0, 8], "scale": [4.0, 6], "bias": [1.0, 0]}
    state = {f"actor.latent_pi.3.{name}": np.float32(value) for name, value in numbers.items()}
    identity = {"ra_mean": [0.0], "ra_var": [0.0], "scale": [1.0], "bias": [0.0]}
    state |= {f"actor.latent_pi.0.{name}": np.float32(value) for name, value in identity.items()}
    parameters = Parameters(state | {"actor.latent_pi.1.weight": np.float32([[1], [1]])})
    same, folded = fold_renorm([first, layer], parameters, 1.0)
    assert isinstance(same, Dense)
    assert isinstance(folded, Dense)
    assert as_float32(same.weight).tolist() == [[1], [1]]
    # x1 -> (x1 - 2) / 2 * 4 + 1 and x2 -> (x2 - 4) / 3 * 6; the layer adds twice the second to the first
    assert as_float32(folded.weight).tolist() == [[2, 4]]
    assert folded.bias.tolist() == [0.5 - 3 - 16]


def test_what_is_read_is_trained_here_or_by_sb3_contrib():
    assert {*LEARNERS, *learner_options.CONTRIB} == set(LAYOUTS)
