"""Values of an artefact's manifest, each checked before it is used: its checksums do not make it sound."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from quarl.arrays import Array
from quarl.errors import QuarlError
from quarl.policy.graph import ActivationGrid
from quarl.quant.affine import TINY


def reals(key: str, tensors: Mapping[str, Array]) -> Array:
    """The tensor of that name, if it holds floating-point numbers."""
    if tensors[key].dtype.kind in "iu":
        raise QuarlError(f"tensor {key!r} holds {tensors[key].dtype}, where real numbers belong")
    return tensors[key]


def grid(scale: Any, zero_point: Any, bits: Any) -> ActivationGrid:
    """The grid of a value, if its numbers can be one."""
    half = 2 ** (size(bits, 2, 16) - 1)
    if not TINY <= number(scale) < 2**127 or not -half <= number(zero_point) < half:
        raise QuarlError("a value's grid is no scale, zero point and bits")
    return ActivationGrid(scale=float(np.float32(scale)), zero_point=int(zero_point), bits=bits)


def number(value: Any) -> float:
    """The value, if it is a number; infinity is one."""
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise QuarlError(f"{str(value)[:60]!r} is not a number")
    return float(value)


def size(value: Any, least: int = 1, most: int = 2**31 - 1) -> int:
    """The value, if it is an integer from `least` to `most`."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise QuarlError(f"{str(value)[:60]!r} is not a size from {least} to {most}")
    return value


def pair(value: Any) -> tuple[int, int]:
    """The value's first two, if they are sizes of 0 or more."""
    return size(value[0], 0), size(value[1], 0)


def word(value: Any) -> str:
    """The value, if it is text that a terminal shows and does not obey."""
    if not isinstance(value, str) or not value.isprintable():
        raise QuarlError(f"{str(value)[:60]!r} is not a name")
    return value


def one_of(value: Any, allowed: tuple[str, ...]) -> Any:
    """The value, if it is allowed."""
    if value not in allowed:
        raise QuarlError(f"{str(value)[:60]!r} is not one of {', '.join(allowed)}")
    return value
