"""Verdicts while episodes come in: a group-sequential test of non-inferiority, which ends once it has decided.

After some numbers of episodes, the looks, the paired differences to fp32 are judged. Each of the two tests, against a
loss of more and of less than the margin, spends its 2.5 % over the looks as O'Brien and Fleming's boundaries do, next
to nothing at first (Lan and DeMets 1983, "Discrete sequential boundaries for clinical trials", section 2). Time for
spending is the number of the look (Lan and DeMets 1989, "Group sequential procedures: calendar versus information
time"), for looks double.
"""

from __future__ import annotations

import dataclasses
import math
from functools import lru_cache

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm
from scipy.stats import t as student

from quarl.arrays import Array
from quarl.errors import QuarlError
from quarl.stats import NONINFERIOR, UNDECIDED, Interval, Verdict, judge, paired

FIRST_LOOK = 30
FALL = 0.5
"""Share of an episode of total failure that one reckons with unseen: it widens every interval by its spread."""
RULE_OF_THREE = 3.0
"""With no fall in n episodes, falls in more than 3 / n of them are excluded at 5 % (Hanley and Lippman-Hand 1983)."""


def looks(cap: int, margin_pct: float) -> tuple[int, ...]:
    """Numbers of episodes after which a verdict may be given: 30, doubled until the cap is near, and the cap.

    QuarlError for a cap below what it takes to exclude that the agent fails in a share `margin_pct` of its episodes.
    """
    if cap < fewest(margin_pct):
        least = f"an agent that fails in {margin_pct:g} % of its episodes is told in {fewest(margin_pct)} or more"
        raise QuarlError(f"--max-episodes {cap} cannot show a loss below {margin_pct:g} %: {least}")
    return (*(FIRST_LOOK << k for k in range(32) if FIRST_LOOK << k <= 0.75 * cap), cap)


def fewest(margin_pct: float) -> int:
    """Episodes without which nothing is called non-inferior: 3 / margin, the rule of three."""
    return math.ceil(round(RULE_OF_THREE / margin_pct * 100, 9))


@lru_cache
def boundaries(times: tuple[float, ...], alpha: float = 0.025) -> tuple[float, ...]:
    """What a standard normal statistic must exceed at each look, so that without an effect it does with `alpha` in all.

    times: of the looks, in any unit in which the variance of a sum grows. Crossing is integrated from look to look
    (Armitage, McPherson and Rowe 1969; Jennison and Turnbull 2000, section 19.2).

    >>> [round(z, 2) for z in boundaries((1, 2, 3, 4, 5))]
    [4.88, 3.36, 2.68, 2.29, 2.03]
    """
    shares = np.arange(1, len(times) + 1) / len(times)
    spent = 2 * norm.sf(norm.isf(alpha / 2) / np.sqrt(shares))
    sums, mass = np.zeros(1), np.ones(1)  # of those that crossed no boundary yet
    z = []
    for time, before, spend in zip(times, (0, *times), np.diff(spent, prepend=0.0), strict=False):
        step, root = math.sqrt(time - before), math.sqrt(time)
        bound = brentq(_excess, -9 * root, 12 * root, args=(sums, mass, step, spend))
        grid, width = np.linspace(-9 * root, bound, 2_001, retstep=True)
        mass = width / step * norm.pdf((grid[:, None] - sums) / step) @ mass
        mass[[0, -1]] /= 2
        sums = grid
        z.append(float(bound / root))
    return tuple(z)


def _excess(bound: float, sums: Array, mass: Array, step: float, spend: float) -> float:
    """How much more than `spend` crosses the bound in the next step."""
    return float(mass @ norm.sf((bound - sums) / step)) - spend


def verdict(fp32: Array, q: Array, margin_pct: float, looks: tuple[int, ...]) -> Verdict:
    """`stats.verdict` at a look: on the returns [n] so far, where n is one of `looks`, all that there may be.

    The interval is the look's own, a repeated confidence interval (Jennison and Turnbull 1989): over all looks it
    misses the truth on either side with 2.5 %. It is the wider of Student's and the one that Hall (1992, "On the
    removal of skewness by transformation", section 2) corrects for skewness, after a spread was added as if half an
    episode of total failure had not been seen.
    """
    fp32, q = paired(fp32, q)
    n, difference, scale = fp32.size, q - fp32, abs(float(fp32.mean()))
    mean = float(difference.mean())
    spread = math.sqrt(difference.var(ddof=1) + (FALL * scale) ** 2 / n) or math.nan  # NaN: all 0, and no verdict
    skewness = float(((difference - mean) ** 3).mean()) / spread**3
    critical = _critical(looks, n) / math.sqrt(n)
    corrected = [_unskewed(end, skewness, n) for end in (critical, -critical)]
    low, high = mean - spread * max(critical, corrected[0]), mean - spread * min(-critical, corrected[1])
    judged = judge(Interval(point=mean, low=low, high=high), margin_pct / 100 * scale)
    early = judged.verdict == NONINFERIOR and n < fewest(margin_pct)
    return dataclasses.replace(judged, verdict=UNDECIDED) if early else judged


@lru_cache
def _critical(looks: tuple[int, ...], n: int) -> float:
    """What Student's t of n episodes must exceed at that look."""
    return float(student.isf(norm.sf(boundaries(looks)[looks.index(n)]), n - 1))


def _unskewed(x: float, skewness: float, n: int) -> float:
    """u with u + g u^2 / 3 + g^2 u^3 / 27 + g / 6n = x, for the skewness g."""
    if abs(skewness) < 1e-6:
        return x
    return 3 / skewness * (float(np.cbrt(1 + skewness * (x - skewness / (6 * n)))) - 1)


def episodes_needed(episodes: int, difference: Interval, margin: float) -> float:
    """Roughly how many episodes decide what `episodes` left open, if mean and spread stay what they are."""
    distance = abs(difference.point + margin)
    return episodes * ((difference.high - difference.low) / 2 / distance) ** 2 if distance else math.inf
