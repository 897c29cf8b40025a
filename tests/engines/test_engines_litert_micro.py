"""Static .tflite files in TFLite Micro, whose kernels round a requantised sum twice: a few codes differ by one."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import networks
from quarl import engines
from quarl.calibration import quantize
from quarl.engines.litert import graph
from quarl.evaluation import record
from quarl.policy.graph import ActionHead, Policy, QuantizedPolicy
from quarl.policy.operators import Activation, Conv2d, Dense, Flatten, LayerNorm, Scale, mlp
from quarl.quant.spec import QuantSpec
from quarl.readers.load import read

runtime = pytest.importorskip("tflite_micro.python.tflite_micro.runtime")
ARENA = 2**20
"""Bytes; the agents take a few thousand."""
PRECISIONS = [
    ("fp32", "dynamic"),
    ("fp16", "dynamic"),
    ("bf16", "dynamic"),
    ("w8", "dynamic"),
    ("int8", "dynamic"),
    ("int4", "dynamic"),
    ("int8", "static"),
    ("int6", "static"),
    ("int4", "static"),
]
AGENTS = [
    "sb2/a2c/CartPole-v1.pkl",
    "sb2/ddpg/BipedalWalker-v2.pkl",
    "sb2/ddpg/HalfCheetahBulletEnv-v0.pkl",
    "sb2/ddpg/MountainCarContinuous-v0.pkl",
    "sb2/dqn/CartPole-v1.pkl",
    "sb2/ppo2/BipedalWalker-v2.pkl",
    "sb2/ppo2/HopperBulletEnv-v0.pkl",
    "sb3/a2c/CartPole-v1_1",
    "sb3/a2c/HalfCheetahBulletEnv-v0_1",
    "sb3/a2c/Hopper-v3_1",
    "sb3/ddpg/HopperBulletEnv-v0_1",
    "sb3/ddpg/MountainCarContinuous-v0_1",
    "sb3/dqn/Acrobot-v1_1",
    "sb3/dqn/CartPole-v1_1",
    "sb3/dqn/MountainCar-v0_1",
    "sb3/ppo/BipedalWalker-v3_1",
    "sb3/ppo/CartPole-v1_1",
    "sb3/ppo/HalfCheetah-v3_1",
    "sb3/ppo/HalfCheetahBulletEnv-v0_1",
    "sb3/ppo/LunarLander-v2_1",
    "sb3/ppo/MountainCarContinuous-v0_1",
]


def in_micro(content: bytes, x: np.ndarray) -> np.ndarray:
    """Outputs [n, out] of the file, one row after the other."""
    interpreter = runtime.Interpreter.from_bytes(content, arena_size=ARENA)
    rows = []
    for row in x:
        interpreter.set_input(row[None], 0)
        interpreter.invoke()
        rows.append(interpreter.get_output(0)[0].copy())
    return np.array(rows)


def reference(policy: QuantizedPolicy, x: np.ndarray) -> np.ndarray:
    """What the file of the policy is to give: actions, or the scores of discrete ones."""
    outputs = engines.run_all(engines.load(policy, "reference", batch=64), x)
    return outputs if policy.head.kind == "argmax" else policy.head(outputs)


@pytest.mark.parametrize(("precision", "mode"), PRECISIONS)
@pytest.mark.parametrize("name", list(networks.EVERY))
def test_files_act_there_or_say_that_they_cannot(name, precision, mode):
    policy, said = networks.EVERY[name](), []
    x = networks.observations(policy, 32)
    made = quantize(policy, QuantSpec.parse(precision, scheme="per-channel", mode=mode), x)
    content = graph.write(made, acts=True, say=said.append)
    if said:
        with pytest.raises(RuntimeError, match="failed to allocate"):
            in_micro(content, x)
    else:
        tolerance = 0.03 if mode == "static" else 2e-6  # a code is up to 0.015 here
        np.testing.assert_allclose(in_micro(content, x), reference(made, x), rtol=0, atol=tolerance)


def test_a_first_convolution_of_large_stride_is_for_litert_and_says_so():
    rng = np.random.default_rng(0)
    ops = [
        Scale("scaled", ("observation",), np.array(1 / 255, np.float32)),
        Conv2d(
            "conv", ("scaled",), np.float32(rng.normal(size=(6, 4, 8, 8)) / 16), np.zeros(6, np.float32), (4, 4), (0, 0)
        ),
        Activation("relu", ("conv",), "relu"),
        Flatten("flat", ("relu",)),
        *mlp(networks.layers(rng, [6 * 4 * 4, 16, 3]), "relu", "flat"),
    ]
    policy = Policy(observation_shape=(4, 20, 20), observation_dtype="uint8", ops=tuple(ops), head=ActionHead("argmax"))
    x, said = networks.observations(policy, 8), []
    made = quantize(policy, QuantSpec.parse("int8", mode="static"), x)
    content = graph.write(made, acts=True, say=said.append)
    assert "transposing six axes" in said[0]
    with pytest.raises(RuntimeError, match="failed to allocate"):
        in_micro(content, x)


@pytest.mark.parametrize("kind", ["tanh", "sigmoid", "elu", "leaky_relu"])
def test_activations_that_are_looked_up_act_there_too(kind, monkeypatch):
    policy = networks.dense([5, 33, 21, 3], kind)
    x = networks.observations(policy, 64)
    made = quantize(policy, QuantSpec.parse("int8", mode="static"), x)
    monkeypatch.setattr(graph, "steady_scale", lambda *_: None)
    np.testing.assert_allclose(in_micro(graph.write(made, acts=True), x), reference(made, x), atol=0.03)


def test_sac_s_means_are_taken_out_there_too():
    low = np.array([-1, -2, 0], np.float32)
    head = ActionHead("gaussian", low, low + np.float32([1, 4, 0.5]))
    policy = dataclasses.replace(networks.dense([4, 12, 6]), head=head)
    x = networks.observations(policy, 64)
    made = quantize(policy, QuantSpec.parse("int8", mode="static"), x)
    np.testing.assert_allclose(in_micro(graph.write(made, acts=True), x), reference(made, x), atol=0.03)


@pytest.mark.parametrize("seed", range(5))
def test_codes_that_a_layer_norm_reads_are_the_same_there(seed):
    """One that were off by one could be most of a row's deviation, which is divided by."""
    rng = np.random.default_rng(seed)
    first, (name, weight, bias), last = networks.layers(rng, [8, 64, 64, 3])
    ops = [*mlp([first], "relu"), Activation("bend", ("net.0",), "relu")]
    ops += [
        Dense(name, ("bend",), weight, np.float32(bias)),
        LayerNorm("norm", (name,), *np.float32([[1] * 64, [0] * 64]), 1e-5),
    ]
    policy = Policy(observation_shape=(8,), ops=(*ops, *mlp([last], "relu", "norm")), head=ActionHead("argmax"))
    x = networks.observations(policy, 400)
    made = quantize(policy, QuantSpec.parse("int8", mode="static"), x)
    np.testing.assert_allclose(in_micro(graph.write(made, acts=True), x), reference(made, x), rtol=0, atol=1e-5)


@pytest.mark.parametrize("agent", AGENTS)
def test_static_int8_agents_act_there_as_the_reference_does(agents, agent):
    """On 512 observations of its own episodes: equal greedy actions, or continuous ones near in the action range."""
    policy = read(agents / agent)
    exact = engines.load(quantize(policy, QuantSpec.parse("fp32")), batch=2)
    x = record(policy, "calibration", engine=exact, num=1024, min_episodes=2)
    made = quantize(policy, QuantSpec.parse("int8", mode="static"), x[::2])
    found, expected = in_micro(graph.write(made, acts=True), x[1::2]), reference(made, x[1::2])
    assert len(found) == 512
    if policy.head.kind == "argmax":
        assert (found.argmax(axis=1) == expected.argmax(axis=1)).mean() >= 0.99
    else:
        assert (np.abs(found - expected) / (policy.head.high - policy.head.low)).max() <= 0.05
