"""`quarl sweep`: return against bits, for agents quantised after training and for agents trained for it: a study."""

from __future__ import annotations

from functools import partial
from typing import Any

import yaml

from quarl import energy
from quarl.commands import study, terminal
from quarl.config import SweepConfig
from quarl.errors import QuarlError
from quarl.experiments import file, rows, summaries, sweep
from quarl.experiments.groups import groups
from quarl.experiments.plan import plan
from quarl.experiments.runner import Measured, measure
from quarl.files import locked, write_bytes
from quarl.processes.signals import SIGNALLED
from quarl.report import schema, style
from quarl.report.study_figures import bits_against_return

FILE = "study.yml"


def run(config: SweepConfig) -> int:
    """Writes the study, measures what is missing of it within the time, and shows all that is there; returns the exit
    code."""
    checked = sweep.check(config)
    if (config.output / "cells").is_dir():
        raise QuarlError(
            f"{config.output} holds a sweep of an older QuaRL, whose rows.json stays as it is: choose another -o, or "
            "remove its folder cells to measure anew"
        )
    options: dict[str, Any] = {"jobs": config.jobs, "minutes": config.minutes, "retry_failed": True}
    with energy.meter(config) as meter, locked(config.output):
        write_bytes(yaml.safe_dump(sweep.document(checked), sort_keys=False).encode(), config.output / FILE)
        asked = file.read(str(config.output / FILE))
        cells = plan(asked, env_module=config.env.rpartition(":")[0] or None)
        measured = measure(config.output, asked, cells, cells, terminal.progress, **options)
    if (code := study.ended(measured, config)) <= SIGNALLED:
        _show(config, measured, meter.cost)
    return code


def _show(config: SweepConfig, measured: Measured, cost: energy.Energy | None) -> None:
    title = f"{config.algo} on {config.env}"
    about = partial(schema.document, algo=config.algo, env_id=config.env, seed=config.seed)
    found = about("sweep", sweep.rows(rows.rows(measured.records, config.margin)), energy=cost)
    grouped = groups(measured.records)
    summary = about("sweep summary", sweep.summaries(grouped, config.margin))
    if found["rows"]:  # what is compared with float32 agents waits for the first of these
        for name, document in (("rows.json", found), ("summary.json", summary)):
            write_bytes(schema.to_text(document).encode(), config.output / name)
        figure = config.output / "return-against-bits.png"
        style.save(bits_against_return(summaries.means(grouped), title), figure)
        terminal.show("study", found["rows"], title)
        terminal.show("sweep summary", summary["rows"], f"{title}, over seeds")
        terminal.say(f"figure: {figure}")
    terminal.say(*study.failures(measured.records))
    terminal.finish(config, found)
