"""Columns of the table that `quarl train` prints."""

from __future__ import annotations

from collections.abc import Mapping

from quarl.report.columns import Column, field_of, interval, number, number_of
from quarl.report.schema import Row


def _quantised(row: Row) -> str:
    mean = row["mean_quantised"]
    return "–" if mean is None else f"{number(mean)} {interval(row, 'ci_low_quantised', 'ci_high_quantised')}"


TRAIN: Mapping[str, tuple[Column, ...]] = {
    "train": (
        Column("algorithm", field_of("algo"), left=True),
        Column("environment", field_of("env_id"), left=True),
        Column("trained for", field_of("precision"), left=True),
        Column("seed", field_of("seed"), "seed {}"),
        Column("learner", field_of("learner_dtype"), "learner in {}", left=True),
        Column("steps", lambda row: f"{row['timesteps']:,}"),
        Column("updates", lambda row: f"{row['updates']:,}"),
        Column("minutes", lambda row: f"{row['clock_s'] / 60:.1f}"),
        Column("steps/s", lambda row: f"{row['steps_per_s']:,.0f}"),
        Column("episodes", field_of("episodes"), "{} episodes"),
        Column("return", number_of("mean")),
        Column("95 % interval", interval),
        Column("quantised", _quantised),
        Column("best", number_of("best_mean")),
    ),
}
"""By the `command` of the document."""
