"""How a training session ended: the row of its --json, and the exit code."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The contract of `quarl train --json`."""

    algo: str
    env_id: str
    precision: str
    """fp32, or what it was trained for: w8a8."""
    quant_delay: int | None
    """Environment steps before fake quantisation was to act; None in float32."""
    switched_at: int | None
    """Environment steps when it began to, which is where the next rollout starts."""
    learner_dtype: str
    seed: int
    timesteps: int
    updates: int
    clock_s: float
    """Training, without evaluations and checkpoints."""
    wall_s: float
    """Of this session, from the first step to the last evaluation."""
    steps_per_s: float
    """Of this session's steps, on the training clock."""
    episodes: int
    mean: float | None
    """Return of the float policy in the last evaluation; None where there was none."""
    std: float | None
    ci_low: float | None
    ci_high: float | None
    mean_quantised: float | None
    """Return of the integers that training was for, in the same episodes."""
    ci_low_quantised: float | None
    ci_high_quantised: float | None
    measured_quantised: bool | None
    """False where no kernel runs that precision and it was simulated."""
    best_mean: float | None
    """Of the running evaluations; best_model.zip is that agent."""
    best_timesteps: int | None
    folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a session ended."""

    exit_code: int
    message: str
    """One line, empty where all went well."""
    row: Row | None
