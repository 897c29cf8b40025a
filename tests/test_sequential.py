"""Verdicts while episodes come in: published boundaries, hand numbers, and the error of small simulations."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm, t

from quarl.errors import QuarlError
from quarl.judging import boundaries, fewest, looks, sequential_verdict

CAP = looks(400, 5)


def played(pairs, margin=5.0, cap=CAP):
    """The verdict on the first look that decides, or on the last, and how many episodes that took."""
    for n in cap:
        word = sequential_verdict(pairs[0][:n], pairs[1][:n], margin, cap).verdict
        if word != "undecided":
            break
    return word, n


def test_equal_looks_have_the_boundaries_of_the_literature():
    # O'Brien-Fleming type, two-sided 5 %, as in Jennison and Turnbull 2000 and in R's ldbounds and gsDesign
    assert boundaries((1, 2, 3, 4, 5)) == pytest.approx((4.877, 3.357, 2.680, 2.290, 2.031), abs=5e-4)
    assert boundaries((7,)) == pytest.approx((norm.isf(0.025),))


def test_what_is_spent_over_doubling_looks_sums_to_alpha():
    z, times = np.array(boundaries(CAP)), np.array(CAP)
    covariance = np.sqrt(np.minimum.outer(times, times) / np.maximum.outer(times, times))
    inside = multivariate_normal.cdf(z, cov=covariance, abseps=1e-6, maxpts=10**6, rng=np.random.default_rng(0))
    assert 1 - inside == pytest.approx(0.025, abs=2e-4)


def test_looks_double_up_to_the_cap_and_leave_out_what_is_near_it():
    assert looks(400, 5) == (30, 60, 120, 240, 400)
    assert looks(1000, 5) == (30, 60, 120, 240, 480, 1000)
    assert looks(40, 10) == (30, 40)
    assert looks(20, 20) == (20,)


def test_a_cap_that_can_show_nothing_is_one_line_and_says_what_can():
    assert (fewest(5), fewest(2), fewest(10), fewest(0.7)) == (60, 150, 30, 429)
    with pytest.raises(QuarlError, match=r"--max-episodes 59 cannot show a loss below 5 %: use 60 or more"):
        looks(59, 5)


def test_equal_episodes_are_non_inferior_no_sooner_than_falls_in_a_twentieth_would_show():
    same = np.full((2, 400), 500.0)
    assert played(same) == ("non-inferior", 60)
    assert sequential_verdict(*same[:, :30], 5, CAP).verdict == "undecided"
    assert played(same, 2.0) == ("non-inferior", 240)  # the first look behind 150
    assert played(np.stack([same[0], 0 * same[1]])) == ("inferior", 30)


def test_the_interval_of_equal_episodes_is_that_of_half_a_fall_by_hand():
    judged = sequential_verdict(np.full(60, 500.0), np.full(60, 500.0), 5, CAP)
    half = t.isf(norm.sf(boundaries(CAP)[1]), 59) * 0.5 * 500 / 60  # sd 250 / sqrt(60), over sqrt(60)
    assert (judged.difference.low, judged.difference.high) == (pytest.approx(-half), pytest.approx(half))
    assert not judged.differs


def test_a_few_falls_widen_the_interval_on_their_side_only():
    fp32 = np.full(120, 100.0)
    falls = fp32.copy()
    falls[:2] = 0.0
    fell = sequential_verdict(fp32, falls, 5, CAP).difference
    rose = sequential_verdict(fp32, 200 - falls, 5, CAP).difference
    assert fell.point - fell.low > 1.5 * (fell.high - fell.point)
    assert (rose.low, rose.high) == (pytest.approx(-fell.high), pytest.approx(-fell.low))


def test_returns_of_nothing_but_zero_have_no_verdict():
    assert played(np.zeros((2, 400))) == ("undecided", 400)


@pytest.mark.parametrize("skewed", [False, True])
def test_a_loss_of_the_margin_is_called_non_inferior_and_inferior_in_about_one_of_forty_each(skewed):
    generator, words = np.random.default_rng(0), []
    for _ in range(400):
        noise = generator.exponential(size=400) - 1 if skewed else generator.normal(size=400)
        words.append(played((np.full(400, 100.0), 95 + 12 * noise))[0])
    assert words.count("non-inferior") / 400 <= 0.05
    assert words.count("inferior") / 400 <= 0.05
    assert words.count("undecided") / 400 >= 0.9


def test_falls_in_a_twentieth_of_the_episodes_are_told_in_nineteen_of_twenty_runs():
    generator = np.random.default_rng(0)
    words = [played((np.full(400, 100.0), 100.0 * (generator.random(400) >= 0.05)))[0] for _ in range(400)]
    assert 0.02 <= words.count("non-inferior") / 400 <= 0.075  # 0.95^60 = 4.6 %: no fall in 60
