"""The page and the curve that `quarl train` and `quarl actorq` leave in a run's folder, of all that it wrote so far."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from quarl import qat, stats
from quarl.actorq.supervisor import Supervisor
from quarl.config.learner import LearnerOptions
from quarl.files import write_bytes
from quarl.formats import size, three_digits
from quarl.report import actorq_figures, page, style, tables
from quarl.report.actorq_figures import WAIT
from quarl.report.learning_figure import learning
from quarl.report.schema import Fields
from quarl.runs import metrics_file
from quarl.runs.folder import RunFolder
from quarl.runs.outcome import TrainRow
from quarl.runs.train import Training

STEPS, UPDATES, CLOCK = ("timesteps", "environment steps"), ("updates", "updates"), ("clock_s", "training seconds")
NONE: Mapping[str, None] = dict.fromkeys(("mean", "low", "high"))
RETURN = (
    "Mean return of each evaluation with its 95 % interval; grey are the last 100 episodes of training. The training "
    "clock stands still in evaluations."
)
AGES = (
    "By how many updates the weights that chose a step were behind when it was taken in, of all steps since it began "
    "or went on; and versions that the learner had pushed, and publisher or actor had not yet."
)
SPENT = (
    "Seconds of each process by what it did; actors wait where the learner is the bottleneck, and it where they are."
)


def of_train(session: Training, row: TrainRow | None, sentences: Sequence[str], said: Sequence[str]) -> Path:
    """The page of `quarl train`; row: of a run that has come to its end. said: what was said meanwhile."""
    config, model, entries = session.config, session.model, session.evaluator.entries
    metrics = metrics_file.rows_until(session.folder().metrics, numbers=("clock_s", "update_s"))
    switched, labels = qat.switched_at(model), ("float32", str(config.qat))

    def point(label: str, steps: int, **numbers: Any) -> Fields:
        passed, clock = ([0, *(row[name] for row in metrics)] for name in ("timesteps", "clock_s"))
        clock_s = float(np.interp(steps, passed, clock))  # between two rows it is taken to run evenly
        return {"label": label, "timesteps": steps, "clock_s": clock_s, **NONE, **numbers}

    points = [
        point(labels[switched is not None and steps >= switched], steps, **_interval(returns))
        for steps, returns, _ in entries
    ]
    if best := session.evaluator.best:
        points.append(point("best", best[2], mean=best[1]))
    for label, returns in zip(labels, (row.returns, row.returns_quantised) if row else (), strict=False):
        if returns:
            points.append(point(f"{label}, last", model.num_timesteps, **_interval(np.array(returns))))
    if switched is not None:
        points.append(point("quantisation acts", switched))
    title = f"{config.algo} on {session.options.env_id}"
    against = dict((STEPS, CLOCK) if metrics else (STEPS,))
    curve = learning(points, metrics, against, f"{title}: return") if entries else None
    facts = {
        "steps": f"{model.num_timesteps:,} of {session.n_timesteps:,}, {model._n_updates:,} updates",
        "trained for": f"{config.qat}, from step {switched or config.quant_delay:,} on" if config.qat else "float32",
        "begun as": str(config.trained_agent or "a new network"),
        "hyper-parameters": ", ".join(f"{name} {value}" for name, value in session.options.written.items()),
    }
    if metrics:
        clock, updating = metrics[-1]["clock_s"], metrics[-1]["update_s"]
        facts["where time went"] = f"{clock - updating:,.1f} s in the environment, {updating:,.1f} s in updates"
    table = [] if row is None else [("The run", tables.cells(TrainRow, [asdict(row)]))]
    return _write(session.folder(), config, title, facts, [*sentences, *said], table, curve, [])


def of_actorq(supervisor: Supervisor, sentences: Sequence[str], said: Sequence[str]) -> Path:
    """The page of `quarl actorq`; said: what was said meanwhile."""
    config, entries, folder = supervisor.config, supervisor.evaluator.entries, RunFolder(supervisor.config.output)
    metrics, title = metrics_file.rows_until(folder.metrics), f"{config.algo} on {config.env}"
    points = [
        {
            **{key: entry[key] for key in ("timesteps", "updates", "clock_s")},
            **{"mean": entry[name], "low": entry[f"{name}_low"], "high": entry[f"{name}_high"]},
            "label": f"{precision}, last" if entry.get("last") else precision,
        }
        for name, precision in (("return", "fp32"), ("return_quantised", f"actors' {config.actor_precision}"))
        for entry in entries
        if name in entry
    ]
    curve = learning(points, metrics, dict((STEPS, UPDATES, CLOCK)), f"{title}: return") if points else None
    # a run that goes on counts from 0: what each part of it began and ended with
    published = [row["publisher"]["published"] for row in metrics]
    parts = [0, *(at for at, (before, after) in enumerate(pairwise(published), 1) if after < before)]
    begun, ended = [metrics[at] for at in parts], [metrics[at - 1] for at in (*parts[1:], len(metrics))]
    last, replaced = metrics[-1], _of_actors(ended, "incarnation") - _of_actors(begun, "incarnation")
    drawn = [
        (AGES, actorq_figures.ages(metrics[:-1] or metrics, f"{title}: age of the weights")),
        (SPENT, actorq_figures.processes(_spent(ended, last["clock_s"]), f"{title}: where time went")),
    ]
    asked = "the algorithm's own ratio" if config.samples_per_insert is None else f"{config.samples_per_insert:g}"
    publisher = last["publisher"]
    facts = {
        "actors": f"{config.actors} in {config.actor_precision} on {config.engine}",
        "steps": f"{last['timesteps']:,} of {config.steps:,}, {last['updates']:,} updates",
        "hyper-parameters": ", ".join(config.params) or "the algorithm's own",
        "samples per insert": f"{three_digits(last['samples_per_insert'])}; {asked} was asked for",
        "versions": f"{sum(row['publisher']['published'] for row in ended):,} published, "
        f"{_of_actors(ended, 'pulls') - _of_actors(ended, 'skipped'):,} taken by actors",
        "a version": f"{size(round(publisher['bytes_per_version'] or 0))} on the wire, "
        f"{100 * (publisher['share_of_fp32'] or 0):.0f} % of float32",
        "faults": f"{replaced} actors replaced, {_of_actors(ended, 'errors')} environments made anew",
    }
    return _write(folder, config, title, facts, [*sentences, *said], [], curve, drawn)


def _interval(returns: Any) -> dict[str, float | None]:
    summary = stats.summary(returns, np.random.default_rng(0))
    return {"mean": summary.mean, "low": summary.ci_low, "high": summary.ci_high}


def _of_actors(rows: Sequence[Fields], name: str) -> int:
    """A sum over the actors of rows of metrics."""
    return sum(int(actor[name]) for row in rows for actor in row["actors"])


def _spent(ended: Sequence[Fields], clock_s: float) -> Mapping[str, Mapping[str, float]]:
    """Seconds by process and by what it did, up to those of the training clock."""
    spent: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for process, seconds in (each for row in ended for each in _parts(row)):
        for part, span in seconds.items():
            spent[process][part] += span
    for process, seconds in spent.items():
        rest = max(clock_s - sum(seconds.values()), 0.0)
        seconds[WAIT if process == "publisher" else "other"] += rest
    return spent


def _parts(row: Fields) -> Iterator[tuple[str, Mapping[str, float]]]:
    """Each process of a row of metrics, and its seconds by what it did."""
    learner, publisher = row["learner"], row["publisher"]
    names = {"train_s": "updates", "insert_s": "experience", "push_s": "weights", "checkpoint_s": "checkpoints"}
    yield "learner", {part: learner[name] for name, part in (names | {"wait_s": WAIT}).items()}
    pull, pack, quantize, publish = (
        publisher["published"] * (publisher[f"{name}_ms"] or 0) / 1000
        for name in ("pull", "pack", "quantize", "publish")
    )
    yield "publisher", {"quantising": quantize, "weights": pull + pack - quantize + publish}
    for number, actor in enumerate(row["actors"]):
        names = {"inference_s": "inference", "environment_s": "environment", "insert_s": "experience"}
        weights, waits = actor["pull_s"] + actor["deserialize_s"] + actor["load_s"], actor["wait_s"] + actor["stale_s"]
        yield (
            f"actor\n{number}",
            {**{part: actor[name] for name, part in names.items()}, "weights": weights, WAIT: waits},
        )


def _write(
    folder: RunFolder,
    config: LearnerOptions,
    title: str,
    facts: Mapping[str, str],
    sentences: Sequence[str],
    table: Sequence[tuple[str, tables.Cells]],
    curve: Figure | None,
    drawn: Sequence[tuple[str, Figure]],
) -> Path:
    path = folder.path / "report.html"
    if curve is not None:
        style.save(curve, folder.path / "curve.png")
        drawn = [(RETURN, curve), *drawn]
    else:
        (folder.path / "curve.png").unlink(missing_ok=True)
        sentences = [*sentences, "No evaluation was finished, so there is no curve."]
    text = page.render(
        title=title,
        facts={"algorithm": config.algo, "environment": config.env, **facts, "folder": str(folder.path)},
        sentences=sentences,
        tables=table,
        figures=drawn,
        command=replace(config, resume=False).command_line(),
        machine=page.machine_lines(),
    )
    write_bytes(text.encode(), path)
    return path
