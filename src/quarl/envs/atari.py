"""Atari games: emulator arguments for Stable-Baselines3's preprocessing, and whole games for evaluation.

Training observes a game through the zoo's `AtariWrapper`. A game starts with up to 30 no-ops, and FIRE is pressed if a
life waits for it. Every action is held for four frames, and the brighter of the last two is shown in 84 x 84 grey
pixels. Each lost life ends an episode, and rewards are clipped to their sign. Evaluation plays the same, but whole
games for their points.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import RecordEpisodeStatistics

from quarl.envs.wrappers import Wrappers
from quarl.errors import extras

SKIPPING = ("AtariWrapper", "MaxAndSkipEnv")
"""Wrappers that hold an action for several frames."""


def emulator_arguments(spec: EnvSpec, wrappers: Wrappers, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the emulator's arguments: the given ones, and no frame skipping in the emulator if a wrapper does it.

    ALE/Pong-v5 skips four frames itself and shows the last of them. With the wrapper's four that would be sixteen.
    Without the wrapper, flickering sprites would be missing in half of the frames. So the wrapper skips, and the
    emulator gives it every frame. Sticky actions are drawn for every frame either way, so the game stays the same.

    Args:
        spec: Registration of the game.
        wrappers: Wrappers around the emulator.
        given: Arguments given by the user or a file.

    Returns:
        Keyword arguments of the emulator.
    """
    arguments = dict(given)
    if isinstance(frames := arguments.get("frameskip"), list):  # JSON and YAML have no tuples
        arguments["frameskip"] = tuple(frames)
    skips = any(name.rpartition(".")[2] in SKIPPING for name, _ in wrappers)
    if skips and "frameskip" not in arguments and spec.kwargs.get("frameskip") != 1:
        arguments["frameskip"] = 1
    return arguments


class WholeGame(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper outside all others: an episode is a game with all its lives, and its rewards are the game's points.

    If a wrapper ends an episode after a life, the next life begins as in training (a no-op, FIRE, an empty stack of
    frames), and the game continues. The zoo counts the same way: its scores come from a monitor next to the emulator,
    here RecordEpisodeStatistics, independent of reward wrappers around it.
    An agent that never had to press FIRE itself would otherwise wait for its second life for half an hour.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        with extras("a game of Atari"):  # imported here: other environments do not need it
            from stable_baselines3.common.atari_wrappers import EpisodicLifeEnv
            from stable_baselines3.common.env_util import unwrap_wrapper

        super().__init__(env)
        counter = unwrap_wrapper(env, RecordEpisodeStatistics)
        assert isinstance(counter, RecordEpisodeStatistics)
        self._counter = counter
        self._lives: Any = unwrap_wrapper(env, EpisodicLifeEnv)
        self._paid = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self._lives is not None:
            self._lives.was_real_done = True  # abandon a game left in its middle
        self._paid = 0.0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, _, terminated, truncated, info = self.env.step(action)
        points = self._counter.episode_returns
        if terminated and not truncated and self._lives is not None and not self._lives.was_real_done:
            games = self._counter.episode_count
            following, info = self.env.reset()
            terminated = self._counter.episode_count > games  # the steps that begin a life can end the game
            points = self._counter.return_queue[-1] if terminated else self._counter.episode_returns
            observation = observation if terminated else following
        reward, self._paid = points - self._paid, points
        return observation, reward, terminated, truncated, info
