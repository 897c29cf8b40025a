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
from quarl.calibration import quantize
from quarl.envs.environment import EnvironmentKeywords
from quarl.errors import QuarlError, did_you_mean
from quarl.evaluation import carry
from quarl.policy.graph import Policy, QuantizedPolicy
from quarl.policy.inputs import flatten, has_channels_last
from quarl.quant.spec import EXACT
from quarl.specs import Spec, check_types

P = ParamSpec("P")
R = TypeVar("R")
CALLED = {
    "env_name": "env_id",
    **dict.fromkeys(("n_episodes", "n_eval_episodes"), "episodes"),
    **{"max_steps": "max_episode_steps", "wrapper": "wrappers", "bits": "precision", "deterministic": "stochastic"},
}
"""Keywords by the names that other libraries, or other verbs of QuaRL, use for them."""
STARTS = "episode_start"
"""Name of the array, bool [N], that is True for recorded observations at the start of an episode."""


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


def numbers(given: Any, what: str = "observation") -> Array:
    """Return an observation as an array; raise QuarlError for a value that no environment's step returns.

    Args:
        given: The observation.
        what: Name of another array in messages.
    """
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], dict):
        raise QuarlError("env.reset() returns (observation, info): act on the observation alone, as in predict(obs)")
    if hasattr(given, "detach"):  # a torch tensor on any device
        given = given.detach().cpu()
    try:
        array = np.asarray(given)
    except (ValueError, TypeError, RuntimeError) as error:
        raise QuarlError(
            f"the {what} is not an array of numbers ({str(error)[:80]}); its rows must have the same shape"
        ) from None
    if array.dtype.kind not in "fiub":
        raise QuarlError(f"the {what} is a {type(given).__name__} of {array.dtype}, not of real numbers")
    return array


def arranged(policy: Policy, observation: Any) -> tuple[Array, bool]:
    """Return observations in the policy's order of axes, and True if there is a single one without a batch axis.

    Images may have their channels last, as for Stable-Baselines3's own `predict`. Observations with named inputs, or of
    discrete numbers, become rows; rows are accepted, too.
    """
    named = policy.inputs and isinstance(observation, Mapping)
    x: Any = {key: numbers(part) for key, part in observation.items()} if named else numbers(observation)
    if policy.inputs and (named or x.shape[1:] != policy.seen):
        return flatten(policy.inputs, x)
    x = np.moveaxis(x, -1, -3) if has_channels_last(x.shape[-3:], policy.seen) else x
    return x, x.shape == policy.seen


def policy_rows(policy: Policy, observation: Any) -> tuple[Array, bool]:
    """Return observations [B, *seen] in the policy's dtype, and True if there is a single one without a batch axis.

    Raises QuarlError for another shape or type, for NaN or infinity, and for an empty batch.
    """
    x, single = arranged(policy, observation)
    return _rows(policy, x, policy.seen), single


def _rows(policy: Policy, x: Array, shape: tuple[int, ...]) -> Array:
    """Return the array as rows [B, *shape] in the policy's dtype, once it is checked."""
    if shape not in (x.shape, x.shape[1:]):
        axes = "; pass a single step, without a time axis" if policy.state.size and x.ndim > 2 else ""
        raise QuarlError(f"observation is {x.shape}, the policy expects {shape}{axes}")
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
    return x.reshape(-1, *shape)


def with_state(policy: Policy, rows: Array, state: Any, starts: Any, *, single: bool = False) -> Array:
    """Return the rows that a policy with a memory reads: observations, each followed by its state.

    Args:
        policy: The policy.
        rows: Observations [B, K].
        state: States [B, S]; [S] for a single observation. None means the start of an episode.
        starts: True for rows at the start of an episode, bool [B]; None means none.
        single: There is a single observation without a batch axis.

    Raises:
        QuarlError: A state or `starts` has another shape, or a state is NaN or infinity.
    """
    states = np.tile(policy.state, (len(rows), 1))
    if state is not None:
        carried, shape = numbers(state, "state"), states.shape[single:]
        if carried.shape != shape or not (np.abs(carried) < 3e38).all():  # float32's
            raise QuarlError(f"state is {carried.shape}, the policy expects {shape} finite numbers of predict")
        at_start = np.zeros(len(rows), bool) if starts is None else _flags(starts, len(rows))
        states = np.where(at_start[:, None], states, carried)
    return np.concatenate([rows, states], axis=1, dtype=np.float32, casting="same_kind")


def _flags(given: Any, count: int) -> Array:
    """Return an array of booleans [count]; a single one may be without an axis."""
    flags = numbers(given, STARTS)
    if flags.size != count or flags.ndim > 1 or not np.isin(flags, (0, 1)).all():
        raise QuarlError(f"{STARTS} is {flags.dtype} {flags.shape}: pass a boolean for each of {count:,} observations")
    return flags.astype(bool).reshape(-1)


def recorded_rows(policy: Policy, observations: Any) -> Array:
    """Return recorded observations as the policy reads them, [N, *shape] in its dtype.

    A policy with a memory reads the states that it had in these episodes, so it acts on them again, in order.

    Args:
        policy: The policy.
        observations: Observations [N, ...] as the environment returns them. A policy with a memory also needs STARTS:
            both are in a dictionary, in the order of time. Complete rows [N, K + S] are accepted, too.

    Raises:
        QuarlError: The observations do not fit, or STARTS is missing.
    """
    if not policy.state.size:
        return policy_rows(policy, observations)[0]
    if not isinstance(observations, Mapping) or STARTS not in observations:
        x = None if isinstance(observations, Mapping) else numbers(observations)
        if x is None or x.shape[1:] != policy.observation_shape:
            raise QuarlError(
                f"recorded observations of a policy with a memory need {STARTS}, bool [N]: save both in an .npz file"
            )
        return _rows(policy, x, policy.observation_shape)
    parts = dict(observations)
    starts = parts.pop(STARTS)
    named = policy.inputs and policy.inputs[0].key
    if not named and len(parts) != 1:
        raise QuarlError(f"recorded observations are {len(parts)} arrays beside {STARTS}: save only one")
    x = policy_rows(policy, parts if named else next(iter(parts.values())))[0]
    starts = _flags(starts, len(x))
    if not starts[0]:
        raise QuarlError(f"{STARTS} begins with False, so the first state is unknown: leave out steps before a start")
    rows = with_state(policy, x, None, None)
    rows[~starts, x.shape[1] :] = np.nan  # not the initial state
    return carry(policy if isinstance(policy, QuantizedPolicy) else quantize(policy, EXACT), rows)
