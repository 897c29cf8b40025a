"""Reward against how seldom actors look for new weights, and how old their weights are."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from quarl.config.bench import BenchActorQConfig
from quarl.experiments.methods.actorq import described, name_of, settings_of, train
from quarl.experiments.methods.cells import Cells

OPTIONS = ("algo", "actor_update_interval", "publish_interval", "samples_per_insert", "net_arch", "seed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One training run: the contract of `quarl bench actorq --what staleness --json`."""

    task: str
    algo: str
    precision: str
    engine: str
    actor_update_interval: int
    publish_interval: int
    samples_per_insert: float
    net_arch: str
    seed: int
    staleness_p50: float | None
    """Updates between the weights behind a step and the learner that takes it in."""
    staleness_p99: float | None
    env_steps: int
    updates: int
    final_return: float
    final_return_quantised: float


def staleness(config: BenchActorQConfig, cells: Cells) -> list[Row]:
    """A row for every run that is there: seeds outside, so that early rows show all intervals."""
    seeds = range(config.seed, config.seed + config.seeds)
    runs = product(seeds, config.networks(), config.ratios(), config.arms, config.intervals())
    return [row for run in runs if (row := _row(config, cells, *run)) is not None]


def _row(
    config: BenchActorQConfig, cells: Cells, seed: int, network: str, ratio: float, arm: str, interval: int
) -> Row | None:
    training = config.training(arm, ratio, network, interval, seed)
    name = f"{name_of(arm, training)}-seed{seed}"
    cell = cells.get(name, settings_of(training), lambda: train(training, say=cells.say))
    if cell is None:
        return None
    final = cell["evaluations"][-1]
    return Row(
        task=training.env,
        **described(training, *OPTIONS),
        staleness_p50=cell["staleness_p50"],
        staleness_p99=cell["staleness_p99"],
        env_steps=cell["timesteps"],
        updates=cell["updates"],
        final_return=final["return"],
        final_return_quantised=final["return_quantised"],
    )
