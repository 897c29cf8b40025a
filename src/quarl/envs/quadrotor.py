"""A quadrotor in MuJoCo that flies to a goal and stays there: `quarl/Quadrotor-v0`.

Importing this module registers the environment; gymnasium finds it as "quarl.envs.quadrotor:quarl/Quadrotor-v0".
"""

from __future__ import annotations

from typing import Any

import gymnasium
import mujoco
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

STEP_S, FRAMES = 0.005, 4
"""Seconds of a simulator step, and number of them in one environment step (50 Hz)."""
LIMIT_S = 2.5
ARM, HEIGHT = 0.14, 0.03
"""Meters from the center to a rotor along either axis of the body, and above it."""
LAG_S = 0.04
"""Time constant of a rotor's thrust in seconds; it follows its command with a first-order lag."""
DRAG_M = 0.016
"""Torque of a rotor about its axis over its thrust, N m / N."""
AUTHORITY = 0.6
"""Largest relative change of a rotor's thrust from hovering, for an action of 1."""
NEAR_M, SLOW_M_S, STAY_S = 0.3, 0.5, 0.5
"""Distance in m and speed in m/s below which the goal counts as reached, and the time in s to stay there."""
FAR_M = 12.0
ROTORS = ((ARM, ARM, 1), (-ARM, ARM, -1), (-ARM, -ARM, 1), (ARM, -ARM, -1))
"""Position of each rotor in the body, in meters forward and to the left, and its sense of rotation."""


def _model() -> Any:
    """Return the airframe of 1 kg with its rotors above a floor, in air."""
    discs = "".join(
        f'<geom type="cylinder" size=".06 .005" pos="{x} {y} {HEIGHT}" mass=".025" rgba=".2 .5 .9 1"/>'
        f'<site name="rotor{i}" pos="{x} {y} {HEIGHT}"/>'
        for i, (x, y, _) in enumerate(ROTORS)
    )
    arms = "".join(
        f'<geom type="capsule" size=".012" fromto="{-ARM} {-y} 0 {ARM} {y} 0" mass=".05"/>' for y in (ARM, -ARM)
    )
    thrusts = "".join(
        f'<general site="rotor{i}" gear="0 0 1 0 0 {sense * DRAG_M}" ctrlrange="0 5.5" ctrllimited="true" '
        f'dyntype="filterexact" dynprm="{LAG_S}"/>'
        for i, (_, _, sense) in enumerate(ROTORS)
    )
    return mujoco.MjModel.from_xml_string(f"""<mujoco>
      <option timestep="{STEP_S}" integrator="implicitfast" density="1.225" viscosity="1.8e-5"/>
      <worldbody>
        <light pos="0 0 8" dir="0 .3 -1" directional="true"/>
        <camera name="side" pos="0 -11 5" xyaxes="1 0 0 0 .3 1"/>
        <geom type="plane" size="20 20 .1" rgba=".8 .8 .75 1"/>
        <body name="goal" mocap="true">
          <geom type="sphere" size="{NEAR_M}" rgba=".1 .7 .2 .4" contype="0" conaffinity="0" mass="0"/>
        </body>
        <body name="quadrotor" pos="0 0 2"><freejoint/>
          <geom type="box" size=".08 .08 .03" mass=".8" rgba=".3 .3 .3 1"/>{arms}{discs}
        </body>
      </worldbody>
      <actuator>{thrusts}</actuator>
    </mujoco>""")


class Quadrotor(gymnasium.Env[Array, NDArray[Any]]):
    """Fly to a goal and stay there, in wind that differs in every episode and is not observed.

    An observation has the goal in the body's axes (3 numbers, meters) and the body's rotation matrix by rows (9). Then
    come its velocity in its own axes (3, m/s) and its angular velocity (3, rad/s). An action commands the thrust of
    each rotor: 0 is a quarter of the weight, -1 and 1 are 60 % less and more. Rotors follow with a lag that is not
    observed.

    The reward is the approach in meters, minus costs of turning, tilting and moving rotors. An arrival gives 5 and ends
    the episode; a crash (a contact, upside down, or 12 m away) gives -5 and ends it too. `info["is_success"]` is True
    after an arrival.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 50}  # noqa: RUF012  # as gymnasium has it

    def __init__(self, *, wind: float = 1.0, render_mode: str | None = None) -> None:
        """Build the simulation; wind: standard deviation of either horizontal component in m/s."""
        self.wind, self.render_mode = wind, render_mode
        self._model = _model()
        self._data = mujoco.MjData(self._model)
        self._body = self._model.body("quadrotor").id
        self._hover = -self._model.opt.gravity[2] * self._model.body_subtreemass[self._body] / len(ROTORS)
        self._goal, self._distance, self._stayed = np.zeros(3), 0.0, 0
        self._renderer: Any = None
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (18,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1, 1, (len(ROTORS),), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        random, data = self.np_random, self._data
        mujoco.mj_resetData(self._model, data)
        yaw = random.uniform(-np.pi, np.pi)
        data.qpos[:3] = random.uniform((-1, -1, 1), (1, 1, 3))
        data.qpos[3:7] = np.cos(yaw / 2), 0, 0, np.sin(yaw / 2)
        data.qvel[:] = random.normal(0, 0.2, 6)
        data.act[:] = self._hover
        while True:  # start away from the goal
            self._goal = random.uniform((-4, -4, 1), (4, 4, 4))
            if self._away() > 1.5:
                break
        data.mocap_pos[0] = self._goal
        self._model.opt.wind[:2] = random.normal(0, self.wind, 2)
        mujoco.mj_forward(self._model, data)
        self._distance, self._stayed = self._away(), 0
        return self._observation(), {"is_success": False}

    def step(self, action: NDArray[Any]) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        data = self._data
        action = np.clip(action, -1, 1)
        data.ctrl[:] = self._hover * (1 + AUTHORITY * action)
        mujoco.mj_step(self._model, data, FRAMES)
        distance, up = self._away(), data.xmat[self._body][8]
        there = distance < NEAR_M and np.linalg.norm(data.qvel[:3]) < SLOW_M_S
        self._stayed = self._stayed + 1 if there else 0
        arrived = self._stayed * STEP_S * FRAMES >= STAY_S
        crashed = bool(data.ncon > 0 or up < 0 or distance > FAR_M)
        cost = 5e-4 * data.qvel[3:].dot(data.qvel[3:]) + 2e-3 * action.dot(action) + 0.01 * (1 - up)
        near = 0.03 * (distance < NEAR_M)
        reward = self._distance - distance + near - cost + 5 * (arrived and not crashed) - 5 * crashed
        self._distance = distance
        success = bool(arrived and not crashed)
        return self._observation(), float(reward), success or crashed, False, {"is_success": success}

    def render(self) -> Any:
        if self.render_mode is None:
            return None
        if self._renderer is None:
            self._renderer = mujoco.Renderer(self._model, 480, 480)
        self._renderer.update_scene(self._data, "side")
        return self._renderer.render()

    def close(self) -> None:
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    def _away(self) -> float:
        return float(np.linalg.norm(self._goal - self._data.qpos[:3]))

    def _observation(self) -> Array:
        data = self._data
        rotation = data.xmat[self._body].reshape(3, 3)
        goal, velocity = (self._goal - data.qpos[:3]) @ rotation, data.qvel[:3] @ rotation
        return np.concatenate([goal, rotation.ravel(), velocity, data.qvel[3:]], dtype=np.float32)


gymnasium.register(
    "quarl/Quadrotor-v0", "quarl.envs.quadrotor:Quadrotor", max_episode_steps=round(LIMIT_S / STEP_S / FRAMES)
)
