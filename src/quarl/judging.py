"""Returns of a quantized policy against those of float32: verdicts, and episodes until there is one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import numpy as np

from quarl import sequential, stats
from quarl.arrays import Array
from quarl.config import PrecisionsConfig
from quarl.evaluation import Evaluation
from quarl.stats import UNDECIDED


def looks_of(config: PrecisionsConfig) -> tuple[int, ...]:
    """Numbers of episodes after which a precision may have been played enough: one, where --episodes says it."""
    if config.episodes != "auto":
        return (config.episodes,)
    return sequential.looks(config.most_episodes, config.margin)


def until_judged(
    plays: Sequence[Callable[..., Evaluation]], looks: tuple[int, ...], margin_pct: float
) -> list[Evaluation]:
    """Evaluations of fp32, the first, and of others: of as many episodes as a verdict took, at most the last look's.

    plays: `evaluate` of each policy, of `episodes` episodes from number `first` on.
    """
    played = [play(episodes=looks[0]) for play in plays]
    undecided = list(range(1, len(plays)))
    for n, following in pairwise(looks):
        judged = {i: sequential.verdict(played[0].returns, played[i].returns, margin_pct, looks) for i in undecided}
        undecided = [i for i, verdict in judged.items() if verdict.verdict == UNDECIDED]
        for i in [0, *undecided] if undecided else []:
            played[i] = played[i].then(plays[i](episodes=following - n, first=n))
    return played


def judged(
    returns: Array, exact: Array | None, margin_pct: float, seed: int, looks: tuple[int, ...] = ()
) -> dict[str, Any]:
    """What rows hold of returns [episodes]: their summary, and what is lost to fp32's where there are as many of these.

    seed: of the bootstraps. looks: of `sequential.verdict`, where there were several.
    """
    rng = np.random.default_rng(seed)
    row = {**asdict(stats.summary(returns, rng)), "margin_pct": margin_pct, "error_pct": None, **stats.NO_VERDICT}
    row["max_episodes"] = looks[-1] if len(looks) > 1 else None
    if exact is not None and exact.size == returns.size:
        row["error_pct"] = stats.error_pct(exact, returns, np.random.default_rng(seed))
        verdict = stats.verdict(exact, returns, margin_pct, rng)
        if len(looks) > 1:
            verdict = sequential.verdict(exact, returns, margin_pct, looks)
        row |= verdict.to_json() | stats.as_fields(verdict.difference, "difference", "difference")
    return row
