"""Return against bits: agents in float32, what post-training quantisation makes of them, and agents trained for it.

A cell is one training with everything that is measured on its agent, in a process of its own. The agent is the best of
its running evaluations, for every method alike: the last one of an off-policy run is often a bad one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from quarl import engines
from quarl.algorithms import tuned
from quarl.arrays import Array
from quarl.config import SweepConfig, TrainConfig
from quarl.envs import resolve
from quarl.envs.names import is_atari
from quarl.envs.options import EnvironmentOptions
from quarl.errors import QuarlError
from quarl.evaluate import evaluate
from quarl.experiments.alone import Errands, Failed
from quarl.experiments.methods.cells import Cell, Cells
from quarl.experiments.precisions import EXACT, Settings, record
from quarl.experiments.source import digest, lengths
from quarl.policy import artifact
from quarl.policy.graph import QuantizedPolicy
from quarl.ptq import Calibrated, quantize
from quarl.quant.spec import QuantSpec
from quarl.readers import find
from quarl.readers.load import read
from quarl.runs import resumable
from quarl.runs.environments import check_environment
from quarl.runs.folder import BEST
from quarl.runs.hyperparameters import interpret
from quarl.runs.train import Training

FP32 = "fp32"
LOG, RUNS = "sweep.log", "runs"
"""In the sweep's folder: what the trainings print, and their own folders."""


@dataclass(frozen=True, slots=True)
class Played:
    """Returns of one method at one precision with one seed."""

    method: str
    spec: QuantSpec
    seed: int
    returns: Array
    measured: bool
    env_steps: int
    minutes: float


def num_cells(config: SweepConfig) -> int:
    """Trainings in all."""
    return config.seeds * (1 + len(config.bits) * ("qat" in config.methods))


def env_id(config: SweepConfig) -> str:
    """The living id of the environment."""
    return resolve(config.env, trusted=True)


def sweep(
    config: SweepConfig, cells: Cells, progress: Callable[[str, int], None] = lambda label, done: None
) -> list[Played]:
    """Everything that is there or could be measured in time, float32 first, then by precision and method."""
    n_timesteps = _steps(config)
    wanted: list[tuple[int, str | None]] = [(seed, None) for seed in _seeds(config)]
    if "qat" in config.methods:
        wanted += [(seed, bits) for bits in config.bits for seed in _seeds(config)]
    found: list[Cell | None] = []
    with ThreadPoolExecutor(config.jobs) as threads, Errands(config.output / LOG) as errands:
        waiting = [threads.submit(_cell, config, cells, errands, n_timesteps, *each) for each in wanted]
        try:
            for future, each in zip(waiting, wanted, strict=True):
                try:
                    found.append(future.result())
                except Failed as error:  # the others are not to blame
                    cells.say(f"failed: {error}")
                    cells.failed.append(_name(config, *each))
                    found.append(None)
                progress("trainings", 1)
        except BaseException:
            for future in waiting:
                future.cancel()
            raise
    played = [one for cell, (seed, _) in zip(found, wanted, strict=True) if cell for one in _played(config, cell, seed)]
    order = [FP32, *(spec.precision for spec in map(config.spec, config.bits))]
    methods = (FP32, *config.methods)
    return sorted(played, key=lambda one: (order.index(one.spec.precision), methods.index(one.method), one.seed))


def check(config: SweepConfig) -> SweepConfig:
    """Refuses at once what every training would fail by; `config` with the file of its trained agent, found once."""
    if config.trained_agent is not None:
        config = replace(config, trained_agent=find.file(config.trained_agent))
    bits = config.bits[0] if "qat" in config.methods else None
    if bits is not None or config.trained_agent is None:
        env = Training(config.training(config.seed, bits, _steps(config), config.output), lambda line: None).model.env
        assert env is not None
        env.close()
    else:  # nothing is trained
        check_environment(config.algo, config.env, EnvironmentOptions.said(config))
        read(config.trained_agent, config.algo, config.normalize)
    return config


def _steps(config: SweepConfig) -> int:
    """Of each training."""
    if config.n_timesteps is not None:
        return config.n_timesteps
    given = config.training(config.seed, None, None, config.output).hyperparameters()
    found = tuned.read(config.algo, env_id(config), atari=is_atari(env_id(config))).written
    return interpret(found | given, Path("hyper-parameters")).n_timesteps


def _seeds(config: SweepConfig) -> range:
    return range(config.seed, config.seed + config.seeds)


def _name(config: SweepConfig, seed: int, bits: str | None) -> str:
    """Of a cell, and of the folder of its training: w4a8-0."""
    return f"{FP32 if bits is None else config.precision(bits)}-{seed}"


def _cell(
    config: SweepConfig, cells: Cells, errands: Errands, n_timesteps: int, seed: int, bits: str | None
) -> Cell | None:
    name, runs = _name(config, seed, bits), config.output / RUNS
    training = config.training(seed, bits, n_timesteps, runs)
    precisions = list(config.bits) if bits is None and "ptq" in config.methods else []
    settings = resumable.settings(training) | {"episodes": config.episodes, "ptq": precisions}
    agent = config.trained_agent
    if agent is not None:
        # a file of that name may be another one tomorrow
        settings |= {"trained_agent": digest(agent, config.normalize)}
    folder, save_freq = resumable.own_folder(runs, name, settings), lengths(n_timesteps)["save_freq"]
    work = partial(measure, config, replace(training, folder=folder, save_freq=save_freq), bits)

    def measured() -> Cell:
        found: Cell = errands.run(name, work)
        # or another one meanwhile
        if agent is not None and digest(agent, config.normalize) != settings["trained_agent"]:
            raise QuarlError(f"{agent} was replaced while it was measured: repeat the command")
        return found

    return cells.get(name, settings, measured)


def measure(config: SweepConfig, training: TrainConfig, bits: str | None) -> Cell:
    """One cell, in a process of its own: trains, or goes on with what was broken off, and plays what comes of it."""
    if bits is None and config.trained_agent is not None:
        return {"env_steps": 0, "minutes": 0.0, "played": list(_quantised(config, config.trained_agent, training.seed))}
    run, ended = resumable.train(training, lambda line: None)
    if ended.row is None:
        raise QuarlError(ended.message)
    if bits is None:
        played = list(_quantised(config, run.path / f"{BEST}.zip", training.seed))
    else:
        policy = artifact.read(run.path / f"{BEST}.quarl")
        assert isinstance(policy, QuantizedPolicy)
        played = [_play(config, policy, "qat", bits, training.seed)]
    return {"env_steps": ended.row.timesteps, "minutes": ended.row.clock_s / 60, "played": played}


def _quantised(config: SweepConfig, path: Path, seed: int) -> Iterator[dict[str, Any]]:
    """The float32 agent and what post-training quantisation makes of it."""
    policy = read(path, config.algo, config.normalize if path == config.trained_agent else None)
    policy = EnvironmentOptions.said(config).at_home(policy, config.env)
    yield _play(config, quantize(policy, EXACT), FP32, FP32, seed)
    if "ptq" in config.methods:
        calibrated = Calibrated(policy, record(policy, "calibration", Settings(seed=seed, env_id=config.env)))
        for bits in config.bits:
            yield _play(config, calibrated.quantize(config.spec(bits)), "ptq", bits, seed)


def _play(config: SweepConfig, policy: QuantizedPolicy, method: str, bits: str, seed: int) -> dict[str, Any]:
    played = evaluate(
        policy,
        episodes=config.episodes,
        seed=seed,
        env_id=config.env,
        max_episode_steps=config.max_episode_steps,
        engine=engines.load_fitting(policy).name,
        stochastic=False,
    )
    return {"method": method, "bits": bits, "measured": played.measured, "returns": played.returns.tolist()}


def _played(config: SweepConfig, cell: Cell, seed: int) -> Iterator[Played]:
    for one in cell["played"]:
        spec = EXACT if one["bits"] == FP32 else config.spec(one["bits"])
        returns = np.asarray(one["returns"], np.float64)
        yield Played(one["method"], spec, seed, returns, one["measured"], cell["env_steps"], cell["minutes"])
