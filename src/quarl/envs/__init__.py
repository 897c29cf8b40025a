"""One `make` for every suite, with wrappers honoured and no warning, checker or autoreset in between."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import gymnasium

from quarl.envs.atari import Points, WholeGame, emulator_arguments
from quarl.envs.bound import LIMIT, LONGEST, REPEATS, Bounded, check_numbers, checked_limit
from quarl.envs.lent import lent
from quarl.envs.names import MODULE_ID, find, is_same, resolve
from quarl.envs.spaces import check_spaces
from quarl.envs.suites import ATARI, missing_extra, suite_of
from quarl.envs.wrappers import Kept, Wrappers, older, shown_to, wrap
from quarl.errors import RAISED, MissingEnvironmentError, QuarlError, first_line
from quarl.policy.graph import Policy

__all__ = ["check_spaces", "make", "make_for", "resolve"]
Inside = Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]]


def make(
    env_id: str,
    *,
    wrappers: Wrappers = (),
    env_kwargs: Mapping[str, Any] | None = None,
    max_episode_steps: int | None = None,
    render_mode: str | None = None,
    trusted: bool = False,
    inside: Sequence[Inside] = (),
) -> gymnasium.Env[Any, Any]:
    """The environment `resolve(env_id)` inside its time limit and `wrappers` (the outermost last).

    max_episode_steps: the time limit; None: what env_kwargs or else the registration says.
    render_mode: as gymnasium has it; None: nothing is drawn.
    trusted: the user typed env_id, which may then name a module to import ("module:Name-v0").
    inside: wrappers to put inside all others, where they see rewards and ends as the environment gives them.

    Atari games are wrapped as they are trained on; `make_for` gives whole games.
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
    drawing: dict[str, Any] = {} if render_mode is None else {"render_mode": render_mode}  # which not all take
    limit = kwargs.pop(LIMIT, None)
    limit = checked_limit(limit if max_episode_steps is None else max_episode_steps)
    if not MODULE_ID.fullmatch(resolved):  # what a user's own code takes is the user's affair
        check_numbers(kwargs, f"environment {resolved!r}", REPEATS)
    suite = suite_of(spec)
    if suite is ATARI:
        kwargs = emulator_arguments(spec, wrappers, kwargs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            with suite.muted() if suite else nullcontext():
                env = gymnasium.make(spec, max_episode_steps=limit, **drawing, **kwargs)
                if suite and suite.prints_at_reset:
                    env.reset(seed=0)
        except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
            if suite is not None:
                raise missing_extra(resolved, suite) from None
            raise MissingEnvironmentError(f"environment {resolved!r} needs a package: {first_line(error)}") from None
        except RAISED as error:  # any constructor, fed with a file's arguments
            given = f" with {kwargs}" if kwargs else f" ({type(error).__name__})"
            raise QuarlError(f"environment {resolved!r} cannot be made{given}: {first_line(error)}") from error
        for wrapper in inside:
            env = wrapper(env)
        return wrap(env, wrappers)


def make_for(
    policy: Policy, env_id: str | None = None, bound: int = LONGEST, render_mode: str | None = None
) -> gymnasium.Env[Any, Any]:
    """The environment that `policy` was trained on, with its wrappers, or `env_id`; spaces checked.

    bound: steps after which an episode is an error, counted inside wrappers, which can make many in one of theirs.
    An episode of an Atari game is a whole one, and its rewards are points. Images are put in the policy's order of
    axes, as Stable-Baselines3 does it, and MuJoCo's environments show what they showed where it was trained. An
    environment that a Python caller has handed over is played as it is.
    """
    source = policy.provenance
    if (env := lent()) is not None:
        env = shown_to(policy, Kept(env))
        check_spaces(policy, env)
        return env
    chosen = env_id or source.env_id
    if not chosen:
        raise QuarlError(
            "the policy does not say which environment it was trained on; name one with --env (env_id or env in Python)"
        )
    trusted = bool(env_id)
    options: dict[str, Any] = {"wrappers": source.wrappers, "trusted": trusted, "render_mode": render_mode}
    if env_id is None or is_same(env_id, source.env_id):  # else its constructor's arguments mean nothing
        options |= {"env_kwargs": source.env_kwargs, LIMIT: source.max_episode_steps}
    bounded = (partial(Bounded, bound=bound),) if source.wrappers else ()
    refusals = []
    for shown in ((), *older(resolve(chosen, trusted=trusted))):
        env = shown_to(policy, _make_whole(chosen, options, (*shown, *bounded)))
        try:
            check_spaces(policy, env)
            return env
        except QuarlError as error:
            env.close()
            refusals.append(error)
    raise refusals[0]


def _make_whole(env_id: str, options: Mapping[str, Any], inside: Sequence[Inside]) -> gymnasium.Env[Any, Any]:
    """The environment for evaluation: whole games, where training ends them with a life."""
    if suite_of(find(resolve(env_id, trusted=options["trusted"]))) is not ATARI:
        return make(env_id, **options, inside=inside)
    return WholeGame(make(env_id, **options, inside=(*inside, Points)))
