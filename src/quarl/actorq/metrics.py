"""Metrics of a run: rows of plain numbers from the counters, for metrics.jsonl, TensorBoard and the live view."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

import numpy as np

from quarl.actorq.counters import TIMES, Actor, Control, Counters, Learner, Node, Publisher, percentile

COUNTS = (
    *(Actor.STEPS, Actor.EPISODES, Actor.PULLS, Actor.SKIPPED, Actor.DEATHS, Actor.ERRORS, Actor.DROPPED),
    *(Actor.VERSION, Actor.INCARNATION),
)
WORK = (
    *(Learner.TRAIN_S, Learner.INSERT_S, Learner.PUSH_S, Learner.WAIT_S, Learner.CHECKPOINT_S),
    *(Learner.ROLLBACKS, Learner.DUPLICATES, Learner.GAPS),
)
MACHINE = (
    *(Node.BEGUN, Node.ANSWERS, Node.ACTORS, Node.VERSION),
    *(Node.ROWS, Node.ROWS_BYTES, Node.WEIGHTS_BYTES),
)
RESOLUTION = 720
"""Rows that remain of each doubling of age: a figure over any span up to now has twice as many or more."""


def spacing_s(age_s: float) -> float:
    """Return the seconds between rows of this age: a power of two, at most a 720th of it, or one second."""
    return 2.0 ** max(math.floor(math.log2(max(age_s, 1.0) / RESOLUTION)), 0)


def thin(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows that have their spacing by the training clock, with the first and last row of each start."""
    newest, kept = max((row["clock_s"] for row in rows), default=0.0), []
    for before, row, after in zip([*rows[:1], *rows[:-1]], rows, [*rows[1:], *rows[-1:]], strict=True):
        span = spacing_s(newest - row["clock_s"])
        is_edge = row is before or row is after or not before["wall_s"] <= row["wall_s"] <= after["wall_s"]
        if is_edge or row["clock_s"] // span != after["clock_s"] // span:
            kept.append(row)
    return kept


def row(counters: Counters, wall_s: float, before: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the current metrics of the run; rates cover the time since `before`, an earlier row.

    Args:
        counters: Counters of the run.
        wall_s: Seconds since the run started.
        before: Previous row of the same run; None means rates since the start.
    """
    # Sum the pulls that each actor's latency counts.
    learner, publisher = counters.learner, counters.publisher
    pulls = counters.latency_ms.sum(axis=1)
    numbers: dict[str, Any] = {
        "wall_s": wall_s,
        **_numbers(learner, float, Learner.CLOCK_S, Learner.EXPLORATION),
        **_numbers(learner, int, Learner.TIMESTEPS, Learner.UPDATES, Learner.VERSION, Learner.EPISODES),
        **_numbers(learner, _number, Learner.RETURN_MEAN, Learner.LOSS, Learner.ACTOR_LOSS),
        "published_version": int(publisher[Publisher.VERSION]),
        "actors_alive": int(counters.control[Control.ACTORS]),
        "samples_per_insert": float(learner[Learner.SAMPLES_PER_INSERT]) or None,
        **_percentiles("staleness", counters.staleness, max=1.0),
        **_percentiles("latency_ms", counters.latency_ms.sum(axis=0)),
        **_percentiles("blocked_ms", counters.blocked_ms.sum(axis=0), unit=10),
        "learner": _numbers(learner, float, *WORK),
        "publisher": {
            **_numbers(publisher, int, Publisher.PUBLISHED, Publisher.REFUSED),
            "bytes_per_version": _ratio(publisher[Publisher.BYTES], publisher[Publisher.PUBLISHED]),
            "share_of_fp32": _ratio(publisher[Publisher.BYTES], publisher[Publisher.FLOAT_BYTES]),
            **{
                f"{name.lower()}_ms": _ratio(1e3 * publisher[Publisher[f"{name}_S"]], publisher[Publisher.PUBLISHED])
                for name in ("PULL", "PACK", "QUANTIZE", "PUBLISH")
            },
            "cpu_share": _ratio(publisher[Publisher.CPU_S], wall_s),
        },
        "actors": [
            {
                **_numbers(cells, int, *COUNTS),
                **_numbers(cells, float, *TIMES, Actor.LOOP_S, Actor.SIGMA),
                "latency_ms": _ratio(1e3 * cells[Actor.LATENCY_S], timed),
            }
            for cells, timed in zip(counters.actors, pulls, strict=True)
        ],
        "machines": [
            {
                **_numbers(cells, int, *MACHINE),
                **_numbers(cells, float, Node.WEIGHTS_S, Node.DELAY_S, Node.PIECE_S),
                **_percentiles("weights_ms", counts),
            }
            for cells, counts in zip(counters.nodes, counters.weights_ms, strict=True)
        ],
    }
    span = numbers["clock_s"] - (before["clock_s"] if before else 0.0)
    for name in ("timesteps", "updates"):
        numbers[f"{name}_per_s"] = _ratio(numbers[name] - (before[name] if before else 0), span)
    return numbers


def scalars(row: dict[str, Any], prefix: str = "") -> dict[str, float]:
    """Return the numbers of a row by path, as TensorBoard expects them."""
    flat: dict[str, float] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            flat |= scalars(value, f"{prefix}{name}/")
        elif isinstance(value, list):
            for i, entry in enumerate(value):
                flat |= scalars(entry, f"{prefix}{name}{i}/")
        elif value is not None:
            flat[f"{prefix}{name}"] = float(value)
    return flat


def _numbers(cells: Any, kind: Callable[[Any], Any], *columns: IntEnum) -> dict[str, Any]:
    """Return the given columns by their lower-case names."""
    return {column.name.lower(): kind(cells[column]) for column in columns}


def _ratio(over: Any, under: Any) -> float | None:
    return float(over / under) if under else None


def _number(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


def _percentiles(name: str, counts: Any, unit: int = 1, **shares: float) -> dict[str, float | None]:
    """Return the median, the 99th percentile and further `shares` of a histogram whose classes are 1 / `unit` wide."""
    named = {"p50": 0.5, "p99": 0.99} | shares
    return {f"{name}_{key}": _number(percentile(counts, share) / unit) for key, share in named.items()}
