"""A learner's clocks: a check that a run reaches an update, and schedules that do not rise in a resumed run."""

from __future__ import annotations

import math
from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.type_aliases import TrainFrequencyUnit

from quarl.errors import QuarlError

CLOCK = "_update_current_progress_remaining"
"""Method that `hold` replaces on a model; it must not be saved with the model."""
SCHEDULES = {"learning_rate": "lr_schedule", "clip_range": "clip_range", "clip_range_vf": "clip_range_vf"}
"""Hyper-parameters with a schedule, and the model's attributes for them."""
NO_UPDATES = "--params gradient_steps:0 would train nothing: set the updates of a round, or -1 for one per step"


def rollout_steps(model: BaseAlgorithm) -> int:
    """Return the environment steps of a rollout; the minimum if it counts episodes."""
    if isinstance(model, OnPolicyAlgorithm):
        return model.n_steps * model.n_envs
    assert isinstance(model, OffPolicyAlgorithm)
    freq: Any = model.train_freq
    return model.n_envs * (freq.frequency if freq.unit is TrainFrequencyUnit.STEP else 1)


def check_updates(model: BaseAlgorithm, end: int) -> None:
    """Raise QuarlError if a run from the model's clock to step `end` would make no update."""
    if not isinstance(model, OffPolicyAlgorithm) or model._n_updates:
        return  # an on-policy rollout is always completed and learned from
    if model.gradient_steps == 0:
        raise QuarlError(NO_UPDATES)
    start, rollout = model.num_timesteps, rollout_steps(model)
    if model.learning_starts >= start + math.ceil((end - start) / rollout) * rollout:
        raise no_update(model.learning_starts, end, "learning_starts")
    if rollout > end - start:
        raise no_update(start + rollout - 1, end, "train_freq")


def no_update(starts: int, end: int, name: str) -> QuarlError:
    """Return the error for a run that ends before the first update.

    Args:
        starts: Environment steps before the first update.
        end: Last step of the run.
        name: Hyper-parameter that delays the update.
    """
    return QuarlError(
        f"learning starts after step {starts:,} and the run ends at {end:,}: nothing would be learned; raise -n or "
        f"lower --params {name}"
    )


def standing(model: BaseAlgorithm) -> str:
    """Return a line about a resumed run: its clocks, rows of replay, and DQN's epsilon."""
    replay, epsilon = getattr(model, "replay_buffer", None), getattr(model, "exploration_rate", None)
    rows = "" if replay is None else f", {replay.size() * replay.n_envs:,} rows of replay"
    explored = "" if epsilon is None else f", epsilon {epsilon:.3g}"
    return f"resuming at step {model.num_timesteps:,} after {model._n_updates:,} updates{rows}{explored}"


def hold(model: BaseAlgorithm, end: int) -> str:
    """Keep schedules from rising when a model resumes to step `end`; return a description of those affected.

    Schedules are functions of the remaining share of the run. A longer run would increase that share; instead it stays
    until the run has caught up. Schedules that had reached their end stay there.
    """
    stopped, plain = float(model._current_progress_remaining), getattr(model, CLOCK)

    def update(num_timesteps: int, total_timesteps: int) -> None:
        plain(num_timesteps, total_timesteps)
        model._current_progress_remaining = min(model._current_progress_remaining, stopped)

    vars(model)[CLOCK] = update
    if 1 - (model.num_timesteps + model.n_envs) / end <= stopped:  # a step that a signal interrupted was counted
        return ""
    schedules = {name: schedule for name, key in SCHEDULES.items() if (schedule := getattr(model, key, None))}
    held = {name: f(stopped) for name, f in schedules.items() if f(0.0) != f(1.0)}
    ended = " ".join(f"{name}:{schedules[name](1.0) / 10:.3g}" for name, value in held.items() if value <= 0)
    if (epsilon := getattr(model, "exploration_rate", None)) is not None:
        held["epsilon"] = epsilon
    at_most = ", ".join(f"{name} at most {value:.3g}" for name, value in held.items())
    more = ended and f"; at 0 nothing more is learned: set constants, as in --params {ended}"
    return at_most and f"; schedules do not rise again in the longer run: {at_most}{more}"
