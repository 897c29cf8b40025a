"""The robot of examples/go1: its observation, reward and fall."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import require
from quarl.envs import make


@pytest.mark.slow
def test_go1_stands_at_home_and_falls_when_its_legs_fold(monkeypatch):
    require.package("mujoco")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples" / "go1"))
    import go1_joystick  # registers the id

    with make("Go1Joystick-v0") as env:
        first, again = (env.reset(seed=3)[0] for _ in range(2))
        assert np.array_equal(first, again)
        assert np.allclose(first[6:9], [0, 0, -1], atol=0.01)  # gravity
        assert np.abs(first[9:21]).max() <= 0.1 + 1e-6  # joints start near their home
        command = first[45:] / go1_joystick.FASTEST
        assert (np.abs(command) <= 1).all()
        for _ in range(10):
            observation, reward, terminated, _, info = env.step(np.zeros(12, np.float32))
            assert 0 < reward < 1
        assert (terminated, info["is_success"], observation[33:45].any()) == (False, True, False)
        env.unwrapped.data.qpos[3:7] = [0, 1, 0, 0]  # on its back
        *_, terminated, _, info = env.step(np.ones(12, np.float32))
        assert (terminated, info["is_success"]) == (True, False)
