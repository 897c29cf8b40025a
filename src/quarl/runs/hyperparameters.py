"""Hyper-parameters as a config.yml spells them, interpreted: what a learner and its environments are made of.

Everything in them is data. Schedules and noise are made from numbers, and a class is one of those that stand here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quarl.algorithms.arguments import CODE, OURS, arguments, mapping, whole
from quarl.errors import QuarlError, UnsupportedError
from quarl.readers.zoo import vecnormalize_options, wrappers_of

POLICIES = ("MlpPolicy", "CnnPolicy")
NOISES = ("normal", "ornstein-uhlenbeck")
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
    env_kwargs = mapping(left.pop("env_kwargs", {}), "env_kwargs", where)
    n_timesteps = _count(left.pop("n_timesteps", 0), "n_timesteps", where)
    n_envs = _count(left.pop("n_envs", 1), "n_envs", where)
    if n_envs > MAX_ENVIRONMENTS:
        raise QuarlError(f"{where}: n_envs is {n_envs:,}, more than {MAX_ENVIRONMENTS:,}")
    return Recipe(
        n_timesteps=n_timesteps,
        n_envs=n_envs,
        policy=policy,
        env_kwargs=env_kwargs,
        wrappers=wrappers,
        normalize=normalize,
        noise=_noise(kind, std, where),
        arguments=arguments(left, where),
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


def _count(value: Any, name: str, where: Path) -> int:
    if not whole(value, 1) or value >= 2**53:
        raise QuarlError(f"{where}: {name} is {str(value)[:60]!r}, not a whole number from 1 on")
    return int(value)
