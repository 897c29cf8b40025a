"""How large a layer's sums of integers can become: kernels add in 32 bits, or in float32 as far as that is exact."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.errors import UnsupportedError
from quarl.policy.graph import ActivationGrid
from quarl.quant.spec import integer_range

Array = NDArray[Any]
INT32 = 2**31 - 1
LARGEST_DISTANCE = 255
"""From one int8 code to another: how far a row that is quantised at run time may reach from its zero point."""


def reach(grid: ActivationGrid) -> int:
    """The largest distance of a code from the zero point."""
    low, high = integer_range(grid.bits, symmetric=False)
    return max(grid.zero_point - low, high - grid.zero_point)


def largest_sum(codes: Array, distance: int = LARGEST_DISTANCE, bias: Array | float = 0.0) -> float:
    """What no sum of a row of codes [out, ...] times integers up to `distance`, and of its bias, exceeds."""
    rows = np.abs(codes.reshape(len(codes), -1), dtype=np.float32).sum(axis=1, dtype=np.float64)
    return float((rows * distance + np.abs(bias)).max())


def check_int32(layer: str, codes: Array, distance: int = LARGEST_DISTANCE, bias: Array | float = 0.0) -> float:
    """`largest_sum`; refuses a layer where it leaves the 32 bits that integer kernels add in."""
    largest = largest_sum(codes, distance, bias)
    if largest > INT32:
        raise UnsupportedError(f"the integer sums of layer {layer!r} need more than 32 bits; use engine reference")
    return largest
