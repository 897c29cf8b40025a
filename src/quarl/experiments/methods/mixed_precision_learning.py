"""Whether a learner in bfloat16 or float16 reaches what one in float32 reaches: whole trainings, seed by seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from quarl import formats, stats
from quarl.arrays import Array
from quarl.config.mixed_precision import MixedPrecisionConfig, sizes
from quarl.experiments.cells import DONE, FP32, TRAIN, UNTRAINED
from quarl.experiments.runner import UNBOUNDED, entry_of
from quarl.experiments.store import Record
from quarl.rows import Column, Episodes, Interval, Mean, Minutes, Row

OPTIONS = ("learner_dtype", "eval_freq", "eval_episodes", "save_freq", "threads", "device")
"""Of its trainings."""
Cell = Mapping[str, Mapping[str, Any]]
"""What was measured of one training, by method."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningRow(Row):
    """One precision over its seeds."""

    command = "bench mixed-precision learning"
    policy: Annotated[str, Column("policy")]
    filters: Annotated[int, Column("filters")]
    width: Annotated[int, Column("dense")]
    dtype: Annotated[str, Column("updates in")]
    env_id: Annotated[str, Column("environment", caption="on {}", before="dtype")]
    seeds: Annotated[int, Column("seeds", caption="seeds: {}")]
    env_steps: Annotated[int, Column("steps", "{:,}".format, caption="{} steps each")]
    """Of each training."""
    updates: Annotated[int, Column("updates", "{:,}".format, caption="{} updates each")]
    episodes: Episodes
    """Of each seed's best agent."""
    before: Annotated[float, Column("before", formats.number)]
    """Mean return of the same networks before training."""
    mean: Mean
    ci_low: Interval
    """Ends of the 95 % interval over seeds and their episodes."""
    ci_high: float | None
    difference: Annotated[
        float | None, Column("to fp32", _difference, of=("difference", "difference_low", "difference_high"))
    ]
    """To float32, paired by seed and episode; null for it."""
    difference_low: float | None
    difference_high: float | None
    equal: Annotated[bool | None, Column("equal", lambda equal: {None: "–", True: "within", False: "apart"}[equal])]
    """Whether the difference's interval holds 0."""
    minutes: Minutes
    """Of a training, on average."""


def _difference(difference: float | None, low: float | None, high: float | None) -> str:
    return "–" if difference is None else f"{formats.number(difference)} {formats.interval(low, high)}"


def document(config: MixedPrecisionConfig) -> dict[str, Any]:
    """The study file of the trainings."""
    trainings = {
        f"{policy} {dtype}": config.training(policy, dtype, config.seed, config.output)
        for policy in config.chosen()
        for dtype in config.dtypes
    }
    return {
        "name": f"mixed precision on {config.env}",
        "episodes": config.episodes,
        "seeds": list(range(config.seed, config.seed + config.seeds)),
        "limits": UNBOUNDED,
        "policies": [{"name": name, **entry_of(training, OPTIONS)} for name, training in trainings.items()],
        "methods": [{"method": UNTRAINED}, {"method": FP32}],
    }


def rows(config: MixedPrecisionConfig, records: Sequence[Record]) -> list[LearningRow]:
    """A row for every policy and precision of which a seed is there."""
    cells: dict[str, dict[int, dict[str, Mapping[str, Any]]]] = {}
    for record in records:
        if record.state == DONE and record.found is not None:
            cells.setdefault(record.source, {}).setdefault(record.seed, {})[record.method] = record.found
    made = []
    for policy in config.chosen():
        found: dict[str, Mapping[int, Cell]] = {}
        for dtype in config.dtypes:
            seeds = cells.get(f"{policy} {dtype}", {})
            found[dtype] = {seed: cell for seed, cell in seeds.items() if {TRAIN, UNTRAINED, FP32} <= set(cell)}
        made += [_row(config, policy, dtype, found) for dtype in config.dtypes if found[dtype]]
    return made


def _row(config: MixedPrecisionConfig, policy: str, dtype: str, found: Mapping[str, Mapping[int, Cell]]) -> LearningRow:
    own, base = found[dtype], found.get("fp32", {})
    filters, width = sizes(policy)
    trained = [cell[TRAIN] for cell in own.values()]
    values = stats.over_seeds([_returns(cell) for cell in own.values()], np.random.default_rng(0))
    pairs = [(own[seed], base[seed]) for seed in own if seed in base and dtype != "fp32"]
    difference = None
    if pairs:
        difference = stats.over_seeds([_returns(a) - _returns(b) for a, b in pairs], np.random.default_rng(0))
    return LearningRow(
        policy=policy,
        filters=filters,
        width=width,
        dtype=dtype,
        env_id=config.env,
        seeds=len(own),
        env_steps=max(cell["trained_steps"] for cell in trained),
        updates=max(cell["updates"] for cell in trained),
        episodes=config.episodes,
        before=float(np.mean([_returns(cell, UNTRAINED) for cell in own.values()])),
        **stats.as_fields(values, "mean", "ci"),
        **stats.as_fields(difference, "difference", "difference"),
        equal=None if difference is None or np.isnan(difference.low) else difference.low <= 0 <= difference.high,
        minutes=float(np.mean([cell["minutes"] for cell in trained])),
    )


def _returns(cell: Cell, method: str = FP32) -> Array:
    return np.asarray(cell[method]["returns"], np.float64)
