"""The learner's checkpointer: saves, resumes, and rolls back when training diverges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from quarl import qat
from quarl.actorq.limiter import RateLimiter
from quarl.actorq.replay import SegmentReplay
from quarl.actorq.versions import Versions
from quarl.algorithms.clocks import hold, standing
from quarl.config import ActorQConfig
from quarl.errors import QuarlError, UnsupportedError, note
from quarl.runs import checkpoint
from quarl.runs.checkpoint_model import COUNTERS, suspect
from quarl.runs.checkpointer import Checkpointer
from quarl.runs.folder import RunFolder

ROLLBACKS = 3
"""Maximum number of rollbacks to finite weights before training fails."""


class LearnerCheckpointer(Checkpointer):
    """The checkpoints of `quarl actorq`; a learner that diverges is rolled back to their weights."""

    model: OffPolicyAlgorithm

    def __init__(
        self, config: ActorQConfig, model: OffPolicyAlgorithm, limiter: RateLimiter, versions: Versions
    ) -> None:
        """Prepare checkpoints in the run's folder.

        Args:
            config: Options of the run.
            model: Model whose replay is a SegmentReplay.
            limiter: Rate limiter whose counts are saved.
            versions: Version numbers, of which the newest is saved.
        """
        assert isinstance(model.replay_buffer, SegmentReplay)
        folder, replay = RunFolder(config.output), model.replay_buffer
        super().__init__(model, lambda: folder, note, replay, saves_replay=config.save_replay_buffer)
        self.config, self.limiter, self.versions = config, limiter, versions
        self.rollbacks = 0
        self.rate_factor = 1.0
        """Factor on the configured learning rate."""
        self.float_updates = 0
        """Number of updates before fake quantization became active."""

    def save(self, clock_s: float, *, last: bool = False, **state: Any) -> bool:
        """Write a checkpoint as `Checkpointer.save` does; return False when a weight is not finite."""
        state = {name: getattr(self, name) for name in ("rate_factor", "float_updates")}
        state |= {"algo": self.config.algo, "env": self.config.env, "version": self.versions.newest}
        try:
            super().save(clock_s, last=last, limiter=self.limiter.state(), **state)
        except (UnsupportedError, checkpoint.CheckpointError):
            raise
        except QuarlError:
            return False
        return True

    def _write(self, state: Mapping[str, Any]) -> None:
        if self.is_trained_for():
            self.write_agent()  # before the checkpoint, as in `quarl train`
        super()._write(state)

    def write_agent(self) -> None:
        """Write model.zip; the replay class belongs to QuaRL, and without it the zip can be read without QuaRL."""
        self._folder().write_agent(self.model, exclude=("replay_buffer_class", "replay_buffer_kwargs"))

    def is_trained_for(self) -> bool:
        """Return True if an update was made in the way that --qat asks."""
        return self.config.qat is None or (qat.is_ready(self.model) and self.model._n_updates > self.float_updates)

    def load(self) -> checkpoint.Checkpoint:
        """Return the newest valid checkpoint; raise QuarlError if it has another algorithm or environment."""
        newest = super().load()
        for name in ("algo", "env"):
            saved, here = newest.state.get(name), getattr(self.config, name)
            if saved != here:
                raise QuarlError(
                    f"{self.config.output} holds a run with --{name} {saved}; resume it with --{name} {saved}"
                )
        return newest

    def _go_on(self, newest: checkpoint.Checkpoint) -> None:
        """Continue from a checkpoint; without its replay, learning starts after as much new experience."""
        model, state = self.model, newest.state
        held = hold(model, self.config.steps)
        model._total_timesteps = self.config.steps  # possibly more than in the earlier run
        model._num_timesteps_at_start = model.num_timesteps
        model._update_current_progress_remaining(model.num_timesteps, model._total_timesteps)
        self.limiter.load_state(state["limiter"])
        if not newest.has_replay:
            self.limiter.warm_up_again()
        self._slow_down(float(state["rate_factor"]))
        self.float_updates = int(state.get("float_updates", 0))
        note(f"{standing(model)}, version {state['version']:,}{held}")

    def roll_back(self) -> None:
        """Restore the last checkpoint's weights after NaN or infinity, and halve the learning rate.

        Raises QuarlError after three rollbacks.
        """
        self.rollbacks += 1
        layer = suspect(self.model)
        if self.rollbacks > ROLLBACKS:
            raise QuarlError(
                f"training diverged {self.rollbacks} times at {layer}, the last time with a learning rate of "
                f"{self.learning_rate():g}; use a smaller --params learning_rate"
            )
        # Restore the weights; the run's clocks keep their values.
        clocks = {name: getattr(self.model, name) for name in COUNTERS if hasattr(self.model, name)}
        checkpoint.restore(self.load(), self.model)
        for name, value in clocks.items():
            setattr(self.model, name, value)
        # A loss that is not logged at every update would stay NaN.
        self.model.logger.name_to_value.clear()
        self._slow_down(self.rate_factor / 2)
        note(
            f"{layer} was not finite after update {self.model._n_updates}: restored the last checkpoint's "
            f"weights with a learning rate of {self.learning_rate():g}"
        )

    def learning_rate(self) -> float:
        return float(self.model.lr_schedule(self.model._current_progress_remaining))

    def _slow_down(self, factor: float) -> None:
        """Set the learning rate to `factor` times the configured one."""
        schedule: Any = self.model.lr_schedule
        relative, self.rate_factor = factor / self.rate_factor, factor
        self.model.lr_schedule = lambda progress: relative * schedule(progress)
