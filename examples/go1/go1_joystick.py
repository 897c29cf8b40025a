"""Unitree Go1 that follows a joystick: quarl ptq policy.onnx --env go1_joystick:Go1Joystick-v0 --mode static

MuJoCo Playground's task for its sim2sim script in C MuJoCo, as a Gymnasium environment: 50 Hz control, 250 Hz physics,
a new velocity command every 2.5 s, and a reward of at most 1 per step for following it. An episode ends with a fall.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np

SCENE = Path(__file__).with_name("scene_mjx_feetonly_flat_terrain.xml")
STEPS, COMMAND_STEPS = 500, 125
FASTEST = np.array([1.5, 0.8, 1.2])
"""Largest commands: m/s forward, m/s to the left, rad/s of yaw."""
SCALE, UPRIGHT = 0.5, 0.3
"""Radians of a joint per action, and the cosine of the body's tilt below which it has fallen."""


class Go1(gymnasium.Env[np.ndarray, np.ndarray]):
    """Joint targets from velocity, gyroscope, gravity, joints, the last action and the command."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (48,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (12,), np.float32)
    frame_skip = 5

    def __init__(self) -> None:
        self.model = mujoco.MjModel.from_xml_path(str(SCENE))
        self.data = mujoco.MjData(self.model)
        self.home = np.array(self.model.keyframe("home").qpos[7:])
        self.imu = self.model.site("imu").id

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        mujoco.mj_resetDataKeyframe(self.model, self.data, 0)
        self.data.qpos[7:] += self.np_random.uniform(-0.1, 0.1, 12)
        self.data.qvel[:] += self.np_random.uniform(-0.2, 0.2, 18)
        mujoco.mj_forward(self.model, self.data)
        self.steps, self.last = 0, np.zeros(12)
        self.command = self.np_random.uniform(-FASTEST, FASTEST)
        return self._observation(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.last = np.array(action, np.float64)
        self.data.ctrl[:] = self.last * SCALE + self.home
        mujoco.mj_step(self.model, self.data, self.frame_skip)
        velocity, gyroscope = self.data.sensor("local_linvel").data, self.data.sensor("gyro").data
        reward = 0.67 * np.exp(-np.sum((self.command[:2] - velocity[:2]) ** 2) / 0.25)
        reward += 0.33 * np.exp(-((self.command[2] - gyroscope[2]) ** 2) / 0.25)
        fallen = bool(self.data.site_xmat[self.imu][8] < UPRIGHT)
        self.steps += 1
        if self.steps % COMMAND_STEPS == 0:
            self.command = self.np_random.uniform(-FASTEST, FASTEST)
        return self._observation(), float(reward), fallen, False, {"is_success": not fallen}

    def _observation(self) -> np.ndarray:
        down = -self.data.site_xmat[self.imu].reshape(3, 3)[2]  # gravity in the frame of the body
        sensors = self.data.sensor("local_linvel").data, self.data.sensor("gyro").data
        joints = self.data.qpos[7:] - self.home, self.data.qvel[6:]
        return np.hstack([*sensors, down, *joints, self.last, self.command]).astype(np.float32)


gymnasium.register("Go1Joystick-v0", Go1, max_episode_steps=STEPS)
