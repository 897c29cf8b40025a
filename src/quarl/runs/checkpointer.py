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
from quarl.runs import checkpoint
from quarl.runs.folder import RunFolder
from quarl.runs.replay import StoredReplay


class Checkpointer:
    """One run's checkpoints: networks, optimisers, clocks, generators, statistics and, off-policy, replay."""

    def __init__(
        self,
        model: BaseAlgorithm,
        folder: Callable[[], RunFolder],
        say: Callable[[str], None],
        replay: checkpoint.Replay | None = None,
    ) -> None:
        """folder: asked for when there is something to write. replay: the model's, where it is saved."""
        self.model, self._folder, self._say, self._replay = model, folder, say, replay
        self.newest: Path | None = None
        """The last checkpoint that was written or gone on from."""
        self._files = Dispensable(say, checkpoint.CheckpointError)

    def save(self, clock_s: float, **state: Any) -> bool:
        """Whether there is a checkpoint now. A full disk costs it and not the run; NaN is a QuarlError.

        state: JSON values that are saved too.
        """
        spec = qat.spec_of(self.model)
        state |= {"clock_s": clock_s, "qat": None if spec is None else spec.to_json()}
        return self._files.write(partial(self._write, state))

    def _write(self, state: Mapping[str, Any]) -> None:
        self.newest = checkpoint.save(self._folder().path, self.model, state, replay=self._replay)

    def load(self) -> checkpoint.Checkpoint:
        """The newest sound one; those that are damaged are said. QuarlError where the learner trains for other bits."""
        newest = checkpoint.load_latest(self._folder().path)
        for warning in newest.warnings:
            self._say(warning)
        if _trained_for(newest) != qat.spec_of(self.model) and "qat" in newest.state:
            raise QuarlError(f"{newest.path} was trained with other --qat options; resume with those of the first run")
        self.newest = newest.path
        return newest


def _trained_for(saved: checkpoint.Checkpoint) -> QatSpec | None:
    return None if (spec := saved.state.get("qat")) is None else QatSpec.from_json(spec)


class AgentCheckpointer(Checkpointer):
    """Checkpoints of `quarl train`, each with the agent as it is then."""

    def _write(self, state: Mapping[str, Any]) -> None:
        super()._write(state)
        self._folder().write_agent(self.model)

    @checkpoint.sound()
    def resume(self, asked: QatSpec | None, seed: int) -> float:
        """Everything from the newest sound checkpoint; the training clock there.

        The environments begin new episodes, with seeds of their own: what they had in them is not saved.
        asked: the precision that the user names now; QuarlError where the checkpoint trains for another.
        """
        found = self.load()
        trained, named = ("fp32" if spec is None else spec.precision for spec in (_trained_for(found), asked))
        if asked is not None and named != trained:
            raise QuarlError(f"{found.path} was trained for {trained} and --qat says {named}: resume without --qat")
        checkpoint.restore(found, self.model, self._replay)
        self._begin_episodes(seed)
        return float(found.state["clock_s"])

    def begin_anew(self, seed: int) -> None:
        """New episodes in the middle of training, as Stable-Baselines3 begins the first ones."""
        model = self.model
        self._begin_episodes(seed)
        assert model.env is not None
        model._last_obs = model.env.reset()  # type: ignore[assignment]  # as in its _setup_learn
        model._last_episode_starts = np.ones((model.env.num_envs,), dtype=bool)
        if model._vec_normalize_env is not None:
            model._last_original_obs = model._vec_normalize_env.get_original_obs()

    def _begin_episodes(self, seed: int) -> None:
        """What was played has ended, and environments get seeds of their own."""
        if isinstance(self._replay, StoredReplay):
            self._replay.end_episodes()
        assert self.model.env is not None
        self.model.env.seed(episode_seed("training", seed, self.model.num_timesteps % 2**EPISODE_BITS))
