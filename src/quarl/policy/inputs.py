"""How the row of numbers that a network reads divides into what an environment shows, which need not be one array."""

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
    """A space of observations, in the row as `gymnasium.spaces.utils.flatten` has it: discrete numbers are one-hot."""

    key: str
    """Of a Dict; empty where the space is the whole observation."""
    kind: Kind
    shape: tuple[int, ...]
    """Of one observation: () of Discrete, an image with its channels first."""
    values: tuple[int, ...] = ()
    """How many values each number has, of Discrete and MultiDiscrete."""

    def __post_init__(self) -> None:
        discrete = self.kind in ("Discrete", "MultiDiscrete")
        if (discrete and len(self.values) != math.prod(self.shape)) or bool(self.values) != discrete:
            raise QuarlError(f"the input {self.key[:60]!r} has {len(self.values)} counts of values for {self.shape}")

    @property
    def size(self) -> int:
        """Numbers in the row."""
        return sum(self.values) or math.prod(self.shape)

    def __str__(self) -> str:
        counts = f" of {'x'.join(map(str, self.values))} values" if self.values else ""
        return f"{self.key or 'observation'} ({self.kind} {self.shape}{counts})"

    def rows(self, given: Array) -> tuple[Array, bool]:
        """Real numbers [B, size] of observations [B, *shape], and whether one was given alone, without the B.

        QuarlError for another shape, and for numbers that the space has not.
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
    """float32 rows [B, n] of one observation or of B, and whether it was one alone, without the B.

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
        raise QuarlError(f"the observation's parts are not as many of each; the policy expects {expected}")
    with np.errstate(over="ignore"):
        return np.concatenate(parts, axis=1, dtype=np.float32, casting="unsafe"), singles[0]


def places(inputs: Sequence[Input]) -> dict[str, int]:
    """By key: where in the row each begins."""
    starts = np.cumsum([0, *(each.size for each in inputs)])
    return {each.key: int(start) for each, start in zip(inputs, starts, strict=False)}


def layout(inputs: Sequence[Input]) -> str:
    """Where in the row each lies, in words."""
    return ", ".join(f"{each} from {start}" for each, start in zip(inputs, places(inputs).values(), strict=True))


def has_channels_last(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether images of `shape` are those of `wanted` [C, H, W] in the other order of axes."""
    return len(shape) == 3 and shape != wanted == (shape[2], *shape[:2])
