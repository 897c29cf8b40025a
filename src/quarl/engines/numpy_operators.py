"""All operators in numpy, float32: the arithmetic that the reference and its tables share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

import numpy as np

from quarl.arrays import Array
from quarl.policy import operators
from quarl.policy.formulas import FORMULAS, l2_norm, norm_of_codes
from quarl.policy.graph import ActivationGrid, Policy
from quarl.policy.operators import LEAKY_SLOPE, OBSERVATION, Linear, Op, as_float32
from quarl.quant.affine import TINY, fake_quantize

FUNCTIONS: Mapping[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, np.float32(0)),
    "tanh": np.tanh,
    # exp overflows below -88; the sigmoid of -60 is 0 in float32 as well
    "sigmoid": lambda x: np.float32(1) / (np.float32(1) + np.exp(-np.maximum(x, np.float32(-60)))),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, np.float32(0)))),
    "leaky_relu": lambda x: np.where(x > 0, x, x * np.float32(LEAKY_SLOPE)),
}
BINARY = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "min": np.minimum, "max": np.maximum}
ARITHMETIC: Mapping[str, Callable[..., Array]] = {
    **{**FUNCTIONS, **BINARY, "log": np.log, "round": np.round, "sqrt": np.sqrt},
    "sum": lambda x: x.sum(axis=-1, keepdims=True, dtype=np.float32),
}

MAX_EXACT_NORM = 1024
"""Features over which a sum of squared distances of int8 codes from their mean stays exact in float32."""
MAX_EXACT_SQUARES = 256
"""Numbers over which a sum of squared distances of int8 codes from any zero point stays exact in float32."""
Norm = operators.LayerNorm | operators.L2Norm


def as_float(policy: Policy, observations: Array) -> dict[str, Array]:
    """Return every value of a float32 policy on observations [N, *shape], float32 [N, ...]; computed in whole batches.

    It serves calibration: it is faster than `Reference`, and equal to it up to the order of float32 sums.
    """
    values: dict[str, Array] = {OBSERVATION: np.asarray(observations, np.float32)}
    for op in policy.ops:
        values[op.name] = apply(op, [values[name] for name in op.inputs])
    return values


def on_grid(x: Array, grid: ActivationGrid) -> Array:
    """Return x moved to the nearest level of the grid, float32."""
    value: Array = fake_quantize(x, grid.qparams)
    return value.astype(np.float32)


def apply(op: Op, inputs: list[Array]) -> Array:
    """Return the float32 value of an operator; a layer uses its dequantized weights."""
    return LOWERINGS[type(op)](op, *inputs)


def _linear(op: Linear, x: Array) -> Array:
    sums = unfold(op, x) @ as_float32(op.weight).reshape(op.weight.shape[0], -1).T
    sums += op.bias
    return fold(op, sums, x.shape[1:])


def computed(kind: str, *values: Any) -> Array:
    """Return the value of one operation of a formula, by its name in ARITHMETIC."""
    return ARITHMETIC[kind](*values)


def _activation(op: operators.Activation, x: Array) -> Array:
    value = FUNCTIONS[op.kind](x) if op.kind in FUNCTIONS else FORMULAS[op.kind](computed, x, *op.settings)
    return value.astype(np.float32, copy=False)


def _softmax(op: operators.Softmax, x: Array) -> Array:
    rows = x.reshape(len(x), -1, op.size)
    powers = np.exp(rows - rows.max(axis=-1, keepdims=True))
    shares: Array = powers / powers.sum(axis=-1, keepdims=True)
    return shares.reshape(x.shape)


def _pool(op: operators.Pool2d, x: Array) -> Array:
    """Return maxima, or averages as sums times the reciprocal of the window's size."""
    (ph, pw), (sh, sw) = op.padding, op.stride
    padding = ((0, 0), (0, 0), (ph, ph), (pw, pw))
    padded = np.pad(x, padding, constant_values=-np.inf if op.kind == "max" else 0)
    windows = np.lib.stride_tricks.sliding_window_view(padded, op.kernel, axis=(2, 3))[:, :, ::sh, ::sw]
    if op.kind == "max":
        return np.asarray(windows.max(axis=(-2, -1)))
    return np.asarray(windows.sum(axis=(-2, -1), dtype=np.float32) * np.float32(1 / math.prod(op.kernel)))


def _layer_norm(op: operators.LayerNorm, x: Array) -> Array:
    centered = x - x.mean(axis=-1, keepdims=True)
    variance = np.square(centered).mean(axis=-1, keepdims=True)
    normal = centered * (np.float32(1) / np.sqrt(variance + np.float32(op.epsilon)))
    return np.asarray(normal * op.weight + op.bias)


LOWERINGS: Mapping[type[Op], Callable[..., Array]] = {
    operators.Dense: _linear,
    operators.Conv2d: _linear,
    operators.Activation: _activation,
    operators.Softmax: _softmax,
    operators.Pool2d: _pool,
    operators.LayerNorm: _layer_norm,
    operators.L2Norm: lambda op, x: l2_norm(computed, x, np.float32(op.epsilon**2)),
    operators.Normalize: operators.Normalize.__call__,
    operators.Scale: lambda op, x: x * op.factor,
    operators.Flatten: lambda op, x: x.reshape(len(x), -1),
    operators.Slice: lambda op, x: x[:, op.start : op.start + math.prod(op.part)].reshape(len(x), *op.part),
    operators.Concat: lambda op, *inputs: np.concatenate(inputs, axis=-1),
    operators.Add: lambda op, x, y: x + y,
    operators.Mul: lambda op, x, y: x * y,
    operators.Rounded: lambda op, x: x,
}
"""Float32 function of each operator's inputs."""


def norms_codes(op: Op, grids: Mapping[str, ActivationGrid]) -> TypeGuard[Norm]:
    """Return whether it is a norm of int8 codes: sums of them and of their squares are then exact in float32."""
    grid = grids.get(op.inputs[0])
    if not isinstance(op, Norm) or grid is None or grid.bits != 8:
        return False
    return op.size <= MAX_EXACT_SQUARES if isinstance(op, operators.L2Norm) else op.weight.size <= MAX_EXACT_NORM


def averages_codes(op: Op, grids: Mapping[str, ActivationGrid]) -> TypeGuard[operators.Pool2d]:
    """Return whether it averages integers: their sums are exact in float32."""
    return isinstance(op, operators.Pool2d) and op.kind == "average" and op.inputs[0] in grids


def codes_formula(op: Norm, grid: ActivationGrid) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return the formula of a norm of codes, and the numbers that it takes: epsilon is in squared steps of the grid."""
    squared = np.float64(np.float32(grid.scale)) ** 2
    if isinstance(op, operators.L2Norm):
        return l2_norm, (np.float32(np.clip(op.epsilon**2 / squared, TINY, 1e38)),)
    epsilon = max(np.float32(op.epsilon / squared), np.float32(TINY))
    return norm_of_codes, (np.float32(1 / op.weight.size), epsilon, op.weight, op.bias)


def normalized_codes(op: Norm, integers: Array, grid: ActivationGrid) -> Array:
    """Return the norm of codes minus their zero point, as float32 integers: see `policy.formulas`.

    Args:
        op: The operator.
        integers: Codes minus their zero point.
        grid: Grid of the codes.
    """
    formula, numbers = codes_formula(op, grid)
    return np.asarray(formula(computed, integers, *numbers))


def unfold(op: Linear, x: Array) -> Array:
    """Return the inputs of each output position, so that a convolution becomes a product: [B, (P,) K] of x [B, *shape].

    P counts the output positions row by row, K runs over (channel, kernel row, kernel column); dense inputs do not
    change.
    """
    if not isinstance(op, operators.Conv2d):
        return x
    (ph, pw), (sh, sw), (kh, kw) = op.padding, op.stride, op.weight.shape[2:]
    padded = np.pad(x, ((0, 0), (0, 0), (ph, ph), (pw, pw)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (kh, kw), axis=(2, 3))[:, :, ::sh, ::sw]
    height, width = windows.shape[2:4]
    columns = windows.transpose(0, 2, 3, 1, 4, 5).reshape(len(x), height * width, -1)
    return np.ascontiguousarray(columns)


def fold(op: Linear, y: Array, input_shape: tuple[int, ...]) -> Array:
    """Return outputs [B, out, height, width] from [B, P, out], the inverse of `unfold`; dense outputs do not change.

    Args:
        op: The layer.
        y: Its outputs.
        input_shape: Shape of its input.
    """
    return y.transpose(0, 2, 1).reshape(len(y), *op.shape([input_shape])) if isinstance(op, operators.Conv2d) else y
