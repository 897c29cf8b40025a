"""The checkpointer: what a run saves, and what it goes on from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from quarl import qat
from quarl.envs.seeds import EPISODE_BITS, episode_seed
from quarl.errors import QuarlError
from quarl.folder import Dispensable
from quarl.quant.spec import QatSpec
from quarl.runs import checkpoint
from quarl.runs.folder import RunFolder
from quarl.runs.replay import StoredReplay


class Checkpointer:
    """One run's checkpoints: networks, optimisers, clocks, generators, statistics and, off-policy, replay."""

    def __init__(self, model: BaseAlgorithm, folder: Callable[[], RunFolder], say: Callable[[str], None]) -> None:
        """folder: asked for when there is something to write."""
        self.model, self._folder, self._say = model, folder, say
        self.newest: Path | None = None
        """The last checkpoint that was written or gone on from."""
        self._files = Dispensable(say, checkpoint.CheckpointError)

    def save(self, clock_s: float) -> None:
        """A checkpoint, and the agent as it is. A full disk costs these and not the run; NaN is a QuarlError."""
        spec = qat.spec_of(self.model)
        state = {"clock_s": clock_s, "qat": spec.to_json() if spec is not None else None}
        folder = self._folder()

        def write() -> None:
            self.newest = checkpoint.save(folder.path, self.model, state, replay=self._replay())
            folder.write_agent(self.model)

        self._files.write(write)

    @checkpoint.sound()
    def resume(self, asked: str | None, seed: int) -> float:
        """Everything from the newest sound checkpoint; the training clock there.

        The environments begin new episodes, with seeds of their own: what they had in them is not saved.
        asked: the precision that the user names now; QuarlError where the checkpoint trains for another.
        """
        folder = self._folder()
        found = checkpoint.load_latest(folder.path)
        for warning in found.warnings:
            self._say(warning)
        saved = QatSpec.from_json(found.state["qat"]) if found.state.get("qat") is not None else None
        precision = "fp32" if saved is None else saved.precision
        if asked not in (None, precision):
            raise QuarlError(f"{found.path} was trained for {precision} and --qat says {asked}: resume without --qat")
        if saved != qat.spec_of(self.model):
            raise QuarlError(f"{found.path} was trained for {precision} with other options than its args.yml says")
        replay = self._replay()
        checkpoint.restore(found, self.model, replay)
        self._begin_episodes(seed)
        self.newest = found.path
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
        if (replay := self._replay()) is not None:
            replay.end_episodes()
        assert self.model.env is not None
        self.model.env.seed(episode_seed("training", seed, self.model.num_timesteps % 2**EPISODE_BITS))

    def _replay(self) -> StoredReplay | None:
        if not isinstance(self.model, OffPolicyAlgorithm):
            return None
        assert self.model.replay_buffer is not None
        return StoredReplay(self.model.replay_buffer)
