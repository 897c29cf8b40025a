"""Files of QuantizeLinear and DequantizeLinear pairs, in the runtimes that read them."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import networks
from quarl import engines
from quarl.calibration import quantize
from quarl.errors import QuarlError, UnsupportedError
from quarl.evaluation import record
from quarl.export import qdq, runtimes
from quarl.policy.graph import ActionHead, ActivationGrid, QuantizedPolicy
from quarl.policy.operators import Dense, QuantizedTensor
from quarl.quant.spec import QuantSpec
from quarl.readers.load import read

RUNTIMES = ("ort", "tract", "openvino")
AGENTS = ["sb2/dqn/CartPole-v1.pkl", "sb3/ddpg/MountainCarContinuous-v0_1", "sb3/dqn/CartPole-v1_1"]
"""tests/stress/runtimes.py runs all of them."""


def static(policy, x, precision="int8"):
    return quantize(policy, QuantSpec.parse(precision, scheme="per-channel", mode="static"), x)


def held(name, path, policy, x, share=0.995):
    """Asserts the bounds that files are held to: equal greedy actions, rows within 1e-5 of what numbers range over."""
    pytest.importorskip(runtimes.RUNTIMES[name].module, reason=runtimes.RUNTIMES[name].fix)
    if name == "openvino" and runtimes.openvino_saturates():
        pytest.skip("OpenVINO's integer kernels saturate on this processor, which has no VNNI")
    path.write_bytes(qdq.write(policy))
    runtime = runtimes.load(name, path)
    outputs, got = engines.run_all(engines.load(policy, "reference", batch=len(x)), x), runtime.run(x)
    assert runtime.arithmetic == "qdq"
    if policy.head.is_discrete:
        np.testing.assert_array_equal(policy.head(got), policy.head(outputs))
        expected, span = outputs, np.abs(outputs).max()
    else:
        expected, span = policy.head(outputs), policy.head.high - policy.head.low
    assert ((np.abs(got - expected) / span).max(axis=1) <= 1e-5).mean() >= share


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("name", list(networks.EVERY))
def test_every_operator_acts_as_in_the_reference(tmp_path, name, runtime):
    """Convolutions have many sums a row, so that more rows have one at a tie."""
    policy = networks.EVERY[name]()
    x = networks.observations(policy, 100)
    images = policy.observation_dtype == "uint8"
    held(runtime, tmp_path / "policy.onnx", static(policy, x[:50]), x, share=0.9 if images else 0.995)


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


def test_metadata_lie_in_the_file():
    policy = networks.dense([5, 16, 3])
    file = qdq.write(static(policy, networks.observations(policy, 64)), metadata={"quarl.contract": "{}"})
    assert {entry.key: entry.value for entry in onnx.load_from_string(file).metadata_props} == {"quarl.contract": "{}"}


def test_what_has_no_grids_is_refused():
    policy = networks.dense([5, 16, 3])
    for made in (
        quantize(policy, QuantSpec.parse("fp32")),
        quantize(policy, QuantSpec.parse("int8", scheme="per-channel")),
    ):
        with pytest.raises(UnsupportedError, match="onnx-qdq is of static int8 policies: use mode static"):
            qdq.write(made)
    narrow = static(policy, networks.observations(policy, 8))
    narrow = dataclasses.replace(
        narrow, grids=narrow.grids | {"net.0": ActivationGrid(scale=0.1, zero_point=0, bits=4)}
    )
    with pytest.raises(QuarlError, match=r"8-bit activations only, 'net\.0' has 4"):
        qdq.write(narrow)
