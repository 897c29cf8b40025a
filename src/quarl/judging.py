"""Returns and successes of a quantized policy against those of float32: verdicts, and episodes until there is one.

Verdicts during evaluation are those of a group-sequential test of non-inferiority on paired differences.
At each interim analysis both tests, against a loss of more and of less than the margin, spend a part of their 2.5 %.
The part follows O'Brien and Fleming's boundaries (Lan and DeMets 1983, "Discrete sequential boundaries for clinical
trials", section 2). Time, for spending, is the number of the analysis (Lan and DeMets 1989, "Calendar versus
information time"), because the number of episodes doubles between analyses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import scipy

from quarl import formats, stats
from quarl.arrays import Array
from quarl.calibration import quantize
from quarl.engines import greedy
from quarl.errors import QuarlError
from quarl.evaluation import Evaluation, all_successes, carry, split_by_time
from quarl.policy.graph import Policy, QuantizedPolicy, is_quantized
from quarl.quant.spec import EXACT
from quarl.specs import CompareSpec, ComparisonSpec
from quarl.stats import INFERIOR, NONINFERIOR, UNDECIDED, Interval, Verdict, judge, paired

AGREE_PCT = 1.0
"""Largest difference of agreeing continuous actions, in percent of each component's range."""
FIRST_LOOK = 30
FALL = 0.5
"""Number of completely failed episodes that may have been missed; their spread widens the intervals."""


def looks_of(asked: ComparisonSpec | CompareSpec, arms: int = 1) -> tuple[int, ...]:
    """Return the numbers of episodes after which evaluation may stop: a single one unless --episodes is auto.

    Args:
        asked: The episodes and the margin.
        arms: Number of policies that are compared with fp32 together.
    """
    if asked.episodes != "auto":
        return (asked.episodes,)
    return looks(asked.most_episodes, asked.margin, arms)


def until_judged(
    plays: Sequence[Callable[..., Evaluation]],
    looks: tuple[int, ...],
    margin_pct: float,
    success_margin: float = ComparisonSpec.success_margin,
    *,
    corrected: bool = False,
) -> list[Evaluation]:
    """Evaluate fp32 and other policies until each has a verdict, the worse of those on return and on success.

    Args:
        plays: `evaluate` for each policy, fp32's first; it plays `episodes` episodes from index `first`.
        looks: Numbers of episodes of the interim analyses; the last one is the maximum.
        margin_pct: Acceptable loss in percent of the mean of fp32.
        success_margin: Acceptable loss of successes in points.
        corrected: Correct the verdicts for the number of policies, as `verdicts` does.

    Returns:
        The evaluations, in the order of `plays`, with as many episodes as their verdicts required.
    """
    played = [play(episodes=looks[0]) for play in plays]
    for n, following in pairwise(looks):
        judged = verdicts(played, margin_pct, success_margin, looks, corrected=corrected)
        undecided = [i for i, verdict in enumerate(judged, 1) if verdict.headline == UNDECIDED]
        for i in [0, *undecided] if undecided else []:
            played[i] = played[i].then(plays[i](episodes=following - n, first=n))
    return played


def successes_of(exact: Evaluation, played: Evaluation) -> tuple[Array, Array] | None:
    """Return the successes of fp32 and another policy in the episodes that both played.

    None for fp32 itself, and if the environment reports no successes.
    """
    both = None if played is exact else all_successes(exact, played)
    return None if both is None else (both[0][: len(both[1])], both[1])


def with_success(
    verdict: Verdict, successes: tuple[Array, Array] | None, margin: float, looks: tuple[int, ...] = (), arms: int = 1
) -> Verdict:
    """Return a verdict on returns together with that on successes, at the same analysis.

    Args:
        verdict: The verdict on returns.
        successes: Successes of fp32 and of the quantized policy, paired by episode; None if there are none.
        margin: Acceptable loss of successes in percentage points.
        looks: Numbers of episodes of the interim analyses, as in `sequential_verdict`, if there were several.
        arms: Number by which the level of 2.5 % is divided, because as many policies are compared with fp32.
    """
    if successes is None:
        return verdict
    several = len(looks) > 1
    z = boundaries(looks, 0.025 / arms)[looks.index(successes[0].size)] if several else stats.z_of(arms)
    return replace(verdict, success=stats.judge_success(*successes, margin, z))


def verdicts(
    played: Sequence[Evaluation], margin_pct: float, success_margin: float, looks: tuple[int, ...], *, corrected: bool
) -> Iterator[Verdict]:
    """Yield the verdicts on several policies against fp32, with Holm's correction for their number.

    The tests of non-inferiority are a family, and those of inferiority are another one: in each, the probability of
    one or more wrong verdicts is at most that of a single policy's test. A policy's test is that of the worse of its
    verdicts on return and on success. The lower end of an interval has the level of Holm's step at which the first
    family decided, the upper end that of the second, so that intervals and verdicts agree. Whether a policy
    differs from fp32 is corrected by the number of policies (Bonferroni). Stopping at an interim analysis keeps these
    levels (Maurer and Bretz 2013, "Multiple testing in group sequential trials using graphical approaches").

    Args:
        played: Evaluations of fp32, then of the policies, each of as many first episodes as it needed.
        margin_pct: Acceptable loss in percent of the mean of fp32.
        success_margin: Acceptable loss of successes in points.
        looks: Numbers of episodes of all analyses.
        corrected: False judges each policy as if it were the only one.

    Yields:
        A verdict for each policy.
    """
    exact, *others = played

    @cache
    def at(i: int, arms: int) -> Verdict:
        pair, arms = (exact.returns[: len(others[i].returns)], others[i].returns), arms if corrected else 1
        on_return = sequential_verdict(*pair, margin_pct, looks, arms)
        return with_success(on_return, successes_of(exact, others[i]), success_margin, looks, arms)

    lows, highs = (
        stats.holm([lambda arms, i=i, word=word: at(i, arms).headline == word for i in range(len(others))])  # type: ignore[misc]
        for word in (NONINFERIOR, INFERIOR)
    )
    for i, ends in enumerate(zip(lows, highs, strict=True)):
        low, high = (at(i, arms) for arms in ends)
        success = low.success and high.success and _between(low.success, high.success)
        yield replace(_between(low, high), differs=at(i, len(others)).differs, success=success)


def _between(low: Verdict, high: Verdict) -> Verdict:
    """Return the verdict whose interval has the lower end of one and the upper end of the other."""
    word = NONINFERIOR if low.verdict == NONINFERIOR else INFERIOR if high.verdict == INFERIOR else UNDECIDED
    return replace(low, verdict=word, difference=replace(low.difference, high=high.difference.high))


def judged(
    returns: Array,
    exact: Array | None,
    margin_pct: float,
    seed: int,
    looks: tuple[int, ...] = (),
    successes: tuple[Array, Array] | None = None,
    success_margin: float = ComparisonSpec.success_margin,
    verdict: Verdict | None = None,
) -> dict[str, Any]:
    """Return the fields of a row about returns [episodes]: their summary, and the verdict on their loss against fp32.

    Args:
        returns: Returns of the quantized policy.
        exact: Returns of fp32; without as many of them, or with None, the row has no verdict.
        margin_pct: Acceptable loss in percent of the mean of fp32.
        seed: Seed of the bootstraps.
        looks: Numbers of episodes of the interim analyses, as in `sequential_verdict`, if there were several.
        successes: Successes of fp32 and of the quantized policy; None if the environment reports none.
        success_margin: Acceptable loss of successes in points.
        verdict: The verdict, if it is known, as that of one of several policies is.
    """
    rng = np.random.default_rng(seed)
    row = {**asdict(stats.summary(returns, rng)), "margin_pct": margin_pct, "error_pct": None, **stats.NO_VERDICT}
    row["max_episodes"] = looks[-1] if len(looks) > 1 else None
    if exact is not None and exact.size == returns.size:
        if verdict is None:
            verdict = (
                sequential_verdict(exact, returns, margin_pct, looks)
                if len(looks) > 1
                else stats.verdict(exact, returns, margin_pct, rng)
            )
            verdict = with_success(verdict, successes, success_margin, looks)
        row |= verdict.to_json() | stats.as_fields(verdict.difference, "difference", "difference")
        if verdict.success is not None:
            gain = verdict.success.difference  # in points; a drop is a share
            drop = Interval(point=-gain.point / 100, low=-gain.high / 100, high=-gain.low / 100)
            row |= stats.as_fields(drop, "drop", "drop")
        row["error_pct"] = stats.error_pct(exact, returns, np.random.default_rng(seed))
    return row


def against(played: Evaluation, exact: Evaluation, asked: ComparisonSpec, seed: int | None = None) -> dict[str, Any]:
    """Return the fields of a row about episodes: returns, successes, and the verdict against the same ones of fp32.

    Args:
        played: Episodes of the quantized policy.
        exact: Episodes of fp32, at least as many.
        asked: The margins and the interim analyses.
        seed: Seed of the bootstraps; None means that of `asked`.
    """
    seed, fp32 = asked.seed if seed is None else seed, exact.returns[: len(played.returns)]
    about: Any = {"successes": successes_of(exact, played), "success_margin": asked.success_margin}
    row = judged(played.returns, fp32, asked.margin, seed, looks_of(asked), **about)
    return row | stats.as_fields(played.success, "success", "success") | played.by_episode()


def fidelity(policy: Policy, exact: Array, actions: Array) -> dict[str, Any]:
    """Return the error of actions on the same observations, as shares of their range, and the share that agrees.

    Discrete actions agree if they are equal, and have no other error. Continuous ones agree within AGREE_PCT of the
    range in every component.

    Args:
        policy: The policy, which has the range of the actions.
        exact: Actions of fp32.
        actions: Actions of the quantized policy.
    """
    away = policy.head.distance(exact, actions)
    agreement = float(np.mean((away <= AGREE_PCT / 100).all(axis=1)))
    if policy.head.is_discrete:
        return {"error_rms": None, "error_max": None, "agreement": agreement}
    return {"error_rms": math.sqrt(np.square(away).mean()), "error_max": float(away.max()), "agreement": agreement}


def fidelity_on(policy: Policy, quantized: QuantizedPolicy, recorded: Array) -> tuple[dict[str, Any], str]:
    """Return the result of `fidelity` on the last tenth of recorded observations, and its meaning in a sentence.

    Args:
        policy: The policy to compare with, in float32 or quantized.
        quantized: The policy in another precision.
        recorded: Raw observations [N, *shape] in the order of time.
    """
    held_out, exact = split_by_time(recorded)[1], policy if is_quantized(policy) else quantize(policy, EXACT)
    errors = fidelity(policy, *(greedy(each, carry(each, held_out)) for each in (exact, quantized)))
    rms, largest = map(formats.share_of_range, (errors["error_rms"], errors["error_max"]))
    continuous = "" if policy.head.is_discrete else f", RMS error {rms} % of the range, largest {largest} %"
    return errors, (
        f"fidelity on the last {len(held_out):,} recorded observations, no return: "
        f"{formats.percent(errors['agreement'])} % of actions agree{continuous}"
    )


def looks(cap: int, margin_pct: float, arms: int = 1) -> tuple[int, ...]:
    """Return the numbers of episodes of the interim analyses: 30, doubled until the cap is near, and the cap.

    Args:
        cap: Maximum number of episodes.
        margin_pct: Acceptable loss in percent of the mean of fp32.
        arms: Number of policies that are compared with fp32.

    Raises:
        QuarlError: Nothing could be called non-inferior at the cap.
    """
    if cap < (least := fewest(margin_pct, arms)):
        way = f"use {least} or more, enough to show that fewer than {margin_pct:g} % of episodes fail"
        raise QuarlError(f"--max-episodes {cap} cannot show a loss below {margin_pct:g} %: {way}")
    return (*(FIRST_LOOK << k for k in range(32) if FIRST_LOOK << k <= 0.75 * cap), cap)


def fewest(margin_pct: float, arms: int = 1) -> int:
    """Return the number of episodes needed to call one of several policies non-inferior.

    It follows the rule of three (Hanley and Lippman-Hand 1983), whose 3 is about ln 20: failures in a share p of the
    episodes happen in none of n with a probability below 1 / (20 arms) if n > (ln 20 + ln arms) / p.
    """
    return math.ceil(round(100 * (3 + math.log(arms)) / margin_pct, 9))


@lru_cache
def boundaries(times: tuple[float, ...], alpha: float = 0.025) -> tuple[float, ...]:
    """Return the boundaries that a standard normal statistic exceeds at some analysis with probability `alpha`.

    The probability holds without an effect. Sums are integrated from analysis to analysis (Armitage, McPherson and Rowe
    1969).

    Args:
        times: Times of the analyses, in any unit.
        alpha: Probability of the whole test.

    >>> [round(z, 2) for z in boundaries((1, 2, 3, 4, 5))]
    [4.88, 3.36, 2.68, 2.29, 2.03]
    """
    norm = scipy.stats.norm  # imported on first use: it takes longer than the rest of `quarl eval`
    spent = 2 * norm.sf(norm.isf(alpha / 2) / np.sqrt(np.arange(1, len(times) + 1) / len(times)))
    sums, mass, z = np.zeros(1), np.ones(1), []  # paths that have crossed no boundary yet
    for time, before, spend in zip(times, (0, *times[:-1]), np.diff(spent, prepend=0.0), strict=True):
        step, root = math.sqrt(time - before), math.sqrt(time)
        bound = scipy.optimize.brentq(lambda at: mass @ norm.sf((at - sums) / step) - spend, -9 * root, 12 * root)  # noqa: B023
        grid, width = np.linspace(-9 * root, bound, 2_001, retstep=True)
        mass = width / step * norm.pdf((grid[:, None] - sums) / step) @ mass
        mass[[0, -1]] /= 2  # trapezoids
        sums = grid
        z.append(float(bound / root))
    return tuple(z)


def sequential_verdict(fp32: Array, q: Array, margin_pct: float, looks: tuple[int, ...], arms: int = 1) -> Verdict:
    """Return the verdict on the returns [n] so far; n must be one of the numbers in `looks`.

    Its interval is that of the analysis, a repeated confidence interval (Jennison and Turnbull 1989). It is the wider
    of Student's and of the one that Hall (1992, "On the removal of skewness by transformation", section 2) corrects.

    Args:
        fp32: Returns of fp32.
        q: Returns of the quantized policy, paired by episode.
        margin_pct: Acceptable loss in percent of the mean of fp32.
        looks: Numbers of episodes of all interim analyses.
        arms: Number by which the level of 2.5 % is divided, because as many policies are compared with fp32.
    """
    fp32, q = paired(fp32, q)
    n, scale, difference = fp32.size, abs(float(fp32.mean())), q - fp32
    mean = float(difference.mean())
    spread = math.sqrt(difference.var(ddof=1) + (FALL * scale) ** 2 / n)
    g = float(((difference - mean) ** 3).mean()) / spread**3 if spread else 0.0
    t = float(
        scipy.stats.t.isf(scipy.stats.norm.sf(boundaries(looks, 0.025 / arms)[looks.index(n)]), n - 1)
    ) / math.sqrt(n)
    hall = [3 / g * (float(np.cbrt(1 + g * (x - g / (6 * n)))) - 1) if abs(g) > 1e-6 else x for x in (t, -t)]
    interval = Interval(point=mean, low=mean - spread * max(t, hall[0]), high=mean - spread * min(-t, hall[1]))
    early = n < fewest(margin_pct, arms)
    judged = judge(interval, margin_pct / 100 * scale)
    return replace(judged, verdict=UNDECIDED) if early and judged.verdict == NONINFERIOR else judged
