"""Names for the nameless arrays of old Stable-Baselines 2 pickles: those that its later zip files carry.

Until 2.7 a model was saved as a list of arrays in the order in which TensorFlow created the variables. That order is
fixed by the code of the three families of policies, so shapes and the number of actions tell the names:

    A2C, PPO2   [c1 c2 c3 fc1 | shared_fc.. (pi_fc vf_fc)..] vf pi [pi/logstd] q      (common/policies.py)
    DQN         [eps] action_value: [convolutions] layers, state_value: layers, then the target network
    DDPG        pi: [convolutions] fc0 .. pi, qf: .., copies of them, obs_rms: sum sumsq count

A layer is a weight [in, out], a bias [out] and, with layer normalisation, beta [out] and gamma [out]. Source:
github.com/hill-a/stable-baselines.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from quarl.arrays import Array
from quarl.errors import QuarlError, UnsupportedError

Named = dict[str, Array]
CONVOLUTIONS = ("c1", "c2", "c3")


def actor_critic(arrays: Sequence[Array], actions: int, kwargs: Mapping[str, Any], *, gaussian: bool) -> Named:
    """Arrays of A2C and PPO2 by name.

    actions: the width of the policy's output. gaussian: it is a mean, so a logstd follows it. kwargs: policy_kwargs.
    """
    stream = _Stream(arrays)
    named = {f"model/{name}": array for name, array in stream.convolutions()}
    tail = ["vf/w", "vf/b", "pi/w", "pi/b", *(["pi/logstd"] if gaussian else []), "q/w", "q/b"]
    body = stream.upto(len(arrays) - len(tail))
    pairs = ["fc1"] if named else list(_hidden(kwargs, len(body) // 2))
    names = [f"{pair}/{part}" for pair in pairs for part in ("w", "b")]
    if len(names) != len(body):
        raise UnsupportedError(f"the file has {len(body)} arrays of hidden layers where its policy has {len(names)}")
    rest = zip([*names, *tail], [*body, *stream.upto(len(arrays))], strict=True)
    named.update({f"model/{name}": array for name, array in rest})
    if named["model/pi/w"].shape[-1:] != (actions,):
        raise QuarlError(
            f"the policy's last layer has shape {named['model/pi/w'].shape}, not one for {actions} actions"
        )
    return named


def dqn(arrays: Sequence[Array], actions: int, features: int, *, dueling: bool) -> Named:
    """Arrays of DQN's online network by name; features: numbers in an observation."""
    stream = _Stream(arrays)
    if stream.peek() is not None and arrays[0].ndim == 0:
        stream.upto(1)  # eps, the exploration rate
    root = "deepq/model"
    named, width = _extractor(stream, f"{root}/action_value", features)
    named |= _contrib_layers(stream.layers(width, actions), f"{root}/action_value")
    return named | (_contrib_layers(stream.layers(width, 1), f"{root}/state_value") if dueling else {})


def ddpg(arrays: Sequence[Array], actions: int, shape: tuple[int, ...]) -> Named:
    """Arrays of DDPG's actor by name, and the statistics of its own observation normalisation; shape: observation's."""
    stream = _Stream(arrays)
    named, width = _extractor(stream, "model/pi", math.prod(shape))
    layers = list(stream.layers(width, actions))
    for index, layer in enumerate(layers):
        name = "pi" if index + 1 == len(layers) else f"fc{index}"
        named |= {f"model/pi/{name}/{part}": array for part, array in zip(("kernel", "bias"), layer, strict=False)}
        named |= _norm(layer, f"model/pi/LayerNorm{_suffix(index)}")
    for index in range(len(arrays) - 2):
        moments = arrays[index : index + 3]
        if [a.shape for a in moments] == [shape, shape, ()] and all(a.dtype == np.float64 for a in moments):
            parts = ("runningsum", "runningsumsq", "count")
            named |= {f"input/obs_rms/{part}": array for part, array in zip(parts, moments, strict=True)}
    return named


def _hidden(kwargs: Mapping[str, Any], pairs: int) -> Iterator[str]:
    """Names of the hidden layers of an MLP policy in creation order, from net_arch, layers or their number."""
    arch, layers = kwargs.get("net_arch"), kwargs.get("layers")
    if arch is None:
        sizes = layers if isinstance(layers, list | tuple) else [None] * (pairs // 2)
        arch = [{"pi": sizes, "vf": sizes}]
    if not isinstance(arch, list | tuple) or len(arch) > 100:
        raise QuarlError("net_arch is no list of layers; the file is damaged")
    for index, entry in enumerate(arch):
        if not isinstance(entry, dict):
            yield f"shared_fc{index}"
            continue
        separate = [entry.get(key) or [] for key in ("pi", "vf")]
        if not all(isinstance(sizes, list | tuple) and len(sizes) <= 100 for sizes in separate):
            raise QuarlError("net_arch is no list of layers; the file is damaged")
        for layer, (pi, vf) in enumerate(zip_longest(*(["x"] * len(sizes) for sizes in separate))):
            yield from ([f"pi_fc{layer}"] if pi else []) + ([f"vf_fc{layer}"] if vf else [])
        return  # entries after the dict are never built


def _extractor(stream: _Stream, scope: str, features: int) -> tuple[Named, int]:
    """Arrays of the convolutions and of fc1 after them, if there are any, and the width of what they give."""
    named = {f"{scope}/{name}": array for name, array in stream.convolutions()}
    if not named:
        return named, features
    named |= {f"{scope}/fc1/{part}": array for part, array in zip("wb", stream.upto(stream.position + 2), strict=True)}
    return named, named[f"{scope}/fc1/w"].shape[-1]


def _contrib_layers(layers: Iterator[list[Array]], scope: str) -> Named:
    """tf.contrib's names: fully_connected, fully_connected_1, ... and LayerNorm likewise."""
    named: Named = {}
    for index, layer in enumerate(layers):
        suffix = _suffix(index)
        parts = zip(("weights", "biases"), layer, strict=False)
        named |= {f"{scope}/fully_connected{suffix}/{part}": array for part, array in parts}
        named |= _norm(layer, f"{scope}/LayerNorm{suffix}")
    return named


def _norm(layer: list[Array], scope: str) -> Named:
    return {f"{scope}/{part}": array for part, array in zip(("beta", "gamma"), layer[2:], strict=False)}


def _suffix(index: int) -> str:
    return f"_{index}" if index else ""


class _Stream:
    """Arrays taken off a list in order."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self.arrays = arrays
        self.position = 0

    def peek(self) -> Array | None:
        return self.arrays[self.position] if self.position < len(self.arrays) else None

    def upto(self, end: int) -> Sequence[Array]:
        """The arrays from here to number `end`."""
        taken = self.arrays[self.position : max(end, self.position)]
        if len(taken) != end - self.position:
            raise QuarlError("the file has fewer arrays than its policy has variables; it is damaged")
        self.position = end
        return taken

    def convolutions(self) -> Iterator[tuple[str, Array]]:
        for name in CONVOLUTIONS:
            following = self.peek()
            if following is None or following.ndim != 4:
                return
            weight, bias = self.upto(self.position + 2)
            yield f"{name}/w", weight
            yield f"{name}/b", bias

    def layers(self, width: int, outputs: int) -> Iterator[list[Array]]:
        """Layers [weight, bias (, beta, gamma)] of a chain from `width` to `outputs` numbers.

        A layer with `outputs` outputs is the last unless the next one continues from it: what follows a chain is
        another network's first layer, or nothing.
        """
        entry = width
        while True:
            layer = list(self.upto(self.position + 2))
            if layer[0].ndim != 2 or layer[0].shape[0] != width or layer[1].shape != layer[0].shape[1:]:
                raise QuarlError(
                    f"a layer of shape {layer[0].shape} follows one of {width} outputs; the file is damaged"
                )
            width = layer[0].shape[1]
            following = self.peek()
            if following is not None and following.shape == (width,) and following.dtype == layer[1].dtype:
                layer += self.upto(self.position + 2)
                following = self.peek()
            elif width == outputs and not (
                following is not None and following.ndim == 2 and following.shape[0] == width != entry
            ):
                yield layer
                return
            yield layer
