"""Reward against how seldom actors look for new weights, and how old their weights are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from quarl import formats
from quarl.config import ActorQConfig
from quarl.config.bench import BenchActorQConfig
from quarl.experiments.methods.actorq import ARM, ArmRow, described, measured
from quarl.experiments.methods.cells import Cell, Cells
from quarl.rows import Column, Seed, Updates

OPTIONS = (*ARM, "algo", "actor_update_interval", "publish_interval", "seed")


@dataclass(frozen=True, slots=True, kw_only=True)
class StalenessRow(ArmRow):
    """One training run."""

    command = "bench actorq staleness"
    task: Annotated[str, Column("task", caption="{}", before="net_arch")]
    algo: str
    actor_update_interval: Annotated[int, Column("weights every", "{} steps".format)]
    publish_interval: int
    seed: Seed
    staleness_p50: Annotated[float | None, Column("age p50", formats.three_digits)]
    """Updates between the weights behind a step and the learner that takes it in."""
    staleness_p99: Annotated[float | None, Column("p99", formats.three_digits)]
    env_steps: int
    updates: Updates
    final_return: Annotated[float, Column("final return", formats.number)]
    final_return_quantised: Annotated[float, Column("quantised", formats.number)]


def staleness(config: BenchActorQConfig, cells: Cells) -> list[StalenessRow]:
    """A row for every run that is there."""
    return [_row(training, cell) for training, cell in measured(config, cells)]


def _row(training: ActorQConfig, cell: Cell) -> StalenessRow:
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
