"""Diagnostics against numbers worked out by hand, and their laws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarl.inspection import Layer, inspect
from quarl.policy.layers import LayerWeights
from quarl.policy.operators import QuantizedTensor, Weight
from quarl.quant.affine import QParams, choose_qparams, dequantize, quantize
from quarl.quant.diagnostics import coarsest_grid, saturation, sqnr_db
from quarl.quant.spec import QuantSpec


def inspected(x: np.ndarray, after: Weight) -> Layer:
    """What is said of one layer."""
    before, quantised = (LayerWeights("layer", "Dense", weight) for weight in (x, after))
    return inspect([before], [quantised], QuantSpec.parse("int8"))[0]


def on_codes(x: np.ndarray, bits: int) -> QuantizedTensor:
    """The rows of x, each on a symmetric grid over its extent."""
    high = np.abs(x).max(axis=1, keepdims=True)
    q = choose_qparams(-high, high, bits, symmetric=True)
    codes = quantize(x.astype(np.float64), q).astype(np.int64)
    return QuantizedTensor(codes, q.scale.reshape(-1), np.zeros(len(x), np.int32), bits)


def test_sqnr_of_a_tenth_of_the_amplitude_is_twenty_decibels():
    x = np.float32([1.0, -1.0, 2.0])
    assert sqnr_db(x, x * np.float32(1.1)) == pytest.approx(20.0, abs=1e-5)


def test_sqnr_is_infinite_where_nothing_changed_and_minus_infinite_where_noise_replaced_silence():
    zeros = np.zeros(3, np.float32)
    assert sqnr_db(zeros, zeros) == float("inf")
    assert sqnr_db(zeros, zeros + 1) == float("-inf")


def test_saturation_counts_what_lies_more_than_half_a_step_outside():
    q = QParams(np.float32(1), 0, -1, 1)
    assert saturation(np.float32([-1.6, -1.4, 0, 1.4, 1.6, 9]), q) == 0.5


def test_grid_is_that_of_the_channel_with_the_widest_step():
    q = QParams(np.float32([[0.5], [2.0]]), np.int32([[0], [1]]), -2, 1)
    assert coarsest_grid(q).tolist() == [-6.0, -4.0, -2.0, 0.0]


def test_levels_are_codes_for_integers_and_values_for_float_formats():
    x = np.float32([[0.9, -0.9], [0.1, -0.1]])
    q = choose_qparams(np.float32([[-0.9], [-0.1]]), np.float32([[0.9], [0.1]]), 2, symmetric=True)
    codes = quantize(x, q)
    assert sqnr_db(x, dequantize(codes, q)) > 100
    integer = inspected(x, on_codes(x, 2)).row
    assert (integer.levels, integer.saturation) == (2, 0.0)
    half = inspected(x, x.astype(np.float16))
    assert (half.row.levels, half.grid.size) == (4, 0)
    assert half.row.range == pytest.approx(1.8)


def test_a_constant_tensor_and_a_32_bit_grid_have_diagnostics():
    x = np.full((2, 2), 3.0, np.float32)
    layer = inspected(x, on_codes(x, 32))
    assert (sum(layer.row.histogram["counts"]), layer.row.levels, layer.grid.size) == (4, 1, 0)


@given(st.integers(2, 10), st.integers(0, 2**32 - 1))
def test_each_bit_more_never_loses_levels_nor_signal(bits, seed):
    x = np.random.default_rng(seed).normal(size=(4, 64)).astype(np.float32)

    coarse, fine = (inspected(x, on_codes(x, n)).row for n in (bits, bits + 2))
    assert coarse.levels <= 2**bits - 1
    assert fine.sqnr_db > coarse.sqnr_db
    assert fine.levels >= coarse.levels
    assert coarse.saturation == 0.0
    assert sum(coarse.histogram["counts"]) == x.size
