"""Environments that break the rules: what raised, or what came that nobody can use, in one line that says what to do.

Stable-Baselines3 puts NaN into networks and observations of any shape into its buffers, and falls over something else
later.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import math
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from quarl.errors import RAISED, QuarlError, in_one_line

NEW_STEP = "observation, reward, terminated, truncated, info"
MEND = "mend it, or what it needs"
NOT_FINITE = "an observation that is NaN or infinite"


class BrokenEnvironmentError(QuarlError):
    """An environment raised, or gave what is no observation or reward of its spaces."""


class OddError(Exception):
    """What an environment gave, in words that follow its name."""


class MisfitError(OddError, ValueError):
    """It is not of the space."""


def broken(env: gymnasium.Env[Any, Any], error: BaseException, way: str = MEND) -> QuarlError:
    """Return the error to raise for what came out of the environment's reset() or step(); `way` is the fix."""
    if isinstance(error, QuarlError):
        return error
    name = name_of(env)
    # it is lost as it is: one more step can only tell more
    if isinstance(error, TypeError | ValueError | LookupError) and (old := _old_interface(env.unwrapped)):
        return BrokenEnvironmentError(f"{name}: {old}")
    if isinstance(error, OddError):
        return BrokenEnvironmentError(f"{name} gave {error}: mend its step() or reset()")
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(place.filename).name}, line {place.lineno}"
    return BrokenEnvironmentError(f"{name} raised {in_one_line(error)} ({where}): {way}")


def name_of(env: gymnasium.Env[Any, Any]) -> str:
    """The environment's id, or its class where it was not made by one."""
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__


def check_observation(given: Any, shape: tuple[int, ...], dtype: np.dtype[Any], *, last: bool = False) -> None:
    """Raises OddError unless it is an array, or lists, of that shape whose values the dtype holds.

    Numpy would repeat one number for all, and cut what does not fit.
    last: nothing acts on it; MuJoCo's tasks end where a state is no longer finite.
    """
    if type(given) is np.ndarray and given.shape == shape and given.dtype == dtype:  # in a microsecond
        numbers = given.reshape(-1)
        if last or dtype.kind != "f" or math.isfinite(numbers.dot(numbers)):
            return
    try:
        array = np.asarray(given)
    except ValueError:
        raise MisfitError("an observation of lists that are no array") from None
    if array.shape != shape or array.dtype.kind not in "fiub":
        raise MisfitError(f"an observation of {array.dtype} {array.shape} where its space says {dtype} {shape}")
    if array.dtype.kind == "f" and not last and not np.isfinite(array).all():
        raise OddError(NOT_FINITE)
    with np.errstate(invalid="ignore"):
        fits = dtype.kind == "f" or array.dtype == dtype or bool((array == array.astype(dtype)).all())
    if not fits:
        raise MisfitError(f"an observation of {array.dtype} with values that the {dtype} of its space cannot hold")


class Checked(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment for a learner: its faults are raised as `broken` has them, before anything is learnt from them."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._box = env.observation_space if isinstance(env.observation_space, gymnasium.spaces.Box) else None

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        try:
            observation, info = self.env.reset(**kwargs)
            self._check(observation)
        except RAISED as error:
            raise broken(self.env, error) from error
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        try:
            observation, reward, terminated, truncated, info = self.env.step(action)
            if not math.isfinite(reward):
                raise OddError("a reward that is NaN or infinite")
            self._check(observation)
        except RAISED as error:
            raise broken(self.env, error) from error
        return observation, reward, terminated, truncated, info

    def _check(self, observation: Any) -> None:
        if self._box is not None:
            check_observation(observation, self._box.shape, self._box.dtype)


@contextlib.contextmanager
def held(make: Callable[[], gymnasium.Env[Any, Any]]) -> Iterator[gymnasium.Env[Any, Any]]:
    """An environment that is made for what is inside, and closed; one that cannot be closed has done its work."""
    env = make()
    try:
        yield env
    finally:
        with contextlib.suppress(*RAISED):
            env.close()


class Recalled(gymnasium.Env[Any, Any]):
    """What is known of an environment that is closed again: its name, its spaces, and the first observation.

    For a learner that others play for: of some environments only one may live. One step has shown that it works.
    """

    def __init__(self, make: Callable[[], gymnasium.Env[Any, Any]], seed: int) -> None:
        with held(make) as env:
            self.observation_space, self.action_space = env.observation_space, env.action_space
            self.spec = EnvSpec(env.spec.id) if env.spec is not None else None
            checked = Checked(env)
            self._first = copy.deepcopy(checked.reset(seed=seed)[0])
            env.action_space.seed(seed)
            checked.step(env.action_space.sample())

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self._first, {}


def _old_interface(env: Any) -> str:
    """Where the environment speaks as Gym before 0.26 did; empty where it does not. It is reset and stepped."""
    with contextlib.suppress(*RAISED):
        parameters = inspect.signature(env.reset).parameters.values()
        if not any(each.name == "seed" or each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
            return "its reset() takes no seed, as in Gym before 0.26: write reset(self, *, seed=None, options=None)"
        begun = env.reset(seed=0)
        if not (isinstance(begun, tuple) and len(begun) == 2 and isinstance(begun[1], dict)):
            return "its reset() returns the observation alone, as in Gym before 0.26: return observation, {}"
        stepped = env.step(env.action_space.sample())
        if len(stepped) != 5:
            return f"its step() returns {len(stepped)} values, as in Gym before 0.26: return {NEW_STEP}"
        if np.ndim(stepped[1]):
            return f"its step() returns a reward of shape {np.shape(stepped[1])}: return a number, as float(reward) is"
    return ""
