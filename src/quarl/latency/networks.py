"""Networks to time, in the sizes that reinforcement learning uses, and observations of real environments."""

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
    """The sizes of a policy."""

    name: str
    observation_shape: tuple[int, ...]
    hidden: tuple[int, ...]
    """Widths of the dense layers; the three convolutions of the Nature CNN come before them."""
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
"""Networks with the observations and actions of LunarLander, HalfCheetah (MuJoCo, PyBullet) and a small Atari game."""
ENVIRONMENTS = {
    (8,): "LunarLander-v3",
    (17,): "HalfCheetah-v5",
    (26,): "HalfCheetahBulletEnv-v0",
    FRAMES: "CarRacing-v3",
}
"""Environments by the shape of their observations."""
EVERYWHERE = "Acrobot-v1"
"""An environment without extras; its numbers are repeated to fill other shapes."""


def with_hidden(hidden: tuple[int, ...]) -> Network:
    """Return the standard network with these dense layers, or one with 17 observations and 6 actions."""
    standard = (network for network in STANDARD if network.hidden == hidden and network.observation_shape != FRAMES)
    return next(standard, _mlp(17, hidden, 6))


def build(network: Network, seed: int = 0) -> Policy:
    """Return the network with ReLUs and torch's initial weights, uniform in ±1 / sqrt(inputs).

    The time of a call does not depend on the values.
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
    """Record observations of random actions.

    If no environment has observations of the network's shape, or its extra is missing, the numbers of Acrobot are
    repeated to fill the shape.

    Args:
        network: the network that will read the observations.
        num: number of observations.
        seed: seed of actions and resets.

    Returns:
        Observations [num, *shape], and the name of their source.
    """
    shape = network.observation_shape
    is_image = len(shape) == 3
    if env_id := ENVIRONMENTS.get(shape):
        with contextlib.suppress(QuarlError):  # the extra of the environment is missing
            seen = _random_steps(env_id, num + (shape[0] - 1 if is_image else 0), seed)
            return (_stacked(seen, shape) if is_image else seen.astype(np.float32)), env_id
    seen = _random_steps(EVERYWHERE, num, seed)
    if is_image:
        seen = (255 * (seen - seen.min()) / np.ptp(seen)).astype(np.uint8)
    rows = np.stack([np.resize(observation, math.prod(shape)) for observation in seen])
    return rows.reshape(num, *shape), f"{EVERYWHERE}, repeated"


def _random_steps(env_id: str, num: int, seed: int) -> Array:
    """Return observations [num, *shape] of consecutive steps, over as many episodes as necessary."""
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
    """Turn color frames [N + 3, height, width, 3] into gray stacks uint8 [N, 4, 84, 84] of their centers."""
    depth, height, width = shape
    top, left = (frames.shape[1] - height) // 2, (frames.shape[2] - width) // 2
    grey = frames[:, top : top + height, left : left + width].mean(axis=3).astype(np.uint8)
    windows = np.lib.stride_tricks.sliding_window_view(grey, depth, axis=0)
    return np.ascontiguousarray(windows.transpose(0, 3, 1, 2))
