"""Observation and action spaces as plain numbers: from a saved model's inert pickle or from a live gymnasium space."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from quarl.arrays import Array
from quarl.errors import QuarlError, UnsupportedError
from quarl.inert.objects import Inert
from quarl.inert.pickle import read_base64
from quarl.policy.graph import ActionHead

LARGEST = 2**31 - 1
"""Largest size or start of a discrete space."""


@dataclass(frozen=True, eq=False, slots=True)
class Box:
    """low <= x <= high, elementwise; the arrays have the space's shape and dtype."""

    low: Array
    high: Array

    @property
    def width(self) -> int:
        """Return the number of elements; for a space of actions, the number of network outputs that choose one."""
        return self.low.size

    @property
    def is_image(self) -> bool:
        """Return True if Stable-Baselines3 divides the observation by 255: three axes of bytes from 0 to 255."""
        full = self.low.ndim == 3 and self.low.dtype == np.uint8
        return full and not self.low.any() and bool((self.high == 255).all())

    @property
    def observation_dtype(self) -> Literal["float32", "uint8"]:
        """Return the number type that engines read: images stay bytes, all other numbers become float32."""
        return "uint8" if self.is_image else "float32"


@dataclass(frozen=True, slots=True)
class Discrete:
    """The `n` whole numbers from `start` on."""

    n: int
    start: int = 0

    @property
    def width(self) -> int:
        """Return the number of network outputs: one score per number."""
        return self.n


@dataclass(frozen=True, slots=True)
class MultiDiscrete:
    """Several whole numbers, each from 0 up to its own limit."""

    nvec: tuple[int, ...]

    @property
    def width(self) -> int:
        """Return the number of network outputs: the scores of each number, one after the other."""
        return sum(self.nvec)


@dataclass(frozen=True, slots=True)
class MultiBinary:
    """An array of bits."""

    shape: tuple[int, ...]

    @property
    def width(self) -> int:
        """Return the number of network outputs: one logit per bit."""
        return math.prod(self.shape)


@dataclass(frozen=True, eq=False, slots=True)
class Dict:
    """Spaces by name; none of them is a Dict."""

    spaces: Mapping[str, Box | Discrete | MultiDiscrete | MultiBinary]

    @property
    def width(self) -> int:
        """Return the sum of the widths of the parts."""
        return sum(space.width for space in self.spaces.values())


Space = Box | Discrete | MultiDiscrete | MultiBinary | Dict


def from_blob(entry: Any, where: str) -> Space:
    """Return the space of a Stable-Baselines3 `data` entry from its ":serialized:" pickle, read as data.

    The JSON beside the pickle is meant for human readers: it rounds, and abbreviates long arrays with "...".
    """
    text = entry.get(":serialized:") if isinstance(entry, Mapping) else None
    if not isinstance(text, str):
        raise QuarlError(f"{where} is missing or malformed; the file is not a Stable-Baselines3 model")
    return from_inert(read_base64(text, where), where)


def from_inert(space: Any, where: str, *, nested: bool = False) -> Space:
    """Return the space for a result of `read_pickle`.

    Args:
        space: The inert object.
        where: Name of the space for error messages.
        nested: Refuse a Dict.

    Raises:
        QuarlError: The object is not a supported space.
    """
    if not isinstance(space, Inert):
        raise QuarlError(f"{where} is a {type(space).__name__}, not a space")
    if space.module.split(".")[0] not in ("gym", "gymnasium"):
        raise UnsupportedError(f"{where} is a {space.path:.80}, not a space of gym or gymnasium")
    return _space(space.name, space.attributes, where, None if nested else from_inert)


def from_live(space: Any, where: str, *, nested: bool = False) -> Space:
    """Return the space for a live gymnasium space.

    Args:
        space: The live space.
        where: Name of the space for error messages.
        nested: Refuse a Dict.

    Raises:
        QuarlError: The object is not a supported space.
    """
    return _space(type(space).__name__, vars(space), where, None if nested else from_live)


def _space(kind: str, attributes: Mapping[Any, Any], where: str, of_part: Callable[..., Any] | None) -> Space:
    """Return the space of a kind from its attributes; `of_part` reads the parts of a Dict."""
    # Every number comes from the file, so each kind checks its own.
    if kind == "Dict" and of_part is not None:
        spaces = attributes.get("spaces")
        if not isinstance(spaces, dict) or not spaces or not all(isinstance(key, str) and key for key in spaces):
            raise QuarlError(f"{where} is a Dict without spaces by name; the file is damaged")
        return Dict({key: of_part(each, f"{where}[{key[:60]!r}]", nested=True) for key, each in spaces.items()})
    if kind == "Box":
        # Bounds must be real arrays of one shape, with low at most high.
        low, high = attributes.get("low"), attributes.get("high")
        if not isinstance(low, np.ndarray) or not isinstance(high, np.ndarray) or low.shape != high.shape:
            raise QuarlError(f"{where} is a Box without bounds; the file is damaged")
        if low.dtype.kind not in "biuf" or high.dtype.kind not in "biuf":
            raise QuarlError(f"{where} has bounds of type {low.dtype}, not real numbers")
        if np.isnan(low).any() or np.isnan(high).any() or (low > high).any():
            raise QuarlError(f"{where} has bounds that no number satisfies (NaN, or low above high)")
        return Box(low, high)
    if kind == "Discrete":
        return Discrete(*(_counts(attributes, name, where, kind)[0] for name in ("n", "start")))
    if kind == "MultiDiscrete":
        nvec = _counts(attributes, "nvec", where, kind)
        if any(_counts(attributes, "start", where, kind)):
            raise UnsupportedError(f"{where} is a MultiDiscrete that does not count from 0, as it has to; wrap it")
        return MultiDiscrete(nvec)
    if kind == "MultiBinary":
        return MultiBinary(_counts(attributes, "n", where, kind))
    raise UnsupportedError(
        f"{where} is a {kind[:80]}; only Box, Discrete, MultiDiscrete and MultiBinary spaces are supported"
    )


def _counts(attributes: Mapping[Any, Any], name: str, where: str, kind: str) -> tuple[int, ...]:
    """Return the whole numbers of an attribute, one or several along one axis.

    The `start` of an older space, which is missing, is (0,).
    """
    value = attributes.get(name, 0 if name == "start" else None)
    numbers = value.tolist() if isinstance(value, np.ndarray | np.integer) else value
    counts = tuple(numbers) if isinstance(numbers, list | tuple) else (numbers,)
    least, single = -LARGEST if name == "start" else 1, kind != "Discrete" or len(counts) == 1
    if not counts or not single or not all(type(n) is int and least <= n <= LARGEST for n in counts):
        raise QuarlError(f"{where} is a {kind} whose {name} is not a list of valid whole numbers along one axis")
    return counts


def observation_box(space: Space, where: str) -> Box:
    """Return the space if a network can read its raw observations; raise QuarlError otherwise."""
    if not isinstance(space, Box):
        raise UnsupportedError(
            f"{where} is {type(space).__name__}, but training needs a Box: agents of Stable-Baselines3 that observe "
            f"a {type(space).__name__} can be read, quantized and evaluated"
        )
    if not space.low.ndim or not space.low.size:
        raise QuarlError(f"{where} has shape {space.low.shape}; an observation needs at least one number")
    return space


def as_pairs(space: Space) -> Space:
    """Return the space with each bit as a number with two scores, as MaskablePPO scores bits."""
    return MultiDiscrete((2,) * space.width) if isinstance(space, MultiBinary) and len(space.shape) == 1 else space


def action_head(
    space: Space, where: str, *, squashed: bool = False, log_std: Array | None = None, zero_based: bool = True
) -> ActionHead:
    """Return the head for actions of `space`.

    Args:
        space: The space of actions.
        where: Name of the space for error messages.
        squashed: Actions are tanh of the output, mapped to the bounds.
        log_std: Logarithm of the standard deviation of state-independent noise.
        zero_based: Discrete actions count from 0 even if the space starts elsewhere, as in Stable-Baselines3.

    Raises:
        QuarlError: The space is not supported, or unbounded although `squashed` is set.
    """
    if isinstance(space, Discrete):
        return ActionHead("argmax", start=space.start, zero_based=zero_based and space.start != 0)
    if isinstance(space, MultiDiscrete):
        return ActionHead("argmax", segments=space.nvec)
    if isinstance(space, Dict):
        raise UnsupportedError(f"{where} is a Dict; only Box, Discrete, MultiDiscrete and MultiBinary are supported")
    if isinstance(space, MultiBinary):
        if len(space.shape) > 1:
            raise UnsupportedError(f"{where} has bits of shape {space.shape}; only one axis is supported: flatten it")
        return ActionHead("binary")
    if not space.low.ndim or not space.low.size:
        raise UnsupportedError(f"{where} has shape {space.low.shape}; an action needs at least one number")
    with np.errstate(over="ignore"):  # bounds beyond float32 become infinite, which bounds nothing either
        low, high = space.low.astype(np.float32), space.high.astype(np.float32)
    if squashed and not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise QuarlError(f"{where} is unbounded, but the policy's output is a fraction of its range")
    return ActionHead("tanh" if squashed else "clip", low, high, log_std=log_std)
