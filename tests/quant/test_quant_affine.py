"""The rounding rule, by hand numbers and by law."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from quarl.quant.affine import (
    QParams,
    choose_qparams,
    dequantize,
    fake_quantize,
    quantize,
    quantize_rows,
    quarl_2020,
    requantize,
)

ANY_FLOAT = st.floats(width=32, allow_nan=True, allow_infinity=True, allow_subnormal=True)


def test_quantize_saturates_and_rounds_ties_to_even():
    q = QParams(scale=np.float32(0.5), zero_point=1, qmin=-128, qmax=127)
    assert quantize(np.float32([0.25, 0.75, 1e9, -1e9]), q).tolist() == [1, 3, 127, -128]


def test_numpy_and_torch_share_the_rounding():
    rng = np.random.default_rng(0)
    x = (rng.normal(size=1000) * 3).astype(np.float32)
    x[:200] = np.arange(-100, 100, dtype=np.float32) * np.float32(0.05)  # ties
    q = QParams(scale=np.float32(0.1), zero_point=3, qmin=-128, qmax=127)
    ours = quantize(torch.from_numpy(x), QParams(torch.tensor(0.1), 3, -128, 127))
    assert np.array_equal(ours.numpy(), quantize(x, q))


def test_quantize_agrees_with_torchs_own_operator():
    x = torch.randn(4096, generator=torch.Generator().manual_seed(0)) * 4
    scale, zero_point = 0.0371, 11
    theirs = torch.fake_quantize_per_tensor_affine(x, scale, zero_point, -128, 127).numpy()
    ours = fake_quantize(x.numpy(), QParams(np.float32(scale), zero_point, -128, 127))
    # torch multiplies by 1/scale: only numbers within a rounding error of a tie may differ.
    assert (np.abs(ours - theirs) > scale / 2).mean() < 1e-3


def test_symmetric_grid_by_hand():
    q = choose_qparams(np.float32(-1.27), np.float32(0.5), 8, symmetric=True)
    assert float(q.scale) == pytest.approx(0.01)
    assert (int(q.zero_point), q.qmin, q.qmax) == (0, -127, 127)


def test_a_grid_without_a_level_at_0_by_hand():
    """Two bits: levels -3/2, -1/2, 1/2 and 3/2 steps; what lies beyond is clipped, and what is 0 goes half a step."""
    q = choose_qparams(np.float32(-3.0), np.float32(1.0), 2, symmetric=True, mid_rise=True)
    assert (float(q.scale), q.zero_point, q.qmin, q.qmax, q.mid_rise) == (2.0, -0.5, -2, 1, True)
    x = np.float32([-9, -2.1, -1.9, 0.1, 1.9, 2.1, 3, 9])
    assert quantize(x, q).tolist() == [-2, -2, -1, 0, 0, 1, 1, 1]
    assert dequantize(quantize(x, q), q).tolist() == [-3, -3, -1, 1, 1, 3, 3, 3] == fake_quantize(x, q).tolist()
    assert abs(dequantize(quantize(np.float32(0), q), q)) == 1


@given(arrays(np.float32, 40, elements=st.floats(-10, 10, width=32)), st.integers(2, 7))
def test_a_grid_without_a_level_at_0_is_its_own_mirror_image_and_loses_half_a_step_at_most(x, bits):
    high = np.abs(x).max()
    q = choose_qparams(-high, high, bits, symmetric=True, mid_rise=True)
    levels = np.unique(dequantize(np.arange(q.qmin, q.qmax + 1), q))
    assert len(levels) == 2**bits
    assert np.array_equal(levels, -levels[::-1])
    assert (np.abs(fake_quantize(x, q) - x) <= q.scale * (0.5 + 1e-5)).all()


def test_affine_grid_by_hand():
    q = choose_qparams(np.float32(-1.0), np.float32(3.0), 2, symmetric=False)
    assert float(q.scale) == pytest.approx(4 / 3)
    assert (int(q.zero_point), q.qmin, q.qmax) == (-1, -2, 1)


@given(ANY_FLOAT, ANY_FLOAT, st.integers(2, 32), st.booleans())
def test_every_range_gets_a_finite_positive_scale_and_a_zero_point_on_the_grid(low, high, bits, symmetric):
    q = choose_qparams(np.float32(low), np.float32(high), bits, symmetric=symmetric)
    assert np.isfinite(q.scale)
    assert q.scale > 0
    assert q.qmin <= q.zero_point <= q.qmax


@given(
    arrays(np.float32, st.integers(1, 40), elements=st.floats(-1e6, 1e6, width=32, allow_subnormal=False)),
    st.integers(2, 16),
    st.booleans(),
)
def test_inside_the_range_the_error_is_half_a_step_and_zero_stays_zero(x, bits, symmetric):
    q = choose_qparams(x.min(), x.max(), bits, symmetric=symmetric)
    error = np.abs(fake_quantize(x.astype(np.float64), q) - x)
    # An affine grid's zero point is rounded, so its ends may miss the range by half a step more.
    assert (error <= float(q.scale) * (0.5 if symmetric else 1.0) * (1 + 1e-3) + 1e-30).all()
    assert fake_quantize(np.float32(0), q) == 0


@given(arrays(np.float32, st.tuples(st.integers(1, 4), st.integers(1, 20)), elements=st.floats(-1e4, 1e4, width=32)))
def test_dynamic_rows_do_not_see_each_other(rows):
    codes, together = quantize_rows(rows)
    for i, row in enumerate(rows):
        code, alone = quantize_rows(row[None])
        assert (together.scale[i], together.zero_point[i]) == (alone.scale[0], alone.zero_point[0])
        assert np.array_equal(code[0], codes[i])


@given(arrays(np.float32, st.tuples(st.integers(1, 4), st.integers(1, 20)), elements=st.floats(-1e4, 1e4, width=32)))
def test_dynamic_rows_err_by_at_most_a_step(rows):
    codes, q = quantize_rows(rows)
    assert (np.abs(dequantize(codes, q) - rows) <= q.scale * 1.001).all()


def test_requantize_by_hand():
    codes = requantize(np.array([10, 30, 50, 100000]), np.float32(0.05), -3, -128, 127)
    assert codes.tolist() == [-3, -1, -1, 127]  # 0.5 -> 0, 1.5 -> 2, 2.5 -> 2: ties to even


@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        (2, [[-0.75, 0, 0, 0], [0.75, 0.75, 1.5, 2.25]]),
        (3, [[-1.125, -0.375, 0, 0.375], [0.375, 0.75, 1.5, 1.875]]),
    ],
)
def test_quarl_2020_golden_vectors(bits, expected):
    weights = np.float32([[-1, -0.3, 0, 0.26], [0.5, 0.74, 1.5, 2]])
    codes, step = quarl_2020(weights, bits)
    assert (codes * step).tolist() == expected


@pytest.mark.parametrize(("bits", "levels"), [(2, 5), (3, 9), (4, 17)])
def test_quarl_2020_has_one_level_more_than_its_bits(bits, levels):
    weights = np.random.default_rng(0).normal(size=(512, 512)).astype(np.float32)
    assert len(np.unique(quarl_2020(weights, bits)[0])) == levels


def test_quarl_2020_is_the_published_formula_bit_for_bit():
    weights = np.random.default_rng(1).normal(size=(64, 32)).astype(np.float32)
    for bits in range(2, 16):
        step = (np.abs(np.min(weights)) + np.abs(np.max(weights))) / 2**bits
        codes, ours = quarl_2020(weights, bits)
        assert np.array_equal(codes * ours, step * np.rint(weights / step))


def test_quarl_2020_keeps_a_zero_tensor():
    codes, step = quarl_2020(np.zeros((2, 2), np.float32), 8)
    assert (codes * step).tolist() == [[0, 0], [0, 0]]


def test_dequantize_by_hand():
    assert dequantize(np.array([-3, 0, 5]), QParams(np.float32(0.5), 1, -8, 7)).tolist() == [-2.0, -0.5, 2.0]
