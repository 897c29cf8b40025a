"""The callback that updates ranges between rollouts and switches fake quantization on."""

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
"""Environment steps between two updates of the ranges: off-policy rollouts have one step or a few."""


class QuantDelay(BaseCallback):
    """A callback that watches ranges from the start of `learn` and activates fake quantization after `steps` steps.

    It happens at the first rollout that starts then or later: an on-policy algorithm trains on a rollout with the grids
    that it was collected with. The logger records it as `qat/switched_at`.

    Args:
        steps: Environment steps, as `num_timesteps` counts them, or a share of this `learn`'s total_timesteps between 0
            and 1. None means 0.5, its middle.
        allow_inactive: Accept a run that ends before the switch, or without an update after it. Otherwise that is an
            error,
            raised before training if it can be predicted: an agent trained without quantization must not pass for one
            trained with it.
        say: Called with one line when fake quantization becomes active.

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
                f"the delay of quantization is a whole number of steps, or a share between 0 and 1, got {steps!r}"
            )
        if share < 0:
            raise QuarlError(f"the delay of quantization must not be negative, got {steps}")
        self.steps, self._share = steps, float(share) if is_share else None
        self.allow_inactive = allow_inactive
        self.due = 0
        """Step of the switch in the current `learn`, computed from `steps`."""
        self.next_follow = 0
        self.active = False
        self._say = say
        self._untrained: int | None = None
        """Number of updates before fake quantization was active; None until the switch."""

    def _on_training_start(self) -> None:
        if spec_of(self.model) is None:
            raise QuarlError("the model is not prepared for quantization-aware training; call quarl.qat.prepare first")
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
                self._say(f"fake quantization is active from step {self.num_timesteps:,} on")
        self.active = is_active(self.model)
        self.logger.record("qat/active", float(self.active))

    def _on_step(self) -> bool:
        return True

    def _on_training_end(self) -> None:
        if self.allow_inactive:
            return
        if not is_active(self.model):
            raise QuarlError(f"the run ended before step {self.due:,}, at which quantization would have become active")
        if self._untrained == self.model._n_updates:
            raise QuarlError(f"the run ended without an update after step {self.due:,}, the start of quantization")


def check_delay(model: BaseAlgorithm, due: int, start: int, end: int) -> None:
    """Raise QuarlError if fake quantization from step `due` on would train nothing.

    Args:
        model: The prepared model.
        due: Step at which fake quantization becomes active.
        start: First step of the run.
        end: Last step of the run.

    Raises:
        QuarlError: No rollout starts, or no update follows, after step `due`.
    """
    if is_active(model):
        return
    rollout = rollout_steps(model)
    last = start + (math.ceil((end - start) / rollout) - 1) * rollout
    if due > last:
        raise QuarlError(
            f"quantization would be active from step {due:,} on, but the last rollout of this run starts at {last:,}; "
            "choose a smaller delay or train longer"
        )
    if isinstance(model, OffPolicyAlgorithm) and model.learning_starts >= last + rollout:
        raise QuarlError(
            f"learning starts after step {model.learning_starts:,}, and this run ends at {last + rollout:,}: "
            "nothing would be trained with quantization; choose smaller learning_starts or train longer"
        )


def _look(after: int) -> int:
    """Return the next step at which ranges are updated.

    It depends on environment steps alone, so that a run in parts updates them at the same steps as a whole run.
    """
    return (after // FOLLOW_STEPS + 1) * FOLLOW_STEPS
