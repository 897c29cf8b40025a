"""Networks to time: the sizes that reinforcement learning uses, and observations recorded from real environments."""

from __future__ import annotations

import contextlib
import itertools
import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from quarl.arrays import Array
from quarl.envs.checked import held
from quarl.envs.environment import make
from quarl.envs.seeds import episode_seed
from quarl.errors import QuarlError
from quarl.policy.graph import ActionHead, Policy
from quarl.policy.operators import Activation, Conv2d, Flatten, Op, Scale, mlp

FRAMES: tuple[int, ...] = (4, 84, 84)


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A policy's sizes."""

    name: str
    observation_shape: tuple[int, ...]
    hidden: tuple[int, ...]
    """Widths of the dense layers; the Nature CNN has its three convolutions before them."""
    num_actions: int


def _mlp(observation: int, hidden: tuple[int, ...], num_actions: int) -> Network:
    name = "-".join(map(str, hidden))
    return Network(name=name, observation_shape=(observation,), hidden=hidden, num_actions=num_actions)


STANDARD = (
    _mlp(8, (64, 64), 4),
    _mlp(17, (256, 256), 6),
    _mlp(26, (400, 300), 6),
    _mlp(26, (4096, 512, 1024), 25),
    _mlp(17, (2048, 2048, 2048), 6),
    Network(name="nature-cnn", observation_shape=FRAMES, hidden=(512,), num_actions=6),
)
"""Observations and actions are those of LunarLander, HalfCheetah (MuJoCo and PyBullet) and a small Atari game."""
ENVIRONMENTS = {
    (8,): "LunarLander-v3",
    (17,): "HalfCheetah-v5",
    (26,): "HalfCheetahBulletEnv-v0",
    FRAMES: "CarRacing-v3",
}
"""Where observations of each shape are recorded."""
EVERYWHERE = "Acrobot-v1"
"""Needs no extra; its numbers are repeated to fill other shapes."""


def with_hidden(hidden: tuple[int, ...]) -> Network:
    """The standard network with these dense layers, or one with 17 observations and 6 actions."""
    standard = (network for network in STANDARD if network.hidden == hidden and network.observation_shape != FRAMES)
    return next(standard, _mlp(17, hidden, 6))


def build(network: Network, seed: int = 0) -> Policy:
    """The network with ReLUs and the weights that torch starts layers with: uniform in ±1 / sqrt(inputs).

    How long a call takes does not depend on the values.
    """
    rng = np.random.default_rng(seed)

    def uniform(*shape: int) -> tuple[Array, Array]:
        bound = 1 / math.sqrt(math.prod(shape[1:]))
        weight, bias = (rng.uniform(-bound, bound, size).astype(np.float32) for size in (shape, shape[:1]))
        return weight, bias

    ops: list[Op] = []
    source, shape = "observation", network.observation_shape
    is_image = len(shape) == 3
    if is_image:
        ops.append(Scale("scaled", (source,), np.array(1 / 255, np.float32)))
        source = "scaled"
        for index, (channels, kernel, stride) in enumerate(((32, 8, 4), (64, 4, 2), (64, 3, 1))):
            name = f"conv{index}"
            weight, bias = uniform(channels, shape[0], kernel, kernel)
            conv = Conv2d(name, (source,), weight, bias, (stride, stride))
            ops += [conv, Activation(f"{name}.relu", (name,), "relu")]
            source, shape = f"{name}.relu", conv.shape([shape])
        ops.append(Flatten("flat", (source,)))
        source, shape = "flat", (math.prod(shape),)
    widths = (*shape, *network.hidden, network.num_actions)
    layers = [(f"dense{i}", *uniform(n, k)) for i, (k, n) in enumerate(itertools.pairwise(widths))]
    return Policy(
        observation_shape=network.observation_shape,
        observation_dtype="uint8" if is_image else "float32",
        ops=(*ops, *mlp(layers, "relu", source)),
        head=ActionHead("argmax"),
    )


def record(network: Network, num: int = 256, seed: int = 0) -> tuple[Array, str]:
    """Observations [num, *shape] of random actions, and where they come from.

    The environment has observations of that shape; where there is none, or its extra is not installed, the numbers of
    one that is always there are repeated to fill the shape.
    """
    shape = network.observation_shape
    is_image = len(shape) == 3
    if env_id := ENVIRONMENTS.get(shape):
        with contextlib.suppress(QuarlError):  # its extra is not installed
            seen = _random_steps(env_id, num + (shape[0] - 1 if is_image else 0), seed)
            return (_stacked(seen, shape) if is_image else seen.astype(np.float32)), env_id
    seen = _random_steps(EVERYWHERE, num, seed)
    if is_image:
        seen = (255 * (seen - seen.min()) / np.ptp(seen)).astype(np.uint8)
    rows = np.stack([np.resize(observation, math.prod(shape)) for observation in seen])
    return rows.reshape(num, *shape), f"{EVERYWHERE}, repeated"


def _random_steps(env_id: str, num: int, seed: int) -> Array:
    """Observations [num, *shape] of consecutive steps, over as many episodes as it takes."""
    with held(partial(make, env_id)) as env:
        env.action_space.seed(seed)
        seen: list[Array] = []
        episode, done = 0, True
        while len(seen) < num:
            if done:
                observation, _ = env.reset(seed=episode_seed("latency", seed, episode))
                episode, done = episode + 1, False
            else:
                observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
                done = terminated or truncated
            seen.append(np.array(observation))
        return np.stack(seen)


def _stacked(frames: Array, shape: tuple[int, ...]) -> Array:
    """uint8 [N, 4, 84, 84] of color frames [N + 3, height, width, 3]: grey, the middle cut out, 4 at a time."""
    depth, height, width = shape
    top, left = (frames.shape[1] - height) // 2, (frames.shape[2] - width) // 2
    grey = frames[:, top : top + height, left : left + width].mean(axis=3).astype(np.uint8)
    windows = np.lib.stride_tricks.sliding_window_view(grey, depth, axis=0)
    return np.ascontiguousarray(windows.transpose(0, 3, 1, 2))
