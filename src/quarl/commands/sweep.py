"""`quarl sweep`: return against bits, for agents quantised after training and for agents trained for it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from quarl import energy
from quarl.commands import terminal
from quarl.config import SweepConfig
from quarl.errors import QuarlError
from quarl.experiments import bits, bits_rows
from quarl.experiments.methods.cells import Cells
from quarl.folder import locked, write_bytes
from quarl.report import schema, style
from quarl.report.sweep_figure import return_against_bits


def run(config: SweepConfig) -> None:
    """Trains and measures what is missing, within the time, and shows everything that is there; raises QuarlError
    where trainings failed."""
    found = bits.check(config)
    with energy.meter(config) as meter:
        cells = Cells(config.output, config.minutes, terminal.note, meter)
        with locked(config.output), terminal.progress(bits.num_cells(config)) as progress:
            played = bits.sweep(found, cells, progress)
    if cells.missing:
        terminal.say(f"the time is over with {cells.missing} trainings to go: repeat the command to go on")
    _show(config, played if any(one.method == bits.FP32 for one in played) else [], meter)
    if cells.failed:
        names = ", ".join(cells.failed)
        raise QuarlError(f"trainings failed: {names}; {config.output / bits.LOG} may say more")


def _show(config: SweepConfig, played: Sequence[bits.Played], meter: energy.Meter) -> None:
    about = partial(schema.document, algo=config.algo, env_id=bits.env_id(config), seed=config.seed)
    rows = about("sweep", bits_rows.rows(config, played), energy=meter.cost)
    summary = about("sweep summary", bits_rows.summaries(config, played))
    if not played:  # what is compared with float32 agents waits for the first of these
        terminal.finish(config, rows)
        return
    title = f"{config.algo} on {bits.env_id(config)}"
    for name, document in (("rows.json", rows), ("summary.json", summary)):
        write_bytes(schema.to_text(document).encode(), config.output / name)
    figure = config.output / "return-against-bits.png"
    style.save(return_against_bits(summary["rows"], rows["rows"], title), figure)
    terminal.show("sweep", rows["rows"], title)
    terminal.show("sweep summary", summary["rows"], f"{title}, over seeds")
    terminal.say(f"figure: {figure}")
    terminal.finish(config, rows)
