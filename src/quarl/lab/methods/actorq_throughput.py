"""Throughput of training with each arm's actors, and where an actor's time goes: real runs, watched for a window."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Annotated, Any

import numpy as np

from quarl import formats
from quarl.actorq import throughput_plan
from quarl.actorq.counters import overhead_s, percentile
from quarl.arrays import Array
from quarl.config import ActorQConfig
from quarl.config.bench import BenchActorQConfig, split_arm
from quarl.lab.methods.actorq import dense, described, settings_of, watch
from quarl.lab.methods.cells import Cell, Cells, turned
from quarl.rows import RATIO, ActorPrecision, Column, Joules, JoulesBy, Row
from quarl.stats import Interval, as_fields, ratio_interval

MIN_UPDATES = 20
"""With fewer in some arm's window, arms are compared by environment steps: at a fixed ratio both say the same."""
MAX_UPDATES_PER_VERSION = 30
SLICES = 10
PARTS = ("inference", "environment", "insert", "pull", "deserialize", "load")
"""Of an actor's time, as it books them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmRow(Row):
    """What rows of runs that differ in their actors begin with."""

    precision: ActorPrecision
    engine: str
    samples_per_insert: Annotated[float, replace(RATIO, before="precision")]
    net_arch: Annotated[str, Column("policy", caption="policy {}", before="samples_per_insert")]


ARM = ("samples_per_insert", "net_arch")
"""Options of a run that an ArmRow holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputRow(ArmRow):
    """One arm at one ratio and width."""

    command = "bench actorq throughput"
    actors: Annotated[int, Column("actors", caption="actors: {}", before="samples_per_insert")]
    updates_per_s: Annotated[float, Column("updates/s", formats.three_digits)]
    env_steps_per_s: Annotated[float, Column("steps/s", "{:,.0f}".format)]
    speedup_vs_torch_fp32: Annotated[
        float | None,
        Column("× torch fp32", formats.times, of=("speedup_vs_torch_fp32", "vs_torch_low", "vs_torch_high")),
    ]
    """Ratio of updates a second; of environment steps where a window had fewer than 20 updates."""
    speedup_vs_litert_fp32: Annotated[
        float | None,
        Column("× fp32", formats.times, of=("speedup_vs_litert_fp32", "vs_litert_low", "vs_litert_high")),
    ]
    predicted_speedup: Annotated[float | None, Column("predicted", formats.times, before="speedup_vs_litert_fp32")]
    """Over torch fp32, as `quarl actorq --plan` predicts it."""
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
    """Of an environment step, as the next ones."""
    environment_us: float
    overhead_us: Annotated[float, Column("overhead µs", formats.three_digits)]
    actor_wait_share: float
    """Of the actors' time: ahead of the limiter, or at the staleness bound."""
    learner_wait_share: float
    updates_per_version: Annotated[float | None, Column("updates a version", formats.three_digits)]
    """Of the actor that took in the fewest versions."""
    versions_advance: bool
    """At least once in 30 updates on average."""
    staleness_p50: Annotated[float | None, Column("age p50/p99", _ages, of=("staleness_p50", "staleness_p99"))]
    """Updates between the weights behind a step and the learner that takes it in."""
    staleness_p99: float | None
    latency_ms_p50: float | None
    """From a learner's step to the first action on its weights."""
    latency_ms_p99: float | None
    blocked_ms_p50: float | None
    """Of it, what the actor did not act."""
    blocked_ms_p99: float | None
    bytes_share_of_fp32: float | None
    publisher_cpu_share: float
    joules: Joules
    """Of the windows; null where one was measured without --energy."""
    joules_by: JoulesBy


def _ages(p50: float | None, p99: float | None) -> str:
    return f"{formats.three_digits(p50)}/{formats.three_digits(p99)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakdownRow(ArmRow):
    """One arm's actors; all times are milliseconds of 1,000 environment steps."""

    command = "bench actorq breakdown"
    actor_update_interval: Annotated[int, Column("weights every", "{} steps".format, before="precision")]
    publish_interval: int
    actors: int
    env_steps: int
    inference_ms: Annotated[float, Column("inference", formats.three_digits)]
    environment_ms: Annotated[float, Column("environment", formats.three_digits)]
    insert_ms: Annotated[float, Column("insert", formats.three_digits)]
    pull_ms: Annotated[float, Column("pull", formats.three_digits)]
    deserialize_ms: Annotated[float, Column("deserialise", formats.three_digits)]
    load_ms: Annotated[float, Column("load", formats.three_digits)]
    wait_ms: Annotated[float, Column("wait", formats.three_digits)]
    other_ms: Annotated[float, Column("other", formats.three_digits)]


def throughput(config: BenchActorQConfig, cells: Cells) -> list[ThroughputRow]:
    """A row for every arm at every ratio and width whose windows are there."""
    windows = _windows(config, cells)
    rates: dict[str | None, throughput_plan.Rates | None] = {}
    for run in config.runs(config.arms[-1:]):
        if run.net_arch not in rates:
            rates[run.net_arch] = _rates(config, cells, run)
    rows: list[ThroughputRow] = []
    place = attrgetter("net_arch", "samples_per_insert")
    for network, ratio in dict.fromkeys(map(place, config.runs())):
        group = {run: windows[run] for run in windows if place(run) == (network, ratio)}
        if group and (rate := rates[network]) is not None:
            rows += _rows(group, rate)
    return rows


def breakdown(config: BenchActorQConfig, cells: Cells) -> list[BreakdownRow]:
    """A row for every update interval and arm whose windows are there."""
    place = attrgetter("net_arch", "samples_per_insert", "actor_update_interval")
    places = list(dict.fromkeys(map(place, config.runs())))
    windows = _windows(config, cells)
    return [_breakdown(run, windows[run]) for run in sorted(windows, key=lambda run: places.index(place(run)))]


def _windows(config: BenchActorQConfig, cells: Cells) -> dict[ActorQConfig, list[Cell]]:
    """Return the windows of each run, by the run of the first round; in each round another arm begins."""
    window = {"warm_up": config.warm_up, "seconds": config.seconds}
    windows: dict[ActorQConfig, list[Cell]] = {}
    for number in range(config.rounds):
        for run in config.runs(turned(config.arms, number), config.seed + number):
            # names and settings find the cells of runs that were stopped
            arm = run.actor_precision if run.engine == "litert" else f"{run.engine}-{run.actor_precision}"
            network = str(run.net_arch).replace(",", "x")
            name = f"{arm}-spi{run.samples_per_insert:g}-{network}-every{run.actor_update_interval}-{number}"
            measure = partial(watch, run, **window, say=cells.say, meter=cells.meter)
            cell = cells.get(name, settings_of(run, **window), measure, group="throughput")
            if cell is not None:
                windows.setdefault(replace(run, seed=config.seed), []).append(cell)
    return windows


def _rates(config: BenchActorQConfig, cells: Cells, run: ActorQConfig) -> throughput_plan.Rates | None:
    """What predictions for the run's width are made of."""
    arms = tuple(dict.fromkeys(split_arm(arm) for arm in ("torch-fp32", "fp32", *config.arms)))
    name = f"rates-{str(run.net_arch).replace(',', 'x')}"
    settings = settings_of(run, arms=arms)
    cell = cells.get(name, settings, lambda: {"rates": asdict(throughput_plan.measure(run, arms))}, group="throughput")
    return None if cell is None else throughput_plan.Rates.from_json(cell["rates"])


def _rows(group: Mapping[ActorQConfig, Sequence[Cell]], rates: throughput_plan.Rates) -> Iterator[ThroughputRow]:
    by_updates = all(sum(cell["updates"] for cell in cells) >= MIN_UPDATES for cells in group.values())
    arms: dict[ActorQConfig, throughput_plan.Arm] = {run: (run.actor_precision, run.engine) for run in group}
    paces = {arms[run]: _paces(cells, 2 if by_updates else 1) for run, cells in group.items()}
    predicted = {(row.precision, row.engine): row for row in throughput_plan.predict(rates, next(iter(group)))}
    for run, cells in group.items():
        arm = arms[run]
        seconds, steps, updates = (sum(cell[key] for cell in cells) for key in ("clock_s", "env_steps", "updates"))
        actors = _summed(cells)
        waits = actors["wait_s"] + actors["stale_s"]
        per_step = 1e6 / max(actors["steps"], 1)
        ages = [cell["updates_per_version"] for cell in cells]
        slowest = None if None in ages else max(ages)
        joules = [cell["joules"] for cell in cells if cell.get("joules") is not None]
        counted = len(joules) == len(cells)
        yield ThroughputRow(
            **described(run, *ARM, "actors"),
            updates_per_s=updates / seconds,
            env_steps_per_s=steps / seconds,
            **as_fields(_speedup(paces, arm, throughput_plan.TORCH), "speedup_vs_torch_fp32", "vs_torch"),
            **as_fields(_speedup(paces, arm, throughput_plan.FLOAT), "speedup_vs_litert_fp32", "vs_litert"),
            predicted_speedup=predicted[arm].predicted_speedup_vs_torch_fp32,
            predicted_updates_per_s=predicted[arm].predicted_updates_per_s,
            seconds=seconds,
            updates=updates,
            env_steps=steps,
            realised_samples_per_insert=updates * rates.batch_size / max(steps, 1),
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
            joules=float(sum(joules)) if counted else None,
            joules_by=cells[-1]["joules_by"] if counted else None,
        )


def _paces(cells: Sequence[Cell], column: int) -> Array:
    """Rates of slices of the windows, of environment steps (column 1) or updates (2) a second."""
    rates = []
    for cell in cells:
        points = np.asarray(cell["slices"], np.float64)
        places = np.unique(np.linspace(0, len(points) - 1, SLICES + 1).astype(int))
        steps = np.diff(points[places], axis=0)
        rates.append(steps[:, column] / steps[:, 0])
    return np.concatenate(rates)


def _speedup(
    paces: Mapping[throughput_plan.Arm, Array], arm: throughput_plan.Arm, base: throughput_plan.Arm
) -> Interval | None:
    """Mean rate over the base's; None where that has none."""
    if base not in paces or not paces[base].mean():
        return None
    if arm == base:
        return Interval(point=1.0, low=1.0, high=1.0)
    return ratio_interval(paces[arm], paces[base], [np.random.default_rng(0)] * 2)


def _percentiles(cells: Sequence[Cell], name: str, unit: float = 1.0) -> dict[str, Any]:
    """The fields of the counts' percentiles; those of none are no numbers."""
    counts = dense(*(cell[name] for cell in cells))
    return {f"{name}_p50": unit * percentile(counts, 0.5), f"{name}_p99": unit * percentile(counts, 0.99)}


def _breakdown(training: ActorQConfig, cells: Sequence[Cell]) -> BreakdownRow:
    actors = _summed(cells)
    per_1000 = 1e6 / max(actors["steps"], 1)
    return BreakdownRow(
        **described(training, *ARM, "actor_update_interval", "publish_interval", "actors"),
        env_steps=actors["steps"],
        **{f"{part}_ms": actors[f"{part}_s"] * per_1000 for part in PARTS},
        wait_ms=(actors["wait_s"] + actors["stale_s"]) * per_1000,
        other_ms=(overhead_s(actors) - actors["insert_s"]) * per_1000,
    )


def _summed(cells: Sequence[Cell]) -> dict[str, Any]:
    """What the actors of all windows booked."""
    return {name: sum(cell["actors"][name] for cell in cells) for name in cells[0]["actors"]}
