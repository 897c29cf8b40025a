"""One `make` for every suite, with wrappers honoured and no warning, checker or autoreset in between."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import gymnasium

from quarl.envs.names import find, missing_extra, resolve, suite_of
from quarl.envs.spaces import check_spaces
from quarl.envs.wrappers import ChannelsFirst, wrap
from quarl.errors import QuarlError
from quarl.policy.graph import Policy

__all__ = ["check_spaces", "make", "make_for", "resolve"]


def make(
    env_id: str,
    *,
    wrappers: Sequence[tuple[str, Mapping[str, Any]]] = (),
    env_kwargs: Mapping[str, Any] | None = None,
    trusted: bool = False,
) -> gymnasium.Env[Any, Any]:
    """The environment `resolve(env_id)` inside its time limit and `wrappers` (the outermost last).

    trusted: the user typed env_id, which may then name a module to import ("module:Name-v0").

    gymnasium's passive checker and order enforcer are left out: they cost half of a CartPole step and change no result.
    Raises QuarlError for an unknown id (nearest match offered), a missing extra (pip command), or arguments and
    wrappers that the environment refuses.
    """
    resolved = resolve(env_id, trusted=trusted)
    spec = copy.copy(find(resolved))
    spec.order_enforce = False
    spec.disable_env_checker = True
    # a window is the one thing that a file's arguments could open
    kwargs = {key: value for key, value in (env_kwargs or {}).items() if key != "render_mode"}
    suite = suite_of(spec)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            with suite.muted() if suite else nullcontext():
                env = gymnasium.make(spec, **kwargs)
                if suite and suite.prints_at_reset:
                    env.reset(seed=0)
        except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
            if suite is not None:
                raise missing_extra(resolved, suite) from None
            raise QuarlError(f"environment {resolved!r} needs a package: {_first_line(error)}") from None
        except Exception as error:  # any constructor, fed with a file's arguments
            given = f" with {kwargs}" if kwargs else f" ({type(error).__name__})"
            raise QuarlError(f"environment {resolved!r} cannot be made{given}: {_first_line(error)}") from error
        return wrap(env, wrappers)


def make_for(policy: Policy, env_id: str | None = None) -> gymnasium.Env[Any, Any]:
    """The environment that `policy` was trained on, with its wrappers, or `env_id`; spaces checked.

    Images are put in the policy's order of axes, as Stable-Baselines3 does it.
    """
    source = policy.provenance
    chosen = env_id or source.env_id
    if not chosen:
        raise QuarlError("the policy does not say which environment it was trained on; name one with --env")
    # arguments of another environment's constructor mean nothing here
    trusted = env_id is not None and chosen == env_id
    same = env_id is None or resolve(env_id, trusted=trusted) == _resolved(source.env_id)
    env = make(chosen, wrappers=source.wrappers, env_kwargs=source.env_kwargs if same else {}, trusted=trusted)
    shape = env.observation_space.shape or ()
    if len(shape) == 3 and shape != policy.observation_shape == (shape[2], *shape[:2]):
        env = ChannelsFirst(env)
    try:
        check_spaces(policy, env)
    except QuarlError:
        env.close()
        raise
    return env


def _resolved(env_id: str) -> str:
    try:
        return resolve(env_id)
    except QuarlError:
        return env_id


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
