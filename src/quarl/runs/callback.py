"""The training callback, which runs between two rollouts of a learner and ends its training.

Between rollouts weights, clocks and replay agree. There it evaluates, saves, and stops a run that has diverged.
Evaluations and checkpoints pause the training clock.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from statistics import fmean
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from quarl.evaluation import Evaluation
from quarl.policy.graph import QuantizedPolicy
from quarl.processes.signals import Interrupts
from quarl.runs.checkpointer import AgentCheckpointer
from quarl.runs.evaluator import BestEvaluator
from quarl.runs.tracking import record_evaluation

SHOWN_S = 0.1
"""Seconds between two updates of the progress bar."""
ROWS = 200
"""Rows of metrics in a whole run, besides those at evaluations and checkpoints."""
Progress = Callable[[str, int], None]


class Stopped(Exception):
    """A signal or the end of a stretch stopped training; the model can be saved in its present state."""


class TrainingCallback(BaseCallback):
    """A callback that evaluates and saves at the end of a rollout.

    It evaluates every `eval_freq` and saves every `save_freq` environment steps.

    If a rollout takes longer than `save_minutes`, it saves earlier. An on-policy learner has learned nothing new in
    between.
    """

    def __init__(
        self,
        evaluator: BestEvaluator,
        checkpointer: AgentCheckpointer,
        interrupts: Interrupts,
        progress: Progress,
        *,
        clock_s: float = 0.0,
        update_s: float = 0.0,
        keep: Callable[[dict[str, Any]], None] | None = None,
        one_stretch: bool = False,
    ) -> None:
        """Prepare the callback.

        Args:
            evaluator: Plays the evaluations.
            checkpointer: Writes the checkpoints.
            interrupts: The signals received so far.
            progress: Called with a label and the number of new environment steps.
            clock_s: Training time before this session in seconds.
            update_s: Part of `clock_s` that was spent in updates.
            keep: Receives each row of metrics; None drops them.
            one_stretch: Stop at the first checkpoint by steps; checkpoints by the clock are off.
        """
        super().__init__()
        self.evaluator, self.checkpointer = evaluator, checkpointer
        self.interrupts, self.progress = interrupts, progress
        config = evaluator.config
        self.eval_freq, self.save_freq = config.eval_freq if config.eval_episodes else 0, config.save_freq
        self.save_s = 60 * config.save_minutes if config.save_minutes and not one_stretch else math.inf
        self.clock_before, self.one_stretch = clock_s, one_stretch
        self.update_s, self.keep = update_s, keep
        self.paused_s = 0.0
        self.started = self.shown = time.perf_counter()
        self.shown_steps = self.rollout_steps = 0
        self.label = "training"

    @property
    def clock_s(self) -> float:
        """Return the training time in seconds, without evaluations and checkpoints."""
        return self.clock_before + time.perf_counter() - self.started - self.paused_s

    def _on_training_start(self) -> None:
        self.shown_steps = self.rollout_steps = self.recorded = self.model.num_timesteps
        self.next_evaluation = self._next(self.eval_freq)
        self.next_save = self._next(self.save_freq)
        if self.checkpointer.newest is None:  # guarantee an intact checkpoint to return to
            self.checkpointer.save(0.0)
        self.started, self.paused_s = time.perf_counter(), 0.0
        self.saved = self.rollout_ended = self.started

    def _on_rollout_end(self) -> None:
        self.rollout_ended = time.perf_counter()

    def _on_training_end(self) -> None:
        self.update_s += time.perf_counter() - self.rollout_ended
        self.record()

    def _on_rollout_start(self) -> None:
        self.update_s += time.perf_counter() - self.rollout_ended
        self.rollout_steps = steps = self.model.num_timesteps
        losses = (value for name, value in self.logger.name_to_value.items() if name.endswith("loss"))
        if not all(map(math.isfinite, losses)):  # losses of the last update
            raise self.checkpointer.diverged()
        if self.interrupts.number is not None:
            raise Stopped
        if self.eval_freq and steps >= self.next_evaluation:
            self.next_evaluation = self._next(self.eval_freq)
            self.look()
            self.record()
        if self.save_freq and steps >= self.next_save:
            self.next_save = self._next(self.save_freq)
            if self.one_stretch:
                raise Stopped  # the caller that catches this saves
            self.save()
        elif time.perf_counter() - self.saved >= self.save_s:
            # a rollout may take longer than the time between two checkpoints
            self.save()
        if steps - self.recorded >= self.model._total_timesteps / ROWS:
            self.record()

    def _on_step(self) -> bool:
        now = time.perf_counter()
        if now - self.shown > SHOWN_S:
            self.shown = now
            self.show()
        if self.interrupts.number is not None:
            self.model.num_timesteps -= self.model.n_envs  # this step is not in replay yet
            self.leave_rollout()
            raise Stopped
        if now - self.saved >= self.save_s and isinstance(self.model, OffPolicyAlgorithm):  # an episode may be long
            self.model.num_timesteps -= self.model.n_envs
            self.save()
            self.model.num_timesteps += self.model.n_envs
        return True

    def leave_rollout(self) -> None:
        """Drop the unfinished rollout of an on-policy learner; a resumed run plays it again."""
        if isinstance(self.model, OnPolicyAlgorithm):
            self.model.num_timesteps = self.rollout_steps

    def show(self) -> None:
        """Advance the progress bar."""
        steps = self.model.num_timesteps
        self.progress(self.label, steps - self.shown_steps)
        self.shown_steps = steps

    def look(self) -> None:
        """Evaluate with the training clock paused; raise `Stopped` if a signal interrupts the evaluation."""
        start = time.perf_counter()
        try:
            self.checkpointer.check_finite()
            looked: list[tuple[QuantizedPolicy, Evaluation] | None] = []
            if not self.interrupts.attempt(lambda: looked.append(self.evaluator.look(self.model))):
                raise Stopped
            if self.evaluator.has_borrowed:
                self.checkpointer.begin_anew()
            if looked[0] is None:
                return
            # files are written completely: a signal does not interrupt this
            mean = self.evaluator.keep(self.model, *looked[0])
            self.label = f"training, return {mean:.1f}"
            record_evaluation(self.logger, looked[0][1])
        finally:
            self.paused_s += time.perf_counter() - start

    def save(self) -> None:
        """Save a checkpoint with the training clock paused."""
        start = time.perf_counter()
        self.checkpointer.check_finite()
        self.checkpointer.save(self.clock_s)
        self.saved = time.perf_counter()
        self.paused_s += self.saved - start
        self.record()

    def record(self) -> None:
        """Write a row of metrics: steps, clocks, and the mean return of the last 100 training episodes."""
        if self.keep is None or self.model.num_timesteps == self.recorded:
            return
        self.recorded = self.model.num_timesteps
        returns = [float(episode["r"]) for episode in self.model.ep_info_buffer or ()]
        row = {"timesteps": self.recorded, "updates": self.model._n_updates, "clock_s": self.clock_s}
        self.keep(row | {"update_s": self.update_s, "return_mean": fmean(returns) if returns else None})

    def _next(self, interval: int) -> int:
        return (self.model.num_timesteps // interval + 1) * interval if interval else 0
