"""Grids of static mode: the values of a policy that are integers at run time, and the source of each grid.

One set of rules serves calibration and training, so that training simulates the arithmetic of the engines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from quarl.policy.graph import ActivationGrid, Policy, QuantizedPolicy, behind_linear, final_linear, readers
from quarl.policy.operators import (
    OBSERVATION,
    Activation,
    Add,
    Concat,
    Dense,
    Flatten,
    Linear,
    Mul,
    Op,
    Pool2d,
    Rounded,
    Scale,
)
from quarl.quant.affine import TINY
from quarl.quant.spec import integer_range

EXACT = 2**24
"""Largest integer up to which float32 holds all integers and their sums exactly, in any order."""
WIDEST = 16
KEPT_LEVELS = 256
"""Levels on either side of 0 that a wide grid needs to be better than 8 bits."""
RANGES = {"tanh": (-1.0, 0.0), "tanh_ratio": (-1.0, 0.0), "sigmoid": (0.0, -1.0)}
"""(low end, zero point in half ranges) of functions with a known range."""


@dataclass(frozen=True, slots=True)
class GridRule:
    """Rule for the grid of one value.

    observation: input of dense layers from the observation; as many bits as their sums stay exact with.
    pixels: input of layers from images of bytes; the bytes themselves, whose step is `step`.
    input: another value, whose integers only the inputs of layers need.
    layer: the output of a layer, shaped by the `function` that alone reads it, if any.
    function: the result of an activation function of integers.
    fixed: the same, for a `function` with a known range.
    rounded: a value that `Rounded` puts on a grid of `bits` with the step `step`.
    same: the grid of the value `source`, which has one of its own.
    """

    kind: Literal["observation", "pixels", "input", "layer", "function", "fixed", "rounded", "same"]
    source: str = ""
    function: str = ""
    step: float = 0.0
    bits: int = 8
    power: bool = False
    """Make the step a power of two, as those of gates and states are, so that C needs integers only."""


def grid_rules(policy: Policy, skips: Callable[[str], bool] = lambda name: False) -> dict[str, GridRule]:
    """Return the rule of every value that has a grid, in the order of the graph.

    skips: returns True for the names of layers that compute in float32.
    """
    final, behind, readers_of = final_linear(policy), behind_linear(policy), readers(policy)
    rules: dict[str, GridRule] = {}
    for op in policy.ops:
        source = op.inputs[0]
        if isinstance(op, Linear) and not skips(op.name):
            if source not in rules:
                rules[source] = _input_rule(policy, source, made_by_layers=source in behind)
            if op.name not in final:
                power = policy.state.size > 0 and _meets_state(readers_of, op.name)
                rules[op.name] = GridRule("layer", function=_only_function(readers_of[op.name]), power=power)
        elif isinstance(op, Rounded):
            function = "" if op.step else _only_function(readers_of[op.name])
            rules[op.name] = GridRule(
                "rounded" if op.step else "layer", function=function, step=op.step, bits=op.bits, power=True
            )
        elif source in rules and _keeps_grid(op):
            rules[op.name] = GridRule("same", source=rules[source].source or source)
        elif source in rules and isinstance(op, Activation):
            rules[op.name] = GridRule("fixed" if op.kind in RANGES else "function", function=op.kind)
    return rules


def _only_function(reading: list[Op]) -> str:
    """Return the function that alone reads a value.

    If others read it as well, like a residual connection, it keeps numbers that the function would drop.
    """
    reader, *others = reading
    return reader.kind if isinstance(reader, Activation) and not others else ""


def _meets_state(readers_of: Mapping[str, list[Op]], name: str) -> bool:
    """Return whether the value, or what a ReLU makes of it, is added, multiplied or joined."""
    return any(
        isinstance(op, Add | Mul | Concat)
        or (isinstance(op, Activation) and op.kind == "relu" and _meets_state(readers_of, op.name))
        for op in readers_of[name]
    )


def _keeps_grid(op: Op) -> bool:
    """Return whether the value has the same codes as its input."""
    return isinstance(op, Flatten) or (isinstance(op, Activation | Pool2d) and op.kind in ("relu", "max"))


def _input_rule(policy: Policy, source: str, *, made_by_layers: bool) -> GridRule:
    """Return the rule of a value that layers read and that is not the output of an integer layer."""
    if made_by_layers and not joins_state(policy, source):
        return GridRule("input")
    if (step := _pixel_step(policy, source)) is not None:
        return GridRule("pixels", step=step)
    dense = all(isinstance(op, Dense) for op in policy.linear if op.inputs[0] == source)
    return GridRule("observation" if dense else "input")


def joins_state(policy: Policy, name: str) -> bool:
    """Return whether the value is one that a recurrent layer reads: numbers of this step beside the last state.

    It has as many bits as its sums stay exact with, because the ranges of the two differ.
    """
    ops = {op.name: op for op in policy.ops}
    op = ops.get(name)
    return isinstance(op, Concat) and any(isinstance(ops.get(part), Rounded | Mul) for part in op.inputs)


def trained_rules(policy: Policy, skips: Callable[[str], bool]) -> dict[str, GridRule]:
    """Return the subset of `grid_rules` that training applies.

    Training quantizes in front of layers and behind them. Results of activation functions of integers therefore stay as
    they are unless an integer layer reads them.
    """
    rules = grid_rules(policy, skips)
    read = {op.inputs[0] for op in policy.linear if not skips(op.name)}
    for name, rule in reversed(rules.items()):
        if rule.kind == "same" and name in read:
            read.add(rule.source)
    kept: dict[str, GridRule] = {}
    for name, rule in rules.items():
        unread = rule.kind in ("function", "fixed") and name not in read
        if not unread and (rule.kind != "same" or rule.source in kept):
            kept[name] = rule
    return kept


def origin(rules: Mapping[str, GridRule], name: str) -> str:
    """Return the value whose grid `name` shares; `name` itself if it has its own grid or none."""
    return (rules[name].source or name) if name in rules else name


def narrowed(policy: QuantizedPolicy) -> str | None:
    """Return a value on a grid of fewer than 8 bits, to which int8 kernels do not clip; None if there is none.

    Bytes of images end at the ends of their grid, so they need no clipping.
    """
    if policy.observation_dtype == "uint8":
        return None
    return next((name for name, grid in policy.grids.items() if grid.bits < 8), None)


def _pixel_step(policy: Policy, name: str) -> float | None:
    """Return the size of one unit of a byte in the value `name`; None unless it is bytes times a number."""
    ops, step = {op.name: op for op in policy.ops}, 1.0
    while name != OBSERVATION:
        op = ops[name]
        if isinstance(op, Scale) and not op.factor.shape:
            step *= float(op.factor)
        elif not isinstance(op, Flatten):
            return None
        name = op.inputs[0]
    return step if policy.observation_dtype == "uint8" and step > 0 else None


def fixed_grid(function: str, bits: int = 8, *, symmetric: bool = False) -> ActivationGrid:
    """Return the grid over the known range of tanh or sigmoid; at 8 bits the one that LiteRT's kernels prescribe.

    Args:
        function: Name of the function.
        bits: Width of the codes.
        symmetric: The zero point is 0; sigmoid then uses half of the codes.
    """
    low, zero = RANGES[function]
    if symmetric and zero:
        return _symmetric_grid(1.0, bits)
    half = 2 ** (bits - 1)
    return ActivationGrid(scale=(1.0 - low) / (2 * half), zero_point=int(zero * half), bits=bits)


def pixel_grid(step: float, bits: int = 8, *, symmetric: bool = False) -> ActivationGrid:
    """Return the grid over bytes 0..255 with `step` per unit; at 8 bits every byte is a point of it.

    Args:
        step: Value of one unit of a byte.
        bits: Width of the codes.
        symmetric: The zero point is 0; bytes then use half of the codes, so 8 bits hold every second byte.
    """
    if symmetric:
        return _symmetric_grid(step * 255, bits)
    return ActivationGrid(scale=float(np.float32(step * 255 / (2**bits - 1))), zero_point=-(2 ** (bits - 1)), bits=bits)


def _symmetric_grid(high: float, bits: int) -> ActivationGrid:
    """Return the grid with zero point 0 whose largest code is `high`."""
    return ActivationGrid(scale=float(np.float32(high / integer_range(bits)[1])), zero_point=0, bits=bits)


def wide_bits(policy: Policy, name: str, bits_of: Callable[[str], int]) -> int:
    """Return the number of bits that the integers of a value may have if dense layers read it.

    Half of the range in which float32 sums exactly belongs to the products, the other half to the bias.

    Args:
        policy: The policy.
        name: Name of the value.
        bits_of: Bits of the weights of a layer, by name.
    """
    readers_of = (op for op in policy.linear if op.inputs[0] == name)
    products = max(op.weight.shape[1] * integer_range(bits_of(op.name))[1] for op in readers_of)
    return min(WIDEST, 1 + math.floor(math.log2(EXACT / 2 / products)))


def wide_grid(extent: float, bits: int) -> ActivationGrid | None:
    """Return the grid of an observation that reaches `extent`; None if 8 bits do as well.

    The grid has a margin of a factor of two.

    The calibrated range is many times larger than the differences that matter near rest, and a static int8 grid leaves
    dead zones there. A dense layer over few features can take more bits without loss of exactness. While K products and
    the bias stay below 2**24, float32 kernels compute the integer sum without rounding. The scale is a power of two, so
    engines may merge it with the preceding multiplication.
    """
    if bits <= 8 or not 0 < extent < np.inf:
        return None
    scale = 2.0 ** math.ceil(math.log2(max(2 * extent / (2 ** (bits - 1) - 1), TINY)))
    return None if extent / scale < KEPT_LEVELS else ActivationGrid(scale=scale, zero_point=0, bits=bits)


def least_scales(bias: Any, grid: ActivationGrid, bits: int) -> Any:
    """Return lower bounds for the scales of a layer's weights, float64 [out].

    With them its bias fits into the integer sums, in training as in what is deployed.

    A bias counts in steps of both scales, that of the inputs' `grid` and that of its row's weights. With tiny weights
    it would take more than its half of the range in which float32 sums exactly; half of that half is reserved for bias
    correction. No kernel sums weights of more than 8 `bits`, so their bias may take correspondingly more bits.

    Args:
        bias: The layer's bias, a float64 array or tensor.
        grid: Grid of its input.
        bits: Width of its weights.
    """
    return abs(bias) / (EXACT / 4 * 2.0 ** max(bits - 8, 0)) / grid.scale
