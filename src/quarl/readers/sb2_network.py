"""Operators of Stable-Baselines 2 networks from their TensorFlow variables by name.

TensorFlow keeps weights as [in, out] and images as [height, width, channels]; the graph has [out, in] and [channels,
height, width], so weights are transposed and the first layer after a convolution has its inputs reordered.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from quarl.arrays import Array
from quarl.errors import QuarlError, UnsupportedError
from quarl.policy.operators import (
    OBSERVATION,
    Activation,
    Add,
    Conv2d,
    Dense,
    Flatten,
    LayerNorm,
    Normalize,
    Op,
    Scale,
    Shape,
)

NATURE_CNN = (("c1", 8, 4), ("c2", 4, 2), ("c3", 3, 1))
"""(scope, kernel size, stride) of `nature_cnn`; strides are not in the file."""
LAYER_NORM_EPSILON = 1e-12
"""Of tf.contrib.layers.layer_norm."""
MIN_VARIANCE = 1e-2
"""DDPG's running statistics never fall below it (common/mpi_running_mean_std.py)."""


class Network:
    """A chain of operators that grows layer by layer."""

    def __init__(self, named: Mapping[str, Array], shape: Shape, *, image: bool) -> None:
        """shape: of the observation, [height, width, channels] where it is an image."""
        self.named = named
        self.ops: list[Op] = []
        self.value = OBSERVATION
        self.image = image
        self.shape = (shape[2], *shape[:2]) if image else shape

    def append(self, op: Op) -> None:
        self.ops.append(op)
        self.value = op.name

    def activate(self, kind: str) -> None:
        self.append(Activation(f"{self.value}.{kind}", (self.value,), kind))

    def running_normalize(self, low: float, high: float) -> None:
        """DDPG's own normalisation: clip((x - mean) / std, low, high), std from sum and sum of squares."""
        total, squares, count = (self.take(f"input/obs_rms/{n}") for n in ("runningsum", "runningsumsq", "count"))
        if total.shape != self.shape or squares.shape != self.shape or count.shape != () or not count > 0:
            raise QuarlError("the statistics of the observations have the wrong shape; the file is damaged")
        if self.image:
            raise UnsupportedError("images with running statistics are not supported")
        if low != -high or not high > 0:
            raise UnsupportedError(f"observation_range is ({low}, {high}); only symmetric ranges are supported")
        mean = (total / count).astype(np.float32)
        variance = np.maximum((squares / count).astype(np.float32) - np.square(mean), np.float32(MIN_VARIANCE))
        name = f"{OBSERVATION}.running"
        self.append(Normalize(name, (self.value,), mean.astype(np.float64), variance.astype(np.float64), 0.0, high))

    def extractor(self, scope: str) -> None:
        """The convolutions and fc1 where the variables have them; else the observation as a vector."""
        if f"{scope}/c1/w" not in self.named:
            if len(self.shape) != 1:
                self.append(Flatten(f"{OBSERVATION}.flat", (self.value,)))
            return
        if not self.image:
            raise UnsupportedError(f"a convolutional policy of observations {self.shape} that are no images of bytes")
        self.append(Scale(f"{OBSERVATION}.scaled", (self.value,), np.array(1 / 255, np.float32)))
        size = self.shape[1:]
        for name, kernel, stride in NATURE_CNN:
            weight, bias = self.take(f"{scope}/{name}/w"), self.take(f"{scope}/{name}/b")
            if weight.shape[:2] != (kernel, kernel) or bias.size != weight.shape[-1]:
                raise UnsupportedError(
                    f"convolution {name} has shape {weight.shape}, which is not the Nature network's"
                )
            size = tuple((n - kernel) // stride + 1 for n in size)
            weight = np.ascontiguousarray(weight.transpose(3, 2, 0, 1), np.float32)
            bias = bias.reshape(-1).astype(np.float32)
            self.append(Conv2d(f"{scope}/{name}", (self.value,), weight, bias, (stride, stride)))
            self.activate("relu")
        channels = self.ops[-2].weight.shape[0] if isinstance(self.ops[-2], Conv2d) else 0
        self.append(Flatten(f"{scope}/flat", (self.value,)))
        weight, bias = self.take(f"{scope}/fc1/w"), self.take(f"{scope}/fc1/b")
        if weight.ndim != 2 or weight.shape[0] != channels * size[0] * size[1] or min(size) < 1:
            raise QuarlError(f"layer fc1 has shape {weight.shape}, which does not fit the observation {self.shape}")
        # rows in the order height, width, channels become channels, height, width
        weight = weight.reshape(*size, channels, -1).transpose(2, 0, 1, 3).reshape(weight.shape)
        self.dense(f"{scope}/fc1", weight, bias)
        self.activate("relu")

    def dense(self, name: str, weight: Array, bias: Array) -> None:
        """x @ weight + bias; weight [in, out] as TensorFlow has it."""
        if weight.ndim != 2:
            raise QuarlError(f"the weight of layer {name!r} has shape {weight.shape}; the file is damaged")
        weight = np.ascontiguousarray(weight.T, np.float32)
        self.append(Dense(name, (self.value,), weight, bias.astype(np.float32)))

    def chain(self, scope: str, layer: str, activation: str, *, dueling: bool = False) -> None:
        """Every layer `layer` + number of `scope` with its layer normalisation, `activation` between them.

        dueling: the advantages' mean is taken off by the last layer itself. A - mean(A) is (I - 1/n) (W x + b), so W
        and b lose their mean over the outputs: the same function, one operator fewer.
        """
        names = _numbered(self.named, scope, layer)
        for index, name in enumerate(names):
            weight, bias = _weight_and_bias(self.named, name)
            last = index + 1 == len(names)
            if last and dueling:
                wide = weight.astype(np.float64)
                weight = wide - wide.mean(axis=1, keepdims=True)
                bias = bias.astype(np.float64) - bias.astype(np.float64).mean()
            self.dense(name, weight, bias)
            if not last:
                self.layer_norm(scope, index)
                self.activate(activation)

    def layer_norm(self, scope: str, index: int) -> None:
        norm = f"{scope}/LayerNorm{f'_{index}' if index else ''}"
        if f"{norm}/gamma" in self.named or f"{norm}/beta" in self.named:
            gain, offset = (self.take(f"{norm}/{part}").astype(np.float32) for part in ("gamma", "beta"))
            self.append(LayerNorm(norm, (self.value,), gain, offset, LAYER_NORM_EPSILON))

    def take(self, name: str) -> Array:
        if name not in self.named:
            raise QuarlError(f"variable {name!r} is missing; the file is damaged or of another algorithm")
        return self.named[name]


def actor_critic(network: Network, activation: str) -> None:
    """The policy of A2C and PPO2: logits, or the mean of the action."""
    network.extractor("model")
    for kind in ("shared_fc", "pi_fc"):
        for name in _numbered(network.named, "model", kind):
            network.dense(name, *_weight_and_bias(network.named, name))
            network.activate(activation)
    network.dense("model/pi", network.take("model/pi/w"), network.take("model/pi/b"))


def dqn(network: Network, activation: str, *, dueling: bool) -> None:
    """Q-values; with a dueling head V + A - mean(A)."""
    action, state = "deepq/model/action_value", "deepq/model/state_value"
    network.extractor(action)
    features = network.value
    network.chain(action, "fully_connected", activation, dueling=dueling)
    if dueling:
        advantage, network.value = network.value, features
        network.chain(state, "fully_connected", activation)
        network.append(Add("q_values", (advantage, network.value)))


def ddpg(network: Network, activation: str) -> None:
    """The deterministic action, before its tanh."""
    scope = "model/pi"
    network.extractor(scope)
    for index, name in enumerate(_numbered(network.named, scope, "fc")):
        if f"{name}/kernel" in network.named:  # fc1 of a convolutional extractor is called "w"
            network.dense(name, *_weight_and_bias(network.named, name))
            network.layer_norm(scope, index)
            network.activate(activation)
    network.dense(f"{scope}/pi", network.take(f"{scope}/pi/kernel"), network.take(f"{scope}/pi/bias"))


def _numbered(named: Mapping[str, Array], scope: str, layer: str) -> list[str]:
    """scope/layer, scope/layer_1, scope/layer0, ... in numerical order."""
    scopes = {}
    for name in named:
        match = re.fullmatch(rf"({re.escape(scope)}/{layer}_?(\d{{0,3}}))/(?:w|weights|kernel)", name)
        if match:
            scopes[int(match[2] or 0)] = match[1]
    return [scopes[number] for number in sorted(scopes)]


def _weight_and_bias(named: Mapping[str, Array], name: str) -> tuple[Array, Array]:
    for weight, bias in (("w", "b"), ("weights", "biases"), ("kernel", "bias")):
        if f"{name}/{weight}" in named and f"{name}/{bias}" in named:
            return named[f"{name}/{weight}"], named[f"{name}/{bias}"]
    raise QuarlError(f"layer {name!r} has no weight or no bias; the file is damaged")
