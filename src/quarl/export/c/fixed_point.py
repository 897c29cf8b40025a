"""Operators of recurrent policies in C: whole numbers of steps that are powers of two, as far as values have them.

Gates, states and their products are such numbers up to 2^24, so sums of integers are the float32 results. Other values
are real numbers.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from quarl.engines.lookup_tables import table
from quarl.export.c.places import Place, Steps, Value
from quarl.policy import operators
from quarl.policy.graph import ActivationGrid
from quarl.policy.grids import EXACT

if TYPE_CHECKING:
    from quarl.export.c.lowering import Lowering


def is_power(number: float) -> bool:
    """Return whether a number, or its opposite, is a power of two that kernels of steps take."""
    return abs(math.frexp(number)[0]) == 0.5 and 2.0**-60 < abs(number) < 2.0**60


def steps(into: Lowering, name: str) -> Steps | None:
    """Return a value as steps, which codes become when first needed; None if it has none."""
    value = into.values[name]
    if value.steps is None and value.codes and value.grid and value.real is None and is_power(value.grid.scale):
        into.call("widen", value.size, value.codes, place := into.place_steps(value.size, into.until[name]))
        into.values[name] = value = replace(value, steps=Steps(place, value.grid.scale, value.grid.reach))
    return value.steps


def multiply(into: Lowering, op: operators.Mul) -> Value:
    """Append the product of two values."""
    (a, b), size = (steps(into, name) for name in op.inputs), into.values[op.inputs[0]].size
    if a and b and a.reach * b.reach < EXACT:
        into.call("products", size, a.place, b.place, place := into.place_steps(size, into.until[op.name]))
        return Value(size=size, steps=Steps(place, a.scale * b.scale, a.reach * b.reach))
    x, y = (into.real(name) for name in op.inputs)
    into.call("scale", size, x, y, place := into.place_real(op.name, size))
    return Value(size=size, real=place)


def add(into: Lowering, op: operators.Add) -> Value | None:
    """Append the sum of two values of steps; return None if they have none."""
    (a, b), sizes = (steps(into, name) for name in op.inputs), [into.values[name].size for name in op.inputs]
    if a is None or b is None or sizes[0] != sizes[1]:
        return None
    unit = min(abs(a.scale), abs(b.scale))
    if (reach := a.reach * abs(a.scale) / unit + b.reach * abs(b.scale) / unit) >= EXACT:
        return None
    place = into.place_steps(sizes[0], into.until[op.name])
    into.call("accumulate", sizes[0], a.place, a.scale / unit, b.place, b.scale / unit, place)
    return Value(size=sizes[0], steps=Steps(place, unit, round(reach)))


def rounded(into: Lowering, op: operators.Rounded) -> Value:
    """Append codes of a value on its grid."""
    size, grid = into.values[op.inputs[0]].size, into.policy.grids[op.name]
    settle(into, op.inputs[0], grid, place := into.place_codes(op.name, size))
    into.count(op.name, size, place)
    return Value(size=size, codes=place, grid=grid)


def settle(into: Lowering, name: str, grid: ActivationGrid, place: Place) -> None:
    """Append the kernel that rounds a value to a grid.

    Args:
        into: The builder.
        name: Name of the value.
        grid: The grid.
        place: Place of its codes.
    """
    value, size, power = steps(into, name), into.values[name].size, is_power(grid.scale)
    ratio = value.scale / grid.scale if value and power else 0.0
    if value and 2.0**-24 <= abs(ratio) < EXACT / value.reach:
        factors = math.copysign(max(abs(ratio), 1), ratio), max(-math.log2(abs(ratio)), 0)
        into.call("narrow", size, value.place, *factors, *grid.steps, place)
    elif power:
        into.call("quantize_power", size, into.real(name), math.log2(grid.scale), *grid.steps, place)
    else:
        into.call("quantize", size, into.real(name), np.float32(grid.scale), *grid.steps, place)


def threshold(into: Lowering, op: operators.Activation, source: ActivationGrid, target: ActivationGrid) -> Value | None:
    """Append a monotonic function of codes of up to 16 bits; return None if it falls anywhere.

    Args:
        into: The builder.
        op: The function.
        source: Grid of its input.
        target: Grid of its value, of 8 bits.
    """
    codes, value = table(op, source, target).astype(np.int64) - target.zero_point, into.values[op.inputs[0]]
    if (np.diff(codes) < 0).any():
        return None
    # The last code for each result: the function is above it from the next code on.
    limits = np.searchsorted(codes, codes[0] + np.arange(255), side="right") - 1 + source.steps[0]
    into.call("threshold", value.size, value.codes, limits, codes[0], place := into.place_codes(op.name, value.size))
    return Value(size=value.size, codes=place, grid=target)
