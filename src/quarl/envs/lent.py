"""The environment that a Python caller describes or hands over, for as long as the call takes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import gymnasium
from gymnasium.wrappers import TimeLimit

from quarl.envs.options import EnvironmentOptions, P
from quarl.errors import QuarlError
from quarl.policy.graph import Policy

_LENT: ContextVar[gymnasium.Env[Any, Any] | None] = ContextVar("lent", default=None)
"""Each thread has its own."""


@contextlib.contextmanager
def at_home(
    policy: P,
    env_id: str | None,
    *,
    env: gymnasium.Env[Any, Any] | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[Any] | None = None,
    frame_stack: int | None = None,
    max_episode_steps: int | None = None,
) -> Iterator[P]:
    """Yield the policy with the environment as the keywords describe it; inside, every episode is played in `env`.

    Args:
        policy: the policy as it was read.
        env_id: id of the environment; None: the policy's own. Beside `env`, the name that results have for it.
        env: an environment to play in, one episode after the other; it stays open. None: new ones are made.
        env_kwargs: arguments of new environments.
        wrappers: wrappers of new environments, as `EnvironmentOptions.of` takes them.
        frame_stack: observations that new environments stack.
        max_episode_steps: time limit in steps.

    Raises:
        QuarlError: `env` is not an environment, or comes with options of new ones.
    """
    if env_id is not None and not isinstance(env_id, str):
        kind = type(env_id).__name__
        raise QuarlError(f"env_id is a {kind}: give a Gymnasium id, as in 'CartPole-v1', or the environment as env")
    options = EnvironmentOptions.of(env_kwargs, wrappers, frame_stack, max_episode_steps)
    if env is None:
        yield options.at_home(policy, env_id)
        return
    if not isinstance(env, gymnasium.Env):
        raise QuarlError(f"env is a {type(env).__name__}, not a gymnasium.Env; an id is given as env_id")
    if env_kwargs or wrappers or frame_stack:
        raise QuarlError("env is made already: drop env_kwargs, wrappers and frame_stack")
    token = _LENT.set(env if max_episode_steps is None else TimeLimit(env, max_episode_steps))
    try:
        yield options.at_home(policy, env_id)
    finally:
        _LENT.reset(token)


def lent() -> gymnasium.Env[Any, Any] | None:
    """Return the environment that the caller has handed over, if any."""
    return _LENT.get()


def has_environment(policy: Policy, env_id: str | None) -> bool:
    """Return whether there is an environment to play in: a typed id, the policy's own, or one handed over."""
    return bool(env_id or policy.provenance.env_id) or lent() is not None
