"""Atari games in the threads of ale-py's own vector environment, as a VecEnv of Stable-Baselines3.

The preprocessing is that of `AtariWrapper` and `VecFrameStack`, done in C++. The game is the same as with the wrappers.
So are held actions, rewards and their signs, ends of games and of lives, the order of frames and the zeros before the
first. Three things differ. Pixels under moving sprites: the brighter of two frames is chosen after the conversion to
grey, not before. The start of a game: FIRE first, then up to 28 no-ops. The start of the next life: it begins without a
no-op or FIRE.
"""

from __future__ import annotations

import copy
import importlib
import time
from collections.abc import Iterable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv

from quarl.arrays import Array
from quarl.envs.environment import Environment
from quarl.envs.suites import ATARI, suite_of
from quarl.envs.wrappers import Wrappers
from quarl.machine import numbers, version

Indices = int | Iterable[int] | None
DEFAULTS: Mapping[str, Any] = {
    "noop_max": 30,
    "frame_skip": 4,
    "screen_size": 84,
    "terminal_on_life_loss": True,
    "clip_reward": True,
    "action_repeat_probability": 0.0,
}
"""Defaults of AtariWrapper."""
EMULATOR = ("game", "repeat_action_probability", "full_action_space", "max_num_frames_per_episode", "frameskip")
"""Arguments of a single environment that the vector environment supports too."""
ENDLESS = 2**30
"""Frame limit of the emulator: games are truncated here, because their last observation is available here."""
SINCE = (0, 12, 1)
"""The first version of ale-py that can reset some of its environments."""


class Unfit(Exception):
    """The reason, in one line, that the vector environment cannot play a game as requested."""


def make_native(environment: Environment, num_envs: int, *, same_game: bool) -> NativeAtari:
    """Make `num_envs` games side by side, preprocessed as the environment's wrappers specify.

    Args:
        environment: The game.
        num_envs: Number of games.
        same_game: Refuse a game that needs FIRE after a lost life, because nothing presses it here.

    Returns:
        The games.

    Raises:
        Unfit: The vector environment cannot play it.
    """
    env_id, spec = environment.asked, copy.copy(environment.spec)
    if suite_of(spec) is not ATARI:
        raise Unfit(f"{env_id} is not an Atari game")
    installed = version("ale-py") or "0"
    if numbers(installed) < SINCE:
        raise Unfit(f"ale-py {installed} is too old: pip install 'ale-py>={'.'.join(map(str, SINCE))}'")
    options, n_stack = _preprocessing(environment.wrappers)
    spec.kwargs = {**spec.kwargs, **environment.env_kwargs, "frameskip": 1}
    if unknown := sorted(spec.kwargs.keys() - set(EMULATOR)):
        raise Unfit(f"the vector environment does not support {unknown[0]}")
    env = NativeAtari(spec, num_envs, options, n_stack)
    if same_game and options["terminal_on_life_loss"] and env.needs_fire():
        env.close()
        raise Unfit(f"a life of {env_id} waits for FIRE")
    return env


def _preprocessing(wrappers: Wrappers) -> tuple[dict[str, Any], int]:
    """Return (arguments of AtariWrapper, number of stacked frames)."""
    names = [name.rpartition(".")[2] for name, _ in wrappers]
    if names != ["AtariWrapper", "VecFrameStack"]:
        raise Unfit(f"its preprocessing is AtariWrapper and frame_stack, not {', '.join(names) or 'none'}")
    (_, given), (_, stack) = wrappers
    if unknown := sorted(given.keys() - DEFAULTS.keys()):
        raise Unfit(f"AtariWrapper has no argument {unknown[0]}")
    options = {**DEFAULTS, **given}
    if options["action_repeat_probability"]:
        raise Unfit("it repeats actions by the emulator's probability, not by AtariWrapper's")
    return options, int(stack["n_stack"])


class NativeAtari(VecEnv):
    """Games in threads. A step that ends an episode returns its last observation and the first one of the next."""

    def __init__(self, spec: EnvSpec, num_envs: int, options: Mapping[str, Any], n_stack: int) -> None:
        """Make the games.

        Args:
            spec: Registration of the single environment, with its arguments.
            num_envs: Number of games.
            options: Arguments of AtariWrapper.
            n_stack: Number of stacked frames.
        """
        with ATARI.muted():
            ale: Any = importlib.import_module("ale_py.vector_env")  # an extra
            arguments = spec.kwargs
            side = options["screen_size"]
            self._native = ale.AtariVectorEnv(
                arguments["game"],
                num_envs,
                autoreset_mode=AutoresetMode.SAME_STEP,
                max_num_frames_per_episode=ENDLESS,
                repeat_action_probability=arguments["repeat_action_probability"],
                full_action_space=arguments["full_action_space"],
                img_height=side,
                img_width=side,
                stack_num=n_stack,
                frameskip=options["frame_skip"],
                noop_max=options["noop_max"],
                # lives, signs and episodes are handled below, because the raw points are needed too
                episodic_life=False,
                life_loss_info=False,
                reward_clipping=False,
            )
        self.spec = spec
        self._max_frames = arguments.get("max_num_frames_per_episode") or ENDLESS
        self._asked = options
        self._n_stack = n_stack
        self._actions: Array = np.zeros(num_envs, np.int64)
        self._lives: Array = np.zeros(num_envs, np.int64)
        self._age: Array = np.zeros(num_envs, np.int64)
        """Observations since each life began, without the first."""
        self._points: Array = np.zeros(num_envs)
        self._length: Array = np.zeros(num_envs, np.int64)
        self._start = time.time()
        super().__init__(num_envs, self._native.single_observation_space, self._native.single_action_space)

    def needs_fire(self) -> bool:
        """Return True if the game has lives and a FIRE action that may be needed to begin each of them."""
        _, info = self._native.reset(seed=0)
        return bool((info["lives"] > 0).any()) and any(
            action.name == "FIRE" for action in self._native.ale.get_action_set()
        )

    def reset(self) -> Array:
        # the emulator's seeds have 32 bits
        seeds = None if None in self._seeds else np.array(self._seeds, np.int64) % 2**31
        observations, info = self._native.reset(seed=seeds)
        self._reset_seeds()
        self._reset_options()
        self._begin(np.ones(self.num_envs, bool), info)
        return self._shown(observations, self._age)

    def step_async(self, actions: Array) -> None:
        self._actions = np.asarray(actions, np.int64)

    def step_wait(self) -> tuple[Array, Array, Array, list[dict[str, Any]]]:
        observations, points, over, _, info = self._native.step(self._actions)
        over = np.asarray(over, bool)
        lives, frames = np.array(info["lives"]), np.array(info["episode_frame_number"])
        self._age += 1
        self._points += points
        self._length += self._asked["frame_skip"]
        # a life, a game or its time may end
        lost = ~over & (lives > 0) & (lives < self._lives) & bool(self._asked["terminal_on_life_loss"])
        late = ~over & (frames >= self._max_frames)
        dones = over | lost | late
        infos: list[dict[str, Any]] = [
            {"TimeLimit.truncated": bool(late[k] and not lost[k])} for k in range(len(dones))
        ]
        for k in map(int, np.flatnonzero(dones)):
            last = info["final_obs"][k] if over[k] else observations[k]
            infos[k]["terminal_observation"] = self._shown(last[None], self._age[[k]])[0]
        seconds = round(time.time() - self._start, 6)
        # format of Stable-Baselines3's Monitor next to the emulator
        for k in map(int, np.flatnonzero(over | late)):
            infos[k]["episode"] = {"r": round(float(self._points[k]), 6), "l": int(self._length[k]), "t": seconds}
        rewards = np.sign(points) if self._asked["clip_reward"] else points
        self._lives = lives
        if late.any():
            observations, info = self._native.reset(options={"reset_mask": late})
        self._begin(over | late, info)
        self._age[lost] = 0
        return self._shown(observations, self._age), np.asarray(rewards, np.float32), dones, infos

    def close(self) -> None:
        self._native.close()

    def _begin(self, games: Array, info: Mapping[str, Array]) -> None:
        """Reset the counters of these games, which are new ones."""
        self._lives = np.where(games, info["lives"], self._lives)
        for counter in (self._age, self._points, self._length):
            counter[games] = 0

    def _shown(self, observations: Array, ages: Array) -> Array:
        """Return the observations [B, n_stack, side, side] with zeros for frames of an earlier life, as a copy."""
        observations = np.array(observations)
        for row in np.flatnonzero(ages < self._n_stack - 1):
            observations[row, : self._n_stack - 1 - ages[row]] = 0
        return observations

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        attributes = {"spec": self.spec, "render_mode": None}
        if attr_name not in attributes:
            raise AttributeError(f"games in threads have no attribute {attr_name!r} of their own")
        return [attributes[attr_name] for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        raise AttributeError(f"games in threads have no attribute {attr_name!r} of their own")

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        raise AttributeError(f"games in threads have no method {method_name!r} of their own")

    def env_is_wrapped(
        self, wrapper_class: type[gymnasium.Wrapper[Any, Any, Any, Any]], indices: Indices = None
    ) -> list[bool]:
        """Return True for Monitor: games are monitored, and there is no other wrapper."""
        return [issubclass(Monitor, wrapper_class) for _ in self._get_indices(indices)]
