"""`quarl bench actorq`: cells that are missing are measured, tables and figures are made of all that are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from matplotlib.figure import Figure

from quarl import energy
from quarl.commands import terminal
from quarl.config import BenchActorQConfig
from quarl.experiments.methods.actorq_protocol import Protocol, read
from quarl.experiments.methods.actorq_reward import RewardRow, time_to_reward
from quarl.experiments.methods.actorq_speedup import SpeedupRow, speedups
from quarl.experiments.methods.actorq_staleness import StalenessRow, staleness
from quarl.experiments.methods.actorq_throughput import BreakdownRow, ThroughputRow, breakdown, throughput
from quarl.experiments.methods.cells import Cells
from quarl.report import actorq_figures, actorq_reward_figures, schema, style
from quarl.rows import Row

Tables = Mapping[type[Row], Sequence[Row]]
Figures = Mapping[str, Figure]
TITLES: Mapping[type[Row], str] = {
    ThroughputRow: "Throughput of training",
    RewardRow: "Time to reward",
    BreakdownRow: "Milliseconds of 1,000 environment steps",
    StalenessRow: "Return against the age of weights",
    SpeedupRow: "Speed-up",
}


def run(config: BenchActorQConfig) -> None:
    """Measures what is missing, within the time, and shows everything that is there."""
    protocol = None if config.protocol is None else read(config.protocol)
    with energy.meter(config) as meter:
        cells = Cells(config.output, config.minutes, terminal.note, meter)
        tables, figures = _measure(config, protocol, cells)
    _show(config, tables, figures, meter.cost)
    if cells.elsewhere:
        terminal.say(
            f"{len(cells.elsewhere)} cells are left out, as those that they are compared with were measured on another "
            "processor: repeat the command there, or choose another -o"
        )
    if cells.missing:
        terminal.say(f"the time is over with {cells.missing} cells to go: repeat the command to go on")


def _measure(config: BenchActorQConfig, protocol: Protocol | None, cells: Cells) -> tuple[Tables, Figures]:
    """(tables, the verb's own first; figures by name)."""
    if protocol is None:
        return _watched(config, cells)
    title, figures = TITLES[RewardRow], dict[str, Figure]()
    runs = time_to_reward(protocol, protocol.chosen(config.only), cells)
    found = [(asdict(run.row), run.curve) for run in runs]
    rows = [row for row, _ in found]
    faster = speedups(rows)
    if rows:
        figures["times"] = actorq_reward_figures.times(rows, title)
        figures["curves"] = actorq_reward_figures.curves(found, title)
        figures["curves-updates"] = actorq_reward_figures.curves(found, title, "updates")
    if any(row.best_ratio for row in faster):
        figures["ratios"] = actorq_reward_figures.ratios(rows, title)
    return {RewardRow: [run.row for run in runs], SpeedupRow: faster}, figures


def _watched(config: BenchActorQConfig, cells: Cells) -> tuple[Tables, Figures]:
    """Of runs without a protocol."""
    kind: type[Row]
    rows: Sequence[Row]
    if config.what == "throughput":
        kind, rows, draw = ThroughputRow, throughput(config, cells), actorq_figures.throughput
    elif config.what == "breakdown":
        kind, rows, draw = BreakdownRow, breakdown(config, cells), actorq_figures.breakdown
    else:
        kind, rows, draw = StalenessRow, staleness(config, cells), actorq_figures.staleness
    return {kind: rows}, {config.what: draw(list(map(asdict, rows)), TITLES[kind])} if rows else {}


def _show(config: BenchActorQConfig, tables: Tables, figures: Figures, cost: energy.Energy | None) -> None:
    about = schema.Told(seed=config.seed, energy=cost)
    if config.protocol is None:
        about |= {"algo": config.first().algo, "env_id": config.first().env}
    about_of: Mapping[type[Row], schema.Told] = {SpeedupRow: {}}
    documents = {kind: schema.document(kind, rows, **about_of.get(kind, about)) for kind, rows in tables.items()}
    for kind, document in documents.items():
        schema.write(document, config.output / f"{kind.command.removeprefix('bench actorq ')}.json")
        if document["rows"]:
            terminal.show(kind, document["rows"], TITLES[kind])
    for name, drawn in figures.items():
        for suffix in ("png", "pdf"):
            style.save(drawn, config.output / f"{name}.{suffix}")
    terminal.finish(config, documents[next(iter(tables))])
