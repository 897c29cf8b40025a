"""`quarl bench actorq` and `quarl bench mixed-precision`: cells that are missing are measured, tables and figures are
made of all that are there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING, Any

from quarl import energy
from quarl.commands import terminal
from quarl.config import BenchActorQConfig, MixedPrecisionConfig
from quarl.envs.environment import Environment
from quarl.lab import actorq_figures, actorq_reward_figures
from quarl.lab.methods.actorq_protocol import Protocol, read
from quarl.lab.methods.actorq_reward import RewardRow, choices_in_words, time_to_reward
from quarl.lab.methods.actorq_speedup import SpeedupRow, speedups
from quarl.lab.methods.actorq_throughput import BreakdownRow, ThroughputRow, breakdown, throughput
from quarl.lab.methods.cells import Cells
from quarl.lab.methods.mixed_precision import UpdatesRow, updates
from quarl.report import schema, style
from quarl.rows import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Tables = Mapping[type[Row], Sequence[Row]]
Figures = Mapping[str, "Figure"]
TITLES: Mapping[type[Row], str] = {
    ThroughputRow: "Throughput of training",
    RewardRow: "Time to reward",
    BreakdownRow: "Milliseconds of 1,000 environment steps",
    SpeedupRow: "Speed-up",
    UpdatesRow: "An update of DQN on images",
}
WATCHED: Mapping[str, tuple[type[Row], Callable[..., Sequence[Row]], Callable[..., Figure]]] = {
    "throughput": (ThroughputRow, throughput, actorq_figures.throughput),
    "breakdown": (BreakdownRow, breakdown, actorq_figures.breakdown),
}
"""Of runs without a protocol."""


def run(config: BenchActorQConfig | MixedPrecisionConfig) -> None:
    """Measure the missing cells within the time and show everything that is there."""
    if isinstance(config, MixedPrecisionConfig):
        _mixed_precision(config)
    else:
        _actorq(config)


def _actorq(config: BenchActorQConfig) -> None:
    protocol = None if config.protocol is None else read(config.protocol)
    about = schema.Told(seed=config.seed)
    with energy.meter(config) as meter:
        cells = Cells(config.output, config.minutes, terminal.note, meter)
        if protocol is None:
            tables, figures = _watched(config, cells)
            first = next(config.runs())
            about |= {"algo": first.algo, "env_id": first.env}
        else:
            tables, figures = _raced(config, protocol, cells)
    about["energy"] = meter.cost
    documents = [
        terminal.keep(
            *(kind, rows, TITLES[kind], config.output / f"{kind.command.split()[-1]}.json"),
            **(schema.Told() if kind is SpeedupRow else about),
        )
        for kind, rows in tables.items()
    ]
    for name, drawn in figures.items():
        for suffix in ("png", "pdf"):
            style.save(drawn, config.output / f"{name}.{suffix}")
    terminal.finish(config, documents[0])
    terminal.say(*choices_in_words(row for row in chain(*tables.values()) if isinstance(row, RewardRow)), *cells.left())


def _watched(config: BenchActorQConfig, cells: Cells) -> tuple[Tables, Figures]:
    """Of runs without a protocol."""
    kind, measure, draw = WATCHED[config.what]
    rows = measure(config, cells)
    return {kind: rows}, {config.what: draw(list(map(asdict, rows)), TITLES[kind])} if rows else {}


def _raced(config: BenchActorQConfig, protocol: Protocol, cells: Cells) -> tuple[Tables, Figures]:
    """(tables, the verb's own first; figures by name) of a protocol's runs."""
    title, figures = TITLES[RewardRow], dict[str, "Figure"]()
    free = config.ratios == "free"
    runs = time_to_reward(protocol, protocol.chosen(config.only, free=free), cells, free=free)
    drawn = [(asdict(row), curve) for row, curve in runs]
    rows = [row for row, _ in drawn]
    faster = speedups(rows)
    if any(row["part"] in ("fixed", "measured") for row in rows):
        figures["times"] = actorq_reward_figures.times(rows, title)
        figures["curves"] = actorq_reward_figures.curves(drawn, title)
        figures["curves-updates"] = actorq_reward_figures.curves(drawn, title, "updates")
    if free or any(row.best_ratio for row in faster):
        figures["ratios"] = actorq_reward_figures.ratios(rows, title)
    return {RewardRow: [row for row, _ in runs], SpeedupRow: faster}, figures


def _mixed_precision(config: MixedPrecisionConfig) -> None:
    _ = Environment.typed_by_user(config.env).env_id  # a typo leaves no folder behind
    with energy.meter(config) as meter:
        cells = Cells(config.output, config.minutes, terminal.note, meter)
        rows = updates(config, cells)
    about = schema.Told(algo="dqn", env_id=config.env, seed=config.seed, energy=meter.cost)
    document = terminal.keep(UpdatesRow, rows, TITLES[UpdatesRow], config.output / "updates.json", **about)
    terminal.say(*_sentences(document["rows"]), *cells.left())
    terminal.finish(config, document)


def _sentences(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What the table means on this device."""
    emulated = list(dict.fromkeys(row["dtype"] for row in rows if not row["native"]))
    if emulated:
        yield (
            f"{rows[0]['device']} has no instructions that multiply {' or '.join(emulated)} numbers: "
            "it converts them, and a slower update is what is to be expected"
        )
    if not all(row["updates"] for row in rows):
        yield "≈: too slow for the time that it was given (--seconds), extrapolated from batches of 2 and 4"
