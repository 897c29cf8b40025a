"""Disturbances of an environment: noise, delay, control rate, pushes and changed dynamics, the same at every precision.

Each episode draws its disturbance from a generator of its own, which its reset seeds. So episode k meets the same one
in every process and at every precision.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any

import gymnasium
import numpy as np

from quarl.arrays import Array
from quarl.envs.checked import name_of
from quarl.envs.environment import Environment
from quarl.errors import QuarlError, did_you_mean
from quarl.evaluation import record
from quarl.policy.graph import Policy

NOISE, DELAY, CONTROL_HZ, PUSH = "noise", "delay", "control-hz", "push"
UNDISTURBED: Mapping[str, float] = {NOISE: 0.0, DELAY: 0.0, PUSH: 0.0, CONTROL_HZ: math.nan}
"""Disturbances that are not parameters of the dynamics, with their levels in an undisturbed episode; NaN means that of
the environment."""
SALT = 0x5EED
"""Part of the seed of a disturbance, which keeps its generator apart from the environment's."""
PUSH_STEPS = 100
"""Mean number of control steps between two pushes."""
TOLERANCE = 0.01
"""Largest relative difference of a control rate to that of a whole number of physics steps."""
MUJOCO: Mapping[str, tuple[str, ...]] = {
    "mass": ("body_mass", "body_inertia"),
    "friction": ("geom_friction",),
    "damping": ("dof_damping",),
    "gravity": ("opt.gravity",),
}
"""Arrays of MuJoCo's model by parameter."""

Env = gymnasium.Env[Any, Any]


class Disturbance(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that disturbs episodes, each from a generator that its reset seeds.

    An action takes effect some control steps late; the first one holds until the second does. A push is a kick of all
    velocities before a step, on average every PUSH_STEPS steps.
    """

    def __init__(
        self, env: Env, levels: Mapping[str, float], scales: Mapping[str, Array], path: list[Array] | None = None
    ) -> None:
        """Prepare the disturbances.

        Args:
            env: The environment, whose control rate and dynamics are changed.
            levels: Levels by the names of the disturbances.
            scales: Standard deviations on the path: of each input for noise, of each velocity for pushes.
            path: Receives the velocities of every step, instead of pushes.

        Raises:
            QuarlError: The environment cannot be disturbed in this way.
        """
        super().__init__(env)
        self._base: Any = env.unwrapped
        self._dtype = env.observation_space.dtype
        if NOISE in levels and (self._dtype is None or self._dtype.kind != "f"):
            raise QuarlError(f"{NOISE} requires observations of float numbers, and {name_of(env)} gives {self._dtype}")
        if CONTROL_HZ in levels and not is_mujoco(self._base):
            raise QuarlError(f"{CONTROL_HZ} requires MuJoCo with a frame_skip, and {name_of(env)} has none")
        if PUSH in levels and not (is_mujoco(self._base) or hasattr(self._base, "robot")):
            raise QuarlError(f"{PUSH} requires MuJoCo with a frame_skip, or PyBullet, and {name_of(env)} has neither")
        self._noise, self._push = (
            levels[name] * scales.get(name, np.ones(1)) if name in levels else None for name in (NOISE, PUSH)
        )
        self._delay, self._path, self._queue = int(levels.get(DELAY, 0)), path, deque[Any]()
        self.usual = dict(UNDISTURBED)
        for name, level in levels.items():
            if name == CONTROL_HZ:
                self.usual[name] = set_control_hz(self._base, level)
            elif name not in UNDISTURBED:
                scale_parameter(self._base, name, level)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._rng = np.random.default_rng(None if seed is None else (SALT, seed))
        self._queue.clear()
        observation, info = self.env.reset(seed=seed, options=options)
        return self._observed(observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if self._path is not None:
            self._path.append(velocities(self._base))
        elif self._push is not None and self._rng.random() < 1 / PUSH_STEPS:
            kick(self._base, self._push * self._rng.standard_normal(self._push.shape))
        self._queue.extend(copy.copy(action) for _ in range(1 if self._queue else self._delay + 1))
        observation, *rest = self.env.step(self._queue.popleft())
        return self._observed(observation), *rest

    def _observed(self, observation: Any) -> Any:
        if self._noise is None:
            return observation
        return (observation + self._noise * self._rng.standard_normal(self._noise.shape)).astype(self._dtype)


def is_mujoco(base: Any) -> bool:
    """Return True for an environment with a model and data of MuJoCo, and a number of its steps per control step."""
    return all(hasattr(base, name) for name in ("model", "data", "frame_skip"))


def velocities(base: Any) -> Array:
    """Return all velocities of MuJoCo, or those of the joints that PyBullet's robot moves."""
    if is_mujoco(base):
        return np.array(base.data.qvel)
    return np.array([joint.get_velocity() for joint in base.robot.ordered_joints])


def kick(base: Any, change: Array) -> None:
    """Add `change` to the velocities, as `velocities` lists them."""
    if is_mujoco(base):
        base.data.qvel[:] += change
        return
    for joint, more in zip(base.robot.ordered_joints, change, strict=True):
        position, velocity = joint.get_state()
        joint.set_state(position, velocity + more)


def velocity_deviations(policy: Policy, environment: Environment, seed: int) -> Array:
    """Return the standard deviation of each velocity, as `velocities` lists them, in the policy's own episodes.

    Args:
        policy: The policy.
        environment: The undisturbed environment.
        seed: Seed of the episodes.
    """
    path: list[Array] = []
    watched = partial(Disturbance, levels={PUSH: 1.0}, scales={}, path=path)
    record(policy, seed=seed, environment=replace(environment, outside=watched))
    return np.asarray(np.std(path, axis=0))


def set_control_hz(base: Any, hz: float) -> float:
    """Set the number of physics steps in a control step, and return the rate before.

    Args:
        base: An environment of MuJoCo, without wrappers.
        hz: Control steps per second of simulation.

    Raises:
        QuarlError: It is not the rate of a whole number of physics steps.
    """
    timestep, before = base.model.opt.timestep, base.frame_skip
    base.frame_skip = max(round(1 / (hz * timestep)), 1)
    near = 1 / (base.frame_skip * timestep)
    if abs(near - hz) > TOLERANCE * hz:
        raise QuarlError(
            f"{CONTROL_HZ} {hz:g} is not a whole number of physics steps of {timestep:g} s between two actions: the "
            f"nearest rate is {near:.5g}"
        )
    return float(1 / (timestep * before))


def scale_parameter(base: Any, name: str, factor: float) -> None:
    """Multiply a parameter of the environment's dynamics.

    Args:
        base: The environment, without wrappers.
        name: One of MUJOCO, or a float constant of another environment.
        factor: Factor of its value.

    Raises:
        QuarlError: The environment lacks the parameter; the message lists those that it has.
    """
    known = MUJOCO if is_mujoco(base) else _constants(base)
    if name not in known:
        raise QuarlError(
            f"{name_of(base)} has no parameter {name[:60]!r}{did_you_mean(name, [*known])}; it has "
            f"{', '.join(known) or 'none'}, beside {', '.join(UNDISTURBED)}"
        )
    if is_mujoco(base):
        import mujoco  # here: only its environments need it

        for path in MUJOCO[name]:
            attrgetter(path)(base.model)[:] *= factor
        mujoco.mj_setConst(base.model, base.data)
    else:
        setattr(base, name, getattr(base, name) * factor)
        if hasattr(base, "polemass_length"):  # CartPole computes these once
            base.total_mass, base.polemass_length = base.masspole + base.masscart, base.masspole * base.length


def _constants(base: Any) -> list[str]:
    """Return the names of the float constants of an environment, its own or those of its classes."""
    named = dict(pair for kind in reversed(type(base).__mro__) for pair in vars(kind).items()) | vars(base)
    floats = (name for name, value in named.items() if isinstance(value, float) and value)
    derived = ("total_mass", "polemass_length")  # of CartPole, whose other constants determine them
    return [name for name in floats if not name.startswith("_") and name not in derived]
