"""Segments: what an actor sends for every environment step, as rows of one numpy dtype.

A stream is one environment of one actor. Within an incarnation of the actor its segments are numbered 0, 1, 2, ...
without a gap; (actor, incarnation, environment, sequence) names a segment for ever.
"""

from __future__ import annotations

import struct
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from quarl.errors import UnsupportedError

HEAD = struct.Struct("=qqiiiidd??")
"""The fields of a row up to `truncated`, as they lie in memory: one call writes what would be ten."""
Head = tuple[int, int, int, int, int, int, float, float, bool, bool]
"""Their values: sequence, version, actor, incarnation, environment, episode's length and return, reward, ends."""


def segment_dtype(observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]) -> np.dtype[np.void]:
    """The row of one environment step: what happened, and who saw it with which weights.

    Actions are stored as replay stores them: numbers of discrete actions, or scaled to [-1, 1].
    """
    if not isinstance(observation_space, spaces.Box):
        raise UnsupportedError(f"observations must be a Box, got {observation_space}; flatten them")
    observation = ("u1" if observation_space.dtype == np.uint8 else "f4", observation_space.shape)
    action: tuple[str, tuple[int, ...]]
    if isinstance(action_space, spaces.Discrete):
        action = ("i8", ())
    elif isinstance(action_space, spaces.Box):
        action = ("f4", action_space.shape)
    else:
        raise UnsupportedError(f"actions must be Discrete or Box, got {action_space}")
    return np.dtype(
        [
            ("sequence", "i8"),
            ("version", "i8"),  # of the weights that chose the action; -1 for a random one
            ("actor", "i4"),
            ("incarnation", "i4"),
            ("environment", "i4"),
            ("episode_length", "i4"),  # steps of the episode that ends with this one, else 0
            ("episode_return", "f8"),  # its undiscounted sum of rewards, else 0
            ("reward", "f8"),
            ("terminated", "?"),
            ("truncated", "?"),
            ("action", *action),
            ("observation", *observation),
            ("next_observation", *observation),  # the true one, also where the episode ends
        ],
        align=True,
    )
