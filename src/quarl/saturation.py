"""Saturation of a static policy: codes at the ends of its grids, and observations outside the calibrated box."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from quarl.arrays import Array
from quarl.engines import reference
from quarl.engines.numpy_operators import FUNCTIONS
from quarl.envs.rollout import Episode
from quarl.policy.graph import QuantizedPolicy
from quarl.policy.grids import RANGES, grid_rules
from quarl.quant.affine import quantize

BATCH = 64
EVERY, MOST = {"float32": 8, "uint8": 64}, {"float32": 2048, "uint8": 256}
"""Steps from one recorded observation to the next, and traced observations of an evaluation, of vectors and images."""
FLAT = 0.02
"""Share of the range of tanh and sigmoid: an end of the grid before them counts if they change more beyond it."""


def ends(policy: QuantizedPolicy) -> dict[str, tuple[int, int]]:
    """Return the codes, counted from the zero point, at and below which, and at and above which, a value saturates.

    Values without an entry do not saturate: bytes of images, and results of functions of codes, which are in a table.
    An end does not count where a function is flat: the low end of grids that begin at 0 or that a ReLU reads, and both
    before tanh and sigmoid, whose grids are narrowed on purpose.
    """
    codes = {}
    for name, rule in grid_rules(policy).items():
        if (grid := policy.grids.get(name)) and rule.kind in ("observation", "input", "layer"):
            low, high = grid.steps
            flat: Any = low == 0 or rule.function == "relu", False
            if rule.function in RANGES:
                points = np.array([-100, low * grid.scale, high * grid.scale, 100], np.float32)
                flat = np.diff(FUNCTIONS[rule.function](points))[::2] <= FLAT * (1 - RANGES[rule.function][0])
            codes[name] = low - int(flat[0]), high + int(flat[1])
    return codes


def saturated(policy: QuantizedPolicy, observations: Array) -> Array:
    """Return whether any code is at an end of its grid, bool [N], for each of the observations [N, *shape]."""
    engine, limits, found = reference.load(policy, BATCH), ends(policy), np.zeros(len(observations), bool)
    for start in range(0, len(found), BATCH):
        values = engine.trace(observations[start : start + BATCH])
        for name, (low, high) in limits.items():
            grid = policy.grids[name]
            codes = (quantize(values[name], grid.qparams) - grid.zero_point).reshape(len(values[name]), -1)
            found[start : start + BATCH] |= ((codes <= low) | (codes >= high)).any(axis=1)
    return found


def outside(policy: QuantizedPolicy, observations: Array) -> Array:
    """Return whether any number is outside the calibrated box, bool [N], for each observation; False without a box."""
    low, high = policy.box or (np.array(-np.inf), np.array(np.inf))
    away: Array = (observations < low) | (observations > high)
    return np.asarray(away.reshape(len(observations), -1).any(axis=1))


def interval(policy: QuantizedPolicy) -> int:
    """Return the steps from one observation to record to the next; 0 if nothing is known to saturate."""
    return EVERY[policy.observation_dtype] if policy.grids or policy.box else 0


def thinned(episode: Episode, episodes: int) -> Episode:
    """Return an episode, one of `episodes`, with as few evenly spaced observations as `shares` needs; None stays."""
    if (x := episode.observations) is None:
        return episode
    count = min(len(x), math.ceil(MOST[str(x.dtype)] / episodes))
    return replace(episode, observations=x[((np.arange(count) + 0.5) * len(x) / count).astype(np.int64)])


def shares(policy: QuantizedPolicy, episodes: Sequence[Episode]) -> dict[str, Any]:
    """Return the shares of the episodes' steps, 0..1, that are `saturated` and `outside`; None if unknown.

    Each observation stands for as many steps as others of its episode.
    """
    samples = [(x, np.full(len(x), each.length / len(x))) for each in episodes if (x := each.observations) is not None]
    known = {"saturated": saturated if policy.grids else None, "outside": outside if policy.box else None}
    if not samples:
        return dict.fromkeys(known)
    x, weights = map(np.concatenate, zip(*samples, strict=True))
    return {name: of and float(np.average(of(policy, x), weights=weights)) for name, of in known.items()}
