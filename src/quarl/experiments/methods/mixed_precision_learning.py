"""Whether a learner in bfloat16 or float16 reaches what one in float32 reaches: whole trainings, seed by seed."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from quarl import stats
from quarl.arrays import Array
from quarl.config.mixed_precision import Dtype, MixedPrecisionConfig, sizes
from quarl.config.train import TrainConfig
from quarl.evaluate import evaluate
from quarl.experiments.methods.cells import Cell, Cells, Say
from quarl.policy.graph import QuantizedPolicy
from quarl.ptq import quantize
from quarl.quant.spec import QuantSpec
from quarl.readers.load import read
from quarl.runs import resumable
from quarl.runs.folder import BEST
from quarl.runs.train import Training


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One precision over its seeds: the contract of `quarl bench mixed-precision --what learning --json`."""

    policy: str
    filters: int
    width: int
    dtype: str
    env_id: str
    seeds: int
    env_steps: int
    """Of each training."""
    updates: int
    episodes: int
    """Of each seed's best agent."""
    before: float
    """Mean return of the same networks before training."""
    mean: float
    ci_low: float
    """Ends of the 95 % interval over seeds and their episodes."""
    ci_high: float
    difference: float | None
    """To float32, paired by seed and episode; None for it."""
    difference_low: float | None
    difference_high: float | None
    equal: bool | None
    """Whether the difference's interval holds 0."""
    minutes: float
    """Of a training, on average."""


def learning(config: MixedPrecisionConfig, cells: Cells) -> list[Row]:
    """A row for every policy and precision of which a seed is there; those that are missing are trained in time."""
    rows: list[Row] = []
    for policy in config.chosen():
        found: dict[str, dict[int, Cell]] = {}
        for seed in range(config.seed, config.seed + config.seeds):
            for dtype in config.dtypes:
                cell = _cell(config, policy, dtype, seed, cells)
                if cell is not None:
                    found.setdefault(dtype, {})[seed] = cell
        rows += [_row(config, policy, dtype, found) for dtype in found]
    return rows


def _cell(config: MixedPrecisionConfig, policy: str, dtype: Dtype, seed: int, cells: Cells) -> Cell | None:
    name = f"learning-{policy.replace(',', 'x')}-{dtype}-{seed}"
    runs = config.output / "runs"
    training = config.training(policy, dtype, seed, runs)
    settings = resumable.settings(training) | {"episodes": config.episodes}
    folder = resumable.own_folder(runs, name, settings)
    cell = cells.get(name, settings, partial(train, config, replace(training, folder=folder), cells.say))
    if cell is not None:
        shutil.rmtree(folder, ignore_errors=True)  # checkpoints hold replay
    return cell


def train(config: MixedPrecisionConfig, training: TrainConfig, say: Say = lambda line: None) -> Cell:
    """One training, begun or gone on with, and the returns of its best agent; `say` hears what it is made of."""
    before = _untrained(config, training, say)
    run, ended = resumable.train(training, lambda line: None)
    if ended.row is None:
        raise KeyboardInterrupt
    agent = quantize(read(run.path / f"{BEST}.zip"), QuantSpec.parse("fp32"))
    returns = _play(config, agent, training.seed)
    return {
        "env_steps": ended.row.timesteps,
        "updates": ended.row.updates,
        "minutes": ended.row.clock_s / 60,
        "before": before.tolist(),
        "returns": returns.tolist(),
    }


def _untrained(config: MixedPrecisionConfig, training: TrainConfig, say: Say) -> Array:
    """Returns of the networks that the training begins with."""
    session = Training(training, say)  # writes nothing before it runs
    session.say_notes()
    assert session.model.env is not None
    session.model.env.close()
    return _play(config, session.evaluator.exact(session.model), training.seed)


def _play(config: MixedPrecisionConfig, policy: QuantizedPolicy, seed: int) -> Array:
    played = evaluate(
        policy,
        episodes=config.episodes,
        seed=seed,
        env_id=config.env,
        max_episode_steps=config.max_episode_steps,
        stochastic=False,
    )
    return played.returns


def _row(config: MixedPrecisionConfig, policy: str, dtype: str, found: Mapping[str, Mapping[int, Cell]]) -> Row:
    own, base = found[dtype], found.get("fp32", {})
    filters, width = sizes(policy)
    values = stats.over_seeds([_returns(cell) for cell in own.values()], np.random.default_rng(0))
    pairs = [(own[seed], base[seed]) for seed in own if seed in base and dtype != "fp32"]
    difference = None
    if pairs:
        difference = stats.over_seeds([_returns(a) - _returns(b) for a, b in pairs], np.random.default_rng(0))
    return Row(
        policy=policy,
        filters=filters,
        width=width,
        dtype=dtype,
        env_id=config.env,
        seeds=len(own),
        env_steps=max(cell["env_steps"] for cell in own.values()),
        updates=max(cell["updates"] for cell in own.values()),
        episodes=config.episodes,
        before=float(np.mean([cell["before"] for cell in own.values()])),
        **stats.as_fields(values, "mean", "ci"),
        **stats.as_fields(difference, "difference", "difference"),
        equal=None if difference is None or np.isnan(difference.low) else difference.low <= 0 <= difference.high,
        minutes=float(np.mean([cell["minutes"] for cell in own.values()])),
    )


def _returns(cell: Cell) -> Array:
    return np.asarray(cell["returns"], np.float64)
