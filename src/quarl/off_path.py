"""Observations off the path of a policy: after random actions, from random starts, and anywhere in a box."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Literal, get_args

import gymnasium
import numpy as np
from gymnasium.wrappers import TimeLimit

from quarl.arrays import Array
from quarl.engines import Engine
from quarl.envs.checked import held
from quarl.envs.environment import Environment
from quarl.envs.masks import allowed_in, masks_of
from quarl.envs.seeds import STREAMS, Stream
from quarl.envs.spaces import head_in
from quarl.errors import UnsupportedError
from quarl.evaluation import record
from quarl.policy.graph import Policy

Kind = Literal["perturbed", "starts", "box"]
"""Kind of state off the path.

perturbed: episodes of the policy in which each action is a random one with probability RANDOM.
starts: episodes of STEPS steps at most, which go on from a random state (see `move`), or after 10 to 30 random actions.
box: independent uniform samples between the bounds of the environment's observations.
"""
KINDS: tuple[Kind, ...] = get_args(Kind)
RANDOM = 0.3
STEPS = 50
MOST_INPUTS = 8
"""Largest number of inputs for independent samples, which miss the possible states of more."""


def off_path(
    policy: Policy,
    environment: Environment,
    kind: Kind,
    *,
    count: int,
    seed: int = 0,
    stream: Stream = "envelope",
    engine: str | Engine = "litert",
    min_episodes: int = 10,
) -> Array:
    """Return raw observations [count, *shape] off the path of a policy, in its dtype.

    They depend only on the policy, the environment and the seeds. Calibrate on another stream than the one that judges.

    Args:
        policy: The policy, which acts.
        environment: The environment to play in.
        kind: Kind of state.
        count: Number of observations.
        seed: Seed of the episodes, of their random actions and starts, and of the box.
        stream: Purpose of the episodes, which keeps their seeds apart from those of other purposes.
        engine: A loaded engine, or the name of one, which then runs the policy in float32.
        min_episodes: Minimum number of episodes to sample from.

    Raises:
        QuarlError: The environment does not fit the policy, or fails.
        UnsupportedError: There is no box: a number has no bounds, there are more than MOST_INPUTS, or the policy has a
            memory.
    """
    if kind != "box":
        return record(
            policy,
            stream,
            seed=seed,
            environment=environment,
            engine=engine,
            num=count,
            min_episodes=min_episodes,
            leave=partial(_Leaving, policy=policy, starts=kind == "starts"),
        )
    if policy.state.size:
        raise UnsupportedError("no box: the policy has a memory, whose states have no bounds")
    with held(partial(environment.make_for, policy)) as env:
        space: Any = env.observation_space
    if policy.state.size or np.size(space.low) > MOST_INPUTS or not np.isfinite(space.high - space.low).all():
        raise UnsupportedError(
            f"no box: its observations need {MOST_INPUTS} numbers or fewer, and bounds for each, and no state"
        )
    rng = np.random.default_rng((STREAMS.index(stream), seed))
    return np.asarray(rng.uniform(space.low, space.high, (count, *space.shape)), policy.observation_dtype)


def away(observations: Array, factor: float = 1.5, *, seed: int = 0) -> Array:
    """Return observations [N, *shape], each moved away from their mean by a random factor from 1 to `factor`.

    Args:
        observations: Recorded observations, float or bytes.
        factor: Largest factor.
        seed: Seed of the factors.
    """
    mean = observations.mean(axis=0, dtype=np.float64)
    factors = np.random.default_rng(seed).uniform(1, factor, (len(observations), *(1,) * mean.ndim))
    moved: Array = mean + factors * (observations - mean)
    return (moved.round().clip(0, 255) if observations.dtype == np.uint8 else moved).astype(observations.dtype)


def move(env: Any, rng: np.random.Generator) -> bool:
    """Set an innermost environment to a random state; return False if its state cannot be set.

    Positions and velocities of gymnasium's MuJoCo environments are changed by noise with deviations 0.1 and 1. A
    `state` in the shape of the observation is drawn between the bounds of that, and less than 2 away without bounds.
    """
    if any(each.__name__ == "MujocoEnv" for each in type(env).__mro__):
        env.set_state(rng.normal(env.data.qpos, 0.1), rng.normal(env.data.qvel, 1))
        return True
    state, space = vars(env).get("state"), env.observation_space
    if not isinstance(state, np.ndarray) or state.dtype.kind != "f" or state.shape != space.shape:
        return False
    bounded = np.isfinite(space.high - space.low)
    env.state = rng.uniform(np.where(bounded, space.low, state - 2), np.where(bounded, space.high, state + 2))
    return True


class _Leaving(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper outside all others, in which episodes leave the path as their own seeds determine."""

    def __init__(self, env: gymnasium.Env[Any, Any], policy: Policy, starts: bool) -> None:
        super().__init__(TimeLimit(env, STEPS) if starts else env)
        self._starts, self._masks, head = starts, masks_of(policy, env), head_in(policy.head, env.action_space)
        bounded = head.kind == "clip" and np.isfinite(head.high - head.low).all()
        self._head, self._width = replace(head, kind="tanh") if bounded else head, policy.num_outputs

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._rng = np.random.default_rng(seed)
        started = self.env.reset(seed=seed, options=options)
        # one action shows a new state through all wrappers
        self._lead = 0 if not self._starts else 1 if move(self.unwrapped, self._rng) else self._rng.integers(10, 31)
        return started

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._lead -= 1
        is_random = self._lead >= 0 if self._starts else self._rng.random() < RANDOM
        return self.env.step(self._random() if is_random else action)

    def _random(self) -> Any:
        """Return a uniformly random action, one that masks allow.

        tanh of a logistic number of scale 0.5 is uniform, and the largest of several is any of them.
        """
        outputs = self._rng.logistic(0, 0.5, (1, self._width)).astype(np.float32)
        return self._head(outputs if self._masks is None else allowed_in(self.env, self._masks, outputs))[0]
