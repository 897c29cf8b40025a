"""Columns of the tables that `quarl sweep` prints."""

from __future__ import annotations

from collections.abc import Mapping

from quarl.report.columns import Column, field_of, interval, number, number_of, verdict

_BITS = (
    Column("precision", field_of("precision"), left=True),
    Column("method", field_of("method"), left=True),
)
SWEEP: Mapping[str, tuple[Column, ...]] = {
    "sweep": (
        Column("algorithm", field_of("algo"), "{}", left=True),
        Column("environment", field_of("env_id"), "{}", left=True),
        *_BITS,
        Column("seed", field_of("seed")),
        Column("kernels", lambda row: "measured" if row["measured"] else "simulated", "{} kernels", left=True),
        Column("episodes", field_of("episodes"), "{} episodes each"),
        Column("return", number_of("mean")),
        Column("95 % interval", interval),
        Column("E %", number_of("error_pct")),
        Column("verdict", verdict, left=True),
        Column("steps", lambda row: f"{row['env_steps']:,}", "{} steps each"),
        Column("minutes", lambda row: f"{row['minutes']:.1f}"),
    ),
    "sweep summary": (
        *_BITS,
        Column("seeds", field_of("seeds"), "seeds: {}"),
        Column("return", number_of("mean")),
        Column("95 % interval", interval),
        Column("E %", number_of("error_pct")),
        Column("its interval", lambda row: interval(row, "error_low", "error_high")),
        Column("verdict", verdict, left=True),
        Column("qat over ptq", lambda row: number(row["gain"])),
        Column("interval", lambda row: interval(row, "gain_low", "gain_high")),
    ),
}
"""By the `command` of the document."""
