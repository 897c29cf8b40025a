"""ONNX Runtime against hand numbers, the integer reference and its own laws."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_engines_litert import quantized

import networks
from quarl import engines
from quarl.calibration import quantize
from quarl.engines.onnx import model_file, write
from quarl.errors import UnsupportedError
from quarl.policy.graph import ActionHead, Policy, QuantizedPolicy
from quarl.policy.operators import Activation, Conv2d, Dense, Flatten, QuantizedTensor
from quarl.quant.affine import quantize_rows
from quarl.quant.spec import QuantSpec
from quarl.readers.load import read

MODES = [("fp32", "dynamic"), ("int8", "dynamic"), ("int4", "dynamic"), ("int8", "static"), ("int4", "static")]
EXACT_FUNCTIONS = ["relu", "odd", "leaky_relu", "squashed", "convolutional", "padded"]
"""Networks of EVERY without tanh, exp or a float mean, which runtimes round differently."""


def outputs(policy, x, engine="onnx", batch=None):
    return engines.run_all(engines.load(policy, engine, batch=batch or len(x)), x)


def one_layer(codes, scale, bias):
    """A quantised policy of a single layer, written by hand: dense [out, K], or a convolution [out, in, kh, kw]."""
    channels = len(codes)
    weight = QuantizedTensor(codes, np.full(channels, scale, np.float32), np.zeros(channels, np.int32), 8)
    kind, shape = (Dense, codes.shape[1:]) if codes.ndim == 2 else (Conv2d, (codes.shape[1], 6, 6))
    layer = kind("layer", ("observation",), weight, np.full(channels, bias, np.float32))
    return QuantizedPolicy(
        observation_shape=shape,
        ops=(layer,) if codes.ndim == 2 else (layer, Flatten("flat", ("layer",))),
        head=ActionHead("argmax"),
        spec=QuantSpec.parse(8, scheme="per-channel"),
    )


def test_a_dense_layer_is_the_integer_sum_times_both_scales():
    # range [-1.28, 1.27]: step 0.01, zero point 0; 100 * 3 + (-128) * 2 = 44
    policy = one_layer(np.int8([[3, 2, 0]]), 0.5, 0.25)
    y = outputs(policy, np.float32([[1.0, -1.28, 1.27]]))
    np.testing.assert_allclose(y, [[44 * 0.01 * 0.5 + 0.25]], rtol=1e-6)


@pytest.mark.parametrize("batch", [1, 2, 16])
@pytest.mark.parametrize(("low", "high"), [(0.0, 255.0), (-255.0, 0.0), (-128.0, 127.0)])
def test_extreme_codes_are_summed_without_saturation(batch, low, high):
    # Adding two products of uint8 and int8 in 16 bits stops at 32767; the largest here are 2 * 255 * 127.
    codes = np.int8([[127] * 64, [-127] * 64, [127, -127] * 32, [-127, 127] * 32])
    x = np.float32([[low, high] * 32, [high] * 64, [low] * 64, [high, low] * 32])
    rows = np.resize(x, (batch, 64))
    rows[:, :2] = low, high  # both ends in every row, so that its step is 1
    expected = np.float32(rows.astype(np.int64) @ codes.T.astype(np.int64))
    np.testing.assert_array_equal(outputs(one_layer(codes, 1.0, 0.0), rows), expected)


@pytest.mark.parametrize("batch", [1, 3])
def test_extreme_codes_of_convolutions_are_summed_without_saturation(batch):
    policy = one_layer(np.full((2, 8, 3, 3), 127, np.int8), 1.0, 0.0)
    x = np.full((batch, 8, 6, 6), 255, np.float32)
    x[:, :, 0, 0] = 0
    y = outputs(policy, x).reshape(batch, 2, 4, 4)
    assert y[:, :, 1:, 1:].tolist() == np.full((batch, 2, 3, 3), 8 * 9 * 255 * 127).tolist()
    assert y[:, :, 0, 0].tolist() == np.full((batch, 2), 8 * 8 * 255 * 127).tolist()


@given(st.data())
@settings(max_examples=40)
def test_a_dynamic_layer_is_its_definition_bit_for_bit(data):
    width, count, batch = (data.draw(st.integers(1, most)) for most in (40, 9, 4))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    codes = rng.choice(np.arange(-127, 128), (count, width)).astype(np.int8)
    codes[rng.random((count, width)) < 0.3] = data.draw(st.sampled_from([-127, 0, 127]))
    exponent = data.draw(st.integers(-20, 20))
    x = (rng.normal(size=(batch, width)) * 10.0**exponent).astype(np.float32)
    x[0] = data.draw(st.sampled_from([np.float32(0), x[0], np.abs(x[0]), -np.abs(x[0])]))
    policy = one_layer(codes, 0.01, 0.7)
    rows, q = quantize_rows(x)
    sums = (rows - q.zero_point).astype(np.int64) @ codes.T.astype(np.int64)
    # one rounding, as a fused multiply-add
    product = (sums.astype(np.float32) * q.scale).astype(np.float64)
    expected = (product * np.float32(0.01) + np.float32(0.7)).astype(np.float32)
    np.testing.assert_array_equal(outputs(policy, x), expected)


@pytest.mark.parametrize("precision", ["int8", "int7", "int5", "int4", "int3", "int2"])
@pytest.mark.parametrize("mode", ["dynamic", "static"])
@pytest.mark.parametrize("network", EXACT_FUNCTIONS)
def test_integer_networks_are_the_references_bit_for_bit(network, mode, precision):
    policy = networks.EVERY[network]()
    x = networks.observations(policy, 16)
    made = quantized(policy, precision, mode=mode)
    np.testing.assert_array_equal(outputs(made, x), outputs(made, x, "reference"))


def test_elu_is_exact_near_zero_and_far_below():
    x = np.float32([[-30.0, -1.0, -1e-6, 0.0, 1e-6, 3.0]])
    ops = (Activation("elu", ("observation",), "elu"),)
    policy = quantize(Policy(observation_shape=(6,), ops=ops, head=ActionHead("argmax")), QuantSpec.parse("fp32"))
    np.testing.assert_allclose(outputs(policy, x), np.where(x > 0, x, np.expm1(x)), rtol=2e-6)


@pytest.mark.parametrize(("precision", "mode"), MODES)
def test_the_file_is_valid_standard_onnx_and_runs_any_batch(precision, mode):
    policy = networks.convolutional(padding=1)
    made = quantized(policy, precision, mode=mode)
    model = onnx.load_from_string(write(made))
    onnx.checker.check_model(model, full_check=True)
    assert {node.domain for node in model.graph.node} == {""}
    assert [entry.domain for entry in model.opset_import] == [""]
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for batch in (1, 3):
        x = networks.observations(policy, batch)
        y = session.run(None, {"observation": x})[0]
        np.testing.assert_array_equal(y, outputs(made, x))


@pytest.mark.parametrize(
    ("precision", "mode", "opset", "ir"),
    [
        ("fp32", "dynamic", 13, 7),
        ("fp16", "dynamic", 13, 7),
        ("bf16", "dynamic", 13, 7),
        ("w8", "dynamic", 13, 7),
        ("int8", "dynamic", 13, 7),
        ("int8", "static", 13, 7),
        ("int5", "static", 13, 7),
        ("int4", "dynamic", 21, 10),  # UINT4
        ("int2", "static", 21, 10),
    ],
)
@pytest.mark.parametrize("network", list(networks.EVERY))
@pytest.mark.parametrize("batch", [None, 1])
def test_a_file_is_of_the_lowest_version_that_its_operators_need(network, precision, mode, opset, ir, batch):
    made = quantized(networks.EVERY[network](), precision, mode=mode)
    model = onnx.load_from_string(write(made, batch, acts=True))
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", opset)]
    assert model.ir_version == ir
    onnx.checker.check_model(model, full_check=True)
    for node in model.graph.node:
        latest = onnx.defs.get_schema(node.op_type, opset)
        assert {attribute.name for attribute in node.attribute} <= {*latest.attributes}
        assert latest.min_input <= len(node.input) <= latest.max_input
        # ONNX Runtime 1.16 crashes where a convolution's zero point is left out.
        assert node.op_type != "ConvInteger" or all(node.input)


def test_an_older_version_of_a_file_has_the_numbers_of_the_newest():
    """Axes of reductions are attributes in one and inputs in the other."""
    for network in ("relu", "dueling", "convolutional"):
        policy = networks.EVERY[network]()
        made, x = quantized(policy), networks.observations(policy, 5)
        old = write(made)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(model_file, "OLDEST_OPSET", 21)
            new = write(made)
        assert [onnx.load_from_string(data).opset_import[0].version for data in (old, new)] == [13, 21]
        onnx.checker.check_model(onnx.load_from_string(new), full_check=True)
        runs = [onnxruntime.InferenceSession(data).run(None, {"observation": x})[0] for data in (old, new)]
        np.testing.assert_array_equal(*runs)


def test_files_hold_weights_in_their_containers():
    policy = networks.dense([17, 400, 300, 6])
    sizes = {p: engines.load(quantized(policy, p), "onnx").file_bytes for p in ("fp32", "fp16", "int8", "int5", "int4")}
    assert sizes["int5"] == sizes["int8"]
    assert sizes["fp16"] < 0.51 * sizes["fp32"]
    assert sizes["int8"] < 0.27 * sizes["fp32"]
    assert sizes["int4"] < 0.15 * sizes["fp32"]


@pytest.mark.parametrize(("layer", "reason"), [("net.0", "in 24 bits"), ("net.1", "more than 32 bits")])
def test_sums_that_a_bias_takes_too_far_are_refused_in_static_mode(layer, reason):
    policy = quantized(networks.dense([5, 8, 8, 3]), "int8", mode="static")
    ops = [*policy.ops]
    place = next(index for index, op in enumerate(ops) if op.name == layer)
    tiny = dataclasses.replace(ops[place].weight, scale=ops[place].weight.scale * np.float32(1e-12))
    ops[place] = dataclasses.replace(ops[place], weight=tiny, bias=ops[place].bias + 1)
    with pytest.raises(UnsupportedError, match=reason):
        engines.load(dataclasses.replace(policy, ops=tuple(ops)), "onnx")


@pytest.mark.parametrize("mode", ["dynamic", "static"])
def test_a_trained_agent_acts_as_the_reference_does(agents, mode):
    policy = read(agents / "sb3/dqn/CartPole-v1_1/CartPole-v1.zip")
    x = (np.random.default_rng(0).uniform(-1, 1, (2000, 4)) * [2.4, 3, 0.2, 3]).astype(np.float32)
    made = quantize(policy, QuantSpec.parse("int8", scheme="per-channel", mode=mode), x[:500])
    ours, oracle = outputs(made, x, batch=64), outputs(made, x, "reference", batch=64)
    np.testing.assert_array_equal(policy.head(ours), policy.head(oracle))
    assert (ours == oracle).all(axis=1).mean() > 0.999
