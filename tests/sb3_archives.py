"""A small saved SB3 agent, and the means to change any part of it with every checksum right."""

from __future__ import annotations

import base64
import io
import json
import pickle
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from quarl.policy.graph import Policy

Change = Callable[[dict[str, bytes]], None]


class Still(gymnasium.Env[np.ndarray, Any]):
    def __init__(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), 0.0, False, False, {}


def zipped(members: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """Return a zip archive of these members, the same bytes at any time."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, data in members.items():
            file.writestr(zipfile.ZipInfo(name), data, compression)
    return buffer.getvalue()


def unzipped(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        return {name: file.read(name) for name in file.namelist()}


def write_run(folder: Path) -> Path:
    """The folder of one zoo run: PPO on a Box, ReLU, normalised observations."""
    run = folder / "Still-v0_1"
    (run / "Still-v0").mkdir(parents=True)
    box = spaces.Box(np.float32([-1, -2]), np.float32([3, 4]))
    env = VecNormalize(DummyVecEnv([lambda: Still(spaces.Box(-1, 1, (3,)), box)]))
    env.reset()
    model = PPO("MlpPolicy", env, policy_kwargs={"net_arch": [4], "activation_fn": torch.nn.ReLU}, device="cpu")
    model.save(run / "Still-v0.zip")
    env.save(str(run / "Still-v0/vecnormalize.pkl"))
    (run / "Still-v0/config.yml").write_text("normalize: true\n")
    return run


def data_with(**entries: Any) -> Change:
    """Sets entries of the member `data`; None removes one."""

    def change(members: dict[str, bytes]) -> None:
        data = json.loads(members["data"]) | entries
        members["data"] = json.dumps({k: v for k, v in data.items() if v is not None}).encode()

    return change


def kwargs_with(**entries: Any) -> Change:
    def change(members: dict[str, bytes]) -> None:
        data_with(policy_kwargs=json.loads(members["data"])["policy_kwargs"] | entries)(members)

    return change


def tensors_with(change: Callable[[dict[str, Any]], Any]) -> Change:
    def apply(members: dict[str, bytes]) -> None:
        state = torch.load(io.BytesIO(members["policy.pth"]), weights_only=True)
        change(state)
        members["policy.pth"] = saved(state)

    return apply


def space(value: spaces.Space[Any]) -> dict[str, str]:
    return blob(pickle.dumps(value))


def blob(data: bytes) -> dict[str, str]:
    return {":type:": "<class 'space'>", ":serialized:": base64.b64encode(data).decode()}


def saved(value: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    return buffer.getvalue()


def edit(run: Path, change: Change) -> None:
    """Rewrites the run's zip with the members that `change` leaves."""
    path = run / "Still-v0.zip"
    members = unzipped(path.read_bytes())
    change(members)
    path.write_bytes(zipped(members))


def assert_same(first: Policy, second: Policy) -> None:
    """The policies have the same operators, arrays and heads, bit for bit."""
    assert [(type(op), op.name, op.inputs) for op in first.ops] == [(type(op), op.name, op.inputs) for op in second.ops]
    for a, b in [*zip(first.ops, second.ops, strict=True), (first.head, second.head)]:
        for field in type(a).__dataclass_fields__:
            np.testing.assert_array_equal(getattr(a, field), getattr(b, field))
    assert first.observation_shape == second.observation_shape
    assert first.observation_dtype == second.observation_dtype
