"""Pace: the limiter that a configuration asks for, and how old weights will be when their steps are learnt from."""

from __future__ import annotations

import math
from typing import Any

from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from quarl.actorq.build import samples_per_insert
from quarl.actorq.limiter import Limiter, RateLimiter, SampleLimit
from quarl.actorq.replay import SegmentReplay
from quarl.algorithms.clocks import no_update
from quarl.config import ActorQConfig
from quarl.errors import QuarlError


class Pace:
    """The limiter of one learner and the line on which its updates follow inserts."""

    def __init__(self, config: ActorQConfig, model: OffPolicyAlgorithm) -> None:
        """Raises QuarlError where the learner would never update, or actors would wait for ever."""
        replay = model.replay_buffer
        assert isinstance(replay, SegmentReplay)
        freq: Any = model.train_freq
        steps: int = freq.frequency
        at_once = model.gradient_steps if model.gradient_steps > 0 else steps
        ratio = config.samples_per_insert or samples_per_insert(model)
        self.limiter: Limiter
        if config.max_times_sampled is not None:
            ratio, at_once = float(config.max_times_sampled), 1
            self.limiter = SampleLimit(lambda: replay.num_samplable, model.learning_starts, model.batch_size)
            least = max(model.learning_starts, model.batch_size)
            if model.buffer_size < least:
                raise QuarlError(
                    f"with --max-times-sampled learning starts when {least:,} steps are in replay, which holds "
                    f"{model.buffer_size:,}: use a larger --params buffer_size or smaller learning_starts"
                )
        else:
            # Rounds and their first one are Stable-Baselines3's: between two rounds DQN's target network moves.
            first = model.learning_starts // steps * steps
            self.limiter = RateLimiter(
                ratio,
                model.batch_size,
                first,
                config.error_buffer,
                updates_at_once=at_once,
                inserts_at_once=config.envs_per_actor,
            )
        if not config.resume and not config.plan:
            if config.steps <= model.learning_starts:
                raise no_update(model.learning_starts, config.steps, "learning_starts")
            if isinstance(self.limiter, RateLimiter) and config.steps < (first := self.limiter.inserts_wanted()):
                raise no_update(first - 1, config.steps, "train_freq or learning_starts")
        self._model = model
        self._promised = ratio / model.batch_size
        # Every actor may be one step ahead of what it knew of the others, and a round of updates cannot be halved.
        least = math.floor(config.actors * config.envs_per_actor * self._promised) + at_once + 1
        if config.max_staleness < least:
            raise QuarlError(
                f"--max-staleness {config.max_staleness} would stop this run: {self._promised:g} updates for "
                f"every step of {config.actors} x {config.envs_per_actor} environments need at least {least}"
            )

    @property
    def updates_per_insert(self) -> float:
        """Those that a rate limiter keeps to; else those so far, of a learner that is as fast as it is."""
        if isinstance(self.limiter, RateLimiter):
            return self._promised
        return self.limiter.realised / self._model.batch_size

    def updates_offset(self) -> float:
        """This + n * `updates_per_insert`: updates that may be done when n rows are in; constant for a rate limiter."""
        owed = 0.0
        if isinstance(self.limiter, RateLimiter):
            counts: dict[str, Any] = self.limiter.state()
            inserted = counts["inserts"] - counts["start_inserts"]
            sampled = counts["samples"] - counts["start_samples"]
            owed = float(inserted * self._promised - sampled / self._model.batch_size)
        return self._model._n_updates + owed - self.limiter.inserts * self.updates_per_insert
