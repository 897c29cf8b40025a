"""Hyper-parameters as a config.yml spells them, interpreted: what a learner and its environments are made of.

Everything in them is data. Schedules and noise are made from numbers, and a class is one of those that stand here.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stable_baselines3.common.utils import LinearSchedule

from quarl import literals
from quarl.errors import QuarlError, UnsupportedError
from quarl.policy.actor import FUNCTIONS
from quarl.policy.zoo import vecnormalize_options, wrappers_of

TORCH = ("", "nn.", "th.nn.", "torch.nn.")
OPTIMIZERS = ("Adam", "AdamW", "RMSprop", "SGD")
CLASSES: Mapping[str, str] = {
    **{f"{prefix}{name}": f"torch.nn.{name}" for prefix in TORCH for name in FUNCTIONS},
    **{f"{prefix}{name}": f"torch.optim.{name}" for prefix in ("", "th.optim.", "torch.optim.") for name in OPTIMIZERS},
    "RMSpropTFLike": "stable_baselines3.common.sb2_compat.rmsprop_tf_like.RMSpropTFLike",
    "WideCNN": "quarl.algorithms.wide_cnn.WideCNN",
}
"""What a class may be called in a configuration, and where it is."""
SCHEDULES = ("learning_rate", "clip_range", "clip_range_vf")
POLICIES = ("MlpPolicy", "CnnPolicy")
NOISES = ("normal", "ornstein-uhlenbeck")
CODE = ("callback", "replay_buffer_class", "rollout_buffer_class", "rollout_buffer_kwargs", "vec_env_wrapper")
"""What the zoo gives code for."""
OURS = ("env", "seed", "device", "verbose", "tensorboard_log", "action_noise", "_init_setup_model", "monitor_kwargs")
"""Arguments of a learner that are not hyper-parameters."""
MAX_ENVIRONMENTS = 1024


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a learner and its environments are made, and how long it learns."""

    n_timesteps: int
    n_envs: int
    policy: str | None
    """None: by the kind of observation."""
    env_kwargs: Mapping[str, Any]
    wrappers: tuple[tuple[str, Mapping[str, Any]], ...]
    """Outermost last."""
    normalize: Mapping[str, Any] | None
    """Arguments of VecNormalize; None: no normalisation."""
    noise: tuple[str, float] | None
    """Kind and standard deviation of the noise on actions, scaled to [-1, 1]."""
    arguments: Mapping[str, Any]
    """Everything else, for the learner's constructor."""


def interpret(written: Mapping[str, Any], where: Path) -> Recipe:
    """The recipe that `written` spells; `where` names its file in errors."""
    left = {name: value for name, value in written.items() if value is not None}
    for name in OURS:
        if name in left:
            raise QuarlError(f"{where}: {name} is no hyper-parameter; options of quarl train say such things")
    for name in CODE:
        if left.pop(name, None):
            raise UnsupportedError(f"{where}: {name} names code of the zoo, which is not run; drop it with {name}:None")
    policy = left.pop("policy", None)
    if policy is not None and policy not in POLICIES:
        raise UnsupportedError(f"{where}: policy {str(policy)[:60]!r} is not supported; {' and '.join(POLICIES)} are")
    stack = left.pop("frame_stack", 0)
    wrappers = wrappers_of({"env_wrapper": left.pop("env_wrapper", None), "frame_stack": stack}, where)
    kind, std = left.pop("noise_type", None), left.pop("noise_std", None)
    normalize = _normalize(left.pop("normalize", False), left.get("gamma"), where)
    if stack and normalize is not None and normalize.get("norm_obs", True):
        raise UnsupportedError(
            f"{where}: frames are stacked as they are, not normalised; drop frame_stack with frame_stack:0, or write "
            "normalize:dict(norm_obs=False)"
        )
    env_kwargs = _dict(left.pop("env_kwargs", {}), "env_kwargs", where)
    n_timesteps = _count(left.pop("n_timesteps", 0), "n_timesteps", where)
    n_envs = _count(left.pop("n_envs", 1), "n_envs", where)
    if n_envs > MAX_ENVIRONMENTS:
        raise QuarlError(f"{where}: n_envs is {n_envs:,}, more than {MAX_ENVIRONMENTS:,}")
    if "replay_buffer_kwargs" in left:
        left["replay_buffer_kwargs"] = _dict(left["replay_buffer_kwargs"], "replay_buffer_kwargs", where)
    if "policy_kwargs" in left:
        kwargs = _dict(left["policy_kwargs"], "policy_kwargs", where, names=True)
        left["policy_kwargs"] = _with_classes(kwargs, "policy_kwargs", where)
    for name in SCHEDULES:
        if name in left:
            left[name] = _schedule(left[name], name, where)
    if isinstance(left.get("train_freq"), list):  # YAML has no tuples
        left["train_freq"] = tuple(left["train_freq"])
    return Recipe(
        n_timesteps=n_timesteps,
        n_envs=n_envs,
        policy=policy,
        env_kwargs=env_kwargs,
        wrappers=wrappers,
        normalize=normalize,
        noise=_noise(kind, std, where),
        arguments=left,
    )


def _normalize(value: Any, gamma: Any, where: Path) -> Mapping[str, Any] | None:
    """VecNormalize's arguments, with the learner's discount where it is among the hyper-parameters."""
    if not value:
        return None
    return {**vecnormalize_options(value, where), **({} if gamma is None else {"gamma": gamma})}


def _noise(kind: Any, std: Any, where: Path) -> tuple[str, float] | None:
    if kind is None:
        return None
    if kind not in NOISES:
        raise QuarlError(f"{where}: noise_type is {str(kind)[:60]!r}; use {' or '.join(NOISES)}")
    if isinstance(std, bool) or not isinstance(std, int | float) or not 0 <= std < math.inf:
        raise QuarlError(f"{where}: noise_std is {str(std)[:60]!r}, not a standard deviation")
    return kind, float(std)


def _schedule(value: Any, name: str, where: Path) -> Any:
    """lin_0.1 falls from 0.1 to 0 in the course of training; a number stays."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    match = re.fullmatch(r"lin_(\d*\.?\d+(?:e[+-]?\d+)?)", str(value)[:60])
    if match is None:
        raise QuarlError(f"{where}: {name} is {str(value)[:60]!r}; write a number or lin_NUMBER")
    # Stable-Baselines3's own class, so that a saved model loads wherever Stable-Baselines3 is
    return LinearSchedule(float(match[1]), 0.0, 1.0)


def _count(value: Any, name: str, where: Path) -> int:
    """A whole number, which YAML often spells 1e6."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or not 1 <= value < 2**53:
        raise QuarlError(f"{where}: {name} is {str(value)[:60]!r}, not a number from 1 on")
    return int(value)


def _dict(value: Any, name: str, where: Path, *, names: bool = False) -> dict[str, Any]:
    """The mapping, or the one that the text spells."""
    try:
        found = literals.read(value, names=names) if isinstance(value, str) else value
        if isinstance(found, Mapping) and all(isinstance(key, str) for key in found):
            return dict(found)
    except ValueError:
        pass
    raise QuarlError(f"{where}: {name} is {str(value)[:60]!r}; write dict(...) of plain values")


def _with_classes(value: Any, name: str, where: Path) -> Any:
    """The value with the classes that its names stand for."""
    if isinstance(value, dict):
        return {key: _with_classes(entry, f"{name}: {key}", where) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_with_classes(entry, name, where) for entry in value)
    if not isinstance(value, literals.Name):
        return value
    if value.text not in CLASSES:
        known = ", ".join(key for key in CLASSES if "." not in key)
        raise UnsupportedError(f"{where}: {name} is {value.text[:60]}, which is not supported; {known} are")
    module, _, found = CLASSES[value.text].rpartition(".")
    return getattr(importlib.import_module(module), found)
