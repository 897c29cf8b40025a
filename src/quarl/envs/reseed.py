"""The reseed test: some used environments, reset with a seed, do not replay the episode of a new one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from quarl.envs.checked import broken, held
from quarl.envs.seeds import episode_seed
from quarl.errors import RAISED

NUM_TRIALS = 3
NUM_STEPS = 64
_known: dict[str, bool] = {}
"""Answers by key; a test takes up to a second of simulation, and a sweep repeats it for each of its precisions."""


def needs_fresh(make_env: Callable[[], gymnasium.Env[Any, Any]], key: str) -> bool:
    """Return True if an episode depends on earlier ones in its environment, so that each needs a new environment.

    An environment that has taken random actions is reset with a seed. It must then return, bit for bit, the
    observations, rewards and ends that a new one returns for the same seed and actions. `key` identifies the
    environment of `make_env`; the answer is cached under it in this process.
    """
    if key not in _known:
        _known[key] = _remembers(make_env)
    return _known[key]


def _remembers(make_env: Callable[[], gymnasium.Env[Any, Any]]) -> bool:
    plans = []
    with held(make_env) as used:  # the new ones come later: some environments allow only one instance
        used.action_space.seed(0)
        for trial in range(NUM_TRIALS):
            actions = [used.action_space.sample() for _ in range(NUM_STEPS)]
            _trace(used, episode_seed("probe", 0, NUM_TRIALS + trial), actions[::-1])
            seed = episode_seed("probe", 0, trial)
            plans.append((seed, actions, _trace(used, seed, actions)))
    for seed, actions, trace in plans:
        with held(make_env) as new:
            if _trace(new, seed, actions) != trace:
                return True
    return False


def _trace(env: gymnasium.Env[Any, Any], seed: int, actions: list[Any]) -> list[tuple[bytes, float, bool, bool]]:
    """Return all results of one episode, up to its end or the last action."""
    try:
        observation, _ = env.reset(seed=seed)
        trace = [(np.asarray(observation).tobytes(), 0.0, False, False)]
        for action in actions:
            observation, reward, terminated, truncated, _ = env.step(copy.copy(action))  # it may modify its argument
            trace.append((np.asarray(observation).tobytes(), float(reward), bool(terminated), bool(truncated)))
            if terminated or truncated:
                break
    except RAISED as error:
        raise broken(env, error) from error
    return trace
