"""RecurrentPPO of sb3-contrib: its zip and the live model choose its own actions, over steps and resets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

import quarl
from quarl.calibration import quantize
from quarl.engines import load, run_all
from quarl.errors import QuarlError
from quarl.policy.graph import Policy
from quarl.policy.inputs import flatten
from quarl.quant.spec import EXACT, QuantSpec
from quarl.readers import find, sb3
from quarl.readers.extract import from_model
from sb3_archives import Still, assert_same, edit, kwargs_with, tensors_with

ROWS, STEPS, HIDDEN = 8, 250, 12
"""Sequences side by side, their steps, which are 2,000 observations in all, and numbers of the hidden state."""
PLAIN, WIDE = spaces.Box(-1, 1, (4,)), spaces.Box(-3, 2, (2,))
PARTS = spaces.Dict(a=PLAIN, b=spaces.Discrete(3), c=spaces.Box(-1, 1, (2, 2)))
SHARED = {"shared_lstm": True, "enable_critic_lstm": False}
VARIANTS: dict[str, tuple[spaces.Space[Any], spaces.Space[Any], dict[str, Any], dict[str, Any]]] = {
    "separate": (PLAIN, spaces.Discrete(3), {}, {}),
    "shared": (PLAIN, spaces.Discrete(4), SHARED, {}),
    "no critic LSTM": (PLAIN, WIDE, {"enable_critic_lstm": False, "activation_fn": torch.nn.ReLU}, {}),
    "two layers": (PLAIN, WIDE, {"n_lstm_layers": 2, "share_features_extractor": False}, {}),
    "no layers behind": (PLAIN, spaces.MultiDiscrete([3, 2]), {"net_arch": []}, {}),
    "bits": (spaces.Discrete(5), spaces.MultiBinary(3), {}, {}),
    "gSDE": (PLAIN, WIDE, {}, {"use_sde": True}),
    "squashed": (PLAIN, WIDE, {"squash_output": True}, {"use_sde": True}),
    "Dict": (PARTS, spaces.Discrete(3), {}, {}),
}
FLOAT = 2.0**-16
"""Bound on the difference of actions.

A gate sums 16 to 28 products of numbers below 4, in float32 in both: each sum is off by some 2^-20. Cells add up errors
of earlier steps, but forget gates near one half only double them. Behind them are three layers, which double them too.
"""


def built(name: str) -> RecurrentPPO:
    """A model of the variant, after one short update, whose outputs spread."""
    observed, actions, kwargs, options = VARIANTS[name]
    torch.manual_seed(0)
    observed.seed(0)
    model = RecurrentPPO(
        "MultiInputLstmPolicy" if isinstance(observed, spaces.Dict) else "MlpLstmPolicy",
        VecNormalize(DummyVecEnv([lambda: Still(observed, actions)]), norm_obs_keys=["a"] if "Dict" in name else None)
        if isinstance(observed, spaces.Dict | spaces.Box)
        else Still(observed, actions),
        policy_kwargs={"lstm_hidden_size": HIDDEN, "net_arch": [8]} | kwargs,
        **{"n_steps": 32, "n_epochs": 2, "device": "cpu", "seed": 0} | options,
    )
    if not isinstance(actions, spaces.MultiBinary):  # which sb3-contrib cannot train
        model.learn(32)
    with torch.no_grad():  # new last layers are a hundredth of others
        model.policy.action_net.weight.mul_(100)
    return model


def saved(model: RecurrentPPO, folder: Path) -> Path:
    """Its zip as RL Zoo has it."""
    run = folder / "ppo_lstm" / "Still-v0_1"
    (run / "Still-v0").mkdir(parents=True)
    model.save(run / "Still-v0.zip")
    if isinstance(model.get_env(), VecNormalize):
        model.get_env().save(str(run / "Still-v0" / "vecnormalize.pkl"))
        (run / "Still-v0" / "config.yml").write_text("normalize: true\n")
    return find.in_zoo(folder, "ppo_lstm", "Still-v0")


def sequences(model: RecurrentPPO) -> tuple[list[Any], np.ndarray, np.ndarray]:
    """Observations of each step, starts of episodes, and the actions that sb3-contrib chooses."""
    rng, env = np.random.default_rng(1), model.get_env()
    starts = rng.random((STEPS, ROWS)) < 0.05
    starts[0] = True
    observations, actions, state = [], [], None
    for start in starts:
        each = [model.observation_space.sample() for _ in range(ROWS)]
        keys = getattr(model.observation_space, "spaces", ())
        batch: Any = {key: np.stack([one[key] for one in each]) for key in keys} if keys else np.stack(each)
        seen = env.normalize_obs(batch) if isinstance(env, VecNormalize) else batch
        action, state = model.predict(seen, state, start, deterministic=True)
        observations.append(batch)
        actions.append(action)
    return observations, starts, np.array(actions)


def played(policy: Policy, engine: Any, observations: list[Any], starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Actions and joined rows of the policy, which carries its state."""
    state, actions, rows = np.tile(policy.state, (ROWS, 1)), [], []
    for batch, start in zip(observations, starts, strict=True):
        state[start] = policy.state
        seen = flatten(policy.inputs, batch)[0] if policy.inputs else batch
        rows.append(np.concatenate([seen, state], axis=1, dtype=np.float32))
        outputs = engine.run(rows[-1])
        actions.append(policy.head(outputs))
        state = outputs[:, policy.num_outputs :].copy()
    return np.array(actions), np.array(rows)


@pytest.mark.parametrize("name", VARIANTS)
def test_actions_over_steps_and_resets_are_those_of_sb3_contrib(name: str, tmp_path: Path):
    model = built(name)
    path = saved(model, tmp_path)
    policy, live = sb3.read_zip(path), from_model(model)
    assert_same(policy, live)
    assert (policy.provenance.algo, live.provenance.algo) == ("ppo_lstm", "ppo_lstm")
    assert policy.state.tolist() == [0] * 2 * HIDDEN * model.policy.lstm_actor.num_layers
    observations, starts, expected = sequences(model)
    for engine in ("reference", "litert"):
        actions, _ = played(policy, load(quantize(policy, EXACT), engine, batch=ROWS), observations, starts)
        if policy.head.is_discrete:
            np.testing.assert_array_equal(actions, expected)
            assert len(np.unique(expected.reshape(STEPS * ROWS, -1), axis=0)) > 1
        else:
            np.testing.assert_allclose(actions, expected, rtol=0, atol=FLOAT)
            assert (np.ptp(expected, axis=(0, 1)) > 0.1).all()
    # a policy that forgets would not
    forgetful, _ = played(policy, load(quantize(policy, EXACT), "reference"), observations, np.ones_like(starts))
    assert np.abs(forgetful - expected).max() > 0.01


def test_rows_of_a_quantized_agent_do_not_depend_on_their_order_or_batch(tmp_path: Path):
    model = built("two layers")
    policy = from_model(model)
    observations, starts, _ = sequences(model)
    _, rows = played(policy, load(quantize(policy, EXACT), "reference"), observations, starts)
    flat = rows.reshape(ROWS * STEPS, -1)
    quantized = quantize(policy, QuantSpec.parse("int8", mode="static"), flat)
    expected, order = load(quantized, "reference").run(flat), np.random.default_rng(2).permutation(len(flat))
    for engine in ("reference", "litert", "onnx"):
        for batch in (1, 7):
            np.testing.assert_array_equal(run_all(load(quantized, engine, batch=batch), flat[order]), expected[order])


class Hidden(gymnasium.ObservationWrapper[Any, Any, Any]):
    """CartPole that returns no velocities."""

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation * np.float32([1, 0, 1, 0])


def test_episodes_side_by_side_have_the_returns_of_the_library_s_own():
    env = Hidden(gymnasium.make("CartPole-v1"))
    kwargs = {"lstm_hidden_size": HIDDEN, "net_arch": [8]}
    model = RecurrentPPO("MlpLstmPolicy", env, policy_kwargs=kwargs, device="cpu", seed=0)
    with torch.no_grad():
        model.policy.action_net.weight.mul_(100)
    agent = quarl.from_sb3(model)
    results = [quarl.evaluate(agent, env=env, episodes=12, batch=batch) for batch in (1, 5)]
    returns = []
    for seed in results[0].seeds:
        (observation, _), state, ended, total = env.reset(seed=int(seed)), None, False, 0.0
        while not ended:
            action, state = model.predict(observation, state, np.array([state is None]), deterministic=True)
            observation, reward, terminated, truncated, _ = env.step(action)
            ended, total = terminated or truncated, total + float(reward)
        returns.append(total)
    for each in results:
        np.testing.assert_array_equal(each.returns, returns)


class Doubled(FlattenExtractor):
    """An extractor of one's own."""

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(observations)


def without(name: str) -> Any:
    return tensors_with(lambda state: state.pop(name))


def sized(name: str, *shape: int) -> Any:
    return tensors_with(lambda state: state.update({name: torch.zeros(shape)}))


OWN = "<class 'mine.Extractor'>"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without("lstm_actor.weight_hh_l0"), "'lstm_actor.weight_hh_l0' is missing"),
        (without("lstm_actor.weight_ih_l1"), "'lstm_actor.weight_hh_l1' does not belong"),
        (sized("lstm_actor.weight_hh_l0", 4 * HIDDEN, 3), "layer 0 of lstm_actor is not a plain LSTM; projected"),
        (sized("lstm_actor.weight_ih_l0", 4 * HIDDEN, 9), "lstm_actor.0"),
        (sized("lstm_actor.weight_ih_l0_reverse", 4 * HIDDEN, 4), "_reverse' does not belong to a known network"),
        (kwargs_with(features_extractor_class=OWN), "features extractor <class 'mine.Extractor'> is not supported"),
    ],
)
def test_a_damaged_or_foreign_lstm_is_refused_in_one_line(change: Any, words: str, tmp_path: Path):
    path = saved(built("two layers"), tmp_path)
    edit(path.parent, change)
    with pytest.raises(QuarlError, match=re.escape(words)) as caught:
        sb3.read_zip(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("observed", "policy", "kwargs", "words"),
    [
        (spaces.Box(0, 255, (3, 36, 36), np.uint8), "CnnLstmPolicy", {}, "policies with a memory read vectors"),
        (spaces.Box(-1, 1, (2, 3)), "MlpLstmPolicy", {}, "policies with a memory read vectors"),
        (PLAIN, "MlpLstmPolicy", {"features_extractor_class": Doubled}, "Doubled'> is not supported"),
    ],
)
def test_a_live_model_that_reads_no_vector_is_refused(observed: Any, policy: str, kwargs: Any, words: str):
    model = RecurrentPPO(policy, Still(observed, spaces.Discrete(2)), device="cpu", policy_kwargs=kwargs)
    with pytest.raises(QuarlError, match=re.escape(words)):
        from_model(model)
