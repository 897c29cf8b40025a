"""Replay inserts: the processing of segments that arrive at a learner."""

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
    """The replay, limiter, statistics and Stable-Baselines3 clocks of one learner, which advance together."""

    def __init__(self, model: OffPolicyAlgorithm, limiter: RateLimiter, versions: Versions, staleness: Array) -> None:
        """Connect the parts of a learner.

        Args:
            model: Stable-Baselines3 model whose replay is a SegmentReplay.
            limiter: Rate limiter that counts the inserts.
            versions: Version numbers with their learner updates.
            staleness: Counters' histogram of weight ages.
        """
        assert isinstance(model.replay_buffer, SegmentReplay)
        self.model, self.replay, self.limiter, self.versions = model, model.replay_buffer, limiter, versions
        self._staleness, normalize = staleness, model.get_vec_normalize_env()
        self._statistics = None if normalize is None else Statistics(normalize)
        # Only DQN acts on every step; for the others, one call for the last step sets the same clocks.
        self._interval = max(model.target_update_interval // model.n_envs, 1) if isinstance(model, DQN) else 0

    def take(self, rows: Array) -> None:
        """Take in segments, each actor's in order; raise QuarlError if an environment returned NaN or infinity."""
        for name in ("reward", "observation", "next_observation"):
            # A finite sum proves that all numbers are finite; bytes always are.
            numbers = rows[name]
            if numbers.dtype.kind == "f" and not np.isfinite(numbers.sum()) and not np.isfinite(numbers).all():
                what = name.replace("_", " ")
                raise QuarlError(
                    f"the environment returned a {what} that is NaN or infinite: fix its step() or reset()"
                )
        # Record the age of their weights, and the episodes that end in them.
        model, num = self.model, len(rows)
        steps = self.versions.steps_of(rows["version"])
        ages = np.minimum(model._n_updates - steps[steps >= 0], CLASSES - 1)
        np.add.at(self._staleness, ages, 1)
        for row in rows[rows["episode_length"] > 0]:
            model._episode_num += 1
            assert model.ep_info_buffer is not None
            model.ep_info_buffer.append({"r": float(row["episode_return"]), "l": int(row["episode_length"])})
        # Store them in replay, and count them in the limiter.
        self.replay.insert(rows)
        self.limiter.on_insert(num)
        if self._statistics is not None:
            self._statistics.update(rows)
        # Advance Stable-Baselines3's clocks, stopping when DQN's target network is due, and at the last row.
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
    """A VecNormalize updater: it takes segments, and has the effect of the wrapper's own `step`."""

    def __init__(self, normalize: VecNormalize) -> None:
        self.normalize = normalize
        self._returns: dict[tuple[int, int], tuple[tuple[int, int], float]] = {}
        """State by actor and environment: incarnation and sequence of the next step, discounted return before it."""

    def update(self, rows: Array) -> None:
        """Update the statistics of observations and discounted returns with rows, each actor's in order."""
        if self.normalize.norm_obs:
            self.normalize.obs_rms.update(rows["observation"].astype(np.float64))
        returns = []
        names = ("actor", "environment", "incarnation", "sequence", "reward")
        over = (rows["terminated"] | rows["truncated"]).tolist()
        columns = (rows[name].tolist() for name in names)
        for actor, environment, incarnation, sequence, reward, is_over in zip(*columns, over, strict=True):
            following, before = self._returns.get((actor, environment), (None, 0.0))
            goes_on = following == (incarnation, sequence)  # otherwise steps are missing: no return crosses a gap
            returns.append((before if goes_on else 0.0) * self.normalize.gamma + reward)
            self._returns[actor, environment] = (incarnation, sequence + 1), 0.0 if is_over else returns[-1]
        if self.normalize.norm_reward:
            self.normalize.ret_rms.update(np.array(returns))
