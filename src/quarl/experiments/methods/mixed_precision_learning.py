"""Whether a learner in bfloat16 or float16 reaches what one in float32 reaches: whole trainings, seed by seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any

import numpy as np

from quarl import formats, stats
from quarl.config.mixed_precision import MixedPrecisionConfig
from quarl.experiments.cell_groups import EMPTY, grouped
from quarl.experiments.cells import FP32, TRAIN, UNTRAINED
from quarl.experiments.methods.mixed_precision import PolicyRow, described
from quarl.experiments.rows import returns
from quarl.experiments.runner import UNBOUNDED, entry_of
from quarl.experiments.store import Record
from quarl.experiments.summaries import of_the_same_seeds
from quarl.rows import Column, Episodes, Interval, Mean, Minutes

OPTIONS = ("learner_dtype", "eval_freq", "eval_episodes", "save_freq", "threads", "device")
"""Of its trainings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningRow(PolicyRow):
    """One precision over its seeds."""

    command = "bench mixed-precision learning"
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
        float | None, Column("to fp32", formats.estimate, of=("difference", "difference_low", "difference_high"))
    ]
    """To float32, paired by seed and episode; null for it."""
    difference_low: float | None
    difference_high: float | None
    equal: Annotated[bool | None, Column("equal", lambda equal: {None: "–", True: "within", False: "apart"}[equal])]
    """Whether the difference's interval holds 0."""
    minutes: Minutes
    """Of a training, on average."""


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
    trainings = {(record.source, record.seed): record.result for record in records if record.method == TRAIN}
    groups = {(group.agent.source, group.method): group for group in grouped(records)}
    rows = []
    for policy, dtype in product(config.chosen(), config.dtypes):
        columns = [groups.get((f"{policy} {dtype}", method), EMPTY) for method in (UNTRAINED, FP32)]
        before, trained = of_the_same_seeds(*columns)
        if not all(group.records for group in columns) or not trained.records:
            continue
        # differences to float32 are those of the seeds that both have
        base = groups.get((f"{policy} fp32", FP32), EMPTY) if dtype != "fp32" else EMPTY
        difference = trained.of({record.seed for record in base.records}).gain(base)
        lengths = [trainings[record.source, record.seed] for record in trained.records]
        rows.append(
            LearningRow(
                **described(policy, dtype),
                env_id=config.env,
                seeds=len(trained.records),
                env_steps=max(length["trained_steps"] for length in lengths),
                updates=max(length["updates"] for length in lengths),
                episodes=config.episodes,
                before=float(np.mean([returns(record) for record in before.records])),
                **stats.as_fields(trained.mean(), "mean", "ci"),
                **stats.as_fields(difference, "difference", "difference"),
                equal=None
                if difference is None or np.isnan(difference.low)
                else difference.low <= 0 <= difference.high,
                minutes=float(np.mean([length["minutes"] for length in lengths])),
            )
        )
    return rows
