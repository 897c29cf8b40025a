"""What a model computes with fake quantisation is what its integers compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from learners import ALGORITHMS, Pictures, make, prepared
from stable_baselines3 import A2C, DQN, PPO, SAC
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from torch import nn

from quarl import engines, qat
from quarl.algorithms.d4pg import D4PG
from quarl.engines.reference import Reference
from quarl.errors import QuarlError, UnsupportedError
from quarl.policy.artifact import read, write
from quarl.policy.operators import QuantizedTensor
from quarl.qat.fake_layers import QatConv2d
from quarl.readers import sb3


def observations(model: Any, num: int = 400) -> np.ndarray:
    """What the model sees in its own rollouts."""
    env = model.get_env()
    row, rows = env.reset(), []
    while len(rows) < num:
        rows.append(row[0])
        action, _ = model.predict(row)
        row, *_ = env.step(action)
    return np.stack(rows)


def agree(model: Any, *names: str, share: float = 1.0) -> None:
    """Engines take the model's actions: greedy ones nearly always, continuous ones within a hundredth of their range.

    share: of the observations on which continuous ones have to; a sum next to a tie may move one code.
    """
    rows = observations(model)
    policy = qat.quantized_policy(model)
    expected, _ = model.predict(rows, deterministic=True)
    for name in names:
        actions = policy.head(engines.run_all(engines.load(policy, name, batch=50), rows))
        if policy.head.kind == "argmax":
            assert (actions == expected).mean() >= 0.999
        else:
            span = policy.head.high - policy.head.low
            assert (np.abs(actions - expected) <= 0.01 * span).mean() >= share


def trained(algo: str, spec: qat.QatSpec, **kwargs: Any) -> Any:
    model = prepared(algo, spec, **kwargs)
    return model.learn(256, callback=qat.QuantDelay(128))


@pytest.mark.slow
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_integers_act_as_the_model_does(algo: str):
    agree(trained(algo, qat.QatSpec.parse("w4a8")), "reference", "litert", "onnx")


@pytest.mark.slow
@pytest.mark.parametrize(("text", "bits"), [("w2a8e8", (8, 2, 8)), ("w3a8e8", (8, 3, 8)), ("w2a8", (2, 2, 2))])
def test_edges_and_grids_without_a_level_at_0_are_deployed_as_they_are_trained(text: str, bits: Any):
    for algo in ("dqn", "ppo"):
        model = trained(algo, qat.QatSpec.parse(text))
        agree(model, "reference", "litert", "onnx")
        policy = qat.quantized_policy(model)
        assert policy.spec.precision == f"int{text.replace('a8', '')[1:]}"
        assert tuple(op.weight.bits for op in policy.linear) == bits
        for op, layer in zip(policy.linear, bits, strict=True):
            assert op.weight.mid_rise == (layer < 4)
            if op.weight.mid_rise:
                assert (op.weight.codes % 2 == 1).all()
                assert np.abs(op.weight.codes).max() == 2**layer - 1


@pytest.mark.slow
def test_scores_of_integers_are_those_of_training():
    """But for what they have in common. Biases too are trained as integers have them, in the unit of a layer's sums."""
    model = trained("dqn", qat.QatSpec.parse("w4a8"))
    rows = observations(model)
    with torch.no_grad():
        expected = model.q_net(torch.from_numpy(rows)).numpy()
    found = engines.run_all(engines.load(qat.quantized_policy(model), "reference", batch=50), rows)
    errors = (found - found.mean(axis=1, keepdims=True)) - (expected - expected.mean(axis=1, keepdims=True))
    assert (np.abs(errors).max(axis=1) < 1e-5 * np.abs(expected).max()).mean() > 0.99


@pytest.mark.slow
def test_what_action_values_have_in_common_costs_no_bits():
    model = prepared("dqn", "w2a8")
    last = model.q_net.q_net[-1]
    with torch.no_grad():
        last.weight += 100 * torch.rand(1, last.in_features)  # hundreds of times what the two actions differ by
    model.learn(256, callback=qat.QuantDelay(128))
    weight = last.weight.detach()
    kept = last.computed().weight.detach()
    torch.testing.assert_close(kept.mean(0), weight.mean(0), rtol=0, atol=float((weight[0] - weight[1]).abs().max()))
    assert len((kept - weight.mean(0)).abs().round(decimals=4).unique()) == 2  # codes -1, 0, 1 of a symmetric layer
    assert (kept - weight).abs().max() < (weight[0] - weight[1]).abs().max()
    agree(model, "reference", "litert")


def test_a_value_networks_output_is_rounded_whole():
    model = prepared("ppo", qat.QatSpec.parse("w2a8", critic=True))
    assert model.policy.action_net.plan.scores
    assert not model.policy.value_net.plan.scores


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"observation_bits": 8},
        {"output_bits": 8},
        {"skip": ("q_net.q_net.2",)},
    ],
    ids=str,
)
def test_every_option_reaches_the_integers(options: Any):
    model = trained("dqn", qat.QatSpec.parse("w4a8", **options))
    agree(model, "reference", "litert")
    weights = [op.weight for op in qat.quantized_policy(model).linear if isinstance(op.weight, QuantizedTensor)]
    assert len(weights) == 3 - len(options.get("skip", ()))
    assert weights[-1].bits == options.get("output_bits", 4)


@pytest.mark.slow
@pytest.mark.parametrize("function", [nn.Tanh, nn.ELU, nn.LeakyReLU])
@pytest.mark.parametrize("skip", ["action_net", "mlp_extractor.policy_net.2"])
def test_activations_that_only_a_skipped_layer_reads_stay_as_they_are(function: Any, skip: str):
    model = trained(
        "ppo", qat.QatSpec.parse("w8a8", skip=(skip,)), policy_kwargs={"activation_fn": function, "net_arch": [16, 16]}
    )
    rows = observations(model)
    with torch.no_grad():
        expected = model.policy.get_distribution(torch.from_numpy(rows)).distribution.logits.numpy()
    policy = qat.quantized_policy(model)
    for name in ("reference", "litert"):
        found = engines.run_all(engines.load(policy, name, batch=50), rows)
        errors = (found - found.mean(axis=1, keepdims=True)) - (expected - expected.mean(axis=1, keepdims=True))
        assert np.abs(errors).max() < 1e-5


@pytest.mark.slow
def test_values_narrower_than_a_kernel_s_are_simulated():
    """int8 kernels would not saturate where training did."""
    model = trained("ppo", qat.QatSpec.parse("w8a8", observation_bits=3))
    policy = qat.quantized_policy(model)
    assert policy.grids["observation"].bits == 3
    for name in ("litert", "onnx"):
        with pytest.raises(UnsupportedError, match="observation"):
            engines.load(policy, name)
    agree(model, engines.load_fitting(policy).name)


@pytest.mark.slow
@pytest.mark.parametrize("text", ["w4a4", "w4", "w12a8", "w8a12"])
def test_what_has_no_kernels_is_simulated_by_the_reference(text: str):
    agree(trained("dqn", qat.QatSpec.parse(text)), "reference")
    agree(trained("sac", qat.QatSpec.parse(text)), "reference", share=0.99)


@pytest.mark.slow
@pytest.mark.parametrize(("cls", "continuous"), [(PPO, False), (A2C, True), (DQN, False), (SAC, True), (D4PG, True)])
def test_a_network_on_images_acts_as_its_integers_do_also_when_it_is_loaded(cls: Any, continuous: bool, tmp_path: Any):
    small = {"n_steps": 16} if cls in (PPO, A2C) else {"learning_starts": 8, "buffer_size": 200, "batch_size": 8}
    small |= {"batch_size": 16} if cls is PPO else {}
    model = cls("CnnPolicy", Pictures(continuous=continuous), seed=0, device="cpu", **small)
    qat.prepare(model, "w8a8")
    model.learn(48, callback=qat.QuantDelay(16))
    model.save(tmp_path / "model")
    model = cls.load(tmp_path / "model", env=model.get_env(), device="cpu")
    for engine in ("reference", "litert"):
        rows = observations(model, 30)
        policy = qat.quantized_policy(model)
        outputs = engines.run_all(engines.load(policy, engine, batch=10), rows)
        expected, _ = model.predict(rows, deterministic=True)
        actions = policy.head(outputs)
        assert (actions == expected).all() if not continuous else np.abs(actions - expected).max() <= 0.02


@pytest.mark.slow
@pytest.mark.parametrize("text", ["w4a8", "w2a8e8"])
def test_convolutions_give_the_codes_of_integers_without_exception(text: str):
    """Summed in float32, 40 of these 960,000 numbers and more end on another code."""
    model = DQN("CnnPolicy", Pictures(), seed=0, device="cpu", learning_starts=8, buffer_size=200, batch_size=8)
    qat.prepare(model, qat.QatSpec.parse(text))
    model.learn(48, callback=qat.QuantDelay(16))
    policy = qat.quantized_policy(model)
    found: dict[str, Any] = {}
    for name, layer in model.q_net.named_modules():
        if isinstance(layer, QatConv2d):
            layer.register_forward_hook(
                lambda layer, inputs, output, name=name: found.update({f"q_net.{name}": output})
            )
    rows = np.random.default_rng(0).integers(0, 256, (300, *model.observation_space.shape), np.uint8)
    with torch.no_grad():
        model.q_net(torch.from_numpy(rows))
    assert len(found) == 3
    expected = Reference(policy, batch=1).trace(rows)
    for name, ours in found.items():
        steps = (ours.numpy().clip(0) - expected[name].clip(0)) / policy.grids[name].scale
        assert np.abs(steps).max() < 0.01


def test_pixels_lose_nothing_in_front_of_the_first_layer():
    model = DQN("CnnPolicy", Pictures(), device="cpu", learning_starts=8, buffer_size=200, batch_size=8)
    qat.prepare(model, "w8a8")
    model.learn(32, callback=qat.QuantDelay(16))
    layer = model.q_net.features_extractor.cnn[0]
    pixels = torch.arange(256, dtype=torch.float32) / 255
    with torch.no_grad():
        torch.testing.assert_close(layer.before(pixels), pixels, rtol=0, atol=1e-7)


def test_a_converted_policy_is_saved_and_read_like_any_other(tmp_path: Any):
    model = trained("ppo", qat.QatSpec.parse("w4a8", output_bits=8))
    policy = qat.quantized_policy(model)
    write(policy, tmp_path / "policy.quarl")
    again = read(tmp_path / "policy.quarl")
    rows = observations(model, 50)
    run = engines.run_all(engines.load(policy, "litert", batch=10), rows)
    assert np.array_equal(run, engines.run_all(engines.load(again, "litert", batch=10), rows))
    assert policy.spec.mode == "static"
    assert policy.spec.weight_bits == 4


@pytest.mark.slow
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_the_float_policy_in_a_zip_is_read_without_running_anything(algo: str, tmp_path: Any):
    model = trained(algo, qat.QatSpec.parse("w4a8"))
    model.save(tmp_path / "model.zip")
    policy = sb3.read_zip(tmp_path / "model.zip", trained=False)
    assert policy.provenance.algo == algo
    weights = {op.name: op.weight for op in policy.linear}
    for name, weight in weights.items():
        assert np.array_equal(weight, model.policy.get_submodule(name).weight.detach().numpy())


@pytest.mark.parametrize("text", ["w8a8", "w2a8"])
def test_a_bias_far_above_its_row_of_weights_coarsens_their_grid_in_training_and_deployment(text: str):
    """A row of zeros and one of tiny weights, as in training on observations near 0: float kernels sum 24 bits."""
    model = trained("dqn", qat.QatSpec.parse(text))
    layer = model.q_net.q_net[0]
    with torch.no_grad():
        layer.weight[0], layer.weight[1] = 0, 1e-5
        layer.bias[:3] = torch.tensor([30.0, 300.0, 0.01])
    model.policy.set_training_mode(True)  # drops what is cached of the former weights
    model.policy.set_training_mode(False)
    policy = qat.quantized_policy(model)
    op = policy.linear[0]
    assert policy.grids["observation"].bits > 8
    scale = layer.rounded(layer.weight)[1].flatten().detach().numpy()
    assert np.array_equal(scale, op.weight.scale)
    assert np.array_equal(layer.computed().weight.detach().numpy(), op.weight.codes * scale[:, None])
    assert np.abs(op.bias / (scale * policy.grids["observation"].scale)).max() <= 2**23
    agree(model, "reference", "litert")


def test_a_model_that_was_not_trained_with_quantisation_is_not_converted():
    model = make("ppo")
    with pytest.raises(QuarlError, match="not prepared"):
        qat.convert(model)
    qat.prepare(model, "w8a8")
    model.learn(128, callback=qat.QuantDelay(10**6, allow_inactive=True))
    with pytest.raises(QuarlError, match=r"was never active .*: learn with callback=qat.QuantDelay\(\)"):
        qat.convert(model)


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["ppo", "td3"])
def test_what_is_converted_predicts_evaluates_and_saves(algo: str, tmp_path: Path):
    model = trained(algo, qat.QatSpec.parse("w4a8"))
    agent = qat.convert(model)
    rows = observations(model, 50)
    expected, _ = model.predict(rows, deterministic=True)
    found, _ = agent.predict(rows)
    tolerance = 0.01 * (agent.policy.head.high - agent.policy.head.low) if algo == "td3" else 0
    assert (np.abs(found - expected) <= tolerance).mean() >= 0.99
    played = agent.evaluate(episodes=2)
    returns, _ = evaluate_policy(agent, model.get_env(), n_eval_episodes=2, return_episode_rewards=True)
    assert len(returns) == len(played.returns) == 2
    for name in ("agent.safetensors", "agent.tflite", "agent.onnx"):
        agent.save(tmp_path / name)
    again = read(tmp_path / "agent.safetensors")
    assert (again.spec.precision, again.spec.mode) == ("int4", "static")


def test_a_converted_agent_reads_raw_observations_of_a_normalised_environment():
    env = VecNormalize(DummyVecEnv([lambda: gymnasium.make("Pendulum-v1")]))
    model = PPO("MlpPolicy", env, n_steps=64, batch_size=32, n_epochs=2, seed=0, device="cpu")
    qat.prepare(model, "w8a8")
    model.learn(256, callback=qat.QuantDelay(64))
    raw = np.array([[0.1, 0.99, 5.0], [-0.8, 0.6, -2.0]], np.float32)
    expected, _ = model.predict(env.normalize_obs(raw), deterministic=True)
    np.testing.assert_allclose(qat.convert(model).predict(raw)[0], expected, atol=0.04)  # 1 % of the range
