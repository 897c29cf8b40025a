"""DM Control's suite as gymnasium environments with one flat float32 observation.

Ids, seeds, rewards and ends are those of shimmy's `DmControlCompatibilityV0`. This class works on the simulator
directly: it needs no dictionary space, no flattening wrapper, and no renderer unless something is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from dm_control import suite
from dm_control.rl.control import PhysicsError
from numpy.typing import NDArray

from quarl.errors import QuarlError

Array = NDArray[np.float32]


class SuiteEnv(gymnasium.Env[Array, NDArray[Any]]):
    """One task of the suite.

    An observation concatenates the task's named arrays in the alphabetical order of their names. Each is flattened in C
    order, a scalar is one number. `FlattenObservation` produces the same from shimmy's dictionary, and Acme's
    `batch_concat` fed the same to the agents of the 2020 code. (dm_control's own `flat_observation` keeps its tasks'
    order.)

    An episode lasts 1000 steps and is then truncated, with true bootstrapping: only the lqr tasks ever terminate.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012  # gymnasium declares it so

    def __init__(
        self,
        domain: str,
        task: str,
        *,
        task_kwargs: Mapping[str, Any] | None = None,
        environment_kwargs: Mapping[str, Any] | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Load the task; task_kwargs and environment_kwargs are arguments of `dm_control.suite.load`."""
        arguments = dict(task_kwargs or {})
        # lqr draws its springs when it is built: use the same ones in every process
        self._random = np.random.RandomState(arguments.pop("random", 0))
        arguments["random"] = self._random
        self._env: Any = suite.load(domain, task, arguments, dict(environment_kwargs or {}))
        self._random.seed()  # a first reset without a seed is random
        self.metadata = {**self.metadata, "render_fps": round(1 / self._env.control_timestep())}
        if render_mode is None:  # without it, quadruped-escape would open a window's context to show its terrain
            self._env.physics._make_rendering_contexts = lambda: None

        action = self._env.action_spec()
        bounds = (action.minimum, action.maximum)
        low, high = (np.broadcast_to(bound, action.shape).astype(np.float32) for bound in bounds)
        self.action_space = gymnasium.spaces.Box(low, high, dtype=np.float32)
        size = sum(int(np.prod(array.shape)) for array in self._env.observation_spec().values())
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._random.seed(seed)
        return self._flatten(self._env.reset().observation), {}

    def step(self, action: NDArray[Any]) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        try:
            timestep = self._env.step(action)
        except PhysicsError as error:  # caused by actions that the simulator cannot follow: lqr's reach 1e10
            name = self.spec.id if self.spec else type(self._env.task).__name__
            raise QuarlError(f"the simulation of {name} became unstable: {error}") from None
        if timestep.reward is None:  # dm_env begins a new episode itself if it is stepped past an end
            raise gymnasium.error.ResetNeeded("the episode has ended: reset the environment before the next step")
        ended = timestep.last()
        terminated = ended and timestep.discount == 0
        observation = self._flatten(timestep.observation)
        return observation, float(timestep.reward), terminated, ended and not terminated, {}

    def render(self) -> Any:
        return self._env.physics.render(height=480, width=480, camera_id=0)

    def close(self) -> None:
        self._env.close()

    def _flatten(self, observation: Mapping[str, NDArray[np.float64]]) -> Array:
        return np.concatenate([np.ravel(observation[name]) for name in sorted(observation)], dtype=np.float32)
