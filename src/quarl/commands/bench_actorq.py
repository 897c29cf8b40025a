"""`quarl bench actorq`: cells that are missing are measured, tables and figures are made of all that are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from matplotlib.figure import Figure

from quarl import energy
from quarl.commands import terminal
from quarl.config import BenchActorQConfig
from quarl.experiments.methods.actorq_protocol import Protocol, read
from quarl.experiments.methods.actorq_reward import time_to_reward
from quarl.experiments.methods.actorq_speedup import speedups
from quarl.experiments.methods.actorq_staleness import staleness
from quarl.experiments.methods.actorq_throughput import breakdown, throughput
from quarl.experiments.methods.cells import Cells
from quarl.files import write_bytes
from quarl.report import actorq_figures, actorq_reward_figures, schema, style

Rows = Sequence[Mapping[str, Any]]
Tables = Mapping[str, Rows]
Figures = Mapping[str, Figure]
TITLES = {
    "throughput": "Throughput of training",
    "time-to-reward": "Time to reward",
    "breakdown": "Milliseconds of 1,000 environment steps",
    "staleness": "Return against the age of weights",
}


def run(config: BenchActorQConfig) -> None:
    """Measures what is missing, within the time, and shows everything that is there."""
    protocol = None if config.protocol is None else read(config.protocol)
    with energy.meter(config) as meter:
        cells = Cells(config.output, config.minutes, terminal.note, meter)
        rows, tables, figures = _measure(config, protocol, cells)
    _show(config, rows, tables, figures, meter.cost)
    if cells.elsewhere:
        terminal.say(
            f"{len(cells.elsewhere)} cells are left out, as those that they are compared with were measured on another "
            "processor: repeat the command there, or choose another -o"
        )
    if cells.missing:
        terminal.say(f"the time is over with {cells.missing} cells to go: repeat the command to go on")


def _measure(config: BenchActorQConfig, protocol: Protocol | None, cells: Cells) -> tuple[Rows, Tables, Figures]:
    """(rows, other tables by name, figures by name)."""
    title, figures, tables = TITLES[config.what], dict[str, Figure](), dict[str, Rows]()
    rows: Rows
    if protocol is not None:
        runs = time_to_reward(protocol, protocol.chosen(config.only), cells)
        rows = [asdict(run.row) for run in runs]
        tables["speed-up"] = list(map(asdict, speedups(rows)))
        if rows:
            found = [(asdict(run.row), run.curve) for run in runs]
            figures["times"] = actorq_reward_figures.times(rows, title)
            figures["curves"] = actorq_reward_figures.curves(found, title)
            figures["curves-updates"] = actorq_reward_figures.curves(found, title, "updates")
        if any(one["best_ratio"] for one in tables["speed-up"]):
            figures["ratios"] = actorq_reward_figures.ratios(rows, title)
    elif config.what == "throughput":
        rows = list(map(asdict, throughput(config, cells)))
        figures |= {"throughput": actorq_figures.throughput(rows, title)} if rows else {}
    elif config.what == "breakdown":
        rows = list(map(asdict, breakdown(config, cells)))
        figures |= {"breakdown": actorq_figures.breakdown(rows, title)} if rows else {}
    else:
        rows = list(map(asdict, staleness(config, cells)))
        figures |= {"staleness": actorq_figures.staleness(rows, title)} if rows else {}
    return rows, tables, figures


def _show(config: BenchActorQConfig, rows: Rows, tables: Tables, figures: Figures, cost: energy.Energy | None) -> None:
    title, training = TITLES[config.what], config.protocol is None
    document = schema.document(
        f"bench actorq {config.what}",
        rows,
        algo=config.first().algo if training else None,
        env_id=config.first().env if training else None,
        seed=config.seed,
        energy=cost,
    )
    for name, found in ((config.what, rows), *tables.items()):
        command = f"bench actorq {name}"
        shown = schema.document(command, found)
        write_bytes(schema.to_text(document if name == config.what else shown).encode(), config.output / f"{name}.json")
        if found:
            terminal.show(command, shown["rows"], title if name == config.what else "Speed-up")
    for name, drawn in figures.items():
        for suffix in ("png", "pdf"):
            style.save(drawn, config.output / f"{name}.{suffix}")
    terminal.finish(config, document)
