"""Wrappers that a configuration file may name: the zoo's classes, QuaRL's own, and nothing else.

A name from a file is looked up here and never imported directly. Keyword arguments come from the file, otherwise from
each class's defaults. The zoo evaluates with exactly these, so `TimeFeatureWrapper` counts down in evaluation as in
training (its `test_mode`, which freezes the feature, is off unless the file sets it).
"""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np

from quarl.arrays import Array
from quarl.envs.bound import check_numbers
from quarl.errors import RAISED, QuarlError, first_line
from quarl.policy.graph import Policy
from quarl.policy.inputs import Input, flatten, has_channels_last
from quarl.readers.zoo import MAX_FRAMES

Parts = Callable[[Any], tuple[Array, ...]]
Wrappers = Sequence[tuple[str, Mapping[str, Any]]]
"""(dotted class name, keyword arguments) of each wrapper, outermost last."""

_SB3_CONTRIB = {"TimeFeatureWrapper": "quarl.envs.wrappers:TimeFeature"}
_ZOO = _SB3_CONTRIB | dict.fromkeys(
    (
        "ActionSmoothingWrapper",
        "DelayedRewardWrapper",
        "FrameSkip",
        "HistoryWrapper",
        "MaskVelocityWrapper",
        "TruncatedOnSuccessWrapper",
        "YAMLCompatResizeObservation",
    ),
    "rl_zoo3.wrappers",
)
_ZOO |= {"DoneOnSuccessWrapper": "rl_zoo3.wrappers:TruncatedOnSuccessWrapper"}  # its name before rl_zoo3 2
# ActionNoiseWrapper is excluded: it draws from numpy's global generator, so no evaluation with it can be repeated.
_GYMNASIUM = dict.fromkeys(
    (
        "ClipAction",
        "FlattenObservation",
        "GrayscaleObservation",
        "RescaleAction",
        "ResizeObservation",
        "TimeAwareObservation",
        "TimeLimit",
    ),
    "gymnasium.wrappers",
)
ATARI_WRAPPERS = "stable_baselines3.common.atari_wrappers"
_ATARI = dict.fromkeys(
    (
        "AtariWrapper",
        "ClipRewardEnv",
        "EpisodicLifeEnv",
        "FireResetEnv",
        "MaxAndSkipEnv",
        "NoopResetEnv",
        "StickyActionEnv",
        "WarpFrame",
    ),
    ATARI_WRAPPERS,
)
FAMILIES: Mapping[str, Mapping[str, str]] = {
    ATARI_WRAPPERS: _ATARI,
    "stable_baselines3.common.vec_env": {"VecFrameStack": "quarl.envs.wrappers:FrameStack"},
    "sb3_contrib.common.wrappers": _SB3_CONTRIB,
    "rl_zoo3.wrappers": _ZOO,
    "utils.wrappers": _ZOO,  # the name in zoos before rl_zoo3
    "gymnasium.wrappers": _GYMNASIUM,
    "gym.wrappers": _GYMNASIUM,
}
"""Module prefix in a file -> class name -> the module to import from, and the class's name there if it differs."""


def wrap(env: gymnasium.Env[Any, Any], wrappers: Wrappers) -> gymnasium.Env[Any, Any]:
    """Return `env` inside `wrappers`."""
    for dotted, kwargs in wrappers:
        cls = wrapper_class(dotted)
        check_numbers(kwargs, f"wrapper {dotted}")
        try:
            shape = env.observation_space.shape or ()
            if cls.__name__ in ("AtariWrapper", "WarpFrame") and shape[2:] != (3,):
                raise ValueError(f"it reads images in color, not observations of shape {shape}; drop it")
            env = cls(env, **kwargs)
        except RAISED as error:  # constructors raise exceptions of any type for a file's arguments
            said = f"wrapper {dotted} cannot be applied with {dict(kwargs)}: {first_line(error)}"
            raise QuarlError(said) from None
    return env


def dotted(name: str) -> str:
    """Return the class name as in files: `name` itself if it is dotted, otherwise the first match in FAMILIES."""
    if "." in name:
        return name
    prefix = next((prefix for prefix, family in FAMILIES.items() if name in family), "")
    if not prefix:
        raise _unknown(name)
    return f"{prefix}.{name}"


def _unknown(name: str) -> QuarlError:
    names = sorted({name for family in FAMILIES.values() for name in family})
    return QuarlError(f"environment wrapper {name[:100]!r} is not supported; known ones: {', '.join(names)}")


def wrapper_class(dotted: str) -> Any:
    """Return the class `dotted` of a zoo configuration; an unknown name is an error, not an import."""
    prefix, _, name = dotted.rpartition(".")
    # gymnasium's files moved between versions: gym.wrappers.time_limit.TimeLimit is gymnasium.wrappers.TimeLimit
    family = next((f for p, f in FAMILIES.items() if prefix == p or prefix.startswith(f"{p}.")), {})
    if name not in family:
        raise _unknown(dotted)
    module, _, renamed = family[name].partition(":")
    try:
        cls = getattr(importlib.import_module(module), renamed or name)
        if module == ATARI_WRAPPERS:
            importlib.import_module("cv2")  # without it they fail only at the first frame
        return cls
    except ImportError:
        package = "'quarl[atari]'" if module == ATARI_WRAPPERS else module.partition(".")[0].replace("_", "-")
        raise QuarlError(f"environment wrapper {dotted!r} needs a package: pip install {package}") from None


def channels_as(env: gymnasium.Env[Any, Any], wanted: tuple[int, ...]) -> gymnasium.Env[Any, Any]:
    """Return the environment with channels first if `wanted` [C, H, W] has them first and the environment has not."""
    return channels_first(env) if has_channels_last(env.observation_space.shape or (), wanted) else env


def shown_to(policy: Policy, env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Return the environment with observations as the policy reads them.

    They are one row of its inputs, or images in its order of axes.
    """
    return Rows(env, policy.inputs) if policy.inputs else channels_as(env, policy.seen)


class Rows(gymnasium.ObservationWrapper[Any, Any, Any]):
    """A wrapper that turns observations of a Dict, or discrete numbers, into rows of a policy."""

    def __init__(self, env: gymnasium.Env[Any, Any], inputs: Sequence[Input]) -> None:
        super().__init__(env)
        self._inputs = inputs
        size = sum(each.size for each in inputs)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32)

    def observation(self, observation: Any) -> Array:
        parts = observation if isinstance(observation, Mapping) else {"": observation}
        row: Array = flatten(self._inputs, {key: np.asarray(part) for key, part in parts.items()})[0][0]
        return row


class Kept(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that keeps its environment open."""

    def close(self) -> None:
        pass


def channels_first(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Return the environment with [C, H, W] images in place of [H, W, C], as every convolutional policy expects."""
    space = env.observation_space
    assert isinstance(space, gymnasium.spaces.Box)
    turned = partial(np.transpose, axes=(2, 0, 1))
    shown = gymnasium.spaces.Box(turned(space.low), turned(space.high), dtype=space.dtype.type)
    return gymnasium.wrappers.TransformObservation(env, turned, shown)


class FrameStack(gymnasium.Wrapper[Array, Any, Array, Any]):
    """A wrapper that stacks the last `n_stack` observations, oldest first.

    Before an episode's start there are zeros, or the observation `before`. Images are stacked along their channels and
    become [channels, height, width], whatever their original order; everything else is stacked along its last axis. The
    stack belongs to one environment, so the last observation of an episode is complete without a vector environment.
    """

    def __init__(
        self,
        env: gymnasium.Env[Array, Any],
        n_stack: int,
        channels_order: str | None = None,
        before: Sequence[float] | None = None,
    ) -> None:
        """Prepare the stack.

        Args:
            env: The environment.
            n_stack: Number of observations.
            channels_order: "first" or "last"; None uses the smallest axis of an image, and last for everything else.
            before: Observation, a vector, for the frames before an episode's start.
        """
        space = env.observation_space
        if not isinstance(space, gymnasium.spaces.Box) or not space.shape:
            raise ValueError(f"only a Box with axes can be stacked, not {type(space).__name__}")
        if type(n_stack) is not int or not 1 <= n_stack <= MAX_FRAMES:
            raise ValueError(f"n_stack is {n_stack!r}, not a number from 1 to {MAX_FRAMES}")
        if channels_order not in (None, "first", "last"):
            raise ValueError(f"channels_order is {channels_order!r}; use first or last")
        image = len(space.shape) == 3 and space.dtype == np.uint8 and not space.low.any() and (space.high == 255).all()
        by_shape = image and space.shape.index(min(space.shape)) == 0
        first = by_shape if channels_order is None else channels_order == "first"
        super().__init__(channels_first(env) if image and not first else env)
        self._axis = 0 if image or first else -1
        space = self.env.observation_space
        assert isinstance(space, gymnasium.spaces.Box)
        low, high = (np.concatenate([bound] * n_stack, self._axis) for bound in (space.low, space.high))
        self.observation_space = gymnasium.spaces.Box(low, high, dtype=space.dtype.type)
        start = np.zeros(space.shape) if before is None else np.array(before, np.float64)
        if start.shape != space.shape or not np.isfinite(start).all():
            raise ValueError(f"before is not an observation of shape {space.shape}")
        self._before, self.num_frames = start.astype(space.dtype), n_stack
        self._frames = deque[Array](maxlen=n_stack)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        self._frames.extend([self._before] * self.num_frames)
        return self._push(observation), info

    def step(self, action: Any) -> tuple[Array, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._push(observation), reward, terminated, truncated, info

    def _push(self, observation: Array) -> Array:
        """Return the stack with one more observation, as a copy."""
        self._frames.append(np.array(observation, self._before.dtype))
        return np.concatenate(self._frames, self._axis)


class TimeFeature(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that appends the remaining share of an episode's time, from 1 to 0.

    It is appended to a vector, or to the part "observation" of a Dict. Results equal those of sb3-contrib's
    TimeFeatureWrapper, without PyTorch.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], max_steps: int = 1000, test_mode: bool = False) -> None:
        """Prepare the wrapper.

        Args:
            env: The environment.
            max_steps: Length of an episode without a time limit of its own.
            test_mode: Always append 1.
        """
        super().__init__(env)
        space = env.observation_space
        self._parts = space.spaces if isinstance(space, gymnasium.spaces.Dict) else None
        vector = space if self._parts is None else self._parts.get("observation")
        if not isinstance(vector, gymnasium.spaces.Box) or len(vector.shape) != 1:
            raise ValueError(f"it adds to a vector of numbers, not to {vector or space}")
        self._dtype: Any = vector.dtype
        low, high = np.append(vector.low, 0).astype(self._dtype), np.append(vector.high, 1).astype(self._dtype)
        longer = gymnasium.spaces.Box(low, high, dtype=self._dtype)
        self.observation_space = (
            longer if self._parts is None else gymnasium.spaces.Dict({**self._parts, "observation": longer})
        )
        self._test_mode, self._step = test_mode, 0
        self._max_steps = (env.spec and env.spec.max_episode_steps) or max_steps

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._step = 0
        observation, info = self.env.reset(seed=seed, options=options)
        return self._timed(observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._step += 1
        observation, *rest = self.env.step(action)
        return self._timed(observation), *rest

    def _timed(self, observation: Any) -> Any:
        left = np.array(1.0 if self._test_mode else 1 - self._step / self._max_steps, self._dtype)
        if self._parts is None:
            return np.append(observation, left)
        return {**observation, "observation": np.append(observation["observation"], left)}


def _state(env: Any) -> tuple[Array, ...]:
    skipped = 2 * getattr(env, "_exclude_current_positions_from_observation", True)
    return env.data.qpos[skipped:], env.data.qvel


def _bodies(env: Any) -> tuple[Array, ...]:
    data = env.data
    return (*_state(env), data.cinert, data.cvel, data.qfrc_actuator, data.cfrc_ext)


OLDER_LAYOUTS: Mapping[str, Mapping[str, Parts]] = {
    "Ant": {"without": _state, "with": lambda env: (*_state(env), env.contact_forces)},
    "Humanoid": {"with": _bodies},
    "HumanoidStandup": {"with": _bodies},
}
"""Parts of the observations that MuJoCo's environments had before version 5.

Version 5 leaves out the rows of the world's body, and always shows contact forces; versions 2 to 4 may not. By name and
"with" or "without" contact forces: the parts of an observation, as in gymnasium's ant_v4.py, humanoid_v4.py and
humanoidstandup_v4.py.
"""


class OlderObservation(gymnasium.ObservationWrapper[Array, Any, Any]):
    """An environment whose observations are those parts of its state."""

    def __init__(self, env: gymnasium.Env[Any, Any], what: str, parts: Parts) -> None:
        super().__init__(env)
        self._parts = parts
        living = env.spec.id if env.spec else "it"
        self.older_observation = f"{living} is played {what} contact forces in its observations"
        """Note to the user."""
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, self.observation(None).shape, np.float64)

    def observation(self, observation: Any) -> Array:
        return np.concatenate([part.ravel() for part in self._parts(self.unwrapped)])


def older(env_id: str) -> list[tuple[Callable[[gymnasium.Env[Any, Any]], OlderObservation]]]:
    """Return the wrapper of each older observation of a current id's environment."""
    layouts = OLDER_LAYOUTS.get(env_id.rpartition("-v")[0], {})
    return [(partial(OlderObservation, what=what, parts=parts),) for what, parts in layouts.items()]
