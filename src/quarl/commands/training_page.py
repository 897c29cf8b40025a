"""The page and the curve of `quarl train` and `quarl actorq`, from all that a run has written so far."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from quarl import qat, stats
from quarl.actorq.faults import Fault
from quarl.actorq.supervisor import Supervisor
from quarl.config.learner_options import LearnerOptions
from quarl.files import read_rows
from quarl.formats import size, three_digits
from quarl.report import page, tables
from quarl.report.figures import learning
from quarl.report.process_figures import WAIT, processes
from quarl.report.schema import Fields
from quarl.runs.folder import RunFolder
from quarl.runs.outcome import TrainRow
from quarl.runs.train import Training

AXES = {"timesteps": "environment steps", "updates": "updates", "clock_s": "training seconds"}
RETURN = (
    "Mean return of each evaluation with its 95 % interval; grey are the last 100 episodes of training. The training "
    "clock pauses during evaluations."
)
DOES: Mapping[str, str] = {
    **{"train_s": "updates", "push_s": "weights", "checkpoint_s": "checkpoints", "quantize_s": "quantizing"},
    **{"inference_s": "inference", "environment_s": "environment", "insert_s": "experience", "publish_s": "weights"},
    **{"pull_s": "weights", "deserialize_s": "weights", "load_s": "weights", "wait_s": WAIT, "stale_s": WAIT},
}
"""Activity of a process by the name of its seconds in rows of metrics."""
LISTED = 500
"""Most rows in the table of faults."""


def of_train(session: Training, row: TrainRow | None, sentences: Sequence[str]) -> Path:
    """Write the page of `quarl train` and return its path.

    Args:
        session: The training.
        row: Results of a finished run; None before it finishes.
        sentences: Sentences about the results.
    """
    config, model = session.config, session.model
    metrics = read_rows(session.folder().metrics, numbers=("clock_s", "update_s"))
    switched, spec = qat.switched_at(model), qat.spec_of(model)
    trained_for = "float32" if spec is None else spec.precision
    points: list[dict[str, Any]] = [
        {
            "label": "float32" if switched is None or steps < switched else trained_for,
            "timesteps": steps,
            **asdict(stats.summary(returns, np.random.default_rng(0))),
        }
        for steps, returns, _ in session.evaluator.entries
    ]
    if best := session.evaluator.best:
        points.append({"label": "best", "timesteps": best[2], "mean": best[1]})
    for label, suffix in ("float32", ""), (trained_for, "_quantised"):
        if row is not None and getattr(row, f"mean{suffix}") is not None:
            ends = {name: getattr(row, f"{name}{suffix}") for name in ("mean", "ci_low", "ci_high")}
            points.append({"label": f"{label}, last", "timesteps": row.timesteps, **ends})
    if switched is not None:
        points.append({"label": "quantization starts", "timesteps": switched})
    if metrics:
        passed, clock = ([0, *(line[name] for line in metrics)] for name in ("timesteps", "clock_s"))
        for point in points:  # between two rows of metrics the clock is assumed to run evenly
            point["clock_s"] = float(np.interp(point["timesteps"], passed, clock))
    facts = {
        "steps": f"{model.num_timesteps:,} of {session.n_timesteps:,}, {model._n_updates:,} updates",
        "trained for": trained_for + (f", from step {switched or config.quant_delay:,} on" if config.qat else ""),
        "started from": str(config.trained_agent or "a new network"),
        "hyper-parameters": ", ".join(f"{name} {value}" for name, value in session.options.written.items()),
    }
    if metrics:
        clock_s, update_s = metrics[-1]["clock_s"], metrics[-1]["update_s"]
        facts["where time went"] = f"{clock_s - update_s:,.1f} s in the environment, {update_s:,.1f} s in updates"
    table = [] if row is None else [("The run", tables.cells(TrainRow, [asdict(row)]))]
    drawn = points if session.evaluator.entries else []
    return _write(session.folder(), config, facts, sentences, table, drawn, metrics)


def of_actorq(supervisor: Supervisor, sentences: Sequence[str]) -> Path:
    """Write the page of `quarl actorq` with these sentences."""
    config, folder = supervisor.config, RunFolder(supervisor.config.output)
    metrics = read_rows(folder.metrics)
    points = [
        {
            **{key: entry[key] for key in AXES},
            **{"mean": entry[name], "ci_low": entry[f"{name}_low"], "ci_high": entry[f"{name}_high"]},
            "label": f"{precision}, last" if entry.get("last") else precision,
        }
        for name, precision in (("return", "fp32"), ("return_quantised", f"actors' {config.actor_precision}"))
        for entry in supervisor.evaluator.entries
        if name in entry
    ]
    # counters of a resumed run restart at 0, as its wall clock does: collect the last row of each part
    turns = [(a, b) for a, b in pairwise(metrics) if b["wall_s"] < a["wall_s"]]
    ended = [*(before for before, _ in turns), metrics[-1]]
    last, publisher, faults = metrics[-1], metrics[-1]["publisher"], supervisor.faults
    count = {name: sum(actor[name] for row in ended for actor in row["actors"]) for name in ("pulls", "skipped")}
    asked = "the algorithm's own ratio" if config.samples_per_insert is None else f"{config.samples_per_insert:g}"
    facts = {
        "actors": f"{config.actors} in {config.actor_precision} on {config.engine}",
        "steps": f"{last['timesteps']:,} of {config.steps:,}, {last['updates']:,} updates",
        "hyper-parameters": ", ".join(config.params) or "the algorithm's own",
        "samples per insert": f"{three_digits(last['samples_per_insert'])}; {asked} was requested",
        "versions": f"{sum(row['publisher']['published'] for row in ended):,} published, "
        f"{count['pulls'] - count['skipped']:,} taken by actors",
        "a version": f"{size(round(publisher['bytes_per_version'] or 0))} on the wire, "
        f"{100 * (publisher['share_of_fp32'] or 0):.0f} % of float32",
        "age of the weights": f"{three_digits(last['staleness_p50'])} updates in the median, "
        f"{three_digits(last['staleness_p99'])} at the 99th percentile, since the run began or was resumed",
        "faults": f"{faults.total('actor ', 'died'):,} deaths of actors, {faults.total('publisher', 'died'):,} of the "
        f"publisher; {faults.total('environment', 'raised'):,} environments raised and were replaced",
    }
    title, spent = f"{config.algo} on {config.env}", _spent(ended, last["clock_s"])
    figure = ("", processes.__doc__ or "", processes(spent, f"{title}: where time went"))
    table = [("Faults", tables.cells(Fault, faults.rows[-LISTED:]))] if faults.rows else []
    return _write(folder, config, facts, sentences, table, points, metrics, figure)


def _spent(ended: Sequence[Fields], clock_s: float) -> Mapping[str, Mapping[str, float]]:
    """Return seconds by process and activity, up to those of the training clock."""
    spent: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in ended:
        means, actors = row["publisher"], {f"actor\n{number}": actor for number, actor in enumerate(row["actors"])}
        published = {
            f"{name}_s": means["published"] * (means[f"{name}_ms"] or 0) / 1000
            for name in ("pull", "pack", "quantize", "publish")
        }
        published["pull_s"] += published["pack_s"] - published["quantize_s"]  # packing includes quantizing
        for process, seconds in {"learner": row["learner"], "publisher": published, **actors}.items():
            for name, part in DOES.items():
                if name in seconds:
                    spent[process][part] += seconds[name]
    for process, parts in spent.items():
        parts[WAIT if process == "publisher" else "other"] += max(clock_s - sum(parts.values()), 0.0)
    return spent


def _write(
    folder: RunFolder,
    config: LearnerOptions,
    facts: Mapping[str, str],
    sentences: Sequence[str],
    table: Sequence[tuple[str, tables.Cells]],
    points: Sequence[Fields],
    metrics: Sequence[Fields],
    *figures: tuple[str, str, Figure],
) -> Path:
    title = f"{config.algo} on {config.env}"
    if points:
        against = {key: name for key, name in AXES.items() if key in points[0]}
        curve = learning(points, metrics, against, f"{title}: return")
        figures = (("curve", RETURN, curve), *figures)
    else:
        sentences = [*sentences, "No evaluation was finished, so there is no curve."]
    page.write(
        folder.path,
        figures,
        title=title,
        facts={"algorithm": config.algo, "environment": config.env, **facts, "folder": str(folder.path)},
        sentences=sentences,
        tables=table,
        command=replace(config, resume=False).command_line(),
    )
    return folder.path / "report.html"
