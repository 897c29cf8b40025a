"""Columns of the tables that `quarl bench mixed-precision` prints."""

from __future__ import annotations

from collections.abc import Mapping

from quarl.report.columns import Column, digits_of, field_of, interval, number, number_of, times_of
from quarl.report.schema import Row

_POLICY = (
    Column("policy", field_of("policy"), left=True),
    Column("filters", field_of("filters")),
    Column("dense", field_of("width")),
)
_DTYPE = Column("updates in", field_of("dtype"), left=True)


def _ms(row: Row) -> str:
    text = digits_of("ms_per_update")(row)
    return text if row["updates"] else f"≈ {text}"


def _ends(row: Row) -> str:
    return "" if row["ci_low"] is None else f"[{digits_of('ci_low')(row)}, {digits_of('ci_high')(row)}]"


def _difference(row: Row) -> str:
    if row["difference"] is None:
        return "–"
    return f"{number(row['difference'])} {interval(row, 'difference_low', 'difference_high')}"


MIXED_PRECISION: Mapping[str, tuple[Column, ...]] = {
    "bench mixed-precision updates": (
        *_POLICY,
        Column("parameters", lambda row: f"{row['parameters'] / 1e6:.3g} M"),
        Column("batch", field_of("batch"), "batch {}"),
        Column("device", field_of("device"), "on {}", left=True),
        Column("threads", field_of("threads"), "{} threads"),
        _DTYPE,
        Column("products", lambda row: "native" if row["native"] else "emulated", left=True),
        Column("updates", field_of("updates")),
        Column("ms an update", _ms),
        Column("95 % interval", _ends),
        Column("× fp32", times_of("speedup", "speedup_low", "speedup_high")),
    ),
    "bench mixed-precision learning": (
        *_POLICY,
        Column("environment", field_of("env_id"), "on {}", left=True),
        _DTYPE,
        Column("seeds", field_of("seeds"), "seeds: {}"),
        Column("steps", lambda row: f"{row['env_steps']:,}", "{} steps each"),
        Column("updates", lambda row: f"{row['updates']:,}", "{} updates each"),
        Column("episodes", field_of("episodes"), "{} episodes each"),
        Column("before", number_of("before")),
        Column("return", number_of("mean")),
        Column("95 % interval", interval),
        Column("to fp32", _difference),
        Column("equal", lambda row: {None: "–", True: "within", False: "apart"}[row["equal"]], left=True),
        Column("minutes", lambda row: f"{row['minutes']:.1f}"),
    ),
}
"""By the `command` of the document."""
