"""Reward against how seldom actors look for new weights, and how old their weights are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Annotated

from quarl import formats
from quarl.config.bench import BenchActorQConfig
from quarl.experiments.methods.actorq import described, name_of, settings_of, train
from quarl.experiments.methods.cells import Cells
from quarl.rows import RATIO, ActorPrecision, Column, Row, Seed, Updates

OPTIONS = ("algo", "actor_update_interval", "publish_interval", "samples_per_insert", "net_arch", "seed")


@dataclass(frozen=True, slots=True, kw_only=True)
class StalenessRow(Row):
    """One training run."""

    command = "bench actorq staleness"
    task: Annotated[str, Column("task", caption="{}")]
    algo: str
    precision: ActorPrecision
    engine: str
    actor_update_interval: Annotated[int, Column("weights every", "{} steps".format)]
    publish_interval: int
    samples_per_insert: Annotated[float, replace(RATIO, before="precision")]
    net_arch: Annotated[str, Column("policy", caption="policy {}", before="samples_per_insert")]
    seed: Seed
    staleness_p50: Annotated[float | None, Column("age p50", formats.three_digits)]
    """Updates between the weights behind a step and the learner that takes it in."""
    staleness_p99: Annotated[float | None, Column("p99", formats.three_digits)]
    env_steps: int
    updates: Updates
    final_return: Annotated[float, Column("final return", formats.number)]
    final_return_quantised: Annotated[float, Column("quantised", formats.number)]


def staleness(config: BenchActorQConfig, cells: Cells) -> list[StalenessRow]:
    """A row for every run that is there: seeds outside, so that early rows show all intervals."""
    seeds = range(config.seed, config.seed + config.seeds)
    runs = product(seeds, config.networks(), config.ratios(), config.arms, config.intervals())
    return [row for run in runs if (row := _row(config, cells, *run)) is not None]


def _row(
    config: BenchActorQConfig, cells: Cells, seed: int, network: str, ratio: float, arm: str, interval: int
) -> StalenessRow | None:
    training = config.training(arm, ratio, network, interval, seed)
    name = f"{name_of(arm, training)}-seed{seed}"
    cell = cells.get(name, settings_of(training), lambda: train(training, say=cells.say))
    if cell is None:
        return None
    final = cell["evaluations"][-1]
    return StalenessRow(
        task=training.env,
        **described(training, *OPTIONS),
        staleness_p50=cell["staleness_p50"],
        staleness_p99=cell["staleness_p99"],
        env_steps=cell["timesteps"],
        updates=cell["updates"],
        final_return=final["return"],
        final_return_quantised=final["return_quantised"],
    )
