"""The callback that moves ranges between rollouts and switches fake quantization on."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Integral, Real

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from quarl.algorithms.clocks import rollout_steps
from quarl.errors import QuarlError
from quarl.qat.policies import QatPolicy
from quarl.qat.prepare import follow, is_active, spec_of

FOLLOW_STEPS = 64
"""Environment steps between two looks at the ranges: off-policy rollouts are of a step or a few."""


class QuantDelay(BaseCallback):
    """Watches ranges from the start of `learn`, and lets fake quantization act from `steps` environment steps on.

    steps: a count, as `num_timesteps` counts; or a number between 0 and 1, a share of this `learn`'s total_timesteps;
    None stands for its middle, 0.5. It happens at the first rollout that starts then or later, and an on-policy
    algorithm trains on a rollout with the grids that it was collected with.
    allow_inactive: accept a run that ends without it, or without an update after it. Otherwise that is an error, before
    training where it can be told: what was not trained with quantization must not pass for it.
    say: called with one line when it happens; the logger has it as `qat/switched_at`.

    >>> model.learn(256, callback=qat.QuantDelay(0.5)).num_timesteps
    256
    """

    def __init__(
        self, steps: float | None = None, *, allow_inactive: bool = False, say: Callable[[str], None] | None = None
    ) -> None:
        super().__init__()
        share = 0.5 if steps is None else steps
        is_share = isinstance(share, Real) and not isinstance(share, Integral) and 0 < share < 1
        if not is_share and (not isinstance(share, Integral) or isinstance(share, bool)):
            raise QuarlError(
                f"the delay of quantisation is a whole number of steps, or a share between 0 and 1, got {steps!r}"
            )
        if share < 0:
            raise QuarlError(f"the delay of quantisation must not be negative, got {steps}")
        self.steps, self._share = steps, float(share) if is_share else None
        self.allow_inactive = allow_inactive
        self.due = 0
        """`steps`, or what stands for it in the `learn` that is under way."""
        self.next_follow = 0
        self.active = False
        self._say = say
        self._untrained: int | None = None
        """Updates before fake quantization acted, where that is seen to begin."""

    def _on_training_start(self) -> None:
        if spec_of(self.model) is None:
            raise QuarlError("the model is not prepared for quantisation-aware training; call quarl.qat.prepare first")
        model = self.model
        assert isinstance(model.policy, QatPolicy)
        model.policy.followed = True
        self.next_follow, self.active, self._untrained = _look(model.num_timesteps - 1), is_active(model), None
        start, end = model.num_timesteps, model._total_timesteps
        self.due = int(self.steps or 0) if self._share is None else start + int((end - start) * self._share)
        if not self.allow_inactive:
            check_delay(model, self.due, start, end)

    def _on_rollout_start(self) -> None:
        due = self.num_timesteps >= self.due
        if not (due and not self.active) and self.num_timesteps < self.next_follow:
            return
        self.next_follow = _look(self.num_timesteps)
        if follow(self.model, active=due):
            self._untrained = self.model._n_updates
            self.logger.record("qat/switched_at", self.num_timesteps)
            if self._say is not None:
                self._say(f"fake quantisation acts from step {self.num_timesteps:,} on")
        self.active = is_active(self.model)
        self.logger.record("qat/active", float(self.active))

    def _on_step(self) -> bool:
        return True

    def _on_training_end(self) -> None:
        if self.allow_inactive:
            return
        if not is_active(self.model):
            raise QuarlError(f"the run ended before step {self.due:,}, from which on quantisation would have acted")
        if self._untrained == self.model._n_updates:
            raise QuarlError(f"the run ended without an update after step {self.due:,}, when quantisation began to act")


def check_delay(model: BaseAlgorithm, due: int, start: int, end: int) -> None:
    """QuarlError where fake quantization from step `due` on would train nothing in a run from step `start` to `end`."""
    if is_active(model):
        return
    rollout = rollout_steps(model)
    last = start + (math.ceil((end - start) / rollout) - 1) * rollout
    if due > last:
        raise QuarlError(
            f"quantisation would act from step {due:,} on, but the last rollout of this run starts at {last:,}; "
            "choose a smaller delay or train longer"
        )
    if isinstance(model, OffPolicyAlgorithm) and model.learning_starts >= last + rollout:
        raise QuarlError(
            f"learning starts after step {model.learning_starts:,}, and this run ends at {last + rollout:,}: "
            "nothing would be trained with quantisation; choose smaller learning_starts or train longer"
        )


def _look(after: int) -> int:
    """The next look at ranges; by environment steps alone, so that a run in parts looks when a whole one does."""
    return (after // FOLLOW_STEPS + 1) * FOLLOW_STEPS
