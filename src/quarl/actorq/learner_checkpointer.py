"""The checkpointer: what a learner saves, what it goes on from, and what it goes back to when training diverges."""

from __future__ import annotations

from typing import Any

from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

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
"""Times that training goes back to sound weights before it gives up."""


class LearnerCheckpointer(Checkpointer):
    """Checkpoints of `quarl actorq`, whose weights a learner that diverges goes back to."""

    model: OffPolicyAlgorithm

    def __init__(
        self, config: ActorQConfig, model: OffPolicyAlgorithm, limiter: RateLimiter, versions: Versions
    ) -> None:
        assert isinstance(model.replay_buffer, SegmentReplay)
        folder, replay = RunFolder(config.output), model.replay_buffer
        super().__init__(model, lambda: folder, note, replay, saves_replay=config.save_replay_buffer)
        self.config, self.limiter, self.versions = config, limiter, versions
        self.rollbacks = 0
        self.rate_factor = 1.0
        """What the learning rate of the configuration is multiplied by."""
        self.float_updates = 0
        """Updates before fake quantization began to act."""

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

    def load(self) -> checkpoint.Checkpoint:
        """The newest sound one; QuarlError where it is of another algorithm or environment."""
        newest = super().load()
        for name in ("algo", "env"):
            saved, here = newest.state.get(name), getattr(self.config, name)
            if saved != here:
                raise QuarlError(f"{self.config.output} holds a run with --{name} {saved}; resume it with that")
        return newest

    def _go_on(self, newest: checkpoint.Checkpoint) -> None:
        """Without the replay of that run, learning starts when as much new experience is in."""
        model, state = self.model, newest.state
        held = hold(model, self.config.steps)
        model._total_timesteps = self.config.steps  # perhaps more than before
        model._num_timesteps_at_start = model.num_timesteps
        model._update_current_progress_remaining(model.num_timesteps, model._total_timesteps)
        self.limiter.load_state(state["limiter"])
        if not newest.has_replay:
            self.limiter.warm_up_again()
        self._slow_down(float(state["rate_factor"]))
        self.float_updates = int(state.get("float_updates", 0))
        note(f"{standing(model)}, version {state['version']:,}{held}")

    def roll_back(self) -> None:
        """After NaN or infinity: the last checkpoint's weights and half the learning rate, three times at most."""
        self.rollbacks += 1
        layer = suspect(self.model)
        if self.rollbacks > ROLLBACKS:
            raise QuarlError(
                f"training diverged {self.rollbacks} times at {layer}, the last time with a learning rate of "
                f"{self.learning_rate():g}; use a smaller --params learning_rate"
            )
        # weights go back, the run's clocks move on
        clocks = {name: getattr(self.model, name) for name in COUNTERS if hasattr(self.model, name)}
        checkpoint.restore(self.load(), self.model)
        for name, value in clocks.items():
            setattr(self.model, name, value)
        # A loss that is not written at every update would stay there as NaN.
        self.model.logger.name_to_value.clear()
        self._slow_down(self.rate_factor / 2)
        note(
            f"{layer} was not finite after update {self.model._n_updates}: back to the last checkpoint's "
            f"weights with a learning rate of {self.learning_rate():g}"
        )

    def learning_rate(self) -> float:
        return float(self.model.lr_schedule(self.model._current_progress_remaining))

    def _slow_down(self, factor: float) -> None:
        """Makes the learning rate `factor` times the configuration's."""
        schedule: Any = self.model.lr_schedule
        relative, self.rate_factor = factor / self.rate_factor, factor
        self.model.lr_schedule = lambda progress: relative * schedule(progress)
