"""Columns of the tables that `quarl inspect` prints."""

from __future__ import annotations

from collections.abc import Mapping

from quarl.errors import short
from quarl.report.columns import Column, field_of, number, spark, unless_float

_PRECISION = (
    Column("precision", field_of("precision"), "{}", left=True),
    Column("scheme", unless_float("scheme"), "scheme {}", left=True),
)
_EXTENT = (
    Column("min", lambda row: f"{row['min']:.4g}"),
    Column("max", lambda row: f"{row['max']:.4g}"),
    Column("range", lambda row: f"{row['range']:.4g}"),
)
_NOISE = Column("SQNR dB", lambda row: "exact" if row["sqnr_db"] is None else f"{row['sqnr_db']:.1f}")
_HISTOGRAM = Column("histogram (log)", lambda row: spark(row["histogram"]["counts"]), left=True)

INSPECT: Mapping[str, tuple[Column, ...]] = {
    "inspect": (
        Column("layer", lambda row: short(row["layer"]), left=True),
        Column("operator", field_of("operator"), "{} layers", left=True),
        Column("shape", lambda row: "×".join(map(str, row["shape"]))),
        *_PRECISION,
        *_EXTENT,
        Column("levels", field_of("levels")),
        _NOISE,
        Column("clipped %", lambda row: f"{100 * row['saturation']:.2g}"),
        _HISTOGRAM,
    ),
    "inspect models": (
        Column("model", lambda row: short(row["model"]), left=True),
        Column("weights", lambda row: f"{row['weights']:,}"),
        *_PRECISION,
        *_EXTENT,
        Column("std", lambda row: f"{row['std']:.4g}"),
        Column("max/std", lambda row: number(row["spread"])),
        _NOISE,
        _HISTOGRAM,
    ),
}
"""By the `command` of the document."""
