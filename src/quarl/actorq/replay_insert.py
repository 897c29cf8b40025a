"""Replay inserts: what a learner does with the segments that come in."""

from __future__ import annotations

import numpy as np
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.vec_env import VecNormalize
from stable_baselines3.dqn import DQN

from quarl.actorq.counters import CLASSES
from quarl.actorq.limiter import RateLimiter
from quarl.actorq.replay import SegmentReplay
from quarl.actorq.versions import Versions
from quarl.arrays import Array
from quarl.errors import QuarlError


class ReplayInsert:
    """Replay, limiter, statistics and Stable-Baselines3's clocks of one learner, moved together."""

    def __init__(self, model: OffPolicyAlgorithm, limiter: RateLimiter, versions: Versions, staleness: Array) -> None:
        """staleness: the counters' histogram of the ages of weights."""
        assert isinstance(model.replay_buffer, SegmentReplay)
        self.model, self.replay, self.limiter, self.versions = model, model.replay_buffer, limiter, versions
        self._staleness, normalize = staleness, model.get_vec_normalize_env()
        self._statistics = None if normalize is None else Statistics(normalize)
        # Only DQN does something on its steps; for the others the last one sets the same clocks.
        self._interval = max(model.target_update_interval // model.n_envs, 1) if isinstance(model, DQN) else 0

    def take(self, rows: Array) -> None:
        """Segments, each actor's in their order; QuarlError where an environment gave what is no number."""
        for name in ("reward", "observation", "next_observation"):
            # A sum is sound where all are, but for overflows; bytes always are.
            numbers = rows[name]
            if numbers.dtype.kind == "f" and not np.isfinite(numbers.sum()) and not np.isfinite(numbers).all():
                what = name.replace("_", " ")
                raise QuarlError(f"the environment gave a {what} that is NaN or infinite: mend its step() or reset()")
        # how old their weights are, and which episodes end in them
        model, num = self.model, len(rows)
        steps = self.versions.steps_of(rows["version"])
        ages = np.minimum(model._n_updates - steps[steps >= 0], CLASSES - 1)
        np.add.at(self._staleness, ages, 1)
        for row in rows[rows["episode_length"] > 0]:
            model._episode_num += 1
            assert model.ep_info_buffer is not None
            model.ep_info_buffer.append({"r": float(row["episode_return"]), "l": int(row["episode_length"])})
        # what is learnt from, and how far that may go
        self.replay.insert(rows)
        self.limiter.on_insert(num)
        if self._statistics is not None:
            self._statistics.update(rows)
        # Stable-Baselines3's clocks, which stop where DQN's target network is due, and at the last row
        left = num
        while left:
            passed = left
            if isinstance(model, DQN):
                passed = min(left, self._interval - model._n_calls % self._interval)
                model._n_calls += passed - 1
            left -= passed
            model.num_timesteps += passed
            model._update_current_progress_remaining(model.num_timesteps, model._total_timesteps)
            model._on_step()


class Statistics:
    """Updates a model's VecNormalize with the segments that come in, as its own `step` would have done."""

    def __init__(self, normalize: VecNormalize) -> None:
        self.normalize = normalize
        self._returns: dict[tuple[int, int], tuple[tuple[int, int], float]] = {}
        """By actor and environment: incarnation and sequence of the step that follows, discounted return before it."""

    def update(self, rows: Array) -> None:
        """Observations and discounted returns of rows, each actor's in their order."""
        if self.normalize.norm_obs:
            self.normalize.obs_rms.update(rows["observation"].astype(np.float64))
        returns = []
        names = ("actor", "environment", "incarnation", "sequence", "reward")
        over = (rows["terminated"] | rows["truncated"]).tolist()
        columns = (rows[name].tolist() for name in names)
        for actor, environment, incarnation, sequence, reward, is_over in zip(*columns, over, strict=True):
            following, before = self._returns.get((actor, environment), (None, 0.0))
            goes_on = following == (incarnation, sequence)  # else steps are missing: no return crosses a gap
            returns.append((before if goes_on else 0.0) * self.normalize.gamma + reward)
            self._returns[actor, environment] = (incarnation, sequence + 1), 0.0 if is_over else returns[-1]
        if self.normalize.norm_reward:
            self.normalize.ret_rms.update(np.array(returns))
