"""The end of a run: the row of its --json, and the exit code."""

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
    """Precision of training: fp32, or with --qat a name such as w8a8."""
    quant_delay: int | None
    """Scheduled environment steps before fake quantization starts; null in float32."""
    switched_at: int | None
    """Environment steps at which fake quantization started, with the next rollout."""
    learner_dtype: Annotated[str, Column("learner", caption="learner in {}")]
    seed: Annotated[int, Column("seed", caption="seed {}", before="learner_dtype")]
    timesteps: Steps
    updates: Updates
    clock_s: Annotated[float, Column("minutes", lambda seconds: f"{seconds / 60:.1f}")]
    """Training time over all sessions of a resumed run, without evaluations and checkpoints."""
    wall_s: float
    """Duration of the last session, from the first step to the last evaluation."""
    steps_per_s: Annotated[float, Column("steps/s", "{:,.0f}".format)]
    """Steps of the last session per second of the training clock."""
    episodes: Annotated[int, Column("episodes", caption="{} episode{s}")]
    mean: Mean
    """Mean return of the float32 policy in the last evaluation, whose episodes influenced no choice; null without
    one."""
    std: float | None
    ci_low: Interval
    ci_high: float | None
    mean_quantised: Annotated[
        float | None,
        Column("quantized", formats.estimate, of=("mean_quantised", "ci_low_quantised", "ci_high_quantised")),
    ]
    """Mean return of the quantized policy from --qat in the same episodes; null without --qat."""
    ci_low_quantised: float | None
    ci_high_quantised: float | None
    measured_quantised: bool | None
    """False if no kernel runs that precision and it was simulated."""
    best_mean: Annotated[float | None, Column("best", formats.number)]
    """Highest mean return of the running evaluations (with --qat: since quantization started); best_model.zip is that
    agent. Null with --eval-freq 0."""
    best_timesteps: int | None
    folder: str
    returns: Returns
    returns_quantised: Returns


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended(Generic[R]):
    """The exit code, message and row of a run that ended."""

    exit_code: int
    message: str
    """One line; empty on success."""
    row: R | None
