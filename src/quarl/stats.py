"""Statistics of episode returns and successes: means, intervals, relative errors and verdicts on a loss.

Intervals over episodes are percentile bootstraps (Efron and Tibshirani 1993, chapter 13). In a comparison of two
precisions, episode k of one is paired with episode k of the other (same reset seed), and both are resampled together.
Intervals over training seeds, of which there are few, are Student's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np

from quarl.arrays import Array
from quarl.errors import QuarlError

STABLE_STD_PCT = 15.0
"""Largest std of a stable agent, in percent of its |mean|: only for stable agents do some hundred episodes resolve 5
%."""
FEWEST_EPISODES = 10
"""Episodes below which every verdict is undecided: a bootstrap would predict too little about other episodes."""
NONINFERIOR, INFERIOR, UNDECIDED = "non-inferior", "inferior", "undecided"
WORST_FIRST = (INFERIOR, UNDECIDED, NONINFERIOR)
NO_VERDICT: Mapping[str, Any] = dict.fromkeys(("noninferior", "verdict", "differs"))
"""Fields of rows without a verdict."""


def z_of(arms: int) -> float:
    """Return the quantile at 2.5 % divided by a number of policies that are compared with fp32."""
    return NormalDist().inv_cdf(1 - 0.025 / arms)


Z = z_of(1)
"""Quantile of the normal distribution: 95 % are between -Z and Z."""
_CHUNK = 2**22
"""Resampled returns held at once: 32 MB of float64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An estimate and the ends of its confidence interval; NaN if there is none."""

    point: float
    low: float
    high: float


def as_fields(interval: Interval | None, point: str, ends: str) -> dict[str, Any]:
    """Return the fields of a row for an interval; None for all if there is no interval.

    Args:
        interval: The interval or None.
        point: Name of the field of its point.
        ends: Prefix of the fields of its ends, `ends`_low and `ends`_high.
    """
    numbers = (None, None, None) if interval is None else (interval.point, interval.low, interval.high)
    return dict(zip((point, f"{ends}_low", f"{ends}_high"), numbers, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Summary of one evaluation for a row of a table."""

    episodes: int
    mean: float
    std: float
    """Population standard deviation over episodes, as in the zoos' tables."""
    iqm: float
    ci_low: float | None
    """Lower end of the 95 % bootstrap interval of the mean; None for a single episode."""
    ci_high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Conclusion from the 95 % interval of a paired difference to fp32; a loss is negative."""

    verdict: str
    """non-inferior: the whole interval is above -margin; inferior: it is below; otherwise undecided."""
    differs: bool
    """The difference is beyond noise: the interval excludes 0, for a loss or for a gain."""
    difference: Interval
    """Difference with its two-sided 95 % interval, whose lower end is that of the one-sided 97.5 % interval."""
    margin: float
    """Largest acceptable loss, in the difference's unit."""

    success: Verdict | None = None
    """Verdict on the share of successes, in points; None if the environment reports none."""

    @property
    def noninferior(self) -> bool:
        return self.headline == NONINFERIOR

    @property
    def headline(self) -> str:
        """Return the worse of the verdicts on return and on success."""
        words = {self.verdict, self.success.verdict if self.success else self.verdict}
        return min(words, key=WORST_FIRST.index)

    def to_json(self) -> dict[str, Any]:
        """Return the fields of a row."""
        row = {"noninferior": self.noninferior, "verdict": self.headline, "differs": self.differs}
        success = self.success and {"verdict_success": self.success.verdict, "success_margin": self.success.margin}
        return row | {**success, "verdict_return": self.verdict} if success else row


def iqm(x: Array) -> float:
    """Return the interquartile mean: the mean without the lowest and highest quarter of the values.

    floor(n / 4) values are dropped at either end (Agarwal et al. 2021, "Deep RL at the Edge of the Statistical
    Precipice", section 4.3).
    """
    cut, kept = x.size // 4, x.size - x.size // 4
    return float(np.partition(x, (cut, kept - 1))[cut:kept].mean())


def bootstrap_interval(
    x: Array, rng: np.random.Generator, *, statistic: Callable[..., Any] = np.mean, num_resamples: int = 10_000
) -> Interval:
    """Return the 95 % percentile bootstrap interval of the mean of `x` [n], over resamples with replacement.

    A single episode predicts nothing about others, so its interval has no ends.

    Args:
        x: Independent numbers.
        rng: Source of the resamples.
        statistic: Statistic in place of the mean, with numpy's signature.
        num_resamples: Number of resamples.
    """
    x = _returns(x)
    if x.size == 1:
        return Interval(point=float(x[0]), low=np.nan, high=np.nan)
    resampled = _resample([x], lambda rows: statistic(rows[0], axis=-1), rng, num_resamples)
    return _interval(float(statistic(x)), resampled)


def wilson_interval(successes: Array, z: float = Z) -> Interval:
    """Return the share of true `successes` [n], 0..1, with Wilson's score interval (Wilson 1927).

    Source: Agresti and Coull 1998, "Approximate is better than exact for interval estimation of binomial proportions".

    Args:
        successes: True or false, by episode.
        z: Quantile of the normal distribution; the default is that of 95 %.
    """
    n, share = successes.size, float(successes.mean())
    middle, width = share + z**2 / (2 * n), z * math.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2)
    low, high = (middle - width) / (1 + z**2 / n), (middle + width) / (1 + z**2 / n)
    return Interval(point=share, low=min(max(low, 0.0), share), high=max(min(high, 1.0), share))


def drop_interval(fp32: Array, q: Array, z: float = Z) -> Interval:
    """Return the share of successes that q loses to fp32, [n] each and paired by episode, with its hybrid interval.

    Wilson's intervals of both shares are combined by their correlation phi, with its correction for continuity.
    Source: Newcombe 1998, "Improved confidence intervals for the difference between binomial proportions based on
    paired data", Statistics in Medicine 17:2635-2650, method 10.

    Args:
        fp32: True or false, by episode of fp32.
        q: The same for the quantized policy.
        z: Quantile of the normal distribution; the default is that of 95 %.
    """
    fp32, q = paired(fp32, q)
    n, first, second = fp32.size, wilson_interval(fp32, z), wilson_interval(q, z)
    # both succeed x neither succeeds - fp32 alone x q alone
    product = float((fp32 * q).sum() * ((1 - fp32) * (1 - q)).sum() - (fp32 > q).sum() * (fp32 < q).sum())
    product = max(product - n / 2, 0.0) if product > 0 else product
    spread = n**2 * math.sqrt(first.point * (1 - first.point) * second.point * (1 - second.point))
    phi = product / spread if spread else 0.0

    def reach(a: float, b: float) -> float:
        return math.sqrt(max(a**2 - 2 * phi * a * b + b**2, 0.0))

    drop = float((fp32 - q).sum()) / n
    low = drop - reach(first.point - first.low, second.high - second.point)
    high = drop + reach(first.high - first.point, second.point - second.low)
    return Interval(point=drop, low=max(low, -1.0), high=min(high, 1.0))


def judge_success(fp32: Array, q: Array, margin: float, z: float = Z) -> Verdict:
    """Return the verdict on the share of successes that q loses to fp32, by Newcombe's interval.

    Without an episode that exactly one of the two wins, non-inferiority takes `fewest_successes` episodes.

    Args:
        fp32: True or false, by episode of fp32.
        q: The same for the quantized policy, paired by episode.
        margin: Acceptable loss in percentage points.
        z: Quantile of the normal distribution; the default is that of 95 %.
    """
    drop = drop_interval(fp32, q, z)
    gain = Interval(point=-100 * drop.point, low=-100 * drop.high, high=-100 * drop.low)
    judged = judge(gain, margin, enough=fp32.size >= FEWEST_EPISODES)
    few = fp32.size < fewest_successes(margin, z) and bool((fp32 == q).all())
    return replace(judged, verdict=UNDECIDED) if few and judged.verdict == NONINFERIOR else judged


def success_over_seeds(pairs: Sequence[tuple[Array, Array]], margin: float) -> Verdict:
    """Return the verdict on successes over training seeds, whose interval is Newcombe's or Student's, if that is wider.

    Args:
        pairs: Successes of fp32 and of the quantized policy, of each seed.
        margin: Acceptable loss in percentage points.
    """
    fp32, q = map(np.concatenate, zip(*pairs, strict=True))
    pooled = judge_success(fp32, q, margin)
    if len(pairs) == 1 or pooled.verdict == UNDECIDED:
        return pooled
    newcombe, seeds = pooled.difference, over_few(np.array([100 * (q.mean() - fp32.mean()) for fp32, q in pairs]))
    return judge(replace(newcombe, low=min(newcombe.low, seeds.low), high=max(newcombe.high, seeds.high)), margin)


def fewest_successes(margin: float, z: float = Z) -> int:
    """Return the number of equal episodes that show a loss of successes below the margin, in points: 73 for 5."""
    return math.ceil(z**2 * (100 / margin - 1))


def ratio_interval(
    over: Array, under: Array, rngs: Sequence[np.random.Generator], *, statistic: Callable[..., Any] = np.mean
) -> Interval:
    """Return the statistic of `over` [n] divided by that of `under` [m], with a 95 % bootstrap interval.

    The two are not paired: each is resampled on its own, with its generator. With a single number on either side the
    interval has no ends. A resample with only zeros in `under` leaves no upper end.

    Args:
        over: Numbers of the numerator.
        under: Numbers of the denominator.
        rngs: Generators of the two.
        statistic: Statistic with numpy's signature.
    """
    sides = [_returns(side) for side in (over, under)]
    point = float(statistic(sides[0]) / statistic(sides[1]))
    if any(side.size == 1 for side in sides):
        return Interval(point=point, low=np.nan, high=np.nan)
    above, below = (
        _resample([side], lambda rows: statistic(rows[0], axis=-1), rng, 2_000)
        for side, rng in zip(sides, rngs, strict=True)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        return _interval(point, above / below)


def improvement_interval(fp32: Array, q: Array, rng: np.random.Generator, *, num_resamples: int = 2_000) -> Interval:
    """Return the probability that an episode of q returns more than one of fp32, with its 95 % bootstrap interval.

    All pairs of episodes count, not only those with the same start, and a tie counts as half. It is the statistic U of
    Mann and Whitney (1947), divided by the number of pairs. Source: Agarwal et al. 2021, "Deep RL at the Edge of the
    Statistical Precipice", section 4.3, probability of improvement.

    Args:
        fp32: Returns of fp32.
        q: Returns of the quantized policy, paired by episode: both are resampled together.
        rng: Source of the resamples.
        num_resamples: Number of resamples.
    """
    import scipy  # here: few callers need it, and the import is slow

    def share(rows: Sequence[Array]) -> Any:
        ranks = scipy.stats.rankdata(np.concatenate([rows[1], rows[0]], axis=-1), axis=-1)[..., : q.size]
        return (ranks.mean(axis=-1) - (q.size + 1) / 2) / q.size

    pair = [*paired(fp32, q)]
    return _interval(float(share(pair)), _resample(pair, share, rng, num_resamples))


def holm(tests: Sequence[Callable[[int], bool]]) -> list[int]:
    """Return, for each of several tests, the number by which its level was divided when it was decided.

    That number is the number of tests that had not been rejected so far: the step-down procedure of Holm 1979, "A
    simple sequentially rejective multiple test procedure". Then all rejections are right with the probability that
    a single test alone would have.

    Args:
        tests: For each test, a function that returns True if it rejects at the level divided by its argument.
    """
    left, divisors = list(range(len(tests))), dict[int, int]()
    while rejected := [i for i in left if tests[i](len(left))]:
        divisors |= dict.fromkeys(rejected, len(left))
        left = [i for i in left if i not in rejected]
    return [divisors.get(i, len(left)) for i in range(len(tests))]


def error_pct(fp32: Array, q: Array, rng: np.random.Generator) -> float:
    """Return E = (mean fp32 - mean q) / |mean fp32| * 100: the loss in percent, negative for a gain.

    NaN if the 95 % interval of fp32 contains 0, because a share of its mean is then meaningless. Source: the relative
    error E of the tables in Krishnan et al. 2022 (QuaRL), with |.| so that a loss is positive for negative returns too.

    Args:
        fp32: Returns of fp32.
        q: Returns of the quantized policy.
        rng: Source of the resamples for the interval of fp32.
    """
    share = float(_error(_returns(fp32).mean(), _returns(q).mean()))
    return np.nan if _may_be_zero(fp32, rng) else share


def error_interval(fp32: Array, q: Array, rng: np.random.Generator, *, num_resamples: int = 10_000) -> Interval:
    """Return `error_pct` with its paired bootstrap interval: both means come from the same resampled episodes.

    Args:
        fp32: Returns of fp32.
        q: Returns of the quantized policy, paired by episode.
        rng: Source of the resamples.
        num_resamples: Number of resamples.
    """
    return mean_error_interval([(fp32, q)], rng, num_resamples=num_resamples)


def mean_error_interval(
    agents: Sequence[tuple[Array, Array]], rng: np.random.Generator, *, num_resamples: int = 10_000
) -> Interval:
    """Return the mean over agents of `error_pct`, with a stratified bootstrap interval.

    Episodes are resampled within each agent and the agents are kept. The interval is about these agents, not about
    others that might have been trained (Agarwal et al. 2021, section 4.1).

    Args:
        agents: (fp32 returns, quantized returns) of each agent, paired by episode.
        rng: Source of the resamples.
        num_resamples: Number of resamples.
    """
    pairs = [paired(*pair) for pair in agents]
    point = float(np.mean([error_pct(fp32, q, rng) for fp32, q in pairs]))
    if np.isnan(point) or any(fp32.size == 1 for fp32, _ in pairs):
        return Interval(point=point, low=np.nan, high=np.nan)
    errors = np.zeros(num_resamples)
    for pair in pairs:
        errors += _resample([*pair], lambda rows: _error(_mean(rows[0]), _mean(rows[1])), rng, num_resamples)
    return _interval(point, errors / len(pairs))


def judge(difference: Interval, margin: float, *, enough: bool = True) -> Verdict:
    """Return the verdict on the interval of a mean difference q - fp32; undecided if there are not `enough` episodes.

    A margin of 0 allows no loss, since a share of zero is zero.

    Args:
        difference: The difference and its interval.
        margin: Largest acceptable loss.
        enough: There are enough episodes for a verdict.
    """
    low, high = (difference.low, difference.high) if enough else (np.nan, np.nan)
    word = NONINFERIOR if low > -margin < 0 else INFERIOR if high < -margin else UNDECIDED
    return Verdict(verdict=word, differs=bool(low > 0 or high < 0), difference=difference, margin=margin)


def verdict(
    fp32: Array, q: Array, margin_pct: float, rng: np.random.Generator, *, num_resamples: int = 10_000
) -> Verdict:
    """Return whether q loses less than the margin, or more, by the 95 % interval of mean(q - fp32).

    margin = margin_pct / 100 * |mean fp32|, taken as a fixed number. The interval is a paired bootstrap, so each test
    is one-sided at 2.5 % (Piaggio et al. 2012, CONSORT extension for non-inferiority trials).

    Args:
        fp32: Returns of fp32.
        q: Returns of the quantized policy, paired by episode.
        margin_pct: Acceptable loss in percent of the mean of fp32.
        rng: Source of the resamples.
        num_resamples: Number of resamples.

    Raises:
        QuarlError: The margin is not positive, or the returns are not paired.
    """
    fp32, q = paired(fp32, q)
    if not margin_pct > 0:
        raise QuarlError(f"the non-inferiority margin must be above 0 percent, got {margin_pct}")
    difference = bootstrap_interval(q - fp32, rng, num_resamples=num_resamples)
    return judge(difference, margin_pct / 100 * abs(float(fp32.mean())), enough=fp32.size >= FEWEST_EPISODES)


def verdict_over_seeds(
    pairs: Sequence[tuple[Array, Array]],
    margin_pct: float,
    rng: np.random.Generator,
    *,
    fewest: int = FEWEST_EPISODES,
) -> Verdict:
    """Return the verdict over training seeds, by the interval of their loss in percent.

    Args:
        pairs: (fp32, q) of each seed; a single pair is judged by its episodes.
        margin_pct: Acceptable loss in percent.
        rng: Source of the resamples.
        fewest: Episodes of all seeds together below which the verdict is undecided.
    """
    if len(pairs) == 1:
        return verdict(*pairs[0], margin_pct, rng)
    loss = _loss_over_seeds(pairs)
    gain = Interval(point=-loss.point, low=-loss.high, high=-loss.low)
    return judge(gain, margin_pct, enough=sum(fp32.size for fp32, _ in pairs) >= fewest)


def over_seeds(groups: Sequence[Array], rng: np.random.Generator) -> Interval:
    """Return the mean over training seeds of a mean over episodes, with its 95 % interval.

    The interval is Student's t over the seeds' means. They are few, and a bootstrap of three covers 76 % in place of
    its nominal 95 %. The interval predicts other seeds too. A single seed has the interval of its episodes, which
    predicts nothing about other seeds.

    groups: numbers of the episodes of each seed.
    """
    if len(groups) == 1:
        return bootstrap_interval(groups[0], rng)
    return over_few(np.array([_returns(group).mean() for group in groups]))


def error_over_seeds(pairs: Sequence[tuple[Array, Array]], rng: np.random.Generator) -> Interval:
    """Return `error_pct` of means over training seeds, with the interval of `over_seeds`.

    pairs: (fp32, q) of each seed.

    It is a ratio of two means. The spread is the distance of each seed's loss from the same share of its own fp32
    return (Cochran 1977, "Sampling Techniques", section 6.3). NaN if the interval of all seeds' fp32 episodes contains
    0.
    """
    if len(pairs) == 1:
        return error_interval(*pairs[0], rng)
    loss = _loss_over_seeds(pairs)
    is_none = _may_be_zero(np.concatenate([fp32 for fp32, _ in pairs]), rng)
    return Interval(point=np.nan, low=np.nan, high=np.nan) if is_none else loss


def _loss_over_seeds(pairs: Sequence[tuple[Array, Array]]) -> Interval:
    fp32, q = np.array([[returns.mean() for returns in paired(*pair)] for pair in pairs]).T
    error = float(_error(fp32.mean(), q.mean()))
    scale = abs(fp32.mean()) or np.nan
    same = error / 100 * fp32 * np.sign(fp32.mean())  # a seed's loss if all lost the same share
    return over_few(error + (fp32 - q - same) / scale * 100)


def over_few(values: Array, comparisons: int = 1) -> Interval:
    """Return the mean of [n] independent numbers, two or more, with Student's 95 % interval.

    Args:
        values: The numbers.
        comparisons: Number of intervals of which all contain their means with 95 %, by Bonferroni's correction.
    """
    import scipy  # here: few callers need it, and the import is slow

    point = float(values.mean())
    width = float(scipy.stats.t.isf(0.025 / comparisons, values.size - 1) * values.std(ddof=1) / np.sqrt(values.size))
    return Interval(point=point, low=point - width, high=point + width)


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean of positive numbers, such as seconds and their ratios."""
    return math.exp(float(np.mean(np.log(values))))


def summary(returns: Array, rng: np.random.Generator) -> Summary:
    """Return mean, std, IQM and the 95 % interval of the mean."""
    returns = _returns(returns)
    interval = bootstrap_interval(returns, rng)
    return Summary(
        episodes=returns.size,
        mean=interval.point,
        std=float(returns.std()),
        iqm=iqm(returns),
        ci_low=None if returns.size == 1 else interval.low,
        ci_high=None if returns.size == 1 else interval.high,
    )


def _may_be_zero(fp32: Array, rng: np.random.Generator) -> bool:
    """Return whether the 95 % interval of the mean contains 0."""
    fp32 = _returns(fp32)
    if fp32.min() > 0 or fp32.max() < 0:  # all resamples have the same sign
        return False
    interval = bootstrap_interval(fp32, rng)
    return interval.low <= 0 <= interval.high


def _mean(x: Array) -> Any:
    return x.mean(axis=-1)


def _error(fp32: Any, q: Any) -> Any:
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = np.abs(fp32)
        return np.where(scale > 0, (fp32 - q) / np.where(scale > 0, scale, 1.0) * 100, np.nan)


def _resample(
    columns: list[Array], statistic: Callable[[list[Array]], Any], rng: np.random.Generator, num_resamples: int
) -> Array:
    """Return the statistic [num_resamples] of columns [n] whose rows are drawn together, with replacement."""
    n = columns[0].size
    pieces = []
    step = max(1, _CHUNK // n)
    for start in range(0, num_resamples, step):
        rows = rng.integers(n, size=(min(step, num_resamples - start), n))
        pieces.append(np.asarray(statistic([column[rows] for column in columns])))
    return np.concatenate(pieces)


def _interval(point: float, resampled: Array) -> Interval:
    low, high = np.quantile(resampled, [0.025, 0.975])  # NaN if any resample is
    return Interval(point=point, low=float(low), high=float(high))


def _returns(x: Array) -> Array:
    x = np.asarray(x, np.float64)
    if x.ndim != 1 or x.size == 0:
        raise QuarlError(f"returns must be a list of at least one number, got shape {x.shape}")
    return x


def paired(fp32: Array, q: Array) -> tuple[Array, Array]:
    fp32, q = _returns(fp32), _returns(q)
    if fp32.size != q.size:
        raise QuarlError(f"paired returns need the same number of episodes on both sides, got {fp32.size} and {q.size}")
    return fp32, q
