"""The oracle against torch in float32, and against hand numbers and its own laws in integers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import networks
from quarl import engines
from quarl.calibration import quantize
from quarl.engines.numpy_operators import MAX_EXACT_NORM, MAX_EXACT_SQUARES, as_float, normalized_codes
from quarl.policy.graph import ActionHead, ActivationGrid, Policy
from quarl.policy.operators import Conv2d, Dense, L2Norm, LayerNorm, QuantizedTensor
from quarl.quant.spec import QuantSpec


def run(policy, precision, x, **options):
    quantized = quantize(policy, QuantSpec.parse(precision, **options), networks.observations(policy, 256, seed=5))
    return engines.load(quantized, "reference", batch=len(x)).run(x)


def test_convolutions_are_torchs():
    policy = networks.convolutional(padding=1)
    x = networks.observations(policy, 5)
    value = torch.from_numpy(x.astype(np.float32)) * np.float32(1 / 255)
    for op in policy.linear:
        weight, bias = torch.from_numpy(op.weight), torch.from_numpy(op.bias)
        if isinstance(op, Conv2d):
            value = torch.nn.functional.conv2d(value, weight, bias, stride=op.stride, padding=op.padding).relu()
        else:
            value = torch.nn.functional.linear(value.flatten(1), weight, bias)
            value = value if op is policy.linear[-1] else value.relu()
    assert np.allclose(run(policy, "fp32", x), value.numpy(), atol=1e-5)


@pytest.mark.parametrize("name", networks.EVERY)
def test_calibration_and_reference_compute_the_same_values(name):
    policy = networks.EVERY[name]()
    x = networks.observations(policy, 16)
    assert np.allclose(run(policy, "fp32", x), as_float(policy, x)[policy.output], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", networks.EVERY)
@pytest.mark.parametrize(
    ("precision", "mode"), [("fp32", "dynamic"), ("int8", "dynamic"), ("int8", "static"), ("w4a6", "dynamic")]
)
def test_a_row_does_not_depend_on_its_batch(name, precision, mode):
    policy = networks.EVERY[name]()
    x = networks.observations(policy, 64)
    together = run(policy, precision, x, mode=mode)
    for i in (0, 31, 63):
        assert np.array_equal(run(policy, precision, x[i : i + 1], mode=mode)[0], together[i])


def test_a_dynamic_layer_by_hand():
    weight = QuantizedTensor(np.int8([[100, -50]]), np.float32([0.01]), np.int32([0]), 8)
    op = Dense("out", ("observation",), weight, np.float32([0.5]))
    spec = QuantSpec.parse("int8", scheme="per-channel")
    from quarl.policy.graph import QuantizedPolicy

    policy = QuantizedPolicy(observation_shape=(2,), ops=(op,), head=ActionHead("argmax"), spec=spec)
    # Row [0, 2.55]: scale 0.01, zero point -128, codes -128 and 127: products 0 and 255 * -50.
    assert engines.load(policy, "reference").run(np.float32([[0, 2.55]]))[0, 0] == pytest.approx(-1.275 + 0.5, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["dynamic", "static"])
@pytest.mark.parametrize("name", networks.EVERY)
def test_more_bits_come_closer(name, mode):
    policy = networks.EVERY[name]()
    x = networks.observations(policy, 128)
    exact = run(policy, "fp32", x)
    if policy.head.kind == "argmax":
        exact = exact - exact.mean(axis=1, keepdims=True)

    def error(precision):
        y = run(policy, precision, x, mode=mode)
        if policy.head.kind == "argmax":
            y = y - y.mean(axis=1, keepdims=True)
        return np.sqrt(np.square(y - exact).mean())

    spread = exact.std()
    assert error("int8") < 0.05 * spread
    assert error("int8") < error("int4") < error("int2")


def test_weights_of_32_bits_and_float_activations_are_exact():
    policy = networks.dense([5, 16, 3])
    x = networks.observations(policy, 64)
    assert np.allclose(run(policy, "w32", x, scheme="per-channel"), run(policy, "fp32", x), atol=1e-6)


def test_static_values_between_layers_are_on_their_grids():
    policy = networks.dense([5, 16, 16, 3], "tanh")
    quantized = quantize(policy, QuantSpec.parse("int8", mode="static"), networks.observations(policy, 256))
    reference = engines.load(quantized, "reference", batch=32)
    values = reference.trace(networks.observations(policy, 32))
    for name, grid in quantized.grids.items():
        if name.startswith("net"):
            codes = values[name] / np.float32(grid.scale) + grid.zero_point
            assert np.abs(codes - codes.round()).max() < 1e-3
            assert (codes.min() >= -128.001) & (codes.max() <= 127.001)
    assert policy.output not in quantized.grids


@pytest.mark.parametrize("scale", [0.05, 4.0, 1e25])
def test_a_layer_norm_of_equal_codes_is_its_offset(scale):
    for width in range(2, MAX_EXACT_NORM + 1):
        op = LayerNorm("norm", ("x",), np.ones(width, np.float32), np.arange(width, dtype=np.float32), 1e-5)
        codes = np.repeat(np.float32([[-255], [-100], [0], [127], [255]]), width, axis=1)
        normal = normalized_codes(op, codes, ActivationGrid(scale=scale, zero_point=0))
        assert np.array_equal(normal, np.broadcast_to(op.bias, normal.shape))


@given(st.integers(2, MAX_EXACT_NORM), st.integers(0, 8), st.integers(-128, 127), st.integers(0, 2**32 - 1))
def test_a_normalized_codes_is_that_of_exact_numbers(width, bits, middle, seed):
    rng = np.random.default_rng(seed)
    codes = np.clip(middle + rng.integers(-(2**bits), 2**bits, (3, width)), -128, 127).astype(np.float32)
    codes[1:, 1:] = codes[1:, :1]  # rows of which one differs, and of extremes
    codes[2, : width // 2], codes[2, width // 2 :] = -128, 127
    weight, bias = rng.normal(size=(2, width)).astype(np.float32)
    op = LayerNorm("norm", ("x",), weight, bias, 1e-5)
    normal = normalized_codes(op, codes, ActivationGrid(scale=0.5, zero_point=0))
    values = 0.5 * codes.astype(np.float64)
    centered = values - values.mean(axis=1, keepdims=True)
    exact = centered / np.sqrt(values.var(axis=1, keepdims=True) + 1e-5) * weight + bias
    np.testing.assert_allclose(normal, exact, rtol=1e-5, atol=1e-4)


@given(
    st.integers(1, MAX_EXACT_SQUARES), st.integers(-128, 127), st.sampled_from([1e-12, 3.0]), st.integers(0, 2**32 - 1)
)
def test_an_l2_norm_of_codes_is_that_of_exact_numbers(width, middle, epsilon, seed):
    codes = np.random.default_rng(seed).integers(-128, 128, (3, width)).astype(np.float32) - middle
    codes[1], codes[2] = 0, 255
    normal = normalized_codes(L2Norm("norm", ("x",), width, epsilon), codes, ActivationGrid(scale=0.5, zero_point=0))
    length = np.linalg.norm(0.5 * codes.astype(np.float64), axis=1, keepdims=True)
    np.testing.assert_allclose(normal, 0.5 * codes / np.maximum(length, epsilon), rtol=1e-6)


@pytest.mark.slow
def test_the_reference_imports_no_runtime():
    import subprocess
    import sys

    code = (
        "import quarl.engines.reference, sys;"
        "sys.exit(bool({'torch', 'onnxruntime', 'ai_edge_litert', 'gymnasium'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_policy_of_codes_needs_no_float_weights():
    policy = networks.dense([5, 16, 3])
    quantized = quantize(policy, QuantSpec.parse("int4", scheme="per-channel"))
    assert isinstance(quantized, Policy)
    assert all(isinstance(op.weight, QuantizedTensor) for op in quantized.linear)
