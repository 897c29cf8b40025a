"""`quarl sweep`, a study: agents in float32, quantised, distilled and trained for a precision, compared over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from quarl import energy, formats
from quarl.algorithms import tuned
from quarl.commands import study, terminal
from quarl.config import SweepConfig
from quarl.config.environment import NONE
from quarl.config.train import QAT_OPTIONS
from quarl.envs import resolve
from quarl.envs.names import is_atari
from quarl.envs.options import EnvironmentOptions
from quarl.experiments import rows, summaries
from quarl.experiments.cell_groups import EMPTY, Group, grouped
from quarl.experiments.cells import DISTILL, FP32, PTQ, QAT
from quarl.experiments.rows import CellRow
from quarl.experiments.runner import UNBOUNDED, Measured, entry_of, given, measure_document
from quarl.processes.signals import SIGNALLED
from quarl.quant.spec import QuantSpec
from quarl.readers import find
from quarl.readers.load import read
from quarl.removed import REMOVED
from quarl.report import schema, style
from quarl.report.figures import bits_against_return
from quarl.rows import Column, Error, Interval, Mean, Method, Row, Verdict
from quarl.runs.hyperparameters import interpret
from quarl.runs.model import check_environment
from quarl.runs.train import Training
from quarl.stats import as_fields

METHODS = (FP32, PTQ, DISTILL, QAT)


class SweepRow(CellRow):
    """One cell of a sweep."""

    __slots__ = ()
    command = "sweep"


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryRow(Row):
    """One method at one precision over all seeds, each seed's episodes paired with its own fp32 agent's."""

    command = "sweep summary"
    method: Method
    precision: Annotated[str, Column("precision", before="method")]
    bits_weights: int
    bits_activations: int
    seeds: Annotated[int, Column("seeds", caption="seeds: {}")]
    mean: Mean
    ci_low: Interval
    """Ends of the 95 % interval over seeds and their episodes."""
    ci_high: float | None
    error_pct: Error
    error_low: Annotated[float | None, Column("its interval", formats.interval, of=("error_low", "error_high"))]
    error_high: float | None
    noninferior: bool
    verdict: Verdict
    """By the interval of the error."""
    differs: bool
    gain: Annotated[float | None, Column("over ptq", formats.number)]
    """Of distill and of qat over ptq in return; null elsewhere."""
    gain_low: Annotated[float | None, Column("interval", formats.interval, of=("gain_low", "gain_high"))]
    gain_high: float | None


def run(config: SweepConfig) -> int:
    """Writes the study, measures what is missing of it within the time, and shows all that is there; returns the exit
    code."""
    document = study_document(check(config))
    with energy.meter(config) as meter:
        measured = measure_document(
            config.output, document, config.env, terminal.progress, jobs=config.jobs, minutes=config.minutes
        )
    if (code := study.ended(measured, config)) <= SIGNALLED:
        _show(config, measured, meter.cost)
    return code


def _show(config: SweepConfig, measured: Measured, cost: energy.Energy | None) -> None:
    title = f"{config.algo} on {config.env}"
    about = partial(schema.document, algo=config.algo, env_id=config.env, seed=config.seed)
    cells = about(SweepRow, compared(rows.rows(measured.records, config.margin)), energy=cost)
    groups = grouped(measured.records)
    summary = about(SummaryRow, over_seeds(groups, config.margin))
    if cells["rows"]:  # what is compared with float32 agents waits for the first of these
        for name, document in (("rows.json", cells), ("summary.json", summary)):
            schema.write(document, config.output / name)
        figure = config.output / "return-against-bits.png"
        style.save(bits_against_return(summaries.means(groups), title), figure)
        terminal.show(SweepRow, cells["rows"], title)
        terminal.show(SummaryRow, summary["rows"], f"{title}, over seeds")
        terminal.say(f"figure: {figure}")
    terminal.say(*study.failures(measured.records))
    terminal.finish(config, cells)


def check(config: SweepConfig) -> SweepConfig:
    """Refuses at once what every training would fail by; `config` with all that it leaves open, and absolute paths."""
    if config.trained_agent is not None:
        config = replace(config, trained_agent=find.opened(config.trained_agent).path.absolute())
    if config.normalize not in (None, NONE):
        config = replace(config, normalize=str(Path(config.normalize).absolute()))
    config = replace(config, n_timesteps=length(config))
    bits = config.bits[0] if QAT in config.methods else None
    if bits is not None or config.trained_agent is None:
        training = config.training(config.seed, bits, config.n_timesteps, config.output)
        env = Training(training, lambda line: None).model.env  # writes nothing before it runs
        assert env is not None
        env.close()
    else:  # nothing is trained
        check_environment(config.algo, config.env, EnvironmentOptions.said(config))
        read(config.trained_agent, config.algo, config.normalize)
    return config


def length(config: SweepConfig) -> int:
    """Environment steps of each training."""
    if config.n_timesteps is not None:
        return config.n_timesteps
    told = config.training(config.seed, None, None, config.output).hyperparameters()
    env_id = resolve(config.env, trusted=True)
    defaults = tuned.read(config.algo, env_id, atari=is_atari(env_id)).written
    return interpret(defaults | told, Path("hyper-parameters")).n_timesteps


def study_document(config: SweepConfig) -> dict[str, Any]:
    """The study file of a sweep that `check` has completed."""
    agent = config.trained_agent
    entry = entry_of(config.training(config.seed, None, config.n_timesteps, config.output), ("eval_freq", "threads"))
    if agent is not None:
        entry |= {"source": f"file:{agent}", **given({"normalize": config.normalize})}
    said = {field.name: getattr(config, field.name) for field in fields(config) if field.name in QAT_OPTIONS}
    # with the removed option, cells keep the names under which earlier sweeps have measured them
    options = {"qat_ranges": REMOVED["qat_ranges"]} | {
        name: value for name, value in said.items() if value is not False
    }
    more = {PTQ: {}, DISTILL: {}, QAT: {"fine_tune": None if agent is None else 1.0, **options}}
    methods = [
        given({"method": name, "precision": [*map(config.precision, config.bits)], "edge_bits": "same", **more[name]})
        for name in METHODS[1:]
        if name in config.methods
    ]
    return {
        "name": f"{config.algo} on {entry['env']}",
        "episodes": config.episodes,
        "margin": config.margin,
        "seeds": list(range(config.seed, config.seed + config.seeds)),
        "limits": UNBOUNDED,
        "policies": [entry],
        "methods": [{"method": FP32}, *methods],
    }


def compared(cells: Sequence[CellRow]) -> list[CellRow]:
    """Those that have an fp32 agent to be compared with, by precision as they were asked for, then method and seed."""
    named = [replace(row, precision=QuantSpec.parse(row.precision).precision) for row in cells]
    return sorted((row for row in named if row.error_pct is not None), key=lambda row: (*_place(row, named), row.seed))


def _place(row: CellRow | SummaryRow, every: Sequence[CellRow] | Sequence[SummaryRow]) -> tuple[int, int]:
    precisions = list(dict.fromkeys(other.precision for other in every))
    return precisions.index(row.precision), METHODS.index(row.method)


def over_seeds(groups: Sequence[Group], margin_pct: float) -> list[SummaryRow]:
    """Every method at every precision, over the seeds that have an fp32 agent."""
    table = []
    for group in groups:
        paired = group.of(group.exact)
        if not paired.records:
            continue
        spec = QuantSpec.parse(paired.precision)
        alike = (other for other in groups if other.method == PTQ and QuantSpec.parse(other.precision) == spec)
        table.append(
            SummaryRow(
                method=paired.method,
                precision=spec.precision,
                bits_weights=spec.weight_bits,
                bits_activations=spec.activation_bits or 32,
                seeds=len(paired.records),
                **as_fields(paired.mean(), "mean", "ci"),
                **paired.compared(margin_pct, next(alike, EMPTY) if paired.method in (DISTILL, QAT) else EMPTY),
            )
        )
    return sorted(table, key=lambda row: _place(row, table))
