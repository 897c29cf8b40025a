"""`quarl robust`: one agent under disturbances at several precisions, as a study of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Annotated, Any

import numpy as np
from matplotlib.figure import Figure

from quarl import formats, stats
from quarl.calibration import quantize
from quarl.commands import terminal
from quarl.config import RobustConfig
from quarl.config.learner_options import CONTRIB
from quarl.envs.checked import Checked, held
from quarl.envs.environment import Environment, home_of, in_environment
from quarl.files import locked
from quarl.judging import with_success
from quarl.lab.cells import DONE, FP32, PTQ
from quarl.lab.commands import study
from quarl.lab.disturbances import Disturbance
from quarl.lab.rows import both_successes, returns
from quarl.lab.store import Record
from quarl.policy import artifact
from quarl.policy.graph import Policy
from quarl.processes.signals import SIGNALLED
from quarl.quant.spec import EXACT
from quarl.readers import load
from quarl.report import page, schema, style, tables
from quarl.report.assessment import too_few
from quarl.report.figures import points, precision_colors
from quarl.report.schema import Fields
from quarl.rows import (
    VERDICTS,
    Column,
    Episodes,
    Interval,
    Lengths,
    Mean,
    Measured,
    PartOfVerdict,
    Precision,
    Returns,
    Row,
    Successes,
    by,
)
from quarl.specs import LEARNERS, ComparisonSpec, PtqSpec

POLICY = "policy.safetensors"
"""The float policy in the folder, with its environment."""
NONE = "none"
"""Name of the undisturbed episodes."""
SHIFT = 0.08
"""Distance between the lines of a figure, in levels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RobustRow(Row):
    """One precision under one level of a disturbance."""

    command = "robust"
    disturbance: Annotated[str, Column("disturbance", caption="{}")]
    """noise, delay, push, control-hz or a parameter of the dynamics."""
    level: Annotated[float, Column("level", "{:g}".format)]
    """Its level: in standard deviations on the path for noise and push, control steps for delay, control steps per
    second for control-hz, otherwise the factor of the parameter. The undisturbed level is among them."""
    precision: Precision
    mode: Annotated[str, Column("mode")]
    """static or dynamic activations; empty for fp32."""
    episodes: Episodes
    mean: Mean
    ci_low: Interval
    ci_high: float | None
    success: Annotated[
        float | None,
        Column("success %", formats.shares, of=("success", "success_low", "success_high"), optional=True),
    ]
    """Share of episodes whose last step has `is_success`, with Wilson's 95 % interval; null if none has it."""
    success_low: float | None
    success_high: float | None
    measured: Measured
    verdict: Annotated[str | None, Column("verdict", formats.verdict, of=VERDICTS)]
    """Verdict on the mean difference to fp32 under the same disturbance, paired by episode, by Student's interval. If
    the environment reports successes, it is the worse of this and of that on them, by Newcombe's interval. The
    intervals are corrected for the number of comparisons (Bonferroni)."""
    verdict_return: PartOfVerdict
    verdict_success: PartOfVerdict
    success_margin: float | None
    """Acceptable loss of successes in percentage points; null without successes."""
    differs: bool | None
    """True if the interval of the return does not contain 0."""
    holds: Annotated[bool, Column("holds", lambda holds: "yes" if holds else "no")] = True
    """True if it is non-inferior at this level and at all levels between it and the undisturbed one; true for fp32."""
    returns: Returns
    lengths: Lengths
    successes: Successes


def run(config: RobustConfig) -> int:
    """Measure the missing cells within the time, and report the finished ones; return the exit code."""
    policy, environment = in_environment(load.read(config.model), config.env)
    load.refuse_quantized(policy, config.model)
    usual = check(policy, environment or home_of(policy), config.sweeps())
    with locked(config.output):
        artifact.write(quantize(policy, EXACT), config.output / POLICY)
        asked, measured = study.measured(config, study_document(config, policy))
    if (code := study.ended(measured, config)) > SIGNALLED:
        return code
    return max(code, _report(config, asked.name, measured.records, rows(config, measured.records, usual)))


def check(policy: Policy, environment: Environment, sweeps: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Reset the environment at every level; return the undisturbed level of each disturbance."""
    usual = {}
    for name, level in ((name, level) for name, levels in sweeps.items() for level in levels):
        with held(partial(environment.make_for, policy)) as env:
            disturbed = Disturbance(env, {name: level}, {})
            Checked(disturbed).reset(seed=0)
            usual[name] = disturbed.usual.get(name, 1.0)
    return usual


def study_document(config: RobustConfig, policy: Policy) -> dict[str, Any]:
    """Return the study file: the policy once for every level, in fp32 and quantized."""
    source = policy.provenance
    entry = {
        "algo": source.algo if source.algo in (*LEARNERS, *CONTRIB) else "",
        "env": (config.env or source.env_id).rpartition(":")[2],
        "source": f"file:{(config.output / POLICY).absolute()}",
    }
    precisions = [spec.precision for spec in PtqSpec(bits=config.bits).specs() if spec != EXACT]
    ptq = {"method": PTQ, "precision": precisions, "mode": ["static", "dynamic"]}
    return {
        "name": source.title(entry["env"]),
        "episodes": config.episodes,
        "margin": config.margin,
        "seeds": [config.seed],
        "limits": {"minutes": 10**6, "memory_gb": 10**6},
        "policies": [
            {**entry, "name": NONE},
            *(
                {**entry, "name": _source(name, level), "disturbance": {name: level}}
                for name, levels in config.sweeps().items()
                for level in levels
            ),
        ],
        "methods": [{"method": FP32}, *([ptq] if precisions else [])],
    }


def rows(config: RobustConfig, records: Sequence[Record], usual: Mapping[str, float]) -> list[RobustRow]:
    """Return the rows of the finished cells, by sweep, precision, mode and level.

    Args:
        config: The command's options.
        records: All cells of the study, each level's fp32 first.
        usual: Undisturbed level of each disturbance.
    """
    comparisons = _comparisons(records)
    done = by((record for record in records if record.state == DONE), lambda record: record.source)
    found: list[RobustRow] = []
    for name, levels in config.sweeps().items():
        sources = {level: _source(name, level) for level in levels} | {usual[name]: NONE}
        sweep = [
            _row(name, level, record, done[sources[level]][0], config.margin / 100, comparisons)
            for level in sorted(sources)
            for record in done.get(sources[level], ())
            if done[sources[level]][0].method == FP32
        ]
        for members in by(sweep, lambda row: (row.precision, row.mode)).values():
            failed = [row.level for row in members if row.verdict not in (None, stats.NONINFERIOR)]
            for row in members:
                low, high = sorted((row.level, usual[name]))
                found.append(replace(row, holds=not any(low <= level <= high for level in failed)))
    return found


def _comparisons(records: Sequence[Record]) -> int:
    """Return the number of cells that are compared with fp32."""
    return sum(record.method != FP32 for record in records)


def _source(name: str, level: float) -> str:
    return f"{name} {level:.15g}"


def _row(name: str, level: float, record: Record, exact: Record, margin: float, comparisons: int) -> RobustRow:
    """Return the row of a finished cell, compared with fp32 under the same disturbance."""
    played, base, won = returns(record), returns(exact), both_successes(exact, record)
    verdict = stats.judge(stats.over_few(played - base, comparisons), margin * abs(float(base.mean())))
    verdict = with_success(verdict, won, ComparisonSpec.success_margin, arms=comparisons)
    judged: dict[str, Any] = dict.fromkeys(
        ("verdict", "differs", "verdict_return", "verdict_success", "success_margin")
    )
    episodes: dict[str, Any] = {name: record.result.get(name) for name in tables.BY_EPISODE}
    if is_compared := record.method != FP32:
        judged |= {name: value for name, value in verdict.to_json().items() if name in judged}
    return RobustRow(
        disturbance=name,
        level=level,
        precision=record.precision,
        mode=record.mode if is_compared else "",
        episodes=record.episodes,
        **stats.as_fields(stats.bootstrap_interval(played, np.random.default_rng(0)), "mean", "ci"),
        **stats.as_fields(stats.wilson_interval(won[1]) if won else None, "success", "success"),
        measured=record.result["measured"],
        **judged,
        **episodes,
    )


def _report(config: RobustConfig, title: str, records: Sequence[Record], rows: Sequence[RobustRow]) -> int:
    """Show a table of each sweep, and write rows, figures and page; return the exit code."""
    document = schema.document(RobustRow, rows, model=config.model, env_id=config.env, seed=config.seed)
    schema.write(document, config.output / "rows.json")
    tables.write_returns(document, config.output)
    sweeps = by(document["rows"], itemgetter("disturbance"))
    said = [_sentence(name, members) for name, members in sweeps.items()]
    few = (too_few(row, _comparisons(records)) for row in document["rows"])
    said += dict.fromkeys(filter(None, few))
    for name, members in sweeps.items():
        terminal.show(RobustRow, members, f"{title}: {name}")
    page.write(
        config.output,
        [(name, f"Return against {name}, with 95 % intervals.", draw(rows, title)) for name, rows in sweeps.items()],
        config.figure_format,
        title=f"{title}: disturbances",
        facts={"model": config.model, "episodes": f"{config.episodes} of every cell, seed {config.seed}"},
        sentences=said,
        tables=[(name, tables.cells(RobustRow, members)) for name, members in sweeps.items()],
        command=config.command_line(),
    )
    terminal.say("", *said, *study.failures(records), f"report: {config.output / 'report.html'}")
    return terminal.finish(config, document)


def _sentence(name: str, rows: Sequence[Fields]) -> str:
    """Return the levels of a disturbance at which each precision is non-inferior to fp32, in a sentence."""
    arms = by((row for row in rows if row["verdict"]), itemgetter("precision", "mode"))
    kept = {" ".join(arm): [row["level"] for row in members if row["holds"]] for arm, members in arms.items()}
    words = [f"{arm} {f'{min(at):g} to {max(at):g}' if at else 'nowhere'}" for arm, at in kept.items()]
    return f"Shown to be non-inferior to fp32 under the same {name}: {', '.join(words)}."


@style.look()
def draw(rows: Sequence[Fields], title: str) -> Figure:
    """Draw return against the level of one disturbance: a color for each precision, dashed in dynamic mode."""
    levels = sorted({row["level"] for row in rows})
    drawn, (axes,) = style.panels(1, title, height=3.4, head=0.4, y="return")
    axes.set_xlabel(rows[0]["disturbance"])
    arms, colors = by(rows, itemgetter("precision", "mode")), precision_colors(row["precision"] for row in rows)
    for number, (arm, members) in enumerate(arms.items()):
        x = np.array([levels.index(row["level"]) for row in members]) + SHIFT * (number - (len(arms) - 1) / 2)
        color, dashes = colors[arm[0]], "--" if arm[1] == "dynamic" else "-"
        mean = points(axes, x, members, color, "", 3.0)
        axes.plot(x, mean, dashes, color=color, label=" ".join(arm).rstrip())
    axes.set_xticks(range(len(levels)), [f"{level:g}" for level in levels])
    style.legend(drawn, *axes.get_legend_handles_labels())
    return drawn
