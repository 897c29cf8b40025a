"""Zoo wrappers: the classes that a configuration file may name, and nothing else.

A name from a file is looked up here and never imported as it stands. Keyword arguments are the file's, and otherwise
each class's own defaults: the zoo evaluates with exactly these, so `TimeFeatureWrapper` counts down in evaluation as
it did in training (its `test_mode`, which freezes the feature, is off unless the file sets it).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from quarl.envs.bound import check_numbers
from quarl.errors import QuarlError, first_line
from quarl.readers.spaces import has_channels_last

_SB3_CONTRIB = {"TimeFeatureWrapper": "sb3_contrib.common.wrappers"}
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
    "stable_baselines3.common.vec_env": {"VecFrameStack": "quarl.envs.frame_stack:FrameStack"},
    "sb3_contrib.common.wrappers": _SB3_CONTRIB,
    "rl_zoo3.wrappers": _ZOO,
    "utils.wrappers": _ZOO,  # what the zoos before rl_zoo3 called it
    "gymnasium.wrappers": _GYMNASIUM,
    "gym.wrappers": _GYMNASIUM,
}
"""Module prefix in a file -> class name -> the module it is imported from, with its name there where it is another."""


def wrap(env: gymnasium.Env[Any, Any], wrappers: Sequence[tuple[str, Mapping[str, Any]]]) -> gymnasium.Env[Any, Any]:
    """env inside `wrappers`, (dotted class name, keyword arguments) each, the outermost last."""
    for dotted, kwargs in wrappers:
        cls = wrapper_class(dotted)
        check_numbers(kwargs, f"wrapper {dotted}")
        try:
            shape = env.observation_space.shape or ()
            if cls.__name__ in ("AtariWrapper", "WarpFrame") and shape[2:] != (3,):
                raise ValueError(f"it reads images in colour, not observations of shape {shape}; drop it")
            env = cls(env, **kwargs)
        except Exception as error:  # any constructor, fed with a file's arguments
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
    known = sorted({name for family in FAMILIES.values() for name in family})
    return QuarlError(f"environment wrapper {name[:100]!r} is not supported; known ones: {', '.join(known)}")


def wrapper_class(dotted: str) -> Any:
    """The class that `dotted` names in a zoo configuration; an unknown name is an error, not an import."""
    prefix, _, name = dotted.rpartition(".")
    # gymnasium's files moved between versions: gym.wrappers.time_limit.TimeLimit is gymnasium.wrappers.TimeLimit
    family = next((f for p, f in FAMILIES.items() if prefix == p or prefix.startswith(f"{p}.")), {})
    if name not in family:
        raise _unknown(dotted)
    module, _, renamed = family[name].partition(":")
    try:
        found = getattr(importlib.import_module(module), renamed or name)
        if module == ATARI_WRAPPERS:
            importlib.import_module("cv2")  # they go on without it until the first frame
        return found
    except ImportError:
        package = "'quarl[atari]'" if module == ATARI_WRAPPERS else module.partition(".")[0].replace("_", "-")
        raise QuarlError(f"environment wrapper {dotted!r} needs a package: pip install {package}") from None


def channels_as(env: gymnasium.Env[Any, Any], wanted: tuple[int, ...]) -> gymnasium.Env[Any, Any]:
    """The environment, its images with their channels first where `wanted` [C, H, W] has them there and it has not."""
    return ChannelsFirst(env) if has_channels_last(env.observation_space.shape or (), wanted) else env


def kept(env: gymnasium.Env[Any, Any], wanted: tuple[int, ...]) -> gymnasium.Env[Any, Any]:
    """`channels_as` of an environment that is somebody else's, who closes it."""
    return channels_as(Kept(env), wanted)


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

    def observation(self, observation: NDArray[Any]) -> NDArray[Any]:
        return np.transpose(observation, (2, 0, 1))
