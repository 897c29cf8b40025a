"""The checkpointer of a run: what it saves of its learner, and what it goes on from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm

from quarl import qat
from quarl.envs.seeds import EPISODE_BITS, episode_seed
from quarl.errors import QuarlError
from quarl.files import Dispensable
from quarl.quant.spec import QatSpec
from quarl.runs import checkpoint, checkpoint_model
from quarl.runs.folder import RunFolder
from quarl.runs.replay import StoredReplay


class Diverged(QuarlError):
    """A loss or a weight is NaN or infinite."""


class Checkpointer:
    """One run's checkpoints: networks, optimisers, clocks, generators, statistics and, off-policy, replay."""

    def __init__(
        self,
        model: BaseAlgorithm,
        folder: Callable[[], RunFolder],
        say: Callable[[str], None],
        replay: checkpoint.Replay | None,
        *,
        saves_replay: bool = True,
    ) -> None:
        """folder: asked for when there is something to write. replay: the model's; None on-policy."""
        self.model, self._folder, self._say, self._replay = model, folder, say, replay
        self._saves_replay = saves_replay
        self.newest: Path | None = None
        """The last checkpoint that was written or gone on from."""
        self._files = Dispensable(say, checkpoint.CheckpointError)

    def save(self, clock_s: float, *, last: bool = False, **state: Any) -> bool:
        """Write a checkpoint; a full disk costs the checkpoint and not the run.

        Args:
            clock_s: Seconds of training so far.
            last: Nothing is saved after this: raise CheckpointError when it cannot be written.
            **state: JSON values that are saved too.

        Returns:
            Whether the checkpoint was written.

        Raises:
            QuarlError: A weight is NaN or infinite.
        """
        spec = qat.spec_of(self.model)
        state |= {"clock_s": clock_s, "qat": None if spec is None else spec.to_json()}
        return self._files.write(partial(self._write, state), last=last)

    def _write(self, state: Mapping[str, Any]) -> None:
        replay = self._replay if self._saves_replay else None
        self.newest = checkpoint.save(self._folder().path, self.model, state, replay=replay)

    def load(self) -> checkpoint.Checkpoint:
        """The newest sound one; those that are damaged are said. QuarlError where the learner trains for other bits."""
        newest = checkpoint.load_latest(self._folder().path)
        for warning in newest.warnings:
            self._say(warning)
        trained_for = None if (saved := newest.state.get("qat")) is None else QatSpec.from_json(saved)
        if trained_for != qat.spec_of(self.model) and "qat" in newest.state:
            raise QuarlError(f"{newest.path} was trained with other --qat options; resume with those of the first run")
        self.newest = newest.path
        return newest

    @checkpoint.sound()
    def resume(self) -> float:
        """Everything from the newest sound checkpoint; the training clock there."""
        newest = self.load()
        checkpoint.restore(newest, self.model, self._replay)
        self._go_on(newest)
        return float(newest.state["clock_s"])

    def _go_on(self, newest: checkpoint.Checkpoint) -> None:
        """What else goes on, once the model is as it was."""

    def check_finite(self) -> None:
        """Raises Diverged where a weight is NaN or infinite."""
        if checkpoint_model.not_finite(self.model) is not None:
            raise self.diverged()

    def diverged(self) -> Diverged:
        """What to raise, naming the layer and the last checkpoint."""
        layer = checkpoint_model.suspect(self.model)
        what = f"training diverged: {layer} was not finite after update {self.model._n_updates:,}"
        if self.newest is None:
            return Diverged(f"{what}; use a smaller --params learning_rate")
        return Diverged(
            f"{what}; the last good checkpoint is {self.newest}: go on from it with --resume and a smaller "
            "--params learning_rate"
        )


class AgentCheckpointer(Checkpointer):
    """Checkpoints of `quarl train`, each with the agent as it is then."""

    def __init__(
        self, model: BaseAlgorithm, folder: Callable[[], RunFolder], say: Callable[[str], None], seed: int
    ) -> None:
        """seed: of the run."""
        buffer = getattr(model, "replay_buffer", None)
        super().__init__(model, folder, say, None if buffer is None else StoredReplay(buffer))
        self._seed = seed

    def _write(self, state: Mapping[str, Any]) -> None:
        self._folder().write_agent(self.model)  # before the checkpoint: without an agent, a run has not ended
        super()._write(state)

    def _go_on(self, newest: checkpoint.Checkpoint) -> None:
        self._begin_episodes()

    def begin_anew(self) -> None:
        """New episodes in the middle of training, as Stable-Baselines3 begins the first ones."""
        model = self.model
        self._begin_episodes()
        assert model.env is not None
        model._last_obs = model.env.reset()  # type: ignore[assignment]  # as in its _setup_learn
        model._last_episode_starts = np.ones((model.env.num_envs,), dtype=bool)
        if model._vec_normalize_env is not None:
            model._last_original_obs = model._vec_normalize_env.get_original_obs()

    def _begin_episodes(self) -> None:
        """What was played has ended, and environments, whose state is not saved, get seeds of their own."""
        if isinstance(self._replay, StoredReplay):
            self._replay.end_episodes()
        assert self.model.env is not None
        self.model.env.seed(episode_seed("training", self._seed, self.model.num_timesteps % 2**EPISODE_BITS))
