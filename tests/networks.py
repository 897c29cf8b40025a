"""Small networks that several tests share."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np

from quarl.policy import artifact
from quarl.policy.graph import ActionHead, Policy, Provenance, shapes
from quarl.policy.inputs import Input
from quarl.policy.operators import (
    Activation,
    Add,
    Concat,
    Conv2d,
    Dense,
    Flatten,
    L2Norm,
    LayerNorm,
    Normalize,
    Op,
    Pool2d,
    Scale,
    Slice,
    Softmax,
    mlp,
)
from quarl.policy.recurrent import HIDDEN, SEEN, State, Weights, gru, lstm, remembering


def layers(rng: np.random.Generator, widths: list[int], prefix: str = "net"):
    """Random (name, weight, bias) of a dense network, scaled so that values stay near one."""
    return [
        (f"{prefix}.{i}", (rng.normal(size=(b, a)) / np.sqrt(a)).astype(np.float32), rng.normal(size=b) * 0.1)
        for i, (a, b) in enumerate(pairwise(widths))
    ]


def dense(widths: list[int], activation: str = "relu", seed: int = 0, head: str = "argmax") -> Policy:
    """A dense policy with the given widths, observation first."""
    ops = mlp(layers(np.random.default_rng(seed), widths), activation)
    return Policy(observation_shape=(widths[0],), ops=tuple(ops), head=action_head(head, widths[-1]))


def cartpole(hidden: int = 16) -> Policy:
    """A dense policy that says it is a DQN of CartPole-v1."""
    provenance = Provenance(algo="dqn", env_id="CartPole-v1", origin="module")
    return replace(dense([4, hidden, 2]), provenance=provenance)


def normalized(widths: list[int], activation: str = "tanh", seed: int = 0) -> Policy:
    """A dense policy behind observation statistics, with continuous actions."""
    rng = np.random.default_rng(seed)
    norm = Normalize("norm", ("observation",), rng.normal(size=widths[0]), rng.uniform(0.5, 2, widths[0]), 1e-8, 10.0)
    ops = [norm, *mlp(layers(rng, widths), activation, "norm")]
    return Policy(observation_shape=(widths[0],), ops=tuple(ops), head=action_head("clip", widths[-1]))


def recurrent_weights(layer: str, inputs: int = 5, size: int = 12, seed: int = 0) -> Weights:
    """Random weights of a recurrent layer, in torch's order and of its sizes."""
    rng, gates = np.random.default_rng(seed), 4 if layer == "lstm" else 3
    shapes = (gates * size, inputs), (gates * size, size), (gates * size,), (gates * size,)
    return Weights(*(rng.normal(size=shape).astype(np.float32) / np.float32(size**0.5) for shape in shapes))


def recurrent(
    layer: str, inputs: int = 5, size: int = 12, outputs: int = 3, seed: int = 0, first: bool = False
) -> Policy:
    """A policy with an LSTM, or a GRU ("gru-after" resets before its product), and continuous actions.

    first: a dense layer with ReLU reads the observation.
    """
    ops: list[Op] = []

    def add(op: Op) -> str:
        ops.append(op)
        return op.name

    x = SEEN
    if first:
        ((_, weight, bias),) = layers(np.random.default_rng(seed), [inputs, size])
        x = add(Activation("first.relu", (add(Dense("first", (x,), weight, bias.astype(np.float32))),), "relu"))
    weights = recurrent_weights(layer, size if first else inputs, size, seed)
    zeros = np.zeros(size, np.float32)
    if layer == "lstm":
        hidden, cell = lstm(add, "memory", x, ("h", "c"), weights)
        states = [State("h", hidden, zeros, HIDDEN), State("c", cell, zeros)]
    else:
        hidden = gru(add, "memory", x, "h", weights, before=layer == "gru")
        states = [State("h", hidden, zeros, HIDDEN)]
    ((_, weight, bias),) = layers(np.random.default_rng(seed), [size, outputs])
    head = replace(action_head("clip", outputs), width=outputs)
    output = add(Dense("head", (hidden,), weight, bias.astype(np.float32)))
    return Policy(**remembering(inputs, states, ops, output), head=head)


def convolutional(seed: int = 0, padding: int = 0, size: int = 20) -> Policy:
    """Two convolutions and two dense layers over uint8 images [3, size, size]."""
    rng = np.random.default_rng(seed)
    first = rng.normal(size=(6, 3, 5, 5)).astype(np.float32) / 6
    second = rng.normal(size=(5, 6, 3, 3)).astype(np.float32) / 7
    ops: list[Op] = [
        Scale("scaled", ("observation",), np.array(1 / 255, np.float32)),
        Conv2d("conv.0", ("scaled",), first, np.float32(rng.normal(size=6) * 0.1), (2, 2), (padding, padding)),
        Activation("conv.0.relu", ("conv.0",), "relu"),
        Conv2d("conv.1", ("conv.0.relu",), second, np.float32(rng.normal(size=5) * 0.1), (1, 1), (padding, padding)),
        Activation("conv.1.relu", ("conv.1",), "relu"),
        Flatten("flat", ("conv.1.relu",)),
    ]
    side = (size + 2 * padding - 5) // 2 + 1 + 2 * padding - 2
    ops += mlp(layers(rng, [5 * side * side, 16, 4]), "relu", "flat")
    return Policy(
        observation_shape=(3, size, size), observation_dtype="uint8", ops=tuple(ops), head=action_head("argmax", 4)
    )


def dueling(seed: int = 0) -> Policy:
    """Two streams over one observation, added: state value and advantages, one of them with LayerNorm."""
    rng = np.random.default_rng(seed)
    value = mlp(layers(rng, [6, 16, 1], "value"), "relu")
    ops = [*value]
    advantage = layers(rng, [6, 16, 3], "advantage")
    ops += mlp(advantage[:1], "relu")
    ops.append(
        LayerNorm("norm", ("advantage.0",), np.float32(rng.uniform(0.5, 1.5, 16)), np.zeros(16, np.float32), 1e-5)
    )
    ops.append(Activation("norm.relu", ("norm",), "relu"))
    ops += mlp(advantage[1:], "relu", "norm.relu")
    ops.append(Add("q", ("value.1", "advantage.1")))
    return Policy(observation_shape=(6,), ops=tuple(ops), head=action_head("argmax", 3))


def residual(seed: int = 0) -> Policy:
    """A layer whose output a ReLU reads and a connection around that (a pre-activation residual block)."""
    rng = np.random.default_rng(seed)
    first, second, third, last = layers(rng, [6, 24, 24, 24, 3])
    ops = mlp([first], "relu")
    ops.append(Activation("bend", ("net.0",), "relu"))
    ops += mlp([second, third], "relu", "bend")
    ops.append(Add("sum", ("net.0", "net.2")))
    ops += mlp([last], "relu", "sum")
    return Policy(observation_shape=(6,), ops=tuple(ops), head=action_head("clip", 3))


def sliced(seed: int = 0) -> Policy:
    """An image, a normalised vector and one that passes as it is, which lie side by side in one row."""
    rng = np.random.default_rng(seed)
    kernel = rng.normal(size=(6, 2, 3, 3)).astype(np.float32) / 4
    ops: list[Op] = [
        Slice("image", ("observation",), 0, (2, 8, 8)),
        Conv2d("conv", ("image",), kernel, np.float32(rng.normal(size=6) * 0.1), (2, 2)),
        Activation("conv.relu", ("conv",), "relu"),
        Flatten("flat", ("conv.relu",)),
        *mlp(layers(rng, [54, 7], "features"), "relu", "flat"),
        Activation("features.relu", ("features.0",), "relu"),
        Slice("goal", ("observation",), 128, (3,)),
        Normalize("goal.normalize", ("goal",), rng.normal(size=3), rng.uniform(0.5, 2, 3), 1e-8, 10.0),
        Slice("other", ("observation",), 131, (5,)),
        Concat("joined", ("features.relu", "goal.normalize", "other")),
        *mlp(layers(rng, [15, 16, 4]), "relu", "joined"),
    ]
    inputs = (Input("image", "Box", (2, 8, 8)), Input("goal", "Box", (3,)), Input("one", "Discrete", (), (5,)))
    return Policy(observation_shape=(136,), inputs=inputs, ops=tuple(ops), head=action_head("argmax", 4))


def pooled(kind: str, padding: int = 0, seed: int = 0) -> Policy:
    """Two convolutions over uint8 images, windows of the first pooled and bent, those of the second once more."""
    rng = np.random.default_rng(seed)
    first = rng.normal(size=(6, 3, 3, 3)).astype(np.float32) / 5
    second = rng.normal(size=(5, 6, 3, 3)).astype(np.float32) / 7
    bias = np.float32(rng.normal(size=6) * 0.1)
    ops: list[Op] = [
        Scale("scaled", ("observation",), np.array(1 / 255, np.float32)),
        Conv2d("conv.0", ("scaled",), first, bias, (1, 1), (1, 1)),
        Pool2d("pool.0", ("conv.0",), kind, (3, 3), (2, 2), (padding, padding)),
        Activation("pool.0.relu", ("pool.0",), "relu"),
        Conv2d("conv.1", ("pool.0.relu",), second, bias[:5], (1, 1), (1, 1)),
        Activation("conv.1.relu", ("conv.1",), "relu"),
        Pool2d("pool.1", ("conv.1.relu",), kind, (2, 3), (2, 1)),
        Flatten("flat", ("pool.1",)),
    ]
    flat = Policy(
        observation_shape=(3, 14, 14), observation_dtype="uint8", ops=tuple(ops), head=action_head("argmax", 4)
    )
    ops += mlp(layers(rng, [shapes(flat)["flat"][0], 16, 4]), "relu", "flat")
    return replace(flat, ops=tuple(ops))


def distributional(seed: int = 0) -> Policy:
    """Three actions of a distribution over five atoms each, whose expectations are the scores (C51)."""
    rng = np.random.default_rng(seed)
    ops = mlp(layers(rng, [6, 16, 15]), "relu")
    support = np.kron(np.eye(3), np.linspace(-2, 2, 5)).astype(np.float32)
    ops.append(Softmax("shares", ("net.1",), 5))
    ops += mlp([("q", support, np.zeros(3, np.float32))], "relu", "shares")
    return Policy(observation_shape=(6,), ops=tuple(ops), head=action_head("argmax", 3))


def estimated(seed: int = 0) -> Policy:
    """A velocity and a latent vector of length 1, estimated from the observation and joined with it (HIMLoco)."""
    rng = np.random.default_rng(seed)
    ops = mlp(layers(rng, [6, 16, 16], "estimator"), "relu")
    ops.append(Activation("hidden", ("estimator.1",), "relu"))
    ops += mlp(layers(rng, [16, 3], "velocity"), "relu", "hidden") + mlp(
        layers(rng, [16, 8], "latent"), "relu", "hidden"
    )
    ops.append(L2Norm("direction", ("latent.0",), 8, 1e-12))
    ops.append(Concat("joined", ("observation", "velocity.0", "direction")))
    ops += mlp(layers(rng, [17, 16, 3]), "relu", "joined")
    return Policy(observation_shape=(6,), ops=tuple(ops), head=action_head("clip", 3))


def composed(kind: str, *settings: float, seed: int = 0) -> Policy:
    """A dense network bent by a function that is a formula of others."""
    policy = dense([5, 16, 16, 3], "relu", seed)
    return replace(
        policy,
        ops=tuple(replace(op, kind=kind, settings=settings) if isinstance(op, Activation) else op for op in policy.ops),
    )


def action_head(kind: str, size: int) -> ActionHead:
    """A head of the given kind; continuous ones are bounded by -1 and 2."""
    if kind == "argmax":
        return ActionHead("argmax")
    return ActionHead(kind, np.full(size, -1, np.float32), np.full(size, 2, np.float32))


def observations(policy: Policy, count: int, seed: int = 1) -> np.ndarray:
    """Random observations [count, *shape] of the policy's type."""
    rng = np.random.default_rng(seed)
    if policy.observation_dtype == "uint8":
        return rng.integers(0, 256, size=(count, *policy.observation_shape)).astype(np.uint8)
    return rng.normal(size=(count, *policy.observation_shape)).astype(np.float32)


def saved() -> np.ndarray:
    """Return 400 observations of a policy that names no environment, which becomes policy.quarl in this folder."""
    policy = dense([6, 32, 3], head="tanh")
    artifact.write(policy, "policy.quarl")
    return observations(policy, 400)


EVERY = {
    "relu": lambda: dense([5, 16, 16, 3]),
    "odd": lambda: dense([7, 33, 9, 2]),
    "leaky_relu": lambda: dense([5, 16, 3], "leaky_relu"),
    "elu": lambda: dense([5, 16, 3], "elu"),
    "sigmoid": lambda: dense([5, 16, 3], "sigmoid"),
    "tanh-normalized": lambda: normalized([9, 32, 32, 4]),
    "squashed": lambda: dense([4, 12, 2], head="tanh"),
    "convolutional": convolutional,
    "padded": lambda: convolutional(padding=1),
    "dueling": dueling,
    "residual": residual,
    "sliced": sliced,
    "max-pool": lambda: pooled("max"),
    "max-pool-padded": lambda: pooled("max", 1),
    "average-pool": lambda: pooled("average"),
    "average-pool-padded": lambda: pooled("average", 1),
    "softmax": distributional,
    "l2-norm": estimated,
    "clip": lambda: composed("clip", -0.5, 1.0),
    "one-sided": lambda: composed("clip", -0.25, np.inf),
    "prelu": lambda: composed("prelu", 0.25),
    "selu": lambda: composed("selu", 1.67, 1.05),
    **{
        kind: partial(composed, kind)
        for kind in ("silu", "gelu", "gelu_tanh", "mish", "softplus", "hardsigmoid", "hardswish")
    },
}
"""A network for every operator and every way they are joined."""
