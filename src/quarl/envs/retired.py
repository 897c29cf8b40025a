"""What MuJoCo's environments showed before version 5, from the simulation of those that live.

Version 5 leaves out the rows of the world's body, and shows contact forces where versions 2 to 4 may not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Parts = Callable[[Any], tuple[Array, ...]]


def _state(env: Any) -> tuple[Array, ...]:
    skipped = 2 * getattr(env, "_exclude_current_positions_from_observation", True)
    return env.data.qpos[skipped:], env.data.qvel


def _bodies(env: Any) -> tuple[Array, ...]:
    data = env.data
    return (*_state(env), data.cinert, data.cvel, data.qfrc_actuator, data.cfrc_ext)


LAYOUTS: Mapping[str, Mapping[str, Parts]] = {
    "Ant": {"without": _state, "with": lambda env: (*_state(env), env.contact_forces)},
    "Humanoid": {"with": _bodies},
    "HumanoidStandup": {"with": _bodies},
}
"""Name -> with or without contact forces -> parts of an observation, as gymnasium's ant_v4.py, humanoid_v4.py and
humanoidstandup_v4.py put them together."""


class OlderObservation(gymnasium.ObservationWrapper[Array, Any, Any]):
    """An environment whose observations are those parts of its state."""

    def __init__(self, env: gymnasium.Env[Any, Any], what: str, parts: Parts) -> None:
        super().__init__(env)
        self._parts = parts
        living = env.spec.id if env.spec else "it"
        self.older_observation = f"{living} is played {what} contact forces in its observations"
        """What a user is told."""
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, self.observation(None).shape, np.float64)

    def observation(self, observation: Any) -> Array:
        return np.concatenate([part.ravel() for part in self._parts(self.unwrapped)])


def older(env_id: str) -> list[tuple[Callable[[gymnasium.Env[Any, Any]], OlderObservation]]]:
    """The wrapper of each older observation of a living id's environment."""
    found = LAYOUTS.get(env_id.rpartition("-v")[0], {})
    return [(partial(OlderObservation, what=what, parts=parts),) for what, parts in found.items()]
