"""Cells that train: float agents, quantisation-aware ones, and ActorQ runs, each in a process of its own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from quarl.config import TrainConfig
from quarl.errors import QuarlError
from quarl.experiments.cells import ACTORQ, QAT, TRAIN, UNTRAINED
from quarl.experiments.play import returns, weights
from quarl.experiments.runs import actorq_config, training_config
from quarl.experiments.source import check_file
from quarl.policy import artifact
from quarl.policy.graph import QuantizedPolicy
from quarl.processes.signals import SIGNALLED
from quarl.readers import load
from quarl.runs import resumable
from quarl.runs import train as runs
from quarl.runs.folder import BEST, RunFolder
from quarl.runs.outcome import TrainRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What a cell that trains begins with."""

    method: str
    work: Mapping[str, Any]
    study: Path
    """The study's folder."""
    folder: Path
    """The cell's own, in it."""
    start: Path | None
    """The agent that is fine-tuned; None: from scratch."""
    normalize: str | None = None
    """The statistics with which it observed."""


def train(job: Training) -> dict[str, Any]:
    """A float agent: where its best is, relative to the study."""
    run, row = _train(training_config(job.work, job.folder))
    agent = run.path / f"{BEST}.zip"
    return {"agent": os.path.relpath(agent, job.study), **_length(row)}


def play_untrained(job: Training) -> dict[str, Any]:
    """What the networks score that the training begins with."""
    begun = runs.Training(training_config(job.work, job.folder), _print)  # writes nothing before it runs
    assert begun.model.env is not None
    begun.model.env.close()
    return _played(job, begun.evaluator.exact(begun.model))


def train_quantised(job: Training) -> dict[str, Any]:
    """An agent trained with fake quantisation, played in integers."""
    if job.start is not None:
        check_file(job.start, job.work["from"], job.normalize)
    run, row = _train(training_config(job.work, job.folder, job.start, job.normalize))
    best = run.path / f"{BEST}.quarl"  # a run may be too short for an evaluation after quantisation began
    policy = artifact.read(best if best.is_file() else run.integers)
    assert isinstance(policy, QuantizedPolicy)
    return {**_played(job, policy), **_length(row)}


def run_actorq(job: Training) -> dict[str, Any]:
    """A learner with quantised actors; what is played is the learner's policy, in float."""
    from quarl.actorq.supervisor import Supervisor  # here: other trainings need no learner

    config = actorq_config(job.work, job.folder)
    if RunFolder(config.output).checkpoints():
        config = replace(config, resume=True)
    else:
        shutil.rmtree(job.folder, ignore_errors=True)  # it was killed before there was anything to go on from
    supervisor = Supervisor(config, _print)
    for _ in supervisor.run():
        pass
    ended, row = supervisor.result, supervisor.result.row
    if ended.exit_code > SIGNALLED:
        raise SystemExit(ended.exit_code)
    if ended.exit_code:
        raise QuarlError(ended.message.partition("; go on with")[0])
    policy = load.read(job.folder / "policy-fp32.safetensors")
    assert isinstance(policy, QuantizedPolicy)
    assert row is not None
    names = ("clock_s", "reached_s", "updates")
    facts = {name: row[name] for name in names}
    return {**_played(job, policy), **facts, "target": config.target, "trained_steps": row["timesteps"]}


WORK: Mapping[str, Callable[[Training], dict[str, Any]]] = {
    TRAIN: train,
    QAT: train_quantised,
    ACTORQ: run_actorq,
    UNTRAINED: play_untrained,
}


def _played(job: Training, policy: QuantizedPolicy) -> dict[str, Any]:
    settings = {name: job.work[name] for name in ("episodes", "seed", "env_id", "deterministic") if name in job.work}
    found = returns(policy, **settings)
    return {**found, **weights(policy)}


def _length(row: TrainRow) -> dict[str, Any]:
    return {"trained_steps": row.timesteps, "updates": row.updates, "minutes": row.clock_s / 60}


def _train(config: TrainConfig) -> tuple[RunFolder, TrainRow]:
    """The run's folder and its row."""
    run, ended = resumable.train(config, _print)
    if ended.row is None:
        raise SystemExit(ended.exit_code)
    return run, ended.row


def _print(line: str) -> None:
    print(line, flush=True)
