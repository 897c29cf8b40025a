"""Actors of rsl_rl, rl_games and skrl from checkpoints, whose layers follow from the names and shapes of tensors."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from quarl.arrays import Array
from quarl.errors import QuarlError, UnsupportedError, note
from quarl.inert.yaml import read_yaml
from quarl.inert.zip import Opened
from quarl.policy.graph import Policy, Provenance
from quarl.policy.operators import ACTIVATIONS, OBSERVATION, Normalize, Op, mlp
from quarl.readers import action_heads
from quarl.readers.torch_file import read_nested

KINDS = tuple(kind for kind in ACTIVATIONS if kind not in ("clip", "prelu", "selu"))
"""Activations that have no numbers, which agent.yaml does not hold."""
SAME = {"swish": "silu", "lrelu": "leaky_relu", "leakyrelu": "leaky_relu"}
"""QuaRL's names of activations, by those of the libraries."""
MEMORY = re.compile(r"\b(rnn|lstm|gru|memory_a|memory)\b")


@dataclass(frozen=True, slots=True)
class Library:
    """Names of a library's tensors, and its arithmetic of normalizers."""

    name: str
    layers: str
    """Pattern of the weights of the actor's numbered layers."""
    last: str
    """Name of the last layer; empty if it is the last numbered one."""
    mean: str
    """Pattern of the mean of observations, whose variance has the same name with `variance` in place of `mean`."""
    epsilons: tuple[float, float]
    """Numbers that are added to the standard deviation, and to the variance."""
    clip: float
    activation: str
    """Pattern of the activation's keys in the run's agent.yaml."""


LIBRARIES = (
    Library("rsl_rl", r"(?:model_state_dict\.actor|actor_state_dict\.mlp)\.(\d+)\.weight", "",
            r"(?:obs_norm_state_dict|model_state_dict\.actor_obs_normalizer|actor_state_dict\.obs_normalizer)\._mean",
            (0.01, 0.0), math.inf, r"(policy|actor)\.activation"),
    Library("rl_games", r"model\.a2c_network\.actor_mlp\.(\d+)\.weight", "model.a2c_network.mu",
            r"(?:model\.)?running_mean_std\.running_mean", (0.0, 1e-5), 5.0, r"params\.network\.mlp\.activation"),
    Library("skrl", r"policy\.net(?:_container)?\.(\d+)\.weight", "policy.policy_layer",
            r"(?:state|observation)_preprocessor\.running_mean", (1e-8, 0.0), 5.0,
            r"models\.policy\.network\.0\.activations"),
)  # fmt: skip
ROUTE = "export the policy to ONNX, and read that file"


def read(file: Opened, activation: str = "", head: str = "") -> Policy | None:
    """Return the actor of a checkpoint; None if its tensors are of none of the libraries.

    Args:
        file: The checkpoint.
        activation: Function between the layers; "" takes the one in the agent.yaml of the run.
        head: Meaning of the output, as for .onnx files; "" is raw.

    Raises:
        QuarlError: The layers do not form a chain, or the activation is unknown.
    """
    arrays = read_nested(file.contents(), str(file.path), halves=False)
    for library in LIBRARIES:
        matches = [(int(m[1][-9:]), name) for name in arrays if (m := re.fullmatch(library.layers, name))]
        if numbered := dict(matches):
            break
    else:
        return None
    if memory := next(filter(MEMORY.search, arrays), None):
        raise UnsupportedError(f"{file.path}: {memory!r} is part of a memory, and actors with one are not read")
    if len(numbered) < len(matches):
        raise QuarlError(f"{file.path}: layers {', '.join(repr(name) for _, name in matches)[:200]} share a number")
    names = [numbered[number].removesuffix(".weight") for number in sorted(numbered)] + [library.last] * bool(
        library.last
    )
    layers = [_layer(arrays, name, f"{file.path}") for name in names]
    for (name, weight, _), (_, before, _) in zip(layers[1:], layers, strict=False):
        if weight.shape[1] != before.shape[0]:
            raise QuarlError(f"{file.path}: layer {name!r} reads {weight.shape[1]} numbers, not {before.shape[0]}")
    kind, origin = (activation, "--activation") if activation else _activation(file, library)
    if (kind := SAME.get(kind.lower(), kind.lower())) not in KINDS:
        raise QuarlError(f"{file.path}: activation {kind[:40]!r} is not one of {', '.join(KINDS)}; {ROUTE}")
    ops, source = list[Op](), OBSERVATION
    if mean := next((name for name in arrays if re.fullmatch(library.mean, name)), ""):
        ops.append(_normalizer(arrays, mean, library, f"{file.path}"))
        source = ops[0].name
    ops += mlp(layers, kind, source)
    size = layers[-1][1].shape[0]
    shown, _, text = (head or "raw").partition(":")
    widths = "-".join(map(str, (layers[0][1].shape[1], *(weight.shape[0] for _, weight, _ in layers))))
    note(
        f"{library.name}: layers {widths} from the tensors' names and shapes, {kind} from {origin}, "
        f"{'normalized by ' + mean if mean else 'not normalized'}, head {head or 'raw, without bounds'}"
    )
    return Policy(
        observation_shape=(layers[0][1].shape[1],),
        ops=tuple(ops),
        head=action_heads.stated(shown, text, size),
        provenance=Provenance(origin=library.name, statistics=f"statistics in {file.path.name}" if mean else ""),
    )


def _layer(arrays: Mapping[str, Array], name: str, where: str) -> tuple[str, Array, Array]:
    """Return name, weight [out, in] and bias [out] of a dense layer."""
    weight, bias = arrays.get(f"{name}.weight"), arrays.get(f"{name}.bias")
    if (
        weight is None
        or bias is None
        or (weight.ndim, weight.shape[:1]) != (2, bias.shape)
        or not (weight.size and weight.dtype == bias.dtype == np.float32)
    ):
        raise UnsupportedError(f"{where}: {name!r} is not a dense float32 layer with a bias; {ROUTE}")
    return name, weight, bias


def _normalizer(arrays: Mapping[str, Array], mean: str, library: Library, where: str) -> Normalize:
    """Return the operator that normalizes observations as the library does."""
    names = [mean.removesuffix("mean") + end for end in ("var", "variance")]
    variance = next((arrays[name] for name in names if name in arrays), None)
    if variance is None or variance.size != arrays[mean].size:
        raise QuarlError(f"{where}: {mean!r} has no variance of its size; save the checkpoint again")
    beside_std, epsilon = library.epsilons
    center, variance = (array.astype(np.float64).reshape(-1) for array in (arrays[mean], variance))
    return Normalize("normalized", (OBSERVATION,), center, (np.sqrt(variance) + beside_std) ** 2, epsilon, library.clip)


def _activation(file: Opened, library: Library) -> tuple[str, str]:
    """Return the activation in the agent.yaml of the run, and the path of that file."""
    folder = file.path.parent
    for path in (folder / "agent.yaml", folder / "params/agent.yaml", folder.parent / "params/agent.yaml"):
        for keys, value in _values(read_yaml(path)) if path.is_file() else ():
            if re.fullmatch(library.activation, keys):
                return str(value), str(path)
    raise QuarlError(f"{file.path} names no activation, and no agent.yaml beside it does: add --activation, as in elu")


def _values(entry: Any, keys: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested mappings and lists, with their keys joined by dots."""
    nested = entry.items() if isinstance(entry, dict) else enumerate(entry) if isinstance(entry, list) else None
    if nested is None:
        yield keys, entry
        return
    for key, value in nested:
        yield from _values(value, f"{keys}.{key}" if keys else str(key))
