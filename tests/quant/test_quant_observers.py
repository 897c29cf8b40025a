"""Ranges that observers name."""

from __future__ import annotations

import numpy as np
import pytest

from quarl.errors import QuarlError
from quarl.quant.affine import choose_qparams, fake_quantize
from quarl.quant.observers import observe


def test_min_max_sees_every_number_and_skips_what_is_not_finite():
    low, high = observe(np.float32([[1, 2, -3, np.inf], [-1, np.nan, 0, 5]]), "minmax")
    assert (low.tolist(), high.tolist()) == ([-3, -1], [2, 5])


def test_percentile_leaves_the_outlier_out():
    x = np.append(np.linspace(-1, 1, 9999), 1000).astype(np.float32)
    (low,), (high,) = observe(x.reshape(1, -1), "percentile")
    assert low == pytest.approx(-0.998, abs=1e-3)
    assert high == pytest.approx(0.998, abs=1e-2)


def test_mse_range_beats_every_other_shrink_of_the_extent():
    x = np.random.default_rng(0).standard_t(3, size=5000).astype(np.float32)
    (low,), (high,) = observe(x.reshape(1, -1), "mse", bits=4)

    def error(a: float, b: float) -> float:
        return float(np.square(fake_quantize(x, choose_qparams(a, b, 4, symmetric=True)) - x).sum())

    assert error(low, high) <= min(error(x.min() * s, x.max() * s) for s in np.linspace(1, 0.2, 9)) * 1.0001
    assert high < x.max()


@pytest.mark.parametrize("kind", ["minmax", "percentile", "mse"])
def test_nothing_seen_or_nothing_finite_is_the_zero_range(kind):
    for x in (np.zeros((1, 0), np.float32), np.full((1, 3), np.nan, np.float32)):
        assert all(end.tolist() == [0] for end in observe(x, kind))


def test_an_unknown_observer_is_refused():
    with pytest.raises(QuarlError, match="unknown observer 'median'"):
        observe(np.zeros((1, 1), np.float32), "median")
