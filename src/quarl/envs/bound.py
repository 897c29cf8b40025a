"""Bounds of an episode: what a file says, and what a wrapper makes of it, ends in a time that somebody can wait for."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from quarl.errors import QuarlError

LONGEST = 120_000
"""Environment steps of an episode that is evaluated; more only where a user says so. The longest of all suites, half an
hour of Atari frame by frame, has 108,000."""
MOST = 1_000
"""Steps of a simulator in one of the environment, frames in an observation, pixels of its side."""
LIMIT = "max_episode_steps"
"""The argument of `gymnasium.make` that RL Zoo's files have among the environment's own."""
EPISODE_FRAMES = "max_num_frames_per_episode"
"""The emulator's argument that limits an Atari game."""
REPEATS = re.compile(r"skip|noop|repeat|sub_?steps")
SIZES = re.compile(rf"{REPEATS.pattern}|delay|horizon|stack|size|shape|width|height")


def check_numbers(arguments: Mapping[str, Any], of: str, names: re.Pattern[str] = SIZES) -> None:
    """Refuses numbers with which one step or one observation would last for ever; of: whose arguments they are."""
    for name, value in arguments.items():
        for number in value if isinstance(value, list | tuple) else (value,):
            if isinstance(number, float) and math.isnan(number):
                raise QuarlError(f"{of}: {name} is NaN, which is no number")
            if isinstance(number, int | float) and number > MOST and names.search(name):
                raise QuarlError(f"{of}: {name} is {number:,}, more than {MOST:,}; give a smaller one")


def checked_limit(limit: Any) -> int | None:
    """The limit of an episode's steps; QuarlError for anything but a whole number from 1 on."""
    if limit is not None and (type(limit) is not int or limit < 1):
        raise QuarlError(f"{LIMIT} is {str(limit)[:60]!r}, not a whole number from 1 on")
    return None if limit is None else int(limit)


def longest(limit: Any, given: int | None, registered: int | None = None) -> int:
    """Steps after which an evaluated episode is broken off: LONGEST, or what was given or registered beyond that.

    limit: of the policy's files, which do not lengthen it; QuarlError where they try.
    """
    bound = max(LONGEST, given or 0, registered or 0)
    if (said := checked_limit(limit)) is not None and said > bound:
        raise QuarlError(
            f"{LIMIT} is {said:,}: episodes of more than {LONGEST:,} steps are played where --max-episode-steps "
            f"({LIMIT} in Python) asks for them"
        )
    return bound


def is_limited(spec: EnvSpec | None) -> bool:
    """Whether a limit of steps ends every episode; where nothing is known of the environment, none does."""
    return spec is not None and (spec.max_episode_steps is not None or EPISODE_FRAMES in spec.kwargs)


def endless(bound: int) -> QuarlError:
    """What to raise where an episode does not end."""
    return QuarlError(
        f"an episode has not ended after {bound:,} steps: give the environment a time limit with --max-episode-steps "
        f"({LIMIT} in Python), which may be longer too"
    )


class Bounded(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Inside all wrappers: counts the environment's own steps, of which a wrapper can make many in one."""

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
