"""Cells that train, each in its own process: `quarl train`, `quarl distill` and `quarl actorq` with a cell's work."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from quarl.calibration import Calibrated
from quarl.config import ActorQConfig, TrainConfig
from quarl.distillation import rounds
from quarl.distillation.validation import Validation
from quarl.envs.environment import home_of
from quarl.errors import QuarlError
from quarl.lab.cells import DISTILL, QAT, TRAIN, UNTRAINED, UPDATES, Job
from quarl.lab.play import make_worker, returns, weights
from quarl.lab.source import check_file
from quarl.policy import artifact
from quarl.policy.graph import QuantizedPolicy
from quarl.quant.spec import QuantSpec
from quarl.removed import without_removed
from quarl.runs import train as runs
from quarl.runs.folder import BEST, RunFolder
from quarl.runs.outcome import TrainRow
from quarl.specs import DistillSpec

UNCHECKED = Path(tempfile.gettempdir()) / "runs"
"""Placeholder for the folder of a training whose options are only checked."""


def train(job: Job) -> dict[str, Any]:
    """Train a float agent, and return the path of its best version, relative to the study."""
    run, row = _train(training_config(job.cell.work, job.folder))
    agent = run.path / f"{BEST}.zip"
    return {"agent": os.path.relpath(agent, job.study), **_length(row)}


def play_untrained(job: Job) -> dict[str, Any]:
    """Play the networks as they are before the training."""
    begun = runs.Training(training_config(job.cell.work, job.folder), say)  # writes nothing before it runs
    assert begun.model.env is not None
    begun.model.env.close()
    return played(job, begun.evaluator.exact(begun.model))


def train_quantised(job: Job) -> dict[str, Any]:
    """Train an agent with fake quantization and play it in integers."""
    work, normalize = job.cell.work, None
    if job.path is not None:
        assert job.cell.agent is not None
        normalize = job.cell.agent.normalize
        check_file(job.path, work["from"], normalize)
    run, row = _train(training_config(work, job.folder, job.path, normalize))
    best = run.path / f"{BEST}.quarl"  # a short run may have no evaluation after quantization started
    policy = artifact.read(best if best.is_file() else run.integers)
    assert isinstance(policy, QuantizedPolicy)
    return {**played(job, policy), **_length(row)}


def distil(job: Job) -> dict[str, Any]:
    """Distill an agent into its own quantized version, and play the best snapshot."""
    work, worker = job.cell.work, make_worker(job, calibrate=True)
    policy, snapshots = worker.calibrated.policy, []
    if work.get("deterministic"):
        policy = replace(policy, provenance=replace(policy.provenance, stochastic=False))
    calibrated, spec = Calibrated(policy, worker.calibrated.observations), QuantSpec.from_json(work["spec"])
    recipe = {name: work["recipe"][name] for name in ("rounds", "updates", "states", "margin")}
    recipe |= {"validation": work["recipe"]["episodes"], "seed": work["seed"]}
    validation = Validation(policy, DistillSpec(**recipe), environment=worker.environment)
    job.folder.mkdir(parents=True, exist_ok=True)
    for snapshot in rounds.distill(calibrated, spec, validation, file=job.folder / "distillation"):
        snapshots.append(snapshot)
        say(f"{job.cell.title}: {snapshot}")
    shutil.rmtree(job.folder)
    played = returns(rounds.best(snapshots).policy, work, worker.environment)
    return {**played, **weights(policy), "distillation": rounds.facts(snapshots)}


def time_updates(job: Job) -> dict[str, Any]:
    """Time the updates of a training that the study would begin."""
    from quarl.lab.methods.updates import measure  # here: few studies time updates

    work = job.cell.work
    return measure(training_config(work, job.folder), work["dtypes"], work["timed_s"], say)


WORK: Mapping[str, Callable[[Job], dict[str, Any]]] = {
    TRAIN: train,
    DISTILL: distil,
    QAT: train_quantised,
    UNTRAINED: play_untrained,
    UPDATES: time_updates,
}
"""Function that measures a cell in its own process, by its method."""


def played(job: Job, policy: QuantizedPolicy) -> dict[str, Any]:
    """Return the returns and the weights of the policy that a cell has trained."""
    work = job.cell.work
    return {**returns(policy, work, home_of(policy, work["env_id"])), **weights(policy)}


def _length(row: TrainRow) -> dict[str, Any]:
    return {"trained_steps": row.timesteps, "updates": row.updates, "minutes": row.clock_s / 60}


def _train(config: TrainConfig) -> tuple[RunFolder, TrainRow]:
    """Return the run's folder and its row."""
    run, ended = runs.in_stretches(config, say)
    if ended.row is None:
        raise SystemExit(ended.exit_code)
    return run, ended.row


def say(line: str) -> None:
    """Print a line to the log of the study at once."""
    print(line, flush=True)


def training_config(
    work: Mapping[str, Any], folder: Path, trained_agent: Path | None = None, normalize: str | None = None
) -> TrainConfig:
    """Return the options of `quarl train` for a training or a quantization-aware cell.

    Args:
        work: The cell's work.
        folder: Folder of the run.
        trained_agent: Agent to start from.
        normalize: Its statistics.

    Returns:
        The options.
    """
    return TrainConfig(
        algo=work["algo"],
        env=work["env_id"],
        n_timesteps=work["n_timesteps"],
        params=_words(work["params"]),
        qat=work.get("qat"),
        edge_bits="same" if "qat" in work else TrainConfig.edge_bits,  # the precision names its own edges
        quant_delay=work.get("quant_delay"),
        trained_agent=trained_agent,
        normalize=normalize,
        folder=folder,
        seed=work["seed"],
        **{
            "save_freq": work["save_freq"],
            "eval_freq": work["eval_freq"],
            **without_removed(work.get("train", {}), "the study"),
        },
        **work.get("environment", {}),
    )


def check_training(work: Mapping[str, Any]) -> None:
    """Raise QuarlError if `quarl train` would refuse its options or hyper-parameters."""
    config = training_config(work, UNCHECKED)
    config.check()
    if not config.eval_episodes:
        raise QuarlError("eval_episodes: 0 leaves no best agent, which is the one that is measured")
    if not config.params:
        return
    from quarl.algorithms.learners import constructor  # imported here: loading learners takes a second
    from quarl.runs.hyperparameters import interpret

    recipe = interpret({"n_timesteps": config.n_timesteps or 1, **config.hyperparameters()}, Path("params"))
    constructor(config.algo, recipe.arguments)


def check_actorq(work: Mapping[str, Any]) -> None:
    """Raise QuarlError if `quarl actorq` would refuse its options or hyper-parameters."""
    from quarl.actorq.build import hyperparameters

    config = actorq_config(work, UNCHECKED)
    config.check()
    hyperparameters(config)


def actorq_config(work: Mapping[str, Any], folder: Path) -> ActorQConfig:
    """Return the options of `quarl actorq` for a cell."""
    return ActorQConfig(
        algo=work["algo"],
        env=work["env_id"],
        actor_precision=work["precision"],
        seed=work["seed"],
        params=_words(work["options"]["params"]),
        output=folder,
        **work.get("environment", {}),
        **{"preset": "none", "learner_dtype": "fp32"}
        | {name: value for name, value in without_removed(work["options"], "the study").items() if name != "params"},
    )


def _words(params: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the hyper-parameters as NAME:VALUE, as on the command line."""
    return tuple(f"{name}:{value}" for name, value in params.items())
