"""Rows of `quarl inspect`: one road for a policy's layers and for those of any file."""

from __future__ import annotations

import math

import numpy as np
import pytest

import networks
from quarl.calibration import quantize, round_layers
from quarl.inspection import inspect, weight_bias_line, whole
from quarl.policy.layers import LayerWeights, of_policy
from quarl.policy.operators import QuantizedTensor
from quarl.quant.spec import SCHEMES, QuantSpec


def layer(weight, bias=None, name: str = "a", operator: str = "Dense") -> LayerWeights:
    return LayerWeights(name, operator, np.float32(weight), None if bias is None else np.float32(bias))


@pytest.mark.parametrize("precision", ["fp16", "bf16", "int8", "int3", "w4a6", "w4"])
@pytest.mark.parametrize("scheme", [name for name, scheme in SCHEMES.items() if not scheme.needs_observations])
@pytest.mark.parametrize("name", ["relu", "convolutional"])
def test_layers_alone_are_rounded_as_those_of_a_policy(name: str, scheme: str, precision: str):
    policy, spec = networks.EVERY[name](), QuantSpec.parse(precision, scheme=scheme)
    alone, in_policy = round_layers(of_policy(policy), spec), of_policy(quantize(policy, spec))
    for one, other in zip(alone, in_policy, strict=True):
        if isinstance(one.weight, QuantizedTensor):
            assert np.array_equal(one.weight.codes, other.weight.codes)
            assert np.array_equal(one.weight.scale, other.weight.scale)
        else:
            assert np.array_equal(one.weight, other.weight)
    rows = [[found.row for found in inspect(of_policy(policy), side, spec)] for side in (alone, in_policy)]
    assert rows[0] == rows[1]


def test_layers_alone_cannot_have_a_scheme_that_needs_observations():
    with pytest.raises(ValueError, match="needs observations"):
        round_layers([layer([[1.0]])], QuantSpec.parse("int8"))


def test_a_model_s_row_counts_all_its_weights_together():
    layers = [layer([[3.0, -1.0]], [9.0]), layer(np.full((1, 2, 1, 1), 1.0), operator="Conv2d")]
    spec = QuantSpec.parse("int8", scheme="per-channel")
    row = whole("m", layers, round_layers(layers, spec), spec)
    assert (row.model, row.weights, row.min, row.max, row.range) == ("m", 4, -1.0, 3.0, 4.0)
    assert row.std == pytest.approx(math.sqrt(2.0))  # 3, -1, 1, 1 about their mean 1
    assert row.spread == pytest.approx(3 / math.sqrt(2.0))
    assert (row.precision, row.scheme) == ("int8", "per-channel")
    assert sum(row.histogram["counts"]) == 4
    assert [found.shape for found in row.layers] == [(1, 2), (1, 2, 1, 1)]


def test_the_noise_of_a_model_is_that_of_all_its_weights():
    layers = [layer([[1.0, 0.5]]), layer([[100.0, 30.0]], name="b")]
    spec = QuantSpec.parse("w2", scheme="naive")  # levels -1, 0, 1 times the largest: 0.5 becomes 0, 30 too
    found = whole("m", layers, round_layers(layers, spec), spec)
    assert found.sqnr_db == pytest.approx(10 * math.log10((1 + 0.25 + 10_000 + 900) / (0.25 + 900)))


def test_weights_that_are_all_alike_have_no_spread_and_what_is_exact_no_noise():
    layers = [layer([[2.0, 2.0]])]
    spec = QuantSpec.parse("fp16")
    row = whole("m", layers, round_layers(layers, spec), spec)
    assert row.spread is None
    assert row.sqnr_db is None


def test_the_original_s_line_counts_biases_where_there_are_any():
    layers = [layer([[1.0, -2.0]], [4.0]), layer([[0.5, 0.25]], name="b")]
    assert weight_bias_line("f.pb", layers) == "f.pb : weight_bias_min: -2.0 , weight_bias_max: 4.0 , range: 6.0"


def test_the_range_of_numbers_at_both_ends_of_float32_is_finite():
    line = weight_bias_line("f.pb", [layer([[3e38, -3e38]])])
    assert float(line.rpartition(" ")[2]) == pytest.approx(6e38)
