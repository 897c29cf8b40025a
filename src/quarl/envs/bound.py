"""Bounds of an episode, so that limits from files and wrappers cannot make it last forever."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from quarl.errors import QuarlError

LONGEST = 120_000
"""Longest evaluated episode in environment steps, unless the user allows more.

The longest of all suites, half an hour of Atari frame by frame, has 108,000 steps.
"""
MOST = 1_000
"""Largest number of simulator steps in one environment step, of frames in an observation, or of pixels along a side."""
LIMIT = "max_episode_steps"
"""The argument of `gymnasium.make` that RL Zoo's files list among the environment's own."""
EPISODE_FRAMES = "max_num_frames_per_episode"
"""The emulator's argument that limits an Atari game."""
REPEATS = re.compile(r"skip|noop|repeat|sub_?steps")
SIZES = re.compile(rf"{REPEATS.pattern}|delay|horizon|stack|size|shape|width|height")


def check_numbers(arguments: Mapping[str, Any], of: str, names: re.Pattern[str] = SIZES) -> None:
    """Raise QuarlError for numbers with which one step or one observation would take forever.

    Args:
        arguments: Keyword arguments to check.
        of: Name of their owner, for messages.
        names: Pattern of the argument names that are limited.
    """
    for name, value in arguments.items():
        for number in value if isinstance(value, list | tuple) else (value,):
            if isinstance(number, float) and math.isnan(number):
                raise QuarlError(f"{of}: {name} is NaN; give a number")
            if isinstance(number, int | float) and number > MOST and names.search(name):
                raise QuarlError(f"{of}: {name} is {number:,}, more than {MOST:,}; give a smaller one")


def checked_limit(limit: Any) -> int | None:
    """Return the limit of an episode's steps; raise QuarlError for anything but a whole number from 1 on."""
    if limit is not None and (type(limit) is not int or limit < 1):
        raise QuarlError(f"{LIMIT} is {str(limit)[:60]!r}, not a whole number from 1 on")
    return None if limit is None else int(limit)


def longest(limit: Any, given: int | None, registered: int | None = None) -> int:
    """Return the number of steps after which an evaluated episode is an error.

    Args:
        limit: Limit from the policy's files, which cannot raise the bound.
        given: Limit given by the user.
        registered: Limit of the environment's registration.

    Returns:
        LONGEST, or a larger limit that was given or registered.

    Raises:
        QuarlError: The files' limit is larger than that.
    """
    bound = max(LONGEST, given or 0, registered or 0)
    if (said := checked_limit(limit)) is not None and said > bound:
        raise QuarlError(
            f"{LIMIT} is {said:,}: episodes of more than {LONGEST:,} steps require --max-episode-steps "
            f"({LIMIT} in Python)"
        )
    return bound


def is_limited(spec: EnvSpec | None) -> bool:
    """Return True if a limit of steps ends every episode; False if the environment is unknown."""
    return spec is not None and (spec.max_episode_steps is not None or EPISODE_FRAMES in spec.kwargs)


def endless(bound: int) -> QuarlError:
    """Return the error to raise if an episode does not end."""
    return QuarlError(
        f"an episode has not ended after {bound:,} steps: give the environment a time limit with --max-episode-steps "
        f"({LIMIT} in Python), which may also be longer"
    )


class Bounded(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper inside all others that counts the environment's own steps; a wrapper can make many in one."""

    def __init__(self, env: gymnasium.Env[Any, Any], bound: int) -> None:
        super().__init__(env)
        self._bound, self._steps = bound, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._steps = 0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._steps += 1
        if self._steps > self._bound:
            raise endless(self._bound)
        return self.env.step(action)
