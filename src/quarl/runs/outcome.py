"""How a run ended: the row of its --json, and the exit code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

from quarl import formats
from quarl.rows import Algorithm, Column, Environment, Interval, Mean, Returns, Row, Steps, Updates

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRow(Row):
    """One training session."""

    command = "train"
    algo: Algorithm
    env_id: Environment
    precision: Annotated[str, Column("trained for")]
    """fp32, or what it was trained for: w8a8."""
    quant_delay: int | None
    """Environment steps before fake quantization was to act; null in float32."""
    switched_at: int | None
    """Environment steps when it began to, which is where the next rollout starts."""
    learner_dtype: Annotated[str, Column("learner", caption="learner in {}")]
    seed: Annotated[int, Column("seed", caption="seed {}", before="learner_dtype")]
    timesteps: Steps
    updates: Updates
    clock_s: Annotated[float, Column("minutes", lambda seconds: f"{seconds / 60:.1f}")]
    """Training over all sessions of a resumed run, without evaluations and checkpoints."""
    wall_s: float
    """Of the last session, from the first step to the last evaluation."""
    steps_per_s: Annotated[float, Column("steps/s", "{:,.0f}".format)]
    """Of the last session's steps, on the training clock."""
    episodes: Annotated[int, Column("episodes", caption="{} episode{s}")]
    mean: Mean
    """Of the float32 policy in the last evaluation, by which nothing was chosen; null where there was none."""
    std: float | None
    ci_low: Interval
    ci_high: float | None
    mean_quantised: Annotated[
        float | None,
        Column("quantised", formats.estimate, of=("mean_quantised", "ci_low_quantised", "ci_high_quantised")),
    ]
    """Return of the integers that training was for, in the same episodes; null without --qat."""
    ci_low_quantised: float | None
    ci_high_quantised: float | None
    measured_quantised: bool | None
    """False where no kernel runs that precision and it was simulated."""
    best_mean: Annotated[float | None, Column("best", formats.number)]
    """The highest of the running evaluations (with --qat: since quantization acts); best_model.zip is that agent.
    Null with --eval-freq 0."""
    best_timesteps: int | None
    folder: str
    returns: Returns
    returns_quantised: Returns


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended(Generic[R]):
    """How a run ended."""

    exit_code: int
    message: str
    """One line, empty where all went well."""
    row: R | None
