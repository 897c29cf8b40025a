"""The reseed test, on environments whose answer is known."""

from __future__ import annotations

from functools import partial

import pytest

import require
from quarl.envs import make
from quarl.envs.reseed import needs_fresh


@pytest.mark.parametrize(
    ("env_id", "package", "fresh"),
    [
        ("CartPole-v1", "gymnasium", False),
        ("Acrobot-v1", "gymnasium", False),
        ("LunarLander-v3", "Box2D", False),
        ("BipedalWalker-v3", "Box2D", True),
        ("Hopper-v5", "mujoco", False),
        ("HopperBulletEnv-v0", "pybullet_envs_gymnasium", False),
        ("dm_control/cheetah-run-v0", "dm_control", False),
        ("dm_control/point_mass-hard-v0", "dm_control", False),
    ],
)
def test_only_bipedal_walker_remembers_what_it_played_before(env_id: str, package: str, fresh: bool) -> None:
    require.module(package)
    assert needs_fresh(partial(make, env_id), f"test of {env_id}") is fresh
