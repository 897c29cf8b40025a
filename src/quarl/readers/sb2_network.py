"""Stable-Baselines 2 networks: operators from TensorFlow's variables by name, and names for arrays without names.

TensorFlow keeps weights as [in, out] and images as [height, width, channels]. The graph has [out, in] and [channels,
height, width], so weights are transposed and the first layer after a convolution has its inputs reordered.

Until 2.7 a model was saved as a list of arrays in the order in which TensorFlow created the variables. The code of the
three families of policies fixes that order, so shapes and the number of actions determine the names:

    actor-critics   [c1 c2 c3 fc1 | shared_fc.. (pi_fc vf_fc)..] vf pi [pi/logstd] q      (common/policies.py)
    DQN             [eps] action_value: [convolutions] layers, state_value: layers, then the target network
    actors          pi: [convolutions] fc0 .. last, critics: .., copies of them, DDPG's obs_rms: sum sumsq count

A2C, ACER, ACKTR, PPO2 and TRPO have actor-critics; DDPG, SAC and TD3 have actors. The last layer is named pi in a DDPG
actor and dense in the others. SAC's log_std, dense_1, follows it and matters only for sampled actions.

A layer is a weight [in, out], a bias [out] and, with layer normalization, beta [out] and gamma [out]. Source:
github.com/hill-a/stable-baselines.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile, zip_longest
from typing import Any

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

Named = dict[str, Array]
FEW = "the file has fewer arrays than its policy has variables; it is damaged"
NATURE_CNN = (("c1", 8, 4), ("c2", 4, 2), ("c3", 3, 1))
"""(scope, kernel size, stride) of `nature_cnn`; strides are not in the file."""
LAYER_NORM_EPSILON = 1e-12
"""Epsilon of tf.contrib.layers.layer_norm."""
DEFAULT_DEPTH = 2
"""Hidden layers of an actor without sizes in policy_kwargs; the zoo's CustomSACPolicy has the same number."""
MIN_VARIANCE = 1e-2
"""Lower bound of the variance in DDPG's running statistics (common/mpi_running_mean_std.py)."""


class Network:
    """A chain of operators that grows layer by layer."""

    def __init__(self, named: Mapping[str, Array], shape: Shape, *, image: bool) -> None:
        """Start the chain at an observation of `shape`, which is [height, width, channels] for an image."""
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
        """Append DDPG's own normalization: clip((x - mean) / std, low, high), std from sum and sum of squares."""
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
        """Append the convolutions and fc1 if the variables have them; otherwise pass the observation as a vector."""
        if f"{scope}/c1/w" not in self.named:
            if len(self.shape) != 1:
                self.append(Flatten(f"{OBSERVATION}.flat", (self.value,)))
            return
        if not self.image:
            raise UnsupportedError(f"a convolutional policy reads {self.shape} observations that are not byte images")
        self.append(Scale(f"{OBSERVATION}.scaled", (self.value,), np.array(1 / 255, np.float32)))
        size = self.shape[1:]
        for name, kernel, stride in NATURE_CNN:
            weight, bias = self.take(f"{scope}/{name}/w"), self.take(f"{scope}/{name}/b")
            if weight.shape[:2] != (kernel, kernel) or bias.size != weight.shape[-1]:
                raise UnsupportedError(f"convolution {name} has shape {weight.shape}, unlike the Nature network's")
            size = tuple((n - kernel) // stride + 1 for n in size)
            weight = np.ascontiguousarray(weight.transpose(3, 2, 0, 1), np.float32)
            bias = bias.reshape(-1).astype(np.float32)
            self.append(Conv2d(f"{scope}/{name}", (self.value,), weight, bias, (stride, stride)))
            self.activate("relu")
        # fc1 follows the convolutions; its rows count pixels first.
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
        """Append x @ weight + bias; the weight is [in, out], as in TensorFlow.

        Args:
            name: Name of the layer.
            weight: Weight [in, out].
            bias: Bias [out].

        Raises:
            QuarlError: The weight is not a matrix.
        """
        if weight.ndim != 2:
            raise QuarlError(f"the weight of layer {name!r} has shape {weight.shape}; the file is damaged")
        weight = np.ascontiguousarray(weight.T, np.float32)
        self.append(Dense(name, (self.value,), weight, bias.astype(np.float32)))

    def chain(self, names: Sequence[str], scope: str, activation: str, *, dueling: bool = False) -> None:
        """Append the named layers; all but the last are followed by `scope`'s layer normalization and `activation`.

        With `dueling`, the last layer itself subtracts the mean of the advantages. A - mean(A) is (I - 1/n) (W x + b),
        so the mean over the outputs is taken out of W and b: the same function, one operator fewer.

        Args:
            names: Scopes of the layers in order.
            scope: Scope of the layer normalization.
            activation: Kind of the activation between layers.
            dueling: Subtract the mean over the outputs in the last layer.
        """
        for index, name in enumerate(names):
            weight, bias = self.weight_and_bias(name)
            last = index + 1 == len(names)
            if last and dueling:
                wide = weight.astype(np.float64)
                weight = wide - wide.mean(axis=1, keepdims=True)
                bias = bias.astype(np.float64) - bias.astype(np.float64).mean()
            self.dense(name, weight, bias)
            norm = f"{scope}/LayerNorm{_suffix(index)}"
            if not last and (f"{norm}/gamma" in self.named or f"{norm}/beta" in self.named):
                gain, offset = (self.take(f"{norm}/{part}").astype(np.float32) for part in ("gamma", "beta"))
                self.append(LayerNorm(norm, (self.value,), gain, offset, LAYER_NORM_EPSILON))
            if not last:
                self.activate(activation)

    def numbered(self, scope: str, layer: str) -> list[str]:
        """Return scope/layer, scope/layer_1, scope/layer0, ... in numerical order."""
        pattern = re.compile(rf"({re.escape(scope)}/{layer}_?(\d{{0,3}}))/(?:w|weights|kernel)")
        matches = [match for match in map(pattern.fullmatch, self.named) if match]
        scopes = {int(match[2] or 0): match[1] for match in matches}
        return [scopes[number] for number in sorted(scopes)]

    def weight_and_bias(self, name: str) -> tuple[Array, Array]:
        """Return weight and bias of a layer, for all three naming schemes."""
        for weight, bias in (("w", "b"), ("weights", "biases"), ("kernel", "bias")):
            if f"{name}/{weight}" in self.named and f"{name}/{bias}" in self.named:
                return self.named[f"{name}/{weight}"], self.named[f"{name}/{bias}"]
        raise QuarlError(f"layer {name!r} has no weight or no bias; the file is damaged")

    def take(self, name: str) -> Array:
        """Return the variable of that name."""
        if name not in self.named:
            raise QuarlError(f"variable {name!r} is missing; the file is damaged or of another algorithm")
        return self.named[name]


def actor_critic(network: Network, activation: str) -> None:
    """Append the policy of an actor-critic: logits, or the mean of the action."""
    network.extractor("model")
    hidden = [*network.numbered("model", "shared_fc"), *network.numbered("model", "pi_fc")]
    network.chain([*hidden, "model/pi"], "model", activation)


def dqn(network: Network, activation: str, *, dueling: bool) -> None:
    """Append the Q-values; with a dueling head V + A - mean(A).

    Args:
        network: The chain to extend.
        activation: Kind of the activation between layers.
        dueling: The network has a dueling head.
    """
    action, state = "deepq/model/action_value", "deepq/model/state_value"
    network.extractor(action)
    features = network.value
    network.chain(network.numbered(action, "fully_connected"), action, activation, dueling=dueling)
    if dueling:
        advantage, network.value = network.value, features
        network.chain(network.numbered(state, "fully_connected"), state, activation)
        network.append(Add("q_values", (advantage, network.value)))


def actor(network: Network, activation: str, last: str) -> None:
    """Append the deterministic action before its tanh.

    Args:
        network: The chain to extend.
        activation: Kind of the activation between layers.
        last: Name of the last layer.
    """
    scope = "model/pi"
    network.extractor(scope)
    # the weight of a convolutional extractor's fc1 is named "w"
    hidden = [name for name in network.numbered(scope, "fc") if f"{name}/kernel" in network.named]
    network.chain([*hidden, f"{scope}/{last}"], scope, activation)


def name_actor_critic(arrays: Sequence[Array], actions: int, kwargs: Mapping[str, Any], *, gaussian: bool) -> Named:
    """Return the arrays of an actor-critic by name.

    Args:
        arrays: Arrays in the order of creation.
        actions: Width of the policy's output.
        kwargs: The model's policy_kwargs.
        gaussian: The output is a mean, so a logstd follows it.

    Raises:
        QuarlError: The arrays do not match the policy.
    """
    convolutions = _convolutions(arrays)
    tail = ["vf/w", "vf/b", "pi/w", "pi/b", *(["pi/logstd"] if gaussian else []), "q/w", "q/b"]
    hidden = len(arrays) - len(convolutions) - len(tail)
    if hidden < 0:
        raise QuarlError(FEW)
    pairs = ["fc1"] if convolutions else _hidden(kwargs, hidden // 2)
    names = [f"{pair}/{part}" for pair in pairs for part in "wb"]
    if len(names) != hidden:
        raise UnsupportedError(f"the file has {hidden} arrays of hidden layers, but its policy has {len(names)}")
    names = [*convolutions, *names, *tail]
    named = {f"model/{name}": array for name, array in zip(names, arrays, strict=True)}
    if named["model/pi/w"].shape[-1:] != (actions,):
        raise QuarlError(
            f"the policy's last layer has shape {named['model/pi/w'].shape}, which does not fit {actions} actions"
        )
    return named


def name_dqn(arrays: Sequence[Array], actions: int, features: int, *, dueling: bool) -> Named:
    """Return the arrays of DQN's online network by name.

    Args:
        arrays: Arrays in the order of creation.
        actions: Number of actions.
        features: Size of an observation.
        dueling: The network has a second head for the value of the state.

    Raises:
        QuarlError: The arrays do not match the policy.
    """
    arrays = arrays[1:] if arrays and arrays[0].ndim == 0 else arrays  # without eps, the exploration rate
    named, width = _extractor(arrays, "deepq/model/action_value", features)
    place = len(named)
    for head, outputs in (("action_value", actions), ("state_value", 1))[: 1 + dueling]:
        layers = _layers(arrays, place, width, outputs)
        place += sum(map(len, layers))
        scopes = [f"deepq/model/{head}/fully_connected{_suffix(index)}" for index in range(len(layers))]
        named |= _names(layers, scopes, ("weights", "biases"), f"deepq/model/{head}")
    return named


def name_actor(
    arrays: Sequence[Array], actions: int, shape: tuple[int, ...], kwargs: Mapping[str, Any], last: str
) -> Named:
    """Return the arrays of an actor by name, and the statistics of DDPG's own observation normalization.

    Args:
        arrays: Arrays in the order of creation.
        actions: Number of actions.
        shape: Shape of an observation.
        kwargs: The model's policy_kwargs.
        last: Name of the last layer.

    Raises:
        QuarlError: The arrays do not match the policy.
    """
    sizes = kwargs.get("layers")
    named, width = _extractor(arrays, "model/pi", math.prod(shape))
    depth = len(sizes) if isinstance(sizes, list | tuple) else DEFAULT_DEPTH
    layers = _layers(arrays, len(named), width, actions, depth + 1)
    scopes = [*(f"model/pi/fc{index}" for index in range(depth)), f"model/pi/{last}"]
    named |= _names(layers, scopes, ("kernel", "bias"), "model/pi")
    for index in range(len(arrays) - 2):
        moments = arrays[index : index + 3]
        if [a.shape for a in moments] == [shape, shape, ()] and all(a.dtype == np.float64 for a in moments):
            parts = ("runningsum", "runningsumsq", "count")
            named |= {f"input/obs_rms/{part}": array for part, array in zip(parts, moments, strict=True)}
    return named


def _hidden(kwargs: Mapping[str, Any], pairs: int) -> Iterator[str]:
    """Yield the names of an MLP policy's hidden layers in creation order, from net_arch, layers or their number."""
    arch, layers = kwargs.get("net_arch"), kwargs.get("layers")
    if arch is None:
        sizes = layers if isinstance(layers, list | tuple) else [None] * (pairs // 2)
        arch = [{"pi": sizes, "vf": sizes}]
    if not isinstance(arch, list | tuple) or len(arch) > 100:
        raise QuarlError("net_arch is not a list of layers; the file is damaged")
    for index, entry in enumerate(arch):
        if not isinstance(entry, dict):
            yield f"shared_fc{index}"
            continue
        separate = [entry.get(key) or [] for key in ("pi", "vf")]
        if not all(isinstance(sizes, list | tuple) and len(sizes) <= 100 for sizes in separate):
            raise QuarlError("net_arch is not a list of layers; the file is damaged")
        for layer, (pi, vf) in enumerate(zip_longest(*(["x"] * len(sizes) for sizes in separate))):
            yield from ([f"pi_fc{layer}"] if pi else []) + ([f"vf_fc{layer}"] if vf else [])
        return  # entries after the dict are never built


def _convolutions(arrays: Sequence[Array]) -> list[str]:
    """Return the names of the arrays of the convolutions, at most three, at the start of the list."""
    weights = list(takewhile(lambda array: array.ndim == 4, arrays[:6:2]))
    return [f"c{number}/{part}" for number in range(1, 1 + len(weights)) for part in "wb"]


def _extractor(arrays: Sequence[Array], scope: str, features: int) -> tuple[Named, int]:
    """Return the arrays of the convolutions and of fc1 after them, if any, and the width of their output."""
    if not (keys := _convolutions(arrays)):
        return {}, features
    keys += ["fc1/w", "fc1/b"]
    if len(arrays) < len(keys):
        raise QuarlError(FEW)
    named = {f"{scope}/{key}": array for key, array in zip(keys, arrays, strict=False)}
    return named, named[f"{scope}/fc1/w"].shape[-1]


def _layers(
    arrays: Sequence[Array], place: int, width: int, outputs: int, number: int | None = None
) -> list[Sequence[Array]]:
    """Return the layers [weight, bias (, beta, gamma)] of a chain that starts at `place`.

    The chain leads from `width` to `outputs` numbers.

    number: number of layers. Without it, a layer with `outputs` outputs is the last one unless the next layer reads its
    result. The array after a chain is the first layer of another network, or missing.
    """
    entry, layers = width, list[Sequence[Array]]()
    while True:
        if len(arrays) < place + 2:
            raise QuarlError(FEW)
        weight, bias = arrays[place : place + 2]
        if weight.ndim != 2 or weight.shape[0] != width or bias.shape != weight.shape[1:]:
            raise QuarlError(f"a layer of shape {weight.shape} follows one of {width} outputs; the file is damaged")
        width = weight.shape[1]
        following = arrays[place + 2] if len(arrays) > place + 2 else None
        normalized = following is not None and (following.shape, following.dtype) == ((width,), bias.dtype)
        layers.append(arrays[place : place + (4 if normalized else 2)])
        place += len(layers[-1])
        continued = following is not None and following.ndim == 2 and following.shape[0] == width != entry
        if not normalized and width == outputs and (not continued if number is None else len(layers) == number):
            return layers


def _names(layers: Sequence[Sequence[Array]], scopes: Sequence[str], parts: tuple[str, str], norms: str) -> Named:
    """Return the arrays of layers by name.

    Weight and bias are `parts` of the layer's scope, the others those of LayerNorm's scope.
    """
    named: Named = {}
    for index, (layer, scope) in enumerate(zip(layers, scopes, strict=True)):
        norm = f"{norms}/LayerNorm{_suffix(index)}"
        keys = (*(f"{scope}/{part}" for part in parts), f"{norm}/beta", f"{norm}/gamma")
        named |= dict(zip(keys, layer, strict=False))
    return named


def _suffix(index: int) -> str:
    return f"_{index}" if index else ""
