"""Whether a used environment, reset with a seed, replays what a new one would: not all of them do."""

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
"""Answers by key; a test takes up to a second of simulation, and a sweep asks for each of its precisions."""


def needs_fresh(make_env: Callable[[], gymnasium.Env[Any, Any]], key: str) -> bool:
    """True where an episode depends on what its environment played before, so that each needs a new environment.

    The reseed test: an environment that has lived through random actions is reset with a seed and must then return,
    bit for bit, the observations, rewards and ends that a new one returns for the same seed and actions.
    key: names what `make_env` makes; the answer is remembered under it in this process.
    """
    if key not in _known:
        _known[key] = _remembers(make_env)
    return _known[key]


def _remembers(make_env: Callable[[], gymnasium.Env[Any, Any]]) -> bool:
    plans = []
    with held(make_env) as used:  # the new ones come after it: of some only one may live
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
    """Everything the environment says in one episode, cut at its end or after the last action."""
    try:
        observation, _ = env.reset(seed=seed)
        trace = [(np.asarray(observation).tobytes(), 0.0, False, False)]
        for action in actions:
            observation, reward, terminated, truncated, _ = env.step(
                copy.copy(action)
            )  # it may change what it is given
            trace.append((np.asarray(observation).tobytes(), float(reward), bool(terminated), bool(truncated)))
            if terminated or truncated:
                break
    except RAISED as error:
        raise broken(env, error) from error
    return trace
