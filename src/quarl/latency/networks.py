"""Networks to time, in the sizes that reinforcement learning uses, and observations of their shapes."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from quarl.arrays import Array
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


def observations(policy: Policy, num: int = 256, seed: int = 0) -> Array:
    """Return random observations [num, *shape] of the policy's type.

    The time of a call does not depend on the values.
    """
    rng, size = np.random.default_rng(seed), (num, *policy.observation_shape)
    if policy.observation_dtype == "uint8":
        return rng.integers(256, size=size, dtype=np.uint8)
    return rng.standard_normal(size, np.float32)
