"""A template follows a learner: its policy is what a fresh extraction gives, and acts as the learner predicts."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import DDPG, DQN, SAC, TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from quarl.actorq.weights import Template
from quarl.algorithms.d4pg import D4PG
from quarl.engines.numpy_operators import as_float
from quarl.errors import QuarlError, UnsupportedError
from quarl.policy.graph import ActionHead, Policy, final_linear
from quarl.policy.operators import Normalize, as_float32
from quarl.readers.extract import from_model

VECTOR = spaces.Box(-3, 3, (5,), np.float32)
IMAGE = spaces.Box(0, 255, (3, 36, 36), np.uint8)
BOX = spaces.Box(np.float32([-2, -1]), np.float32([1, 3]))
CHOICE = spaces.Discrete(4)
SMALL_CNN = {"features_extractor_kwargs": {"features_dim": 16}}
CASES: list[tuple[type[BaseAlgorithm], str, spaces.Box, spaces.Space[Any], dict[str, Any]]] = [
    (DQN, "MlpPolicy", VECTOR, CHOICE, {"net_arch": [12, 8]}),
    (DQN, "CnnPolicy", IMAGE, CHOICE, SMALL_CNN),
    (DDPG, "MlpPolicy", VECTOR, BOX, {"net_arch": [12, 8]}),
    (TD3, "MlpPolicy", VECTOR, BOX, {"net_arch": {"pi": [9], "qf": [5]}}),
    (SAC, "MlpPolicy", VECTOR, BOX, {"net_arch": [8, 8]}),
    (D4PG, "MlpPolicy", VECTOR, BOX, {"net_arch": {"pi": [12, 8], "qf": [10, 6]}}),
]


class Drift(gymnasium.Env[np.ndarray, Any]):
    """Random observations and rewards."""

    def __init__(self, observed: spaces.Box, acts: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = observed, acts
        self.rng = np.random.default_rng(0)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        return sample(self.rng, self.observation_space, 1)[0], {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return self.reset()[0], float(self.rng.normal()), bool(self.rng.random() < 0.1), False, {}


def sample(rng: np.random.Generator, space: spaces.Box, rows: int) -> np.ndarray:
    if space.dtype == np.uint8:
        return rng.integers(0, 256, (rows, *space.shape), np.uint8)
    return rng.standard_normal((rows, *space.shape)).astype(np.float32)


def build(case: Any, env: Any = None) -> Any:
    algorithm, policy, observed, acts, kwargs = case
    options = {"policy_kwargs": kwargs, "seed": 1, "device": "cpu", "buffer_size": 200, "learning_rate": 1e-2}
    options |= {"batch_size": 16, "learning_starts": 20}
    return algorithm(policy, env or Drift(observed, acts), **options)


def flat_of(template: Template, model: Any) -> np.ndarray:
    out = np.full(template.num_floats, np.nan, np.float32)
    template.flatten_into(model, out)
    return out


def actions(policy: Policy, observations: np.ndarray) -> np.ndarray:
    return policy.head(as_float(policy, observations)[policy.output])


def assert_same(first: Policy, second: Policy) -> None:
    assert [(type(op), op.name, op.inputs) for op in first.ops] == [(type(op), op.name, op.inputs) for op in second.ops]
    for a, b in zip(first.ops, second.ops, strict=True):
        for field in (f.name for f in dataclasses.fields(a)):
            if isinstance(a, Normalize) and field in ("mean", "variance"):  # 48 of float64's 53 bits travel
                np.testing.assert_allclose(getattr(a, field), getattr(b, field), rtol=1e-13, atol=0)
            else:
                np.testing.assert_array_equal(getattr(a, field), getattr(b, field))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0].__name__}-{case[1]}")
def test_after_training_the_template_gives_what_a_fresh_extraction_gives(case: Any):
    model = build(case)
    template = Template(model)
    before = flat_of(template, model)
    model.learn(60)
    flat = flat_of(template, model)
    moved = [not np.array_equal(flat[p.start : p.stop], before[p.start : p.stop]) for p in template.places]
    assert all(moved)
    policy = template.policy(flat)
    assert_same(policy, from_model(model, distribution=True))
    observations = sample(np.random.default_rng(1), case[2], 100)
    expected, _ = model.predict(observations, deterministic=True)
    np.testing.assert_allclose(actions(policy, observations), expected, rtol=0, atol=1e-5)
    assert template.num_floats == sum(as_float32(op.weight).size + op.bias.size for op in policy.linear)


def test_normalisation_statistics_travel_with_the_weights():
    env = VecNormalize(DummyVecEnv([lambda: Drift(VECTOR, BOX)]), clip_obs=2.0)
    model = build(CASES[2], env)
    template = Template(model)
    model.learn(60)
    policy = template.policy(flat_of(template, model))
    assert isinstance(policy.ops[0], Normalize)
    assert not np.array_equal(policy.ops[0].mean, template.initial.ops[0].mean)  # type: ignore[attr-defined]
    assert_same(policy, from_model(model))
    raw = 3 * sample(np.random.default_rng(1), VECTOR, 100)
    expected, _ = model.predict(env.normalize_obs(raw), deterministic=True)
    np.testing.assert_allclose(actions(policy, raw), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("case", [CASES[1], CASES[4]], ids=["DQN", "SAC"])
def test_a_template_means_the_same_in_another_process(case: Any):
    model = build(case)
    template = Template(model)
    there = pickle.loads(pickle.dumps(template))
    assert there.places == template.places
    assert there.initial.head.kind == template.initial.head.kind
    flat = flat_of(template, model)
    assert_same(there.policy(flat), from_model(model, distribution=True))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_is_refused_and_its_layer_named(bad: float):
    model = build(CASES[2])
    template = Template(model)
    flat = flat_of(template, model)
    for place in template.places:
        poisoned = flat.copy()
        poisoned[(place.start + place.stop) // 2] = bad
        with pytest.raises(QuarlError, match=f"{place.field} of layer '{place.op}' holds NaN or infinity"):
            template.policy(poisoned)


def test_the_policy_reads_the_vector_where_it_lies():
    template = Template(model := build(CASES[3]))
    flat = flat_of(template, model)
    for op in template.policy(flat).linear:
        assert np.shares_memory(op.weight, flat)
        assert np.shares_memory(op.bias, flat)


def test_a_layer_without_a_bias_keeps_its_zeros():
    model = build(CASES[0])
    q_net = model.policy.q_net.q_net
    q_net[0] = torch.nn.Linear(5, 12, bias=False)
    template = Template(model)
    assert ("q_net.q_net.0", "bias") not in {(place.op, place.field) for place in template.places}
    assert not template.policy(flat_of(template, model)).linear[0].bias.any()


def test_sac_gives_the_distribution_that_it_samples_from():
    model = build(CASES[4])
    model.learn(60)
    policy = from_model(model, distribution=True)
    assert policy.head.kind == "gaussian"
    assert final_linear(policy) == {"actor.mu", "actor.log_std"}
    observations = sample(np.random.default_rng(1), VECTOR, 50)
    with torch.no_grad():
        mean, log_std, _ = model.actor.get_action_dist_params(torch.as_tensor(observations))
    output = as_float(policy, observations)[policy.output]
    np.testing.assert_allclose(output[:, :2], mean.numpy(), rtol=0, atol=1e-5)
    np.testing.assert_allclose(output[:, 2:].clip(-20, 2), log_std.numpy(), rtol=0, atol=1e-5)
    assert from_model(model).head.kind == "tanh"
    np.testing.assert_allclose(actions(policy, observations), actions(from_model(model), observations), atol=1e-6)


def test_a_gaussian_head_by_hand():
    head = ActionHead("gaussian", np.float32([-2]), np.float32([2]))
    half = np.arctanh(0.5)
    assert head(np.float32([[half, 9], [-99, 0]])).tolist() == [[1], [-2]]
    generators = [np.random.default_rng(7) for _ in range(2)]
    noise = np.random.default_rng(7).standard_normal(1)
    sampled = head(np.float32([[half, np.log(0.1)], [half, -99]]), generators)
    np.testing.assert_allclose(sampled[0], 2 * np.tanh(half + 0.1 * noise), rtol=1e-6)
    np.testing.assert_allclose(sampled[1], [1], rtol=1e-6)  # exp(-20): a log_std far below is clamped, and nothing left


def test_state_dependent_noise_is_refused_in_one_line():
    model = SAC("MlpPolicy", Drift(VECTOR, BOX), use_sde=True, policy_kwargs={"net_arch": [8]}, buffer_size=10)
    with pytest.raises(UnsupportedError, match="use_sde=False"):
        Template(model)
    assert from_model(model).head.kind == "tanh"
