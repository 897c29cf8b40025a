"""Replay inserts: what a learner does with the segments that come in."""

from __future__ import annotations

import numpy as np
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from quarl.actorq.counters import CLASSES
from quarl.actorq.limiter import Limiter
from quarl.actorq.replay import SegmentReplay
from quarl.actorq.versions import Versions
from quarl.arrays import Array
from quarl.errors import QuarlError


class ReplayInsert:
    """Replay, limiter, statistics and Stable-Baselines3's clocks of one learner, moved together."""

    def __init__(
        self, model: OffPolicyAlgorithm, limiter: Limiter, versions: Versions, staleness: Array, *, normalize: bool
    ) -> None:
        """staleness: the counters' histogram of the ages of weights."""
        assert isinstance(model.replay_buffer, SegmentReplay)
        self.model, self.replay, self.limiter, self.versions = model, model.replay_buffer, limiter, versions
        self._staleness = staleness
        self._statistics = Statistics(model) if normalize else None
        # Only DQN does something at every step; for the others the last one sets the same clocks.
        self._step_by_step = type(model)._on_step is not OffPolicyAlgorithm._on_step

    def take(self, rows: Array) -> None:
        """Segments of one actor, in their order; QuarlError where the environment gave what is no number."""
        for name in ("reward", "observation", "next_observation"):
            if rows[name].dtype.kind == "f" and not np.isfinite(rows[name]).all():  # bytes are always numbers
                what = name.replace("_", " ")
                raise QuarlError(f"the environment gave a {what} that is NaN or infinite: mend its step() or reset()")
        self._book(rows)
        self.replay.insert(rows)
        self.limiter.on_insert(len(rows))
        if self._statistics is not None:
            self._statistics.update(rows)
        model, num = self.model, len(rows)
        every = 1 if self._step_by_step else num
        for _ in range(0, num, every):
            model.num_timesteps += every
            model._update_current_progress_remaining(model.num_timesteps, model._total_timesteps)
            model._on_step()

    def _book(self, rows: Array) -> None:
        """Ages of the weights behind the rows, and the episodes that end in them."""
        steps = self.versions.steps_of(rows["version"])
        ages = np.minimum(self.model._n_updates - steps[steps >= 0], CLASSES - 1)
        np.add.at(self._staleness, ages, 1)
        for row in rows[rows["episode_length"] > 0]:
            self.model._episode_num += 1
            assert self.model.ep_info_buffer is not None
            self.model.ep_info_buffer.append({"r": float(row["episode_return"]), "l": int(row["episode_length"])})


class Statistics:
    """Updates the model's VecNormalize with the segments that come in, as its own `step` would have done."""

    def __init__(self, model: OffPolicyAlgorithm) -> None:
        normalize = model.get_vec_normalize_env()
        assert normalize is not None
        self.normalize = normalize
        self._returns: dict[tuple[int, int], tuple[tuple[int, int], float]] = {}
        """By actor and environment: incarnation and sequence of the step that follows, discounted return before it."""

    def update(self, rows: Array) -> None:
        """Observations and discounted returns of one actor's rows, in their order."""
        if self.normalize.norm_obs:
            self.normalize.obs_rms.update(rows["observation"].astype(np.float64))
        returns = np.empty(len(rows))
        for i, row in enumerate(rows):
            stream = (int(row["actor"]), int(row["environment"]))
            incarnation, sequence = int(row["incarnation"]), int(row["sequence"])
            following, before = self._returns.get(stream, (None, 0.0))
            goes_on = following == (incarnation, sequence)  # else steps are missing: no return crosses a gap
            returns[i] = (before if goes_on else 0.0) * self.normalize.gamma + row["reward"]
            after = 0.0 if row["terminated"] or row["truncated"] else float(returns[i])
            self._returns[stream] = (incarnation, sequence + 1), after
        if self.normalize.norm_reward:
            self.normalize.ret_rms.update(returns)
