"""Checks of arguments from Python: unknown keywords get a suggestion, and observations become a policy's rows."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from functools import partial
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
"""Keywords by the names that other libraries, or other verbs of QuaRL, use for them."""


def checks_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap `function` so that an unknown keyword raises `QuarlError` and suggests the closest name.

    Its signature lists the keywords of an environment one by one.
    """
    signature = inspect.signature(function)
    parameters = [each for each in signature.parameters.values() if each.kind != each.VAR_KEYWORD]
    if len(parameters) < len(signature.parameters):
        kinds = {name: kind.__forward_arg__ for name, kind in EnvironmentKeywords.__annotations__.items()}
        optional = partial(Parameter, kind=Parameter.KEYWORD_ONLY, default=None)
        parameters += [optional(name, annotation=kind) for name, kind in kinds.items()]
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
    """Raise the QuarlError of the command line for an invalid option, with the keyword's name in Python.

    Args:
        spec: The value to check.
        keywords: Names of keywords by option, if the two differ.
    """
    try:
        check_types(spec)
        spec.check()
    except QuarlError as error:
        option, _, rest = str(error).removeprefix("--").partition(" ")
        raise QuarlError(f"{keywords.get(option, option.replace('-', '_'))} {rest}") from None


def numbers(observation: Any) -> Array:
    """Return the observation as an array; raise QuarlError for a value that no environment's step returns."""
    if isinstance(observation, tuple) and len(observation) == 2 and isinstance(observation[1], dict):
        raise QuarlError("env.reset() returns (observation, info): act on the observation alone, as in predict(obs)")
    if hasattr(observation, "detach"):  # a torch tensor on any device
        observation = observation.detach().cpu()
    try:
        array = np.asarray(observation)
    except (ValueError, TypeError, RuntimeError) as error:
        raise QuarlError(
            f"the observation is not an array of numbers ({str(error)[:80]}); its rows must have the same shape"
        ) from None
    if array.dtype.kind not in "fiub":
        raise QuarlError(f"the observation is a {type(observation).__name__} of {array.dtype}, not of real numbers")
    return array


def arranged(policy: Policy, observation: Any) -> tuple[Array, bool]:
    """Return observations in the policy's order of axes, and True if there is a single one without a batch axis.

    Images may have their channels last, as for Stable-Baselines3's own `predict`. Observations with named inputs, or of
    discrete numbers, become rows; rows are accepted, too.
    """
    named = policy.inputs and isinstance(observation, Mapping)
    x: Any = {key: numbers(part) for key, part in observation.items()} if named else numbers(observation)
    if policy.inputs and (named or x.shape[1:] != policy.observation_shape):
        return flatten(policy.inputs, x)
    x = np.moveaxis(x, -1, -3) if has_channels_last(x.shape[-3:], policy.observation_shape) else x
    return x, x.shape == policy.observation_shape


def policy_rows(policy: Policy, observation: Any) -> tuple[Array, bool]:
    """Return observations [B, *shape] in the policy's dtype, and True if there is a single one without a batch axis.

    Raises QuarlError for another shape or type, for NaN or infinity, and for an empty batch.
    """
    x, single = arranged(policy, observation)
    if policy.observation_shape not in (x.shape, x.shape[1:]):
        raise QuarlError(f"observation is {x.shape}, the policy expects {policy.observation_shape}")
    if policy.observation_dtype == "uint8" and x.dtype != np.uint8:
        raise QuarlError(f"observation is {x.dtype}, the policy expects bytes 0..255 (uint8)")
    with np.errstate(over="ignore"):
        x = x.astype(policy.observation_dtype)
    if not np.isfinite(x).all():
        raise QuarlError(
            "the observation contains NaN or infinity, for which quantized kernels have no code; act without the policy"
        )
    if x.size == 0:
        raise QuarlError("the batch of observations is empty; pass at least one")
    return x.reshape(-1, *policy.observation_shape), single
