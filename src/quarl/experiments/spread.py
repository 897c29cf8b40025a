"""Weight spread against error: whether policies whose weights lie wider lose more to quantisation.

The paper says so of three (Krishnan et al. 2022: the widest distribution has the largest error). Two measures:

range: largest minus smallest of all weights, the paper's; a network with weights twice as large has twice of it, and
quantised relative to its range loses just as much.
peak: largest size of a weight over the standard deviation of all weights, which has no unit: how much of the grid is
spent on a few weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Annotated, Any

import numpy as np
import scipy

from quarl import formats
from quarl.arrays import Array
from quarl.experiments.groups import Group
from quarl.report.figures import SPREADS
from quarl.report.schema import Fields
from quarl.rows import Column, Row
from quarl.stats import Interval

WIDTHS = (8, 6, 4)
SCHEMES = ("naive", "default")
MODE = "dynamic"
NUM_RESAMPLES = 10_000
FEWEST = 8
"""Points that a rank correlation needs: of fewer its interval leaves out the true value too often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadRow(Row):
    """Spearman's rank correlation of one measure of spread and the error, over agents."""

    command = "study spread"
    spread: Annotated[str, Column("spread of weights")]
    """range: largest minus smallest weight; peak: largest size over the standard deviation."""
    bits: Annotated[int, Column("bits")]
    scheme: Annotated[str, Column("scheme")]
    agents: Annotated[int, Column("agents")]
    pairs: Annotated[int, Column("pairs", caption="{} pairs of algorithm and environment")]
    correlation: Annotated[float | None, Column("Spearman's ρ", formats.signed)]
    low: Annotated[float | None, Column("95 % interval", _interval, of=("low", "high"))]
    high: float | None


def _interval(low: float | None, high: float | None) -> str:
    return "–" if low is None else f"[{formats.signed(low)}, {formats.signed(high)}]"


def points(groups: Sequence[Group]) -> list[Fields]:
    """One point for every policy at every width and scheme: its two spreads and its error."""
    drawn: list[Fields] = []
    for group in groups:
        error = group.error()
        shown = group.bits in WIDTHS and group.scheme in SCHEMES and group.mode == MODE
        if not shown or error is None or not np.isfinite(error.point):
            continue
        facts = [record.result for record in group.records]
        spreads = {name: float(np.mean([_spread(fact, name) for fact in facts])) for name in SPREADS}
        about = {**asdict(group.agent), "bits": group.bits, "scheme": group.scheme}
        drawn.append({**about, **spreads, "error_pct": error.point})
    return drawn


def _spread(result: Mapping[str, Any], name: str) -> float:
    low, high = result["weight_min"], result["weight_max"]
    if name == "range":
        return float(high - low)
    return float(max(abs(low), abs(high)) / max(result["weight_std"], 1e-30))


def correlations(drawn: Sequence[Fields]) -> list[SpreadRow]:
    """Spearman's rank correlation of spread and error for each measure, width and scheme, with its interval."""
    rows: list[SpreadRow] = []
    for name, bits, scheme in product(SPREADS, WIDTHS, SCHEMES):
        panel = [row for row in drawn if (row["bits"], row["scheme"]) == (bits, scheme)]
        if not panel:
            continue
        rho = spearman([row[name] for row in panel], [row["error_pct"] for row in panel])
        rows.append(
            SpreadRow(
                spread=name,
                bits=bits,
                scheme=scheme,
                agents=len(panel),
                pairs=len({(row["algo"], row["env_id"]) for row in panel}),
                correlation=None if rho is None else rho.point,
                low=None if rho is None else rho.low,
                high=None if rho is None else rho.high,
            )
        )
    return rows


def spearman(x: Sequence[float], y: Sequence[float], num_resamples: int = NUM_RESAMPLES) -> Interval | None:
    """Rank correlation (Spearman 1904; ties share their mean rank) with a percentile bootstrap interval over points.

    None where there are too few points, or where all are equal in x or in y.
    """
    both = np.array([x, y], np.float64)
    n = both.shape[1]
    if n < FEWEST or (both == both[:, :1]).all(axis=1).any():
        return None
    rows = np.random.default_rng(0).integers(n, size=(num_resamples, n))
    resampled = _correlation(both[0][rows], both[1][rows])
    resampled = resampled[np.isfinite(resampled)]  # a resample may be one point n times
    low, high = np.quantile(resampled, [0.025, 0.975])
    return Interval(point=float(_correlation(both[:1], both[1:])[0]), low=float(low), high=float(high))


def _correlation(x: Array, y: Array) -> Array:
    """Spearman's correlation of each row [k, n]; NaN where a row is constant."""
    ranks = [scipy.stats.rankdata(side, axis=1) for side in (x, y)]
    centred = [side - side.mean(axis=1, keepdims=True) for side in ranks]
    scale = np.sqrt(np.square(centred[0]).sum(axis=1) * np.square(centred[1]).sum(axis=1))
    with np.errstate(invalid="ignore", divide="ignore"):
        result: Array = (centred[0] * centred[1]).sum(axis=1) / scale
    return result
