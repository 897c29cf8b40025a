"""Statistics: hand numbers, and a coverage test of the interval on a known distribution."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarl.errors import QuarlError
from quarl.stats import (
    bootstrap_interval,
    drop_interval,
    error_interval,
    error_over_seeds,
    error_pct,
    iqm,
    judge_success,
    mean_error_interval,
    over_seeds,
    ratio_interval,
    success_over_seeds,
    summary,
    verdict,
    verdict_over_seeds,
    wilson_interval,
)


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_iqm_is_the_mean_of_the_middle_half() -> None:
    assert iqm(np.array([100.0, 3.0, 1.0, -90.0, 2.0, 4.0, 5.0, 6.0])) == 3.5  # 2 at either end go: 2, 3, 4, 5
    assert iqm(np.array([9.0, 1.0, 2.0, 4.0, 3.0])) == 3.0  # floor(5 / 4) = 1 at either end: 2, 3, 4
    assert iqm(np.array([7.0])) == 7.0


def test_error_is_the_loss_in_percent_of_the_size_of_the_original() -> None:
    assert error_pct(np.array([100.0, 300.0]), np.array([150.0, 150.0]), rng()) == 25.0
    assert error_pct(np.array([-80.0]), np.array([-100.0]), rng()) == 25.0
    assert error_pct(np.array([-80.0]), np.array([-60.0]), rng()) == -25.0
    assert np.isnan(error_pct(np.array([1.0, -1.0]), np.array([5.0, 5.0]), rng()))


# resampled means of 10 zeros and ones are binomial(10, 0.5) / 10, whose 2.5 % and 97.5 % quantiles are 2 and 8
@pytest.mark.parametrize(
    ("returns", "ends"), [([500.0] * 20, (500.0, 500.0, 500.0)), ([0.0, 1.0] * 5, (0.5, 0.2, 0.8))]
)
def test_the_interval_of_one_or_two_values_is_known(returns: list[float], ends: tuple[float, ...]) -> None:
    interval = bootstrap_interval(np.array(returns), rng())
    assert (interval.point, interval.low, interval.high) == ends


def test_chunks_do_not_change_the_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.arange(50.0)
    whole = bootstrap_interval(x, rng())
    monkeypatch.setattr("quarl.stats._CHUNK", 1000)
    assert bootstrap_interval(x, rng()) == whole


def test_the_95_percent_interval_covers_the_truth_about_95_times_in_100() -> None:
    generator = rng()
    hits = 0
    for _ in range(400):
        x = generator.exponential(size=100)  # of mean 1, and skewed, as returns are
        interval = bootstrap_interval(x, generator, num_resamples=500)
        hits += interval.low <= 1.0 <= interval.high
    assert 0.90 <= hits / 400 <= 0.975


def test_a_pair_that_loses_the_same_share_in_every_episode_has_an_exact_error() -> None:
    fp32 = np.array([100.0, 900.0, 20.0, 450.0])
    interval = error_interval(fp32, 0.9 * fp32, rng())
    assert interval.point == pytest.approx(10.0)
    assert interval.low == pytest.approx(10.0)
    assert interval.high == pytest.approx(10.0)


def test_pairing_narrows_the_interval_of_the_error() -> None:
    generator = rng()
    fp32 = generator.normal(100, 30, 100)
    q = fp32 - 2 + generator.normal(0, 1, 100)
    paired, unpaired = error_interval(fp32, q, rng()), error_interval(fp32, generator.permutation(q), rng())
    assert 1.5 < paired.low < 2 < paired.high < 2.5
    assert unpaired.high - unpaired.low > 5 * (paired.high - paired.low)


def test_the_mean_error_of_agents_is_the_mean_of_their_errors_and_weighs_them_alike() -> None:
    small, large = np.full(10, 1.0), np.full(400, 1000.0)
    interval = mean_error_interval([(small, 0.9 * small), (large, large)], rng())
    assert interval.point == pytest.approx(5.0)
    assert (interval.low, interval.high) == (pytest.approx(5.0), pytest.approx(5.0))


def test_the_interval_of_a_mean_error_shrinks_with_the_number_of_agents() -> None:
    generator = rng()
    agents = [(f := generator.normal(100, 10, 50), f + generator.normal(0, 10, 50)) for _ in range(9)]
    one, nine = mean_error_interval(agents[:1], rng()), mean_error_interval(agents, rng())
    assert (nine.high - nine.low) / (one.high - one.low) == pytest.approx(1 / 3, rel=0.25)


def test_a_loss_within_the_margin_passes_and_one_beyond_it_fails() -> None:
    fp32 = np.array([90.0, 110.0] * 50)
    within = verdict(fp32, fp32 - 4, 5, rng())
    assert (within.noninferior, within.difference.low, within.margin) == (True, -4.0, 5.0)
    assert not verdict(fp32, fp32 - 6, 5, rng()).noninferior
    assert verdict(fp32, fp32, 5, rng()).noninferior


def test_a_margin_is_of_the_size_of_negative_returns_too() -> None:
    fp32 = np.full(10, -80.0)
    assert verdict(fp32, fp32 - 3.9, 5, rng()).noninferior
    assert not verdict(fp32, fp32 - 4.1, 5, rng()).noninferior


def test_noninferiority_is_granted_about_once_in_40_at_the_margin_itself() -> None:
    generator = rng()
    granted = 0
    for _ in range(400):
        fp32 = generator.normal(100, 1, 60)
        q = fp32 - 5 + generator.normal(0, 10, 60)
        granted += verdict(fp32, q, 5, generator, num_resamples=500).noninferior
    assert granted / 400 <= 0.055


def test_a_summary_has_the_zoo_table_numbers() -> None:
    table = summary(np.array([1.0, 2.0, 3.0, 6.0]), rng())
    assert (table.episodes, table.mean, table.iqm) == (4, 3.0, 2.5)
    assert table.std == pytest.approx(np.sqrt(3.5))
    assert 1.0 <= table.ci_low < 3.0 < table.ci_high <= 6.0


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30), st.integers(0, 100))
def test_an_interval_lies_within_the_returns(values: list[float], seed: int) -> None:
    interval = bootstrap_interval(np.array(values), np.random.default_rng(seed), num_resamples=50)
    slack = 1e-9 * (1 + max(map(abs, values)))
    assert min(values) - slack <= interval.low <= interval.high <= max(values) + slack


def test_wrong_returns_are_one_line() -> None:
    with pytest.raises(QuarlError, match="the same number of episodes on both sides, got 3 and 2"):
        verdict(np.ones(3), np.ones(2), 5, rng())
    with pytest.raises(QuarlError, match="at least one number"):
        bootstrap_interval(np.array([]), rng())
    with pytest.raises(QuarlError, match="margin must be above 0 percent"):
        verdict(np.ones(3), np.ones(3), 0, rng())


def test_one_seed_has_the_interval_of_its_episodes():
    x = np.random.default_rng(1).normal(100, 10, 200)
    alone = bootstrap_interval(x, np.random.default_rng(0))
    one = over_seeds([x], np.random.default_rng(0))
    assert one.point == pytest.approx(alone.point)
    assert (one.low, one.high) == pytest.approx((alone.low, alone.high), abs=0.3)


def test_an_interval_over_seeds_is_students():
    found = over_seeds([np.full(10, 0.0), np.full(10, 30.0), np.full(10, 60.0)], np.random.default_rng(0))
    half = 4.302653 * 30 / np.sqrt(3)  # t of 2 degrees of freedom at 97.5 %
    assert (found.point, found.low, found.high) == pytest.approx((30.0, 30 - half, 30 + half))


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_intervals_over_seeds_cover_what_they_say(seeds):
    """Agents differ by 10 %, their quantised losses by 4 %, and episodes by 20 %."""
    draw = np.random.default_rng(seeds)
    covered, shown = 0, 0
    for _ in range(400):
        exact = [draw.normal(level, 20, 50) for level in draw.normal(100, 10, seeds)]
        pairs = [
            (fp32, fp32 * (1 - loss) + draw.normal(0, 5, 50))
            for fp32, loss in zip(exact, draw.normal(0.05, 0.04, seeds), strict=True)
        ]
        found = error_over_seeds(pairs, rng())
        covered += found.low <= 5 <= found.high
        shown += verdict_over_seeds(pairs, 5, rng()).noninferior
    assert 0.92 <= covered / 400 <= 0.98
    assert shown / 400 <= 0.05  # nominal: 2.5 %


def test_a_few_episodes_show_nothing():
    few, enough = np.full(9, 100.0), np.full(10, 100.0)
    for other in (few, few - 50):
        found = verdict(few, other, 5, rng())
        assert (found.noninferior, found.verdict, found.differs) == (False, "undecided", False)
    assert verdict(enough, enough, 5, rng()).noninferior
    assert not verdict_over_seeds([(few, few)], 5, rng()).noninferior
    assert verdict_over_seeds([(few, few), (few, few)], 5, rng()).noninferior


@pytest.mark.parametrize(("share", "levels"), [(0.9, (100.0, 200.0)), (1.1, (-100.0, -200.0))])
def test_seeds_that_lose_the_same_share_leave_no_doubt(share, levels):
    pairs = [(np.full(5, level), share * np.full(5, level)) for level in levels]
    found = error_over_seeds(pairs, np.random.default_rng(0))
    assert (found.point, found.low, found.high) == pytest.approx((10.0, 10.0, 10.0))


def test_nothing_passes_where_the_original_scores_nothing() -> None:
    found = verdict(np.zeros(30), np.full(30, 5.0), 5, rng())
    assert (found.noninferior, found.margin, found.difference.low) == (False, 0.0, 5.0)


def test_the_three_words_and_what_differs_beyond_noise() -> None:
    """The interval of the difference against a margin of 5: by hand, its ends on either side of -5 and of 0."""
    fp32 = np.full(20, 100.0)
    noise = np.tile([-1.0, 1.0], 10)  # an interval of about +- 0.45
    said = {
        shift: (found.verdict, found.differs)
        for shift in (63.0, 0.0, -2.0, -5.0, -8.0)
        for found in [verdict(fp32, fp32 + shift + noise, 5, rng())]
    }
    assert said == {
        63.0: ("non-inferior", True),  # a gain is told as well
        0.0: ("non-inferior", False),
        -2.0: ("non-inferior", True),
        -5.0: ("undecided", True),
        -8.0: ("inferior", True),
    }
    wide = verdict(fp32, fp32 + 20 * noise, 5, rng())
    assert (wide.verdict, wide.differs) == ("undecided", False)


def test_seeds_are_judged_with_the_same_words() -> None:
    def said(*losses: float) -> tuple[str, bool]:
        found = verdict_over_seeds([(np.full(5, 100.0), np.full(5, 100.0 - loss)) for loss in losses], 5, rng())
        return found.verdict, found.differs

    # Student's half width over two seeds: 12.706 / sqrt(2) standard deviations, 6.35 times their distance
    assert said(1.0, 1.1) == ("non-inferior", True)
    assert said(-1.0, 1.0) == ("undecided", False)
    assert said(9.0, 9.4) == ("inferior", True)
    assert said(-30.0, -31.0) == ("non-inferior", True)


def test_one_episode_has_no_interval() -> None:
    one, other = np.array([7.0]), np.array([3.0])
    table = summary(one, rng())
    assert (table.mean, table.ci_low, table.ci_high) == (7.0, None, None)
    error = error_interval(one, other, rng())
    assert error.point == pytest.approx(400 / 7)
    for found in (bootstrap_interval(one, rng()), over_seeds([one], rng()), error):
        assert np.isnan([found.low, found.high]).all()
    found = verdict(one, other, 5, rng())
    assert (found.verdict, found.differs) == ("undecided", False)


def test_no_error_in_percent_of_what_may_be_zero() -> None:
    near = np.array([-30.0, 40.0] * 10)  # 5 with an interval of about +- 15
    assert np.isnan(error_pct(near, near - 100, rng()))
    found = error_interval(near, near - 100, rng())
    assert np.isnan([found.point, found.low, found.high]).all()
    assert np.isnan(mean_error_interval([(near, near), (near + 100, near + 100)], rng()).point)
    over = error_over_seeds([(near, near - 100), (near + 1, near - 90)], rng())
    assert np.isnan([over.point, over.low, over.high]).all()
    assert verdict(near, near - 100, 5, rng()).verdict == "inferior"  # the difference is a number all the same
    far = np.array([-3.0, 40.0] * 10)  # 18.5 with an interval of about +- 9.4: mixed signs alone do not matter
    assert error_pct(far, far - 1.85, rng()) == pytest.approx(10.0)


def test_an_error_that_some_resamples_do_not_have_is_nan_at_both_ends() -> None:
    rare = np.array([0.0] * 9 + [1.0])
    found = error_interval(rare, rare, rng())
    assert np.isnan([found.low, found.high]).all()


def test_a_ratio_resamples_each_side_by_itself() -> None:
    ones, mixed = np.ones(10), np.array([0.0, 1.0] * 5)
    interval = ratio_interval(mixed, 2 * ones, [rng(), rng()])
    assert (interval.point, interval.low, interval.high) == (0.25, 0.1, 0.4)  # half of binomial(10, 0.5) / 10
    single = ratio_interval(mixed, np.array([2.0]), [rng(), rng()])
    assert single.point == 0.25
    assert np.isnan([single.low, single.high]).all()
    medians = ratio_interval(np.array([1.0, 2.0, 9.0]), 2 * ones, [rng(), rng()], statistic=np.median)
    assert (medians.point, medians.low, medians.high) == (1.0, 0.5, 4.5)


@pytest.mark.parametrize(("wins", "n", "low", "high"), [(81, 263, 0.2553, 0.3662), (0, 20, 0.0, 0.1611)])
def test_a_share_of_successes_has_wilsons_interval(wins: int, n: int, low: float, high: float) -> None:
    interval = wilson_interval(np.arange(n) < wins)  # Newcombe 1998, table I, method 3
    assert (interval.point, round(interval.low, 4), round(interval.high, 4)) == (wins / n, low, high)


def outcomes(both: int, first: int, second: int, neither: int) -> tuple[np.ndarray, np.ndarray]:
    """Successes of two policies in so many episodes that both win, that one alone wins, and that neither wins."""
    counts = [both, first, second, neither]
    return np.repeat([True, True, False, False], counts), np.repeat([True, False, True, False], counts)


@pytest.mark.parametrize(
    ("counts", "low", "high"),
    [  # Newcombe 1998, Statistics in Medicine 17:2635-2650, table III, method 10
        ((36, 12, 2, 0), 0.0569, 0.3404),
        ((20, 12, 2, 16), 0.0562, 0.3292),
        ((36, 14, 0, 0), 0.1528, 0.4167),
        ((18, 14, 0, 18), 0.1441, 0.3963),
        ((2, 97, 1, 0), 0.8721, 0.9854),
        ((0, 29, 1, 0), 0.6666, 0.9882),
        ((2, 98, 0, 0), 0.9178, 0.9945),
        ((0, 30, 0, 0), 0.8395, 1.0),
        ((54, 0, 0, 0), -0.0664, 0.0664),
        ((30, 0, 0, 24), -0.0358, 0.0358),
    ],
)
def test_a_drop_of_successes_has_newcombes_interval(counts: tuple[int, ...], low: float, high: float) -> None:
    first, second = outcomes(*counts)
    drop = drop_interval(first, second)
    assert (drop.point, round(drop.low, 4), round(drop.high, 4)) == ((counts[1] - counts[2]) / sum(counts), low, high)
    gain = drop_interval(second, first)
    np.testing.assert_allclose([gain.point, gain.low, gain.high], [-drop.point, -drop.high, -drop.low], atol=1e-15)


def test_newcombes_interval_at_another_level_is_that_of_its_wilson_intervals() -> None:
    # 36 and 25 of 50, 24 by both: written out with the quantile of 99 %
    (n, a, b, c, d), z = (50, 24, 12, 1, 13), 2.575829
    ends = []
    for wins in (a + b, a + c):
        root = z * np.sqrt(z**2 + 4 * wins * (1 - wins / n))
        ends.append(((2 * wins + z**2 - root) / 2 / (n + z**2), (2 * wins + z**2 + root) / 2 / (n + z**2)))
    (l1, u1), (l2, u2) = ends
    p1, p2, phi = 0.72, 0.5, (a * d - b * c - n / 2) / np.sqrt(36 * 14 * 25 * 25)
    low = p1 - p2 - np.sqrt((p1 - l1) ** 2 - 2 * phi * (p1 - l1) * (u2 - p2) + (u2 - p2) ** 2)
    high = p1 - p2 + np.sqrt((u1 - p1) ** 2 - 2 * phi * (u1 - p1) * (p2 - l2) + (p2 - l2) ** 2)
    drop = drop_interval(*outcomes(a, b, c, d), z)
    assert (drop.low, drop.high) == (pytest.approx(low), pytest.approx(high))


@pytest.mark.parametrize("n", [20, 50, 100])
def test_newcombes_interval_covers_94_percent_or_more(n: int) -> None:
    """The mean of 31 settings, of which the worst covers 93 %, up to three standard errors."""
    covered = []
    for share, loss, phi in itertools.product((0.5, 0.7, 0.9, 0.95), (0.0, 0.05, 0.2), (0.0, 0.3, 0.7)):
        other = share - loss
        both = share * other + phi * np.sqrt(share * (1 - share) * other * (1 - other))
        cells = np.array([both, share - both, other - both, 1 - share - other + both])
        if cells.min() < -1e-9:  # the two shares do not allow this correlation
            continue
        cells = cells.clip(0) / cells.clip(0).sum()
        draws, counts = np.unique(rng().multinomial(n, cells, 2_000), axis=0, return_counts=True)
        intervals = [drop_interval(*outcomes(*draw)) for draw in draws]
        covered.append(sum(counts[[each.low <= loss <= each.high for each in intervals]]) / 2_000)
    assert len(covered) == 31
    assert np.mean(covered) >= 0.94
    assert min(covered) >= 0.93 - 3 * np.sqrt(0.93 * 0.07 / 2_000)


@pytest.mark.parametrize(
    ("counts", "word"),
    [
        ((86, 14, 0, 0), "inferior"),  # success falls from 100 to 86 %
        ((73, 0, 0, 0), "non-inferior"),
        ((72, 0, 0, 0), "undecided"),
        ((36, 0, 0, 36), "undecided"),  # the interval ends at 2.7 points, and 72 equal episodes are too few
        ((195, 1, 0, 4), "non-inferior"),
    ],
)
def test_successes_are_judged_by_points_and_the_headline_is_the_worse(counts: tuple[int, ...], word: str) -> None:
    fp32, q = outcomes(*counts)
    success = judge_success(fp32, q, 5.0)
    assert success.verdict == word
    same = verdict(np.full(20, 100.0), np.full(20, 100.0), 5, rng())
    judged = replace(same, success=success)
    assert (judged.headline, judged.noninferior) == (word, word == "non-inferior")
    row = judged.to_json()
    assert (row["verdict"], row["verdict_return"], row["verdict_success"]) == (word, "non-inferior", word)
    assert same.to_json() == {"noninferior": True, "verdict": "non-inferior", "differs": False}


def test_successes_over_seeds_have_the_wider_interval() -> None:
    lost = [outcomes(100 - loss, loss, 0, 0) for loss in (0, 0, 12)]  # of 300 episodes, 4 %
    pooled = judge_success(*map(np.concatenate, zip(*lost, strict=True)), 10.0)
    assert (pooled.verdict, success_over_seeds(lost, 10.0).verdict) == ("non-inferior", "undecided")
    even = [outcomes(96, 4, 0, 0)] * 3  # Student's interval has no width
    assert success_over_seeds(even, 10.0).difference == pooled.difference
    assert success_over_seeds(lost[2:], 10.0).difference.point == -12.0


@pytest.mark.parametrize("n", [1, 2, 3, 7, 49, 1000])
def test_shares_of_successes_and_their_ends_stay_within_what_shares_can_be(n: int) -> None:
    for wins in {0, 1, n // 2, n}:
        won = np.arange(n) < wins
        share = wilson_interval(won)
        assert 0 <= share.low <= share.point <= share.high <= 1
        for other in (won, ~won, np.ones(n, bool), np.zeros(n, bool)):
            drop = drop_interval(won, other)
            assert -1 <= drop.low <= drop.point <= drop.high <= 1
    assert wilson_interval(np.zeros(n, bool)).low == 0
    assert wilson_interval(np.ones(n, bool)).high == 1
