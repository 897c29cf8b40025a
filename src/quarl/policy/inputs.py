"""Division of the row of numbers that a network reads into the parts of an environment's observation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from quarl.arrays import Array
from quarl.errors import QuarlError

Kind = Literal["Box", "Discrete", "MultiDiscrete", "MultiBinary"]
KINDS: tuple[str, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Input:
    """A space of observations, laid out in the row like `gymnasium.spaces.utils.flatten`.

    Discrete numbers are one-hot.
    """

    key: str
    """Key in a Dict; "" if the space is the whole observation."""
    kind: Kind
    shape: tuple[int, ...]
    """Shape of one observation: () for Discrete, channels first for an image."""
    values: tuple[int, ...] = ()
    """Number of values of each number of Discrete and MultiDiscrete."""

    def __post_init__(self) -> None:
        discrete = self.kind in ("Discrete", "MultiDiscrete")
        if (discrete and len(self.values) != math.prod(self.shape)) or bool(self.values) != discrete:
            raise QuarlError(f"the input {self.key[:60]!r} has {len(self.values)} counts of values for {self.shape}")

    @property
    def size(self) -> int:
        """Return the number of numbers in the row."""
        return sum(self.values) or math.prod(self.shape)

    def __str__(self) -> str:
        counts = f" of {'x'.join(map(str, self.values))} values" if self.values else ""
        return f"{self.key or 'observation'} ({self.kind} {self.shape}{counts})"

    def rows(self, given: Array) -> tuple[Array, bool]:
        """Return real numbers [B, size] of observations [B, *shape], and whether a single one was given, without the B.

        Raises QuarlError for another shape, and for numbers outside the space.
        """
        if has_channels_last(given.shape[-3:], self.shape):
            given = np.moveaxis(given, -1, -3)
        single = given.shape == self.shape
        if not single and given.shape[1:] != self.shape:
            raise QuarlError(f"the observation of {self} is {given.shape}")
        numbers = given.reshape(1 if single else len(given), -1)
        if self.kind == "Box":
            return numbers, single
        counts = np.array(self.values or (2,))
        with np.errstate(invalid="ignore"):
            whole = numbers.astype(np.int64)
        if ((whole != numbers) | (whole < 0) | (whole >= counts)).any():
            raise QuarlError(f"the observation of {self} holds {str(numbers.reshape(-1)[:4])[:60]}, not values of it")
        if not self.values:
            return numbers, single
        hot = np.zeros((len(numbers), self.size), np.float32)
        np.put_along_axis(hot, whole + np.cumsum(counts) - counts, 1, axis=1)
        return hot, single


def flatten(inputs: Sequence[Input], observation: Mapping[str, Array] | Array) -> tuple[Array, bool]:
    """Return float32 rows [B, n] of one observation or of B, and whether it was a single one, without the B.

    observation: an array by key, or the array of an input without a key.
    """
    if not isinstance(observation, Mapping):
        observation = {"": observation}
    expected = ", ".join(map(str, inputs))
    if missing := [each.key for each in inputs if each.key not in observation]:
        what = f"has no {missing[0]!r}" if missing[0] else "is a dict"
        raise QuarlError(f"the observation {what}; the policy expects {expected}")
    parts, singles = zip(*(each.rows(observation[each.key]) for each in inputs), strict=True)
    if len({(len(part), single) for part, single in zip(parts, singles, strict=True)}) > 1:
        raise QuarlError(f"the observation's parts differ in number; the policy expects {expected}")
    with np.errstate(over="ignore"):
        return np.concatenate(parts, axis=1, dtype=np.float32, casting="unsafe"), singles[0]


def places(inputs: Sequence[Input]) -> dict[str, int]:
    """Return the index in the row at which each input begins, by key."""
    starts = np.cumsum([0, *(each.size for each in inputs)])
    return {each.key: int(start) for each, start in zip(inputs, starts, strict=False)}


def layout(inputs: Sequence[Input]) -> str:
    """Return a text that lists the inputs and their places in the row."""
    return ", ".join(f"{each} from {start}" for each, start in zip(inputs, places(inputs).values(), strict=True))


def has_channels_last(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Return whether images of `shape` are those of `wanted` [C, H, W] in the other order of axes."""
    return len(shape) == 3 and shape != wanted == (shape[2], *shape[:2])
