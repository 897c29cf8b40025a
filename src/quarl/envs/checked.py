"""Checks of environments: exceptions and invalid values become one line with a fix.

Stable-Baselines3 would feed NaN to networks and store observations of any shape, and fail later for another reason.
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
MEND = "fix it, or its requirements"
NOT_FINITE = "an observation that is NaN or infinite"


class BrokenEnvironmentError(QuarlError):
    """An environment raised an exception, or returned an observation or reward outside its spaces."""


class OddError(Exception):
    """An invalid value from an environment, described in words that follow its name."""


class MisfitError(OddError, ValueError):
    """A value that does not belong to the space."""


def broken(env: gymnasium.Env[Any, Any], error: BaseException, way: str = MEND) -> QuarlError:
    """Return the error to raise for a failure of the environment's reset() or step().

    Args:
        env: The environment, which cannot be used afterwards.
        error: The exception.
        way: How to fix it.

    Returns:
        One line with the environment, the reason and the place in its code.
    """
    if isinstance(error, QuarlError):
        return error
    name = name_of(env)
    # the environment is lost anyway: one more step can only add information
    if isinstance(error, TypeError | ValueError | LookupError) and (old := _old_interface(env.unwrapped)):
        return BrokenEnvironmentError(f"{name}: {old}")
    if isinstance(error, OddError):
        return BrokenEnvironmentError(f"{name} gave {error}: fix its step() or reset()")
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(place.filename).name}, line {place.lineno}"
    return BrokenEnvironmentError(f"{name} raised {in_one_line(error)} ({where}): {way}")


def name_of(env: gymnasium.Env[Any, Any]) -> str:
    """Return the environment's id, or its class if it has none."""
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__


def check_observation(given: Any, shape: tuple[int, ...], dtype: np.dtype[Any], *, last: bool = False) -> None:
    """Raise OddError unless an observation is an array, or lists, of that shape with values that the dtype can hold.

    Numpy would broadcast one number to all, and truncate values that do not fit.

    Args:
        given: The observation.
        shape: Shape of the space.
        dtype: Dtype of the space.
        last: The policy does not act on it; MuJoCo's tasks end when a state is no longer finite.

    Raises:
        OddError: The observation is invalid.
    """
    if type(given) is np.ndarray and given.shape == shape and given.dtype == dtype:  # the common case, in a microsecond
        numbers = given.reshape(-1)
        if last or dtype.kind != "f" or math.isfinite(numbers.dot(numbers)):
            return
    try:
        array = np.asarray(given)
    except ValueError:
        raise MisfitError("an observation of lists of unequal length") from None
    if array.shape != shape or array.dtype.kind not in "fiub":
        raise MisfitError(f"an observation of {array.dtype} {array.shape} but its space has {dtype} {shape}")
    if array.dtype.kind == "f" and not last and not np.isfinite(array).all():
        raise OddError(NOT_FINITE)
    with np.errstate(invalid="ignore"):
        fits = dtype.kind == "f" or array.dtype == dtype or bool((array == array.astype(dtype)).all())
    if not fits:
        raise MisfitError(f"an observation of {array.dtype} with values that the {dtype} of its space cannot hold")


class Checked(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment for a learner that raises faults as described by `broken`, before the learner sees any value."""

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
    """Make an environment for the block, then close it; errors while closing are ignored."""
    env = make()
    try:
        yield env
    finally:
        with contextlib.suppress(*RAISED):
            env.close()


class Recalled(gymnasium.Env[Any, Any]):
    """The name, spaces and first observation of an environment that is closed again.

    It is for a learner whose episodes are played by other processes, because some environments allow only one instance.
    One step has shown that the environment works.
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
    """Return the place at which the environment follows Gym before 0.26, or an empty string.

    It is reset and stepped.
    """
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
