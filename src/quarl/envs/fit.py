"""Which algorithm can learn in which space of actions: one rule for training, listings and studies."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces

from quarl.errors import QuarlError
from quarl.readers.actor import DQN, LAYOUTS
from quarl.readers.spaces import Box, Discrete, action_head, from_live, observation_box

ALGORITHMS = tuple(LAYOUTS)
"""In the order in which they are shown."""


def fits(algo: str, action_space: Any) -> str | None:
    """None where `algo` can learn in gymnasium's `action_space`; else the reason, which makes the cell n/a."""
    layout = LAYOUTS[algo]
    if isinstance(action_space, spaces.Discrete) and action_space.start:
        return f"Stable-Baselines3 counts actions from 0, this space from {action_space.start}: wrap the environment"
    try:
        actions = from_live(action_space, "the action space")
        if layout is DQN and isinstance(actions, Box):
            return f"{algo} needs a discrete action space"
        if layout.tanh and isinstance(actions, Discrete):
            return f"{algo} needs a continuous action space"
        action_head(actions, "the action space", squashed=layout.tanh)
    except QuarlError as error:
        return str(error)
    return None


def fitting(action_space: Any) -> tuple[str, ...]:
    """The algorithms that can learn in the space."""
    return tuple(algo for algo in ALGORITHMS if fits(algo, action_space) is None)


def unreadable(observation_space: Any) -> str:
    """Why no policy can read the observations of gymnasium's space; empty where one can."""
    where = "the observation space"
    try:
        observation_box(from_live(observation_space, where), where)
    except QuarlError as error:
        return str(error)
    return ""
