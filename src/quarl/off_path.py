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
from quarl.envs.seeds import Stream
from quarl.envs.spaces import head_in
from quarl.errors import UnsupportedError
from quarl.evaluation import record
from quarl.policy.graph import Policy

Kind = Literal["perturbed", "starts", "box"]
"""Kind of state off the path.

perturbed: episodes of the policy in which each action is a random one with probability RANDOM.
starts: episodes of STEPS steps at most, which begin at a random start (see `move`), or with 10 to 30 random actions.
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
        UnsupportedError: There is no box: a number has no bounds, or there are more than MOST_INPUTS.
    """
    if kind != "box":
        about: Any = {"environment": environment, "engine": engine, "seed": seed, "min_episodes": min_episodes}
        return record(
            policy, stream, num=count, leave=partial(_Leaving, policy=policy, starts=kind == "starts"), **about
        )
    with held(partial(environment.make_for, policy)) as env:
        space: Any = env.observation_space
    if np.size(space.low) > MOST_INPUTS or not np.isfinite(space.high - space.low).all():
        raise UnsupportedError(f"no box: its observations need {MOST_INPUTS} numbers or fewer, and bounds for each")
    rows = np.random.default_rng(seed).uniform(space.low, space.high, (count, *space.shape))
    return rows.astype(policy.observation_dtype)


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

    Noise with deviations 0.1 and 1 is added to positions and velocities of gymnasium's MuJoCo environments. A `state`
    in the shape of the observation is drawn between the bounds of that; numbers without bounds get noise of deviation
    1.
    """
    if any(each.__name__ == "MujocoEnv" for each in type(env).__mro__):
        both = (env.data.qpos, 0.1), (env.data.qvel, 1.0)
        env.set_state(*(values + rng.normal(0, deviation, values.shape) for values, deviation in both))
        return True
    state, space = vars(env).get("state"), env.observation_space
    if not isinstance(state, np.ndarray) or state.dtype.kind != "f" or state.shape != space.shape:
        return False
    bounded = np.isfinite(space.high - space.low)
    drawn = rng.uniform(*(np.where(bounded, end, 0) for end in (space.low, space.high)))
    env.state = np.where(bounded, drawn, state + rng.standard_normal(state.shape))
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
        for _ in range(20 if self._starts else 0):  # after as many tries that end at once it is the usual start
            # an action shows the new state through all wrappers
            for _ in range(1 if move(self.unwrapped, self._rng) else self._rng.integers(10, 31)):
                observation, _, terminated, truncated, info = self.env.step(self._random())
                if terminated or truncated:
                    break
            else:
                return observation, info
            started = self.env.reset(seed=seed, options=options)
        return started

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        return self.env.step(self._random() if not self._starts and self._rng.random() < RANDOM else action)

    def _random(self) -> Any:
        """Return a uniformly random action, one that masks allow.

        tanh of a logistic number of scale 0.5 is uniform, and the largest of several is any of them.
        """
        outputs = self._rng.logistic(0, 0.5, (1, self._width)).astype(np.float32)
        return self._head(outputs if self._masks is None else allowed_in(self.env, self._masks, outputs))[0]
