"""Rows of timed updates: one for each number type of a policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from quarl import formats
from quarl.lab.cells import DONE, UPDATES
from quarl.lab.store import Record
from quarl.rows import Column, Row
from quarl.stats import as_fields, bootstrap_interval, ratio_interval

RESAMPLES = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdatesRow(Row):
    """One policy in one number type."""

    command = "study updates"
    policy: Annotated[str, Column("policy")]
    filters: Annotated[int, Column("filters")]
    """Filters of the first convolution; 0 without one."""
    width: Annotated[int, Column("dense")]
    """Units of the features, the last dense layer of a Nature CNN."""
    dtype: Annotated[str, Column("updates in")]
    parameters: Annotated[int, Column("parameters", lambda count: f"{count / 1e6:.3g} M", before="dtype")]
    native: Annotated[bool, Column("products", lambda native: "native" if native else "emulated")]
    """True if the device multiplies these numbers; otherwise it emulates them."""
    device: Annotated[str, Column("device", caption="on {}", before="dtype")]
    threads: Annotated[int, Column("threads", caption="{} thread{s}", before="dtype")]
    batch: Annotated[int, Column("batch", caption="batch {}", before="device")]
    updates: Annotated[int, Column("updates")]
    """Timed updates; 0 if three did not fit into the time."""
    ms_per_update: Annotated[float, Column("ms an update", _ms, of=("ms_per_update", "updates"))]
    """Median; if no update was timed, extrapolated from small batches."""
    ci_low: Annotated[float | None, Column("95 % interval", _ends, of=("ci_low", "ci_high"))]
    """Ends of the 95 % bootstrap interval of the median."""
    ci_high: float | None
    speedup: Annotated[float | None, Column("× fp32", formats.times, of=("speedup", "speedup_low", "speedup_high"))]
    """Ratio of the medians, against float32."""
    speedup_low: float | None
    speedup_high: float | None


def _ms(ms: float, updates: int) -> str:
    return formats.three_digits(ms) if updates else f"≈ {formats.three_digits(ms)}"


def _ends(low: float | None, high: float | None) -> str:
    return "" if low is None else f"[{formats.three_digits(low)}, {formats.three_digits(high)}]"


def updates(records: Sequence[Record]) -> list[UpdatesRow]:
    """Return a row for each number type of every cell that timed updates."""
    timed = (record for record in records if record.method == UPDATES and record.state == DONE)
    return [row for record in timed for row in _rows(record)]


def _rows(record: Record) -> Iterator[UpdatesRow]:
    cell = record.result
    # seconds of updates, or the one that stands for them if they were extrapolated, which has no interval
    timed = {d: np.asarray(seconds or [cell["estimated_s"][d]], np.float64) for d, seconds in cell["seconds"].items()}
    for dtype, seconds in timed.items():
        rngs = [np.random.default_rng(0) for _ in range(3)]
        median = bootstrap_interval(seconds, rngs[0], statistic=np.median, num_resamples=RESAMPLES)
        speedup = None
        if dtype != "fp32" and "fp32" in timed:
            speedup = ratio_interval(timed["fp32"], seconds, rngs[1:], statistic=np.median)
        about: dict[str, Any] = {name: cell[name] for name in ("filters", "width", "parameters", "device", "threads")}
        yield UpdatesRow(
            policy=record.source,
            **about,
            dtype=dtype,
            batch=cell["batch"],
            native=cell["native"][dtype],
            updates=len(cell["seconds"][dtype]),
            **{name: 1e3 * each for name, each in as_fields(median, "ms_per_update", "ci").items()},
            **as_fields(speedup, "speedup", "speedup") | ({"speedup": 1.0} if dtype == "fp32" else {}),
        )


def sentences(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the meaning of the table on this device."""
    emulated = list(dict.fromkeys(row["dtype"] for row in rows if not row["native"]))
    if emulated:
        yield (
            f"{rows[0]['device']} has no instructions that multiply {' or '.join(emulated)} numbers: "
            "it converts them, and slower updates are expected."
        )
    if not all(row["updates"] for row in rows):
        yield "≈: too slow for the time that it was given (seconds), extrapolated from batches of 2 and 4."
