"""Columns of the tables that `quarl envs` prints."""

from __future__ import annotations

from collections.abc import Mapping

from quarl.report.columns import Column, field_of
from quarl.report.schema import Row


def _installed(row: Row) -> str:
    return f"{row['package']} {row['version']}" if row["version"] else row["install"]


def _limit(row: Row) -> str:
    return "none" if row["time_limit"] is None else f"{row['time_limit']:,} steps"


ENVS: Mapping[str, tuple[Column, ...]] = {
    "envs": (
        Column("suite", field_of("suite"), left=True),
        Column("installed", _installed, left=True),
        Column("ids", lambda row: f"{row['ids']:,}"),
        Column("example", field_of("example"), left=True),
        Column("learners that fit it", lambda row: " ".join(row["algorithms"]) or "–", left=True),
    ),
    "envs id": (
        Column("suite", field_of("suite"), "suite {}", left=True),
        Column("observations", field_of("observation_space"), "observations {}", left=True),
        Column("actions", field_of("action_space"), "actions {}", left=True),
        Column("time limit", _limit, "time limit {}", left=True),
        Column("algorithm", field_of("algo"), left=True),
        Column("", lambda row: "fits" if row["fits"] else "n/a", left=True),
        Column("reason", field_of("reason"), left=True),
    ),
}
"""By the `command` of the document."""
