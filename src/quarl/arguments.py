"""What callers in Python give: keywords, where a misspelt one gets its name, and observations as a policy's rows."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Any, ParamSpec, TypeVar

import numpy as np

from quarl.arrays import Array
from quarl.envs.environment import EnvironmentKeywords
from quarl.errors import QuarlError, did_you_mean
from quarl.policy.graph import Policy
from quarl.policy.inputs import flatten, has_channels_last
from quarl.specs import Spec, check_types

P = ParamSpec("P")
R = TypeVar("R")
CALLED = {
    "env_name": "env_id",
    **dict.fromkeys(("n_episodes", "n_eval_episodes"), "episodes"),
    **{"max_steps": "max_episode_steps", "wrapper": "wrappers", "bits": "precision", "deterministic": "stochastic"},
}
"""What other libraries, or other verbs, call keywords."""


def checks_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap `function` so that an unknown keyword raises `QuarlError` and suggests the closest name.

    Its signature lists the keywords of an environment one by one.
    """
    signature = inspect.signature(function)
    parameters = [each for each in signature.parameters.values() if each.kind != each.VAR_KEYWORD]
    if len(parameters) < len(signature.parameters):
        kinds = EnvironmentKeywords.__annotations__.items()
        parameters += [Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=kind) for name, kind in kinds]
    names = [each.name for each in parameters]
    keywords = names[1:]  # the first is the agent, or its path

    @functools.wraps(function)
    def checked(*args: P.args, **given: P.kwargs) -> R:
        for name in given:
            if name not in names:
                near = CALLED.get(name)
                meant = f"; did you mean {near!r}?" if near in keywords else did_you_mean(near or name, keywords)
                what = f"{function.__name__} has no keyword {name!r}{meant}"
                raise QuarlError(f"{what} (known: {', '.join(keywords)})")
        return function(*args, **given)

    checked.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return checked


def check(spec: Spec, keywords: Mapping[str, str]) -> None:
    """Raise QuarlError for what the command line refuses, in words of Python.

    Args:
        spec: The value to check.
        keywords: Names of keywords, by the option, if that has another name.
    """
    try:
        check_types(spec)
        spec.check()
    except QuarlError as error:
        option, _, rest = str(error).removeprefix("--").partition(" ")
        raise QuarlError(f"{keywords.get(option, option.replace('-', '_'))} {rest}") from None


def numbers(observation: Any) -> Array:
    """The observation as an array; QuarlError for what no environment's step gives."""
    if isinstance(observation, tuple) and len(observation) == 2 and isinstance(observation[1], dict):
        raise QuarlError("env.reset() gives (observation, info): act on the observation alone, as in predict(obs)")
    if hasattr(observation, "detach"):  # a torch tensor, wherever it lies
        observation = observation.detach().cpu()
    try:
        array = np.asarray(observation)
    except (ValueError, TypeError, RuntimeError) as error:
        raise QuarlError(
            f"the observation is no array of numbers ({str(error)[:80]}); its rows have one shape"
        ) from None
    if array.dtype.kind not in "fiub":
        raise QuarlError(f"the observation is a {type(observation).__name__} of {array.dtype}, not of real numbers")
    return array


def arranged(policy: Policy, observation: Any) -> tuple[Array, bool]:
    """Observations in the policy's order of axes, as Stable-Baselines3's own `predict` puts them, and whether one was
    given alone. Those of named inputs, or of discrete numbers, become rows; rows may be given, too."""
    named = policy.inputs and isinstance(observation, Mapping)
    x: Any = {key: numbers(part) for key, part in observation.items()} if named else numbers(observation)
    if policy.inputs and (named or x.shape[1:] != policy.observation_shape):
        return flatten(policy.inputs, x)
    x = np.moveaxis(x, -1, -3) if has_channels_last(x.shape[-3:], policy.observation_shape) else x
    return x, x.shape == policy.observation_shape


def policy_rows(policy: Policy, observation: Any) -> tuple[Array, bool]:
    """Observations [B, *shape] in the policy's dtype, and whether one was given alone; QuarlError for what is none."""
    x, single = arranged(policy, observation)
    if policy.observation_shape not in (x.shape, x.shape[1:]):
        raise QuarlError(f"observation is {x.shape}, the policy expects {policy.observation_shape}")
    if policy.observation_dtype == "uint8" and x.dtype != np.uint8:
        raise QuarlError(f"observation is {x.dtype}, the policy expects bytes 0..255 (uint8)")
    with np.errstate(over="ignore"):
        x = x.astype(policy.observation_dtype)
    if not np.isfinite(x).all():
        raise QuarlError("the observation holds NaN or infinity; act without the policy there")
    if x.size == 0:
        raise QuarlError("there is no observation among the 0 that were given; act for at least one")
    return x.reshape(-1, *policy.observation_shape), single
