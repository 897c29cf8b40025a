"""Wrappers: the zoo's classes that a configuration file may name, and nothing else; and those of QuaRL.

A name from a file is looked up here and never imported as it stands. Keyword arguments are the file's, and otherwise
each class's own defaults: the zoo evaluates with exactly these, so `TimeFeatureWrapper` counts down in evaluation as
it did in training (its `test_mode`, which freezes the feature, is off unless the file sets it).
"""

from __future__ import annotations

import importlib
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
"""(dotted class name, keyword arguments) each, the outermost last."""

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
# ActionNoiseWrapper is left out: it draws from numpy's global generator, so no evaluation of it can be repeated.
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
    "utils.wrappers": _ZOO,  # what the zoos before rl_zoo3 called it
    "gymnasium.wrappers": _GYMNASIUM,
    "gym.wrappers": _GYMNASIUM,
}
"""Module prefix in a file -> class name -> the module it is imported from, with its name there where it is another."""


def wrap(env: gymnasium.Env[Any, Any], wrappers: Wrappers) -> gymnasium.Env[Any, Any]:
    """env inside `wrappers`."""
    for dotted, kwargs in wrappers:
        cls = wrapper_class(dotted)
        check_numbers(kwargs, f"wrapper {dotted}")
        try:
            shape = env.observation_space.shape or ()
            if cls.__name__ in ("AtariWrapper", "WarpFrame") and shape[2:] != (3,):
                raise ValueError(f"it reads images in colour, not observations of shape {shape}; drop it")
            env = cls(env, **kwargs)
        except RAISED as error:  # any constructor, fed with a file's arguments
            said = f"wrapper {dotted} cannot be applied with {dict(kwargs)}: {first_line(error)}"
            raise QuarlError(said) from None
    return env


def dotted(name: str) -> str:
    """The class name as files have it: `name` itself where it is dotted, else the first of that name in FAMILIES."""
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
    """The class that `dotted` names in a zoo configuration; an unknown name is an error, not an import."""
    prefix, _, name = dotted.rpartition(".")
    # gymnasium's files moved between versions: gym.wrappers.time_limit.TimeLimit is gymnasium.wrappers.TimeLimit
    family = next((f for p, f in FAMILIES.items() if prefix == p or prefix.startswith(f"{p}.")), {})
    if name not in family:
        raise _unknown(dotted)
    module, _, renamed = family[name].partition(":")
    try:
        cls = getattr(importlib.import_module(module), renamed or name)
        if module == ATARI_WRAPPERS:
            importlib.import_module("cv2")  # they go on without it until the first frame
        return cls
    except ImportError:
        package = "'quarl[atari]'" if module == ATARI_WRAPPERS else module.partition(".")[0].replace("_", "-")
        raise QuarlError(f"environment wrapper {dotted!r} needs a package: pip install {package}") from None


def channels_as(env: gymnasium.Env[Any, Any], wanted: tuple[int, ...]) -> gymnasium.Env[Any, Any]:
    """The environment, its images with their channels first where `wanted` [C, H, W] has them there and it has not."""
    return ChannelsFirst(env) if has_channels_last(env.observation_space.shape or (), wanted) else env


def shown_to(policy: Policy, env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """The environment, its observations as the policy reads them: one row of its inputs, or images as `channels_as`."""
    return Rows(env, policy.inputs) if policy.inputs else channels_as(env, policy.observation_shape)


class Rows(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Observations of a Dict, or of discrete numbers, as the rows of a policy."""

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
    """An environment that stays open."""

    def close(self) -> None:
        pass


class ChannelsFirst(gymnasium.ObservationWrapper[Any, Any, Any]):
    """[H, W, C] images as [C, H, W], the order of every convolution policy of Stable-Baselines3."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        space = env.observation_space
        assert isinstance(space, gymnasium.spaces.Box)
        self.observation_space = gymnasium.spaces.Box(
            space.low.transpose(2, 0, 1), space.high.transpose(2, 0, 1), dtype=space.dtype.type
        )

    def observation(self, observation: Array) -> Array:
        return np.transpose(observation, (2, 0, 1))


class FrameStack(gymnasium.Wrapper[Array, Any, Array, Any]):
    """The last `n_stack` observations as one, oldest first; zeros stand for what was before an episode's start, or what
    `before` says.

    Images are stacked along their channels and come out as [channels, height, width], whatever order they came in;
    everything else is stacked along its last axis. The stack belongs to one environment, so that the last observation
    of an episode is whole without any help from what steps several of them.
    """

    def __init__(
        self,
        env: gymnasium.Env[Array, Any],
        n_stack: int,
        channels_order: str | None = None,
        before: Sequence[float] | None = None,
    ) -> None:
        """channels_order: first or last; None: by the smallest axis of an image, last for everything else. before: an
        observation that is a vector."""
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
        super().__init__(ChannelsFirst(env) if image and not first else env)
        self._axis = 0 if image or first else -1
        space = self.env.observation_space
        assert isinstance(space, gymnasium.spaces.Box)
        low, high = (np.concatenate([bound] * n_stack, self._axis) for bound in (space.low, space.high))
        self.observation_space = gymnasium.spaces.Box(low, high, dtype=space.dtype.type)
        start = np.zeros(space.shape) if before is None else np.array(before, np.float64)
        if start.shape != space.shape or not np.isfinite(start).all():
            raise ValueError(f"before is no observation of shape {space.shape}")
        self._before = np.concatenate([start] * n_stack, self._axis)
        self._stack: Array = np.zeros(low.shape, space.dtype)
        self._frames: Array = np.moveaxis(self._stack, self._axis, 0)
        """The same memory, the axis that frames follow each other on in front."""
        self.num_frames, self._size = n_stack, len(self._frames) // n_stack

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        self._stack[...] = self._before
        return self._push(observation), info

    def step(self, action: Any) -> tuple[Array, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._push(observation), reward, terminated, truncated, info

    def _push(self, observation: Array) -> Array:
        """The stack with one more observation; the caller owns it."""
        frames, size = self._frames, self._size
        frames[:-size] = frames[size:]
        frames[-size:] = np.moveaxis(observation, self._axis, 0)
        return self._stack.copy()


class TimeFeature(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Observations with what is left of an episode's time, from 1 to 0, as one more number: the last of a vector, or of
    the part "observation" of a Dict. It gives what sb3-contrib's TimeFeatureWrapper gives, without PyTorch.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], max_steps: int = 1000, test_mode: bool = False) -> None:
        """max_steps: of an episode without a time limit of its own. test_mode: it is always 1."""
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
"""What MuJoCo's environments showed before version 5, which leaves out the rows of the world's body, and shows contact
forces where versions 2 to 4 may not.

Name -> with or without contact forces -> parts of an observation, as gymnasium's ant_v4.py, humanoid_v4.py and
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
    layouts = OLDER_LAYOUTS.get(env_id.rpartition("-v")[0], {})
    return [(partial(OlderObservation, what=what, parts=parts),) for what, parts in layouts.items()]
