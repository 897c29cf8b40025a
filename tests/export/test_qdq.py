"""Files of QuantizeLinear and DequantizeLinear pairs, in the runtimes that read them."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import networks
import require
from quarl import engines
from quarl.calibration import quantize
from quarl.engines.numpy_operators import apply
from quarl.engines.onnx import write
from quarl.engines.reference import Reference, _channels, _integers, _per_row
from quarl.engines.sums import requantization
from quarl.errors import QuarlError, UnsupportedError
from quarl.evaluation import record
from quarl.export import qdq, runtimes
from quarl.policy.graph import ActionHead, ActivationGrid, Policy, QuantizedPolicy
from quarl.policy.operators import (
    OBSERVATION,
    Activation,
    Dense,
    L2Norm,
    LayerNorm,
    Normalize,
    Pool2d,
    QuantizedTensor,
    Softmax,
)
from quarl.quant.spec import QuantSpec
from quarl.readers.load import read

RUNTIMES = ("ort", "tract", "openvino")
AGENTS = ["sb2/dqn/CartPole-v1.pkl", "sb3/ddpg/MountainCarContinuous-v0_1", "sb3/dqn/CartPole-v1_1"]
"""tests/stress/runtimes.py runs all of them."""


def static(policy, x, precision="int8"):
    return quantize(policy, QuantSpec.parse(precision, scheme="per-channel", mode="static"), x)


UNIT = 2**-24
"""What one float32 operation is off by at most, relatively."""


def gamma(count: int) -> float:
    """Return what `count` float32 operations, in any order, are off by at most: n u / (1 - n u) of the magnitudes."""
    return count * UNIT / (1 - count * UNIT)


class Ties(Reference):
    """The reference, which marks the rows that have a number next to a rounding tie.

    A runtime sums in an order of its own, and some add a zero point, 128 steps at most, before they round. So a code
    moves only if its number is nearer to a tie than gamma(n) of the magnitudes that went into it. n counts the
    operations since the last codes: the terms of a sum, and 8 for the scales, the bias and the zero point; a function
    is good for 32, the last 5 of 24 bits.
    """

    def __init__(self, policy: QuantizedPolicy, batch: int) -> None:
        super().__init__(policy, batch)
        self.count, self.tied = {OBSERVATION: 0}, np.zeros(batch, bool)

    def mark(self, steps, magnitude, q) -> None:
        steps, codes = np.float64(steps), np.float64(steps) + q.zero_point
        near = np.abs(steps - np.floor(steps) - 0.5) <= gamma(self.n) * (magnitude + 128)
        near &= (codes > q.qmin - 1) & (codes < q.qmax + 1)  # a code at the end of its range stays there
        self.tied |= near.reshape(self.batch, -1).any(axis=1)

    def quantized(self, x, grid):
        steps = np.float64(x.reshape(len(x), -1)) / np.float64(np.float32(grid.scale))
        self.mark(steps, np.abs(steps).max(axis=1, keepdims=True), grid.qparams)
        return super().quantized(x, grid)

    def bent(self, op, x, target):
        self.quantized(apply(op, [x]), target)
        self.n = 0
        return super().bent(op, x, target)

    def _other(self, op, inputs):
        sums = {
            Pool2d: lambda: math.prod(op.kernel),
            LayerNorm: lambda: 4 * op.weight.size,
            L2Norm: lambda: op.size,
            Softmax: lambda: op.size,
        }
        function = 32 * isinstance(op, Activation | LayerNorm | L2Norm | Softmax)
        self.n = max(self.count[name] for name in op.inputs) + sums.get(type(op), int)() + 8 + function
        value = super()._other(op, inputs)
        self.count[op.name] = self.n
        return value

    def _linear(self, op, x):
        self.n, self.count[op.name] = self.count[op.inputs[0]] + 8, 0
        return super()._linear(op, x)

    def _accumulate(self, op, x, codes, zero_point):
        self.magnitude = _per_row(op, np.abs(np.float64(codes) - zero_point).reshape(x.shape), abs(_integers(op)))
        return super()._accumulate(op, x, codes, zero_point)

    def requantized(self, op, sums, multiplier, source):
        grid = self.policy.grids[op.name]
        bias, _ = requantization(op, op.weight, source, grid)
        self.n = math.prod(op.weight.shape[1:]) + 8
        magnitude = (self.magnitude + np.abs(_channels(bias, sums.ndim))) * multiplier
        self.mark(sums * np.float64(multiplier), magnitude, grid.qparams)
        return super().requantized(op, sums, multiplier, source)


def held(name, path, policy, x):
    """Asserts that all rows without a tie are the reference's, up to the roundings of the last layer and the head."""
    require.runtime(name)
    path.write_bytes(qdq.write(policy))
    runtime, reference = runtimes.load(name, path), Ties(policy, len(x))
    outputs, seven = reference.run(x), np.asarray(runtime.row(x[:7])).reshape(7, -1)
    got = np.concatenate([seven, runtime.run(x[7:])])  # rows together, and each on its own
    assert runtime.arithmetic == "qdq"
    sure = ~reference.tied
    assert sure.any()
    if policy.head.is_discrete:
        np.testing.assert_array_equal(policy.head(got[sure]), policy.head(outputs[sure]))
        expected, span = outputs, np.abs(outputs).max()
    else:
        expected, span = policy.head(outputs), policy.head.high - policy.head.low
    assert (np.abs(got - expected) / span)[sure].max() <= gamma(40)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("name", list(networks.EVERY))
def test_every_operator_acts_as_in_the_reference(tmp_path, name, runtime):
    policy = networks.EVERY[name]()
    x = networks.observations(policy, 100)
    held(runtime, tmp_path / "policy.onnx", static(policy, x[:50]), x)


@pytest.mark.parametrize("agent", AGENTS)
def test_agents_act_as_in_the_reference_in_every_runtime(agents, tmp_path, agent):
    policy = read(agents / agent)
    x = record(policy, "calibration", engine=engines.load(quantize(policy, QuantSpec.parse("fp32")), batch=2), num=512)
    made = quantize(policy, QuantSpec.parse("int8", mode="static"), x[::2])
    for runtime in RUNTIMES:
        held(runtime, tmp_path / "policy.onnx", made, x[1::2])


def test_a_layer_is_its_codes_between_the_pairs_of_its_grids(tmp_path):
    """0.6 is a step of 0.5; 0.5 * 0.75 + 0.25 is 2.5 steps of 0.25, which are 2, ties to even; 0.5 * 1 + 0.5 is 1."""
    numbers = {"scale": np.float32([0.25]), "zero_point": np.zeros(1, np.int32), "bits": 8}
    ops = (
        Dense("hidden", ("observation",), QuantizedTensor(np.int8([[3]]), **numbers), np.float32([0.25])),
        Dense("last", ("hidden",), QuantizedTensor(np.int8([[4]]), **numbers), np.float32([0.5])),
    )
    policy = QuantizedPolicy(
        observation_shape=(1,),
        ops=ops,
        head=ActionHead("clip", np.float32([-9]), np.float32([9])),
        spec=QuantSpec.parse(8, scheme="per-channel", mode="static"),
        grids={
            "observation": ActivationGrid(scale=0.5, zero_point=7),
            "hidden": ActivationGrid(scale=0.25, zero_point=-3),
        },
    )
    content = qdq.write(policy)
    path = tmp_path / "hand.onnx"
    path.write_bytes(content)
    np.testing.assert_array_equal(
        runtimes.load("ort", path).run(np.float32([[0.6], [-100.0], [0.0]])), [[1], [-9], [0.75]]
    )
    model = onnx.load_from_string(content)
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    assert constants["hidden.weight"].tolist() == [[3]]
    assert constants["hidden.steps"].tolist() == [2]  # 0.25 in steps of 0.5 * 0.25
    assert (model.opset_import[0].version, model.ir_version) == (13, 7)
    kinds = [node.op_type for node in model.graph.node if not node.input[0].startswith(("hidden.", "last."))]
    pair = ["QuantizeLinear", "DequantizeLinear"]
    # the last layer reads the codes less their zero point, whose sums are exact
    assert kinds == [*pair, "Gemm", *pair, "DequantizeLinear", "Gemm", "Mul", "Add", "Min", "Max", "Identity"]


def test_four_bits_travel_in_bytes_and_a_wide_observation_is_rounded_without_a_pair(tmp_path):
    policy = networks.dense([5, 16, 3])
    x = networks.observations(policy, 64)
    made = static(policy, x, "int4")
    held("ort", tmp_path / "policy.onnx", made, x)
    nodes = [node.op_type for node in onnx.load(tmp_path / "policy.onnx").graph.node]
    assert made.grids["observation"].bits > 8
    assert nodes[:8] == ["Mul", "Round", "Clip", "Cast", "Gemm", "Mul", "Round", "QuantizeLinear"]


@pytest.mark.parametrize("name", ["relu", "convolutional", "dueling"])
def test_symmetric_activations_leave_only_what_tensorrt_reads(tmp_path, name):
    policy = networks.EVERY[name]()
    x = networks.observations(policy, 64)
    spec = QuantSpec.parse("int8", scheme="per-channel", mode="static", symmetric_activations=True)
    for runtime in RUNTIMES:
        held(runtime, tmp_path / "policy.onnx", quantize(policy, spec, x), x)
    graph = onnx.load(tmp_path / "policy.onnx").graph
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    pairs = [node.input for node in graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
    assert pairs
    assert not any(constants[zero].any() for _, _, zero in pairs)
    assert {constants[codes].dtype for codes, *_ in pairs if codes in constants} == {np.dtype(np.int8)}  # no bias


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_mean_of_many_deviations_keeps_its_second_part(tmp_path, runtime):
    """A barometer at 101,325 Pa that varies by 0.01: the second part of its mean is a third of a deviation."""
    require.runtime(runtime)
    head = ActionHead("clip", np.full(4, -100, np.float32), np.full(4, 100, np.float32))
    mean = np.array([101325.0034, 287.123456, 0.5, 0.25])
    norm = Normalize("norm", (OBSERVATION,), mean, np.array([1e-4, 1e-4, 2.0, 1.0]), 0.0, math.inf)
    last = Dense("last", ("norm",), np.eye(4, dtype=np.float32), np.zeros(4, np.float32))
    policy = Policy(observation_shape=(4,), ops=(norm, last), head=head)
    x = (mean + np.random.default_rng(0).normal(size=(64, 4)) * [0.01, 0.01, 1, 1]).astype(np.float32)
    path = tmp_path / "policy.onnx"
    path.write_bytes(write(quantize(policy, QuantSpec.parse("fp32")), acts=True))
    np.testing.assert_array_equal(runtimes.load(runtime, path).run(x), norm(x))
    held(runtime, path, static(policy, x), x)


def test_metadata_lie_in_the_file():
    policy = networks.dense([5, 16, 3])
    file = qdq.write(static(policy, networks.observations(policy, 64)), metadata={"quarl.contract": "{}"})
    assert {entry.key: entry.value for entry in onnx.load_from_string(file).metadata_props} == {"quarl.contract": "{}"}


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_seven_rows_at_once_act_as_each_on_its_own(tmp_path, runtime):
    require.runtime(runtime)
    policy = networks.EVERY["sliced"]()
    x, path = networks.observations(policy, 64), tmp_path / "policy.onnx"
    path.write_bytes(qdq.write(static(policy, x)))
    loaded = runtimes.load(runtime, path)
    alone, together = loaded.run(x[:7]), np.asarray(loaded.row(x[:7]))
    assert together.shape == (7, policy.num_outputs)
    np.testing.assert_array_equal(policy.head(together), policy.head(alone))
    (value,) = onnx.load(path).graph.input
    assert value.type.tensor_type.shape.dim[0].dim_param == "batch"


def test_what_has_no_grids_is_refused():
    policy = networks.dense([5, 16, 3])
    for made in (
        quantize(policy, QuantSpec.parse("fp32")),
        quantize(policy, QuantSpec.parse("int8", scheme="per-channel")),
    ):
        with pytest.raises(UnsupportedError, match="onnx-qdq takes static int8 policies: use mode static"):
            qdq.write(made)
    narrow = static(policy, networks.observations(policy, 8))
    narrow = dataclasses.replace(
        narrow, grids=narrow.grids | {"net.0": ActivationGrid(scale=0.1, zero_point=0, bits=4)}
    )
    with pytest.raises(QuarlError, match=r"8-bit activations only, 'net\.0' has 4"):
        qdq.write(narrow)
