"""Pace: the limiter that a configuration asks for."""

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


def limiter_of(config: ActorQConfig, model: OffPolicyAlgorithm) -> Limiter:
    """The limiter of the model's learner; QuarlError where it would never update, or actors would wait for ever."""
    replay = model.replay_buffer
    assert isinstance(replay, SegmentReplay)
    freq: Any = model.train_freq
    steps: int = freq.frequency
    starts, batch_size = model.learning_starts, model.batch_size
    limiter: Limiter
    if config.max_times_sampled is not None:
        ratio, at_once = float(config.max_times_sampled), 1
        limiter = SampleLimit(lambda: replay.num_samplable, starts, batch_size)
        least = max(starts, batch_size)
        if model.buffer_size < least:
            raise QuarlError(
                f"with --max-times-sampled learning starts when {least:,} steps are in replay, which holds "
                f"{model.buffer_size:,}: use a larger --params buffer_size or smaller learning_starts"
            )
    else:
        ratio = config.samples_per_insert or samples_per_insert(model)
        at_once = model.gradient_steps if model.gradient_steps > 0 else steps
        # Rounds and their first one are Stable-Baselines3's: between two rounds DQN's target network moves.
        limiter = RateLimiter(
            ratio,
            batch_size,
            starts // steps * steps,
            config.error_buffer,
            updates_at_once=at_once,
            inserts_at_once=config.envs_per_actor,
        )
    if not config.resume and not config.plan:
        if config.steps <= starts:
            raise no_update(starts, config.steps, "learning_starts")
        if isinstance(limiter, RateLimiter) and config.steps < (first := limiter.inserts_wanted()):
            raise no_update(first - 1, config.steps, "train_freq or learning_starts")
    # Every actor may be one step ahead of what it knew of the others, and a round of updates cannot be halved.
    promised = ratio / batch_size
    least = math.floor(config.actors * config.envs_per_actor * promised) + at_once + 1
    if config.max_staleness < least:
        raise QuarlError(
            f"--max-staleness {config.max_staleness} would stop this run: {promised:g} updates for "
            f"every step of {config.actors} x {config.envs_per_actor} environments need at least {least}"
        )
    return limiter
