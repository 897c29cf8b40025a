"""`quarl sweep`: return against bits, for agents quantised after training and for agents trained for it: a study."""

from __future__ import annotations

from functools import partial

from quarl import energy
from quarl.commands import study, terminal
from quarl.config import SweepConfig
from quarl.experiments import rows, summaries, sweep
from quarl.experiments.groups import groups
from quarl.experiments.runner import Measured, measure_document
from quarl.processes.signals import SIGNALLED
from quarl.report import schema, style
from quarl.report.study_figures import bits_against_return


def run(config: SweepConfig) -> int:
    """Writes the study, measures what is missing of it within the time, and shows all that is there; returns the exit
    code."""
    asked = config.output, sweep.document(sweep.check(config)), config.env
    with energy.meter(config) as meter:
        measured = measure_document(*asked, terminal.progress, jobs=config.jobs, minutes=config.minutes)
    if (code := study.ended(measured, config)) <= SIGNALLED:
        _show(config, measured, meter.cost)
    return code


def _show(config: SweepConfig, measured: Measured, cost: energy.Energy | None) -> None:
    title = f"{config.algo} on {config.env}"
    about = partial(schema.document, algo=config.algo, env_id=config.env, seed=config.seed)
    found = about(sweep.SweepRow, sweep.rows(rows.rows(measured.records, config.margin)), energy=cost)
    grouped = groups(measured.records)
    summary = about(sweep.SummaryRow, sweep.summaries(grouped, config.margin))
    if found["rows"]:  # what is compared with float32 agents waits for the first of these
        for name, document in (("rows.json", found), ("summary.json", summary)):
            schema.write(document, config.output / name)
        figure = config.output / "return-against-bits.png"
        style.save(bits_against_return(summaries.means(grouped), title), figure)
        terminal.show(sweep.SweepRow, found["rows"], title)
        terminal.show(sweep.SummaryRow, summary["rows"], f"{title}, over seeds")
        terminal.say(f"figure: {figure}")
    terminal.say(*study.failures(measured.records))
    terminal.finish(config, found)
