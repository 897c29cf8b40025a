"""Columns of the tables that `quarl sweep` prints."""

from __future__ import annotations

from collections.abc import Mapping

from quarl.report.columns import Column, field_of, interval, number, number_of, verdict

_BITS = (
    Column("precision", field_of("precision"), left=True),
    Column("method", field_of("method"), left=True),
)
SWEEP: Mapping[str, tuple[Column, ...]] = {
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
