"""Where static mode puts grids: which values of a policy are integers at run time, and what shapes each grid.

One set of rules for calibration and for training, so that what is simulated in training is what engines compute.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from quarl.arrays import Array
from quarl.policy.graph import ActivationGrid, Policy, QuantizedPolicy, behind_linear, final_linear, readers
from quarl.policy.operators import OBSERVATION, Activation, Dense, Flatten, Linear, Op, Pool2d, Scale
from quarl.quant.affine import TINY
from quarl.quant.spec import integer_range

EXACT = 2**24
"""float32 holds every integer up to here, and their sums, in any order."""
WIDEST = 16
KEPT_LEVELS = 256
"""A wide grid with fewer on either side of 0 is no better than 8 bits."""
RANGES = {"tanh": (-1.0, 0.0), "sigmoid": (0.0, -1.0)}
"""(low end, zero point in half ranges) of functions with a known range."""


@dataclass(frozen=True, slots=True)
class GridRule:
    """How the grid of one value comes about.

    observation: what dense layers read of the observation; as many bits as their sums stay exact with.
    pixels: what layers read of images of bytes; the bytes themselves, whose step is `step`.
    input: another value that only layers' inputs need integers of.
    layer: the output of a layer, shaped by the `function` that alone reads it, if any.
    function: what an activation function makes of integers.
    fixed: the same where the range of `function` is known.
    same: the grid of the value `source`, which has one of its own.
    """

    kind: Literal["observation", "pixels", "input", "layer", "function", "fixed", "same"]
    source: str = ""
    function: str = ""
    step: float = 0.0


def grid_rules(policy: Policy, skips: Callable[[str], bool] = lambda name: False) -> dict[str, GridRule]:
    """The rule of every value that has a grid, in the order in which values are made.

    skips: tells of layers that compute in float32, by name.
    """
    final, behind, readers_of = final_linear(policy), behind_linear(policy), readers(policy)
    rules: dict[str, GridRule] = {}
    for op in policy.ops:
        source = op.inputs[0]
        if isinstance(op, Linear) and not skips(op.name):
            if source not in rules:
                rules[source] = _input_rule(policy, source, made_by_layers=source in behind)
            if op.name not in final:
                # one that others read as well, as a residual connection does, keeps what the function would drop
                reader, *others = readers_of[op.name]
                function = reader.kind if isinstance(reader, Activation) and not others else ""
                rules[op.name] = GridRule("layer", function=function)
        elif source in rules and _keeps_grid(op):
            rules[op.name] = GridRule("same", source=rules[source].source or source)
        elif source in rules and isinstance(op, Activation):
            rules[op.name] = GridRule("fixed" if op.kind in RANGES else "function", function=op.kind)
    return rules


def _keeps_grid(op: Op) -> bool:
    """Whether the value has the codes that its input has."""
    return isinstance(op, Flatten) or (isinstance(op, Activation | Pool2d) and op.kind in ("relu", "max"))


def _input_rule(policy: Policy, source: str, *, made_by_layers: bool) -> GridRule:
    """Of a value that layers read, and that no layer of integers makes."""
    if made_by_layers:
        return GridRule("input")
    if (step := _pixel_step(policy, source)) is not None:
        return GridRule("pixels", step=step)
    dense = all(isinstance(op, Dense) for op in policy.linear if op.inputs[0] == source)
    return GridRule("observation" if dense else "input")


def trained_rules(policy: Policy, skips: Callable[[str], bool]) -> dict[str, GridRule]:
    """`grid_rules` as far as training follows them: it quantizes in front of layers and behind them, so that what
    activation functions make of integers stays as it is where no layer of integers reads it."""
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
    """The value whose grid `name` lies on: itself, where it has one of its own or none."""
    return (rules[name].source or name) if name in rules else name


def narrowed(policy: QuantizedPolicy) -> str | None:
    """A value on a grid of fewer than 8 bits, which int8 kernels do not clip to; None where there is none.

    Bytes of images end where their grid does.
    """
    if policy.observation_dtype == "uint8":
        return None
    return next((name for name, grid in policy.grids.items() if grid.bits < 8), None)


def _pixel_step(policy: Policy, name: str) -> float | None:
    """What one unit of a byte has become in the value `name`; None where it is not just bytes times a number."""
    ops, step = {op.name: op for op in policy.ops}, 1.0
    while name != OBSERVATION:
        op = ops[name]
        if isinstance(op, Scale) and not op.factor.shape:
            step *= float(op.factor)
        elif not isinstance(op, Flatten):
            return None
        name = op.inputs[0]
    return step if policy.observation_dtype == "uint8" and step > 0 else None


def fixed_grid(function: str, bits: int = 8) -> ActivationGrid:
    """The grid over the known range of tanh or sigmoid; at 8 bits the one that LiteRT's kernels prescribe."""
    low, zero = RANGES[function]
    half = 2 ** (bits - 1)
    return ActivationGrid(scale=(1.0 - low) / (2 * half), zero_point=int(zero * half), bits=bits)


def pixel_grid(step: float, bits: int = 8) -> ActivationGrid:
    """The grid over bytes 0..255 of which each counts `step`; at 8 bits every byte is a point of it."""
    return ActivationGrid(scale=float(np.float32(step * 255 / (2**bits - 1))), zero_point=-(2 ** (bits - 1)), bits=bits)


def wide_bits(policy: Policy, name: str, bits_of: Callable[[str], int]) -> int:
    """Bits that the integers of a value which dense layers read may have; bits_of: of the weights of a layer, by name.

    Half of what float32 sums exactly is the products', the other half the bias's.
    """
    readers_of = (op for op in policy.linear if op.inputs[0] == name)
    products = max(op.weight.shape[1] * integer_range(bits_of(op.name))[1] for op in readers_of)
    return min(WIDEST, 1 + math.floor(math.log2(EXACT / 2 / products)))


def wide_grid(extent: float, bits: int) -> ActivationGrid | None:
    """The grid of an observation that reaches `extent`, with a factor of two in hand; None where 8 bits do as well.

    Its calibrated range is many times what decides near rest, and a static int8 grid leaves dead zones there. A dense
    layer over few features can take more bits at no loss of exactness: while K products and the bias stay below
    2**24, float32 kernels compute the integer sum without rounding. The scale is a power of two, so that engines may
    merge it with the multiplication before it.
    """
    if bits <= 8 or not 0 < extent < np.inf:
        return None
    scale = 2.0 ** math.ceil(math.log2(max(2 * extent / (2 ** (bits - 1) - 1), TINY)))
    return None if extent / scale < KEPT_LEVELS else ActivationGrid(scale=scale, zero_point=0, bits=bits)


def least_scales(op: Linear, grid: ActivationGrid, bits: int) -> Array:
    """float64 [out]: the scales of a layer's weights with which its bias leaves room in the integer sums.

    A bias counts in steps of both scales, that of the inputs' `grid` and that of its row's weights. Beside tiny weights
    it would take more than its half of what float32 sums exactly; half of that half is kept for bias correction. No
    kernel sums weights of more than 8 `bits`: their bias may take as many bits more.
    """
    steps: Array = np.abs(op.bias.astype(np.float64)) / (EXACT / 4 * 2.0 ** max(bits - 8, 0))
    return steps / grid.scale
