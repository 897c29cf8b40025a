"""Segments: the rows of one numpy dtype that an actor sends, one for every environment step.

A stream is one environment of one actor. Within an incarnation of the actor, its segments are numbered 0, 1, 2, ...
without a gap. The key (actor, incarnation, environment, sequence) identifies a segment forever.
"""

from __future__ import annotations

import struct
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from quarl.errors import UnsupportedError

HEAD = struct.Struct("=qqiiiidd??")
"""The fields of a row up to `truncated`, in memory order: one call writes them instead of ten."""
Head = tuple[int, int, int, int, int, int, float, float, bool, bool]
"""Their values: sequence, version, actor, incarnation, environment, episode's length and return, reward, ends."""


def segment_dtype(observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]) -> np.dtype[np.void]:
    """Return the dtype of one environment step: the transition, its actor, and the version of the weights.

    Actions are stored in replay's form: numbers of discrete actions, or values scaled to [-1, 1].
    """
    # Derive the fields of the two spaces.
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
    # Put the fixed-size fields first: `HEAD` writes them in one call.
    return np.dtype(
        [
            ("sequence", "i8"),
            ("version", "i8"),  # version of the weights that chose the action; -1 for a random one
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
            ("next_observation", *observation),  # the true one, even at the end of an episode
        ],
        align=True,
    )
