"""Output-aware rounding does what it is for: less output error than nearest rounding."""

from __future__ import annotations

import numpy as np
import pytest

from quarl.quant.affine import choose_qparams, dequantize, quantize
from quarl.quant.rounding import gptq, output_aware_qparams, second_moment

SHRINKS = np.linspace(1, 0.5, 6)


@pytest.fixture
def layer():
    rng = np.random.default_rng(0)
    mixing = rng.normal(size=(48, 48)) * np.geomspace(1, 0.01, 48)
    inputs = rng.normal(size=(2000, 48)) @ mixing
    return rng.normal(size=(24, 48)), inputs


def output_error(weight, codes, q, inputs):
    return float(np.square((weight - dequantize(codes, q)) @ inputs.T).mean())


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_gptq_leaves_less_output_error_than_nearest_rounding(layer, bits):
    weight, inputs = layer
    h = second_moment(inputs)
    high = np.abs(weight).max(axis=1, keepdims=True)
    q = choose_qparams(-high, high, bits, symmetric=True)
    codes = gptq(weight, h, q)
    assert np.array_equal(codes, codes.round())
    assert codes.min() >= q.qmin
    assert codes.max() <= q.qmax
    assert output_error(weight, codes, q, inputs) < 0.7 * output_error(weight, quantize(weight, q), q, inputs)


def paper(weight, h, q):
    """Algorithm 1 of Frantar et al. 2023 without its blocks: each error is spread by the inverse of H."""
    order = np.argsort(-np.diag(h), kind="stable")
    spread = np.linalg.cholesky(np.linalg.inv(h[np.ix_(order, order)])).T
    left, codes = weight[:, order].copy(), np.empty_like(weight)
    for i, column in enumerate(order):
        codes[:, [column]] = quantize(left[:, [i]], q)
        error = (left[:, [i]] - dequantize(codes[:, [column]], q)) / spread[i, i]
        left[:, i:] -= error * spread[i, i:]
    return codes


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_gptq_finds_the_codes_of_the_paper_without_an_inverse(bits):
    rng = np.random.default_rng(bits)
    inputs = np.maximum(rng.normal(size=(500, 70)) @ rng.normal(size=(70, 70)), 0)  # more columns than two blocks
    weight, h = rng.normal(size=(30, 70)), second_moment(inputs)
    q = output_aware_qparams(weight, h, bits, SHRINKS)
    assert np.array_equal(gptq(weight, h, q), paper(weight, h, q))


def test_gptq_of_independent_inputs_is_nearest_rounding(layer):
    weight, _ = layer
    high = np.abs(weight).max(axis=1, keepdims=True)
    q = choose_qparams(-high, high, 4, symmetric=True)
    assert np.array_equal(gptq(weight, np.eye(48), q), quantize(weight, q))


def test_weights_already_on_the_grid_stay(layer):
    weight, inputs = layer
    high = np.abs(weight).max(axis=1, keepdims=True)
    q = choose_qparams(-high, high, 4, symmetric=True)
    codes = quantize(weight, q)
    assert np.array_equal(gptq(dequantize(codes, q), second_moment(inputs), q), codes)


def test_output_aware_scales_never_do_worse_than_the_full_range(layer):
    weight, inputs = layer
    h = second_moment(inputs)
    high = np.abs(weight).max(axis=1, keepdims=True)
    full = choose_qparams(-high, high, 3, symmetric=True)
    chosen = output_aware_qparams(weight, h, 3, SHRINKS)

    def loss(q):
        error = weight - dequantize(quantize(weight, q), q)
        return np.einsum("ok,kl,ol->o", error, h, error)

    assert (loss(chosen) <= loss(full) * (1 + 1e-9)).all()
    assert (loss(chosen) < loss(full)).any()


def test_silent_inputs_do_not_break_the_factorisation():
    h = second_moment(np.zeros((10, 4)))
    weight = np.ones((2, 4))
    q = choose_qparams(-weight[:, :1], weight[:, :1], 8, symmetric=True)
    assert np.array_equal(gptq(weight, h, q), np.full((2, 4), 127.0))
