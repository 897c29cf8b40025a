"""Static .tflite files in TFLite Micro, whose kernels round a requantised sum twice, against the reference in that."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import networks
import require
from quarl import engines
from quarl.calibration import quantize
from quarl.engines import reference
from quarl.engines.litert import subgraph
from quarl.evaluation import record
from quarl.export import runtimes
from quarl.policy.graph import ActionHead, ActivationGrid, Policy, QuantizedPolicy
from quarl.policy.operators import Activation, Conv2d, Dense, Flatten, LayerNorm, QuantizedTensor, Scale, mlp
from quarl.quant.affine import requantize_twice
from quarl.quant.spec import QuantSpec
from quarl.readers.load import read

runtime = require.module("tflite_micro.python.tflite_micro.runtime")
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
    "sb2/ddpg/BipedalWalker-v2.pkl",
    "sb2/ppo2/HopperBulletEnv-v0.pkl",
    "sb3/a2c/CartPole-v1_1",
    "sb3/ddpg/MountainCarContinuous-v0_1",
    "sb3/dqn/CartPole-v1_1",
    "sb3/ppo/LunarLander-v2_1",
]
"""One of each algorithm; tests/stress/runtimes.py runs all of them."""


def in_micro(content: bytes, x: np.ndarray) -> np.ndarray:
    """Outputs [n, out] of the file, one row after the other."""
    interpreter = runtime.Interpreter.from_bytes(content, arena_size=ARENA)
    rows = []
    for row in x:
        interpreter.set_input(row[None], 0)
        interpreter.invoke()
        rows.append(interpreter.get_output(0)[0].copy())
    return np.array(rows)


def wanted(policy: QuantizedPolicy, x: np.ndarray) -> np.ndarray:
    """What the file of the policy is to give there: actions, or the scores of discrete ones."""
    outputs = engines.run_all(reference.load(policy, 64, "q31-double"), x)
    return outputs if policy.head.is_discrete else policy.head(outputs)


def held(policy: QuantizedPolicy, x: np.ndarray, content: bytes | None = None) -> None:
    """Asserts that the file gives it, bit for bit where no tanh of an action is in between."""
    got, expected = in_micro(content or subgraph.write(policy, acts=True), x), wanted(policy, x)
    if policy.head.kind in ("tanh", "gaussian"):
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)
    else:
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(("precision", "mode"), PRECISIONS)
@pytest.mark.parametrize("name", list(networks.EVERY))
def test_files_act_there_or_say_that_they_cannot(name, precision, mode):
    policy, said = networks.EVERY[name](), []
    x = networks.observations(policy, 32)
    made = quantize(policy, QuantSpec.parse(precision, scheme="per-channel", mode=mode), x)
    content = subgraph.write(made, acts=True, say=said.append)
    if said:
        with pytest.raises(RuntimeError, match="failed to allocate"):
            in_micro(content, x)
    elif mode == "static" and name != "softmax":
        held(made, x, content)
    else:
        tolerance = 0.03 if mode == "static" else 2e-6  # an exp that differs moves a code, which is up to 0.015 here
        np.testing.assert_allclose(in_micro(content, x), wanted(made, x), rtol=0, atol=tolerance)


def nature_cnn(rng: np.random.Generator) -> Policy:
    """The network of Mnih et al. (2015) over four frames, with random weights."""
    ops, source, channels = [Scale("scaled", ("observation",), np.array(1 / 255, np.float32))], "scaled", 4
    for index, (filters, size, stride) in enumerate([(32, 8, 4), (64, 4, 2), (64, 3, 1)]):
        weight = rng.normal(size=(filters, channels, size, size)) / np.sqrt(channels * size**2)
        bias = np.float32(rng.normal(size=filters) * 0.1)
        ops += [
            Conv2d(f"conv.{index}", (source,), np.float32(weight), bias, (stride, stride)),
            Activation(f"relu.{index}", (f"conv.{index}",), "relu"),
        ]
        source, channels = f"relu.{index}", filters
    ops += [Flatten("flat", (source,)), *mlp(networks.layers(rng, [3136, 512, 6]), "relu", "flat")]
    return Policy(observation_shape=(4, 84, 84), observation_dtype="uint8", ops=tuple(ops), head=ActionHead("argmax"))


def test_nature_cnn_runs_there_in_100_kilobytes(tmp_path):
    policy = nature_cnn(np.random.default_rng(0))
    x, path = networks.observations(policy, 4), tmp_path / "nature.tflite"
    made = quantize(policy, QuantSpec.parse("int8", scheme="per-channel", mode="static"), x)
    path.write_bytes(subgraph.write(made, acts=True))
    held(made, x, path.read_bytes())
    np.testing.assert_array_equal(runtimes.load("litert", path).run(x), engines.load(made, batch=4).run(x))
    assert 56_448 < runtimes.arena(path) <= 100_000  # two frames, of which one is made of the other


@pytest.mark.parametrize("kind", ["tanh", "sigmoid", "elu", "leaky_relu"])
def test_activations_that_are_looked_up_act_there_too(kind, monkeypatch):
    policy = networks.dense([5, 33, 21, 3], kind)
    x = networks.observations(policy, 64)
    made = quantize(policy, QuantSpec.parse("int8", mode="static"), x)
    monkeypatch.setattr(subgraph, "steady_scale", lambda *_: None)
    held(made, x)


def test_sac_s_means_are_taken_out_there_too():
    low = np.array([-1, -2, 0], np.float32)
    head = ActionHead("gaussian", low, low + np.float32([1, 4, 0.5]))
    policy = dataclasses.replace(networks.dense([4, 12, 6]), head=head)
    x = networks.observations(policy, 64)
    made = quantize(policy, QuantSpec.parse("int8", mode="static"), x)
    held(made, x)


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
    held(made, x)


@pytest.mark.slow
@pytest.mark.parametrize("agent", AGENTS)
def test_static_int8_agents_act_there_as_the_reference_does(agents, agent):
    """On 512 observations of its own episodes."""
    policy = read(agents / agent)
    exact = engines.load(quantize(policy, QuantSpec.parse("fp32")), batch=2)
    x = record(policy, "calibration", engine=exact, num=1024, min_episodes=2)
    made = quantize(policy, QuantSpec.parse("int8", mode="static"), x[::2])
    held(made, x[1::2])


@pytest.mark.parametrize(
    ("multiplier", "sums", "codes"),
    [
        (0.5, [1, 3, -1, -3, 2], [1, 2, 0, -1, 1]),  # ties of the first rounding go up
        (0.25, [1, 2, -2, -1, 6], [1, 1, -1, 0, 2]),  # 0.25 becomes 0.5 of the second, which then rounds away from 0
        (3.0, [1, -2, 100, -100], [3, -6, 127, -128]),
        (2.0**-40, [2**31 - 1], [0]),
    ],
)
def test_sums_are_requantised_by_integers_rounded_twice(multiplier, sums, codes):
    got = requantize_twice(np.array(sums), np.float32([multiplier]), 0, -128, 127)
    assert got.tolist() == codes


def test_ties_and_large_multipliers_are_rounded_as_there():
    """Weights and inputs are codes; sums are all that there are of two inputs, times powers of two."""
    grid = ActivationGrid(scale=1.0, zero_point=3)
    weight = QuantizedTensor(
        np.int8([[1, 0], [3, -1], [1, 127], [64, 5]]), np.float32([0.5, 0.25, 2**-9, 1.5]), np.zeros(4, np.int32), 8
    )
    last = QuantizedTensor(np.eye(4, dtype=np.int8), np.ones(4, np.float32), np.zeros(4, np.int32), 8)
    ops = (
        Dense("hidden", ("observation",), weight, np.zeros(4, np.float32)),
        Dense("last", ("hidden",), last, np.zeros(4, np.float32)),
    )
    policy = QuantizedPolicy(
        observation_shape=(2,),
        ops=ops,
        head=ActionHead("argmax"),
        spec=QuantSpec.parse(8, scheme="per-channel", mode="static"),
        grids={"observation": grid, "hidden": grid},
    )
    x = (
        np.stack(np.meshgrid(np.arange(-131, 125, 5), np.arange(-131, 125, 3)), axis=-1)
        .reshape(-1, 2)
        .astype(np.float32)
    )
    held(policy, x)
    held(policy, x[:50] + np.float32(0.5))  # ties of observations
