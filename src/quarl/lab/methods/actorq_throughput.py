"""Throughput of training with each arm's actors, and the distribution of an actor's time, from a study's windows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

import numpy as np

from quarl import formats
from quarl.actorq.counters import CLASSES, overhead_s, percentile
from quarl.arrays import Array
from quarl.lab.cells import DONE, THROUGHPUT, AgentName
from quarl.lab.store import Record
from quarl.rows import RATIO, ActorPrecision, Column, Row, by
from quarl.stats import Interval, as_fields, ratio_interval

Cell = Mapping[str, Any]
Arm = tuple[str, str]
FLOAT, TORCH = ("fp32", "litert"), ("fp32", "torch")
MIN_UPDATES = 20
"""Updates below which arms are compared by environment steps; at a fixed ratio both are in proportion."""
MAX_UPDATES_PER_VERSION = 30
SLICES = 10
PARTS = ("inference", "environment", "insert", "pull", "deserialize", "load")
"""Parts of an actor's time, as it counts them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmRow(AgentName, Row):
    """The common part of rows of runs that differ in their actors."""

    precision: ActorPrecision
    engine: str
    samples_per_insert: Annotated[float, replace(RATIO, before="precision")]
    net_arch: Annotated[str, Column("policy", caption="policy {}", before="samples_per_insert")]


ARM = ("engine", "samples_per_insert", "net_arch", "actors")
"""Options of a run that both rows hold."""
PLACE = ("samples_per_insert", "net_arch", "actors", "envs_per_actor", "actor_update_interval", "publish_interval")
"""Options that runs share whose arms are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputRow(ArmRow):
    """One arm at one ratio and width."""

    command = "study throughput"
    actors: Annotated[int, Column("actors", caption="actors: {}", before="samples_per_insert")]
    updates_per_s: Annotated[float, Column("updates/s", formats.three_digits)]
    env_steps_per_s: Annotated[float, Column("steps/s", "{:,.0f}".format)]
    speedup_vs_torch_fp32: Annotated[
        float | None,
        Column("× torch fp32", formats.times, of=("speedup_vs_torch_fp32", "vs_torch_low", "vs_torch_high")),
    ]
    """Ratio of updates per second; of environment steps if a window had fewer than 20 updates."""
    speedup_vs_litert_fp32: Annotated[
        float | None,
        Column("× fp32", formats.times, of=("speedup_vs_litert_fp32", "vs_litert_low", "vs_litert_high")),
    ]
    predicted_speedup: Annotated[float | None, Column("predicted", formats.times, before="speedup_vs_litert_fp32")]
    """Over torch fp32, as `quarl actorq --plan` predicts it; null without that arm."""
    predicted_updates_per_s: float
    vs_torch_low: float | None
    """Ends of the 95 % bootstrap intervals over slices of the windows."""
    vs_torch_high: float | None
    vs_litert_low: float | None
    vs_litert_high: float | None
    seconds: float
    updates: int
    env_steps: int
    realised_samples_per_insert: float
    inference_us: float
    """Microseconds per environment step; the next two as well."""
    environment_us: float
    overhead_us: Annotated[float, Column("overhead µs", formats.three_digits)]
    actor_wait_share: float
    """Share of the actors' time spent waiting for the limiter, or at the staleness bound."""
    learner_wait_share: float
    updates_per_version: Annotated[float | None, Column("updates a version", formats.three_digits)]
    """Updates per version, for the actor with the fewest versions."""
    versions_advance: bool
    """True if there was at least one version in 30 updates on average."""
    staleness_p50: Annotated[float | None, Column("age p50/p99", _ages, of=("staleness_p50", "staleness_p99"))]
    """Updates between the weights behind a step and the learner that takes it in."""
    staleness_p99: float | None
    latency_ms_p50: float | None
    """Milliseconds from a learner's step to the first action on its weights."""
    latency_ms_p99: float | None
    blocked_ms_p50: float | None
    """Part of it in which the actor did not act."""
    blocked_ms_p99: float | None
    bytes_share_of_fp32: float | None
    publisher_cpu_share: float


def _ages(p50: float | None, p99: float | None) -> str:
    return f"{formats.three_digits(p50)}/{formats.three_digits(p99)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakdownRow(ArmRow):
    """One arm's actors; all times are milliseconds of 1,000 environment steps."""

    command = "study breakdown"
    actor_update_interval: Annotated[int, Column("weights every", "{} steps".format, before="precision")]
    publish_interval: int
    actors: int
    env_steps: int
    inference_ms: Annotated[float, Column("inference", formats.three_digits)]
    environment_ms: Annotated[float, Column("environment", formats.three_digits)]
    insert_ms: Annotated[float, Column("insert", formats.three_digits)]
    pull_ms: Annotated[float, Column("pull", formats.three_digits)]
    deserialize_ms: Annotated[float, Column("deserialize", formats.three_digits)]
    load_ms: Annotated[float, Column("load", formats.three_digits)]
    wait_ms: Annotated[float, Column("wait", formats.three_digits)]
    other_ms: Annotated[float, Column("other", formats.three_digits)]


def tables(records: Sequence[Record]) -> tuple[list[ThroughputRow], list[BreakdownRow]]:
    """Return the rows of all windows; those of several seeds of an arm are pooled."""
    done = [record for record in records if record.method == THROUGHPUT and record.state == DONE]
    throughput: list[ThroughputRow] = []
    breakdown: list[BreakdownRow] = []
    for (agent, *_), members in by(done, _place).items():
        windows = {arm: [record.result for record in arms] for arm, arms in by(members, _arm_of).items()}
        throughput += _rows(agent, windows)
        breakdown += [_breakdown(agent, arm, cells) for arm, cells in windows.items()]
    return throughput, breakdown


def _place(record: Record) -> tuple[Any, ...]:
    return (record.of_agent(), *(record.result["options"][name] for name in PLACE), record.result["cpu"])


def _arm_of(record: Record) -> Arm:
    return record.precision, record.result["options"]["engine"]


def _rows(agent: AgentName, windows: Mapping[Arm, Sequence[Cell]]) -> Iterator[ThroughputRow]:
    by_updates = all(sum(cell["updates"] for cell in cells) >= MIN_UPDATES for cells in windows.values())
    paces = {arm: _paces(cells, 2 if by_updates else 1) for arm, cells in windows.items()}
    predicted = {
        arm: float(np.mean([cell["predicted_updates_per_s"] for cell in cells])) for arm, cells in windows.items()
    }
    for arm, cells in windows.items():
        seconds, steps, updates = (sum(cell[key] for cell in cells) for key in ("clock_s", "env_steps", "updates"))
        actors = _summed(cells)
        waits = actors["wait_s"] + actors["stale_s"]
        per_step = 1e6 / max(actors["steps"], 1)
        ages = [cell["updates_per_version"] for cell in cells]
        slowest = None if None in ages else max(ages)
        yield ThroughputRow(
            **asdict(agent),
            precision=arm[0],
            **{name: cells[0]["options"][name] for name in ARM},
            updates_per_s=updates / seconds,
            env_steps_per_s=steps / seconds,
            **as_fields(_speedup(paces, arm, TORCH), "speedup_vs_torch_fp32", "vs_torch"),
            **as_fields(_speedup(paces, arm, FLOAT), "speedup_vs_litert_fp32", "vs_litert"),
            predicted_speedup=predicted[arm] / predicted[TORCH] if TORCH in predicted else None,
            predicted_updates_per_s=predicted[arm],
            seconds=seconds,
            updates=updates,
            env_steps=steps,
            realised_samples_per_insert=updates * cells[0]["batch_size"] / max(steps, 1),
            inference_us=actors["inference_s"] * per_step,
            environment_us=actors["environment_s"] * per_step,
            overhead_us=overhead_s(actors) * per_step,
            actor_wait_share=waits / actors["loop_s"],
            learner_wait_share=sum(cell["learner"]["wait_s"] for cell in cells) / seconds,
            updates_per_version=slowest,
            versions_advance=slowest is not None and slowest <= MAX_UPDATES_PER_VERSION,
            **_percentiles(cells, "staleness"),
            **_percentiles(cells, "latency_ms"),
            **_percentiles(cells, "blocked_ms", 0.1),
            bytes_share_of_fp32=cells[-1]["publisher"]["share_of_fp32"],
            publisher_cpu_share=float(np.mean([cell["publisher"]["cpu_share"] for cell in cells])),
        )


def _paces(cells: Sequence[Cell], column: int) -> Array:
    """Return the rates of slices of the windows: environment steps (column 1) or updates (2) per second."""
    rates = []
    for cell in cells:
        points = np.asarray(cell["slices"], np.float64)
        places = np.unique(np.linspace(0, len(points) - 1, SLICES + 1).astype(int))
        steps = np.diff(points[places], axis=0)
        rates.append(steps[:, column] / steps[:, 0])
    return np.concatenate(rates)


def _speedup(paces: Mapping[Arm, Array], arm: Arm, base: Arm) -> Interval | None:
    """Return the mean rate over the base's; None if the base has none."""
    if base not in paces or not paces[base].mean():
        return None
    if arm == base:
        return Interval(point=1.0, low=1.0, high=1.0)
    return ratio_interval(paces[arm], paces[base], [np.random.default_rng(0)] * 2)


def _percentiles(cells: Sequence[Cell], name: str, unit: float = 1.0) -> dict[str, Any]:
    """Return the fields of the percentiles of all cells' counts, NaN without counts."""
    counts = np.zeros(CLASSES, np.int64)
    for cell in cells:
        for place, count in cell[name].items():
            counts[int(place)] += count
    return {f"{name}_p50": unit * percentile(counts, 0.5), f"{name}_p99": unit * percentile(counts, 0.99)}


def _breakdown(agent: AgentName, arm: Arm, cells: Sequence[Cell]) -> BreakdownRow:
    actors = _summed(cells)
    per_1000 = 1e6 / max(actors["steps"], 1)
    return BreakdownRow(
        **asdict(agent),
        precision=arm[0],
        **{name: cells[0]["options"][name] for name in (*ARM, "actor_update_interval", "publish_interval")},
        env_steps=actors["steps"],
        **{f"{part}_ms": actors[f"{part}_s"] * per_1000 for part in PARTS},
        wait_ms=(actors["wait_s"] + actors["stale_s"]) * per_1000,
        other_ms=(overhead_s(actors) - actors["insert_s"]) * per_1000,
    )


def _summed(cells: Sequence[Cell]) -> dict[str, Any]:
    """Return the sums over the actors of all windows."""
    return {name: sum(cell["actors"][name] for cell in cells) for name in cells[0]["actors"]}
