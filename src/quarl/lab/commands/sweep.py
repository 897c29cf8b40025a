"""`quarl sweep`: writes the study of one algorithm on one task, measures it and makes its report."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from quarl import energy
from quarl.algorithms import tuned
from quarl.config import SweepConfig
from quarl.config.environment import OPTIONS
from quarl.config.train import QAT_OPTIONS
from quarl.envs.environment import Environment
from quarl.envs.options import EnvironmentOptions
from quarl.files import locked
from quarl.lab.cells import DISTILL, DONE, FP32, PTQ, QAT, TRAIN
from quarl.lab.commands import study, study_report
from quarl.literals import NONE
from quarl.processes.signals import SIGNALLED
from quarl.readers import find
from quarl.readers.load import read
from quarl.removed import REMOVED
from quarl.report import schema
from quarl.runs.hyperparameters import interpret
from quarl.runs.new_model import check_environment
from quarl.runs.train import Training


def run(config: SweepConfig) -> int:
    """Write the study, measure its missing cells within the time, report the finished ones; return the exit code."""
    document = study_document(check(config))
    with energy.meter(config) as meter, locked(config.output):
        asked, measured = study.measured(config, document)
    if (code := study.ended(measured, config)) <= SIGNALLED:
        if any(record.state == DONE and record.method != TRAIN for record in measured.records):
            study_report.make(config.output, config.command_line())
        about = schema.Told(algo=config.algo, env_id=config.env, seed=config.seed, energy=meter.cost)
        study.show(config, asked.name, config.margin, measured.records, **about)
    return code


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that have a value."""
    return {name: value for name, value in options.items() if value not in (None, {}, [])}


def check(config: SweepConfig) -> SweepConfig:
    """Check everything that would make every training fail; return `config` with all defaults and absolute paths."""
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
        check_environment(
            config.algo, Environment.typed_by_user(config.env, EnvironmentOptions.of(**config.environment()))
        )
        read(config.trained_agent, config.algo, config.normalize)
    return config


def length(config: SweepConfig) -> int:
    """Return the environment steps of each training."""
    if config.n_timesteps is not None:
        return config.n_timesteps
    told = config.training(config.seed, None, None, config.output).hyperparameters()
    environment = Environment.typed_by_user(config.env)
    defaults = tuned.read(config.algo, environment.env_id, atari=environment.is_atari).written
    return interpret(defaults | told, Path("hyper-parameters")).n_timesteps


def study_document(config: SweepConfig) -> dict[str, Any]:
    """Return the study file of a sweep whose options `check` has completed."""
    agent = config.trained_agent
    training = config.training(config.seed, None, config.n_timesteps, config.output)
    environment = {name: getattr(config, name) for name in OPTIONS} | {"env_kwargs": config.environment()["env_kwargs"]}
    entry = _given(
        {
            "algo": config.algo,
            "env": Environment.typed_by_user(config.env).env_id.rpartition(":")[2],
            "source": TRAIN if agent is None else f"file:{agent}",
            "n_timesteps": config.n_timesteps,
            "params": dict(word.split(":", 1) for word in config.params),
            "train": {"eval_freq": training.eval_freq, "threads": training.threads},
            "normalize": None if agent is None else config.normalize,
            "deterministic": True,
            **{name: list(value) if isinstance(value, tuple) else value for name, value in environment.items()},
        }
    )
    said = {field.name: getattr(config, field.name) for field in fields(config) if field.name in QAT_OPTIONS}
    # with the removed option, cells keep the names under which earlier sweeps measured them
    options = {"qat_ranges": REMOVED["qat_ranges"][0]} | {
        name: value for name, value in said.items() if value is not False
    }
    more = {PTQ: {}, DISTILL: {}, QAT: {"fine_tune": None if agent is None else 1.0, **options}}
    methods = [
        _given({"method": name, "precision": [*map(config.precision, config.bits)], "edge_bits": "same", **more[name]})
        for name in more
        if name in config.methods
    ]
    return {
        "name": f"{config.algo} on {entry['env']}",
        "episodes": config.episodes,
        "margin": config.margin,
        "seeds": list(range(config.seed, config.seed + config.seeds)),
        "limits": {"minutes": 10**6, "memory_gb": 10**6},
        "policies": [entry],
        "methods": [{"method": FP32}, *methods],
    }
