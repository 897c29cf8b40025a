"""The oracle: every operator in numpy, every integer product exact, no runtime imported.

Integer accumulators are carried in float64, which is exact below 2**53: 32-bit weights times 8-bit activations over
2**14 inputs still fit. Each row is computed on its own, so a result cannot depend on the batch it came in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

import numpy as np

from quarl.arrays import Array
from quarl.engines.sums import requantisation, unit
from quarl.errors import UnsupportedError
from quarl.policy import operators
from quarl.policy.formulas import FORMULAS, norm_of_codes
from quarl.policy.graph import ActivationGrid, Policy, QuantizedPolicy, final_linear
from quarl.policy.operators import LEAKY_SLOPE, OBSERVATION, Linear, Op, QuantizedTensor, as_float32
from quarl.quant.affine import TINY, dequantize, fake_quantize, quantize, quantize_rows, requantize

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


def on_grid(x: Array, grid: ActivationGrid) -> Array:
    """x moved to the nearest point of the grid, float32."""
    value: Array = fake_quantize(x, grid.qparams)
    return value.astype(np.float32)


class Reference:
    """A policy interpreted operator by operator, in the arithmetic "f32-rne"."""

    name = "reference"
    measured = False
    file_bytes = 0

    def __init__(self, policy: QuantizedPolicy, batch: int) -> None:
        self.policy = policy
        self.batch = batch
        self._final = final_linear(policy)
        self._weights = {op.name: _integers(op) for op in policy.linear}

    def run(self, observations: Array) -> Array:
        """float32 outputs [B, n] of observations [B, *shape]."""
        return self.trace(observations)[self.policy.output]

    @np.errstate(all="ignore")  # `sound` looks at what comes of it
    def trace(self, observations: Array) -> dict[str, Array]:
        """Every value of the graph, float32 [B, *shape]: what the codes stand for where values are codes."""
        values: dict[str, Array] = {OBSERVATION: np.asarray(observations, np.float32)}
        for op in self.policy.ops:
            inputs = [values[name] for name in op.inputs]
            values[op.name] = self._linear(op, inputs[0]) if isinstance(op, Linear) else self._other(op, inputs)
        return values

    def _other(self, op: Op, inputs: list[Array]) -> Array:
        if norms_codes(op, self.policy.grids):
            grid = self.policy.grids[op.inputs[0]]
            return layer_norm_of_codes(op, self.quantized(inputs[0], grid) - np.float32(grid.zero_point), grid)
        if averages_codes(op, self.policy.grids):
            grid = self.policy.grids[op.inputs[0]]
            integers = self.quantized(inputs[0], grid) - np.float32(grid.zero_point)
            return np.asarray(apply(op, [integers]) * np.float32(grid.scale))
        if isinstance(op, operators.Activation) and op.inputs[0] in self.policy.grids and op.name in self.policy.grids:
            return self.bent(op, inputs[0], self.policy.grids[op.name])
        return apply(op, inputs)

    def quantized(self, x: Array, grid: ActivationGrid) -> Array:
        """float32 codes of x."""
        return np.asarray(quantize(x, grid.qparams))

    def bent(self, op: operators.Activation, x: Array, target: ActivationGrid) -> Array:
        """What a function of codes gives on its own grid, float32: in static mode it is a table of codes."""
        return on_grid(apply(op, [x]), target)

    def requantized(self, op: Linear, sums: Array, multiplier: Array, source: ActivationGrid) -> Array:
        """Codes of a hidden layer from its sums of codes of `source` and its bias; multiplier: shaped as the sums."""
        q = self.policy.grids[op.name].qparams
        return requantize(sums, multiplier, int(q.zero_point), q.qmin, q.qmax)

    def _linear(self, op: Linear, x: Array) -> Array:
        spec = self.policy.spec
        if not isinstance(op.weight, QuantizedTensor) or spec.activation_bits is None:
            weight = as_float32(op.weight)
            return _per_row(op, x, weight.reshape(len(weight), -1)) + _channels(op.bias, x.ndim)
        flat = x.reshape(len(x), -1)
        if spec.mode == "dynamic":
            codes, q = quantize_rows(flat, spec.activation_bits)
            accumulator = self._accumulate(op, x, codes, q.zero_point)
            product = accumulator.astype(np.float32) * _rows(q.scale, x.ndim)
            # XNNPACK's kernels multiply and add in one step; the product of two float32 is exact in float64.
            scaled = product.astype(np.float64) * _channels(op.weight.scale, x.ndim)
            return (scaled + _channels(op.bias, x.ndim)).astype(np.float32)
        source = self.policy.grids[op.inputs[0]]
        accumulator = self._accumulate(op, x, self.quantized(flat, source), np.float32(source.zero_point))
        if op.name in self._final:
            product = accumulator.astype(np.float32) * _channels(unit(op.weight, source).astype(np.float32), x.ndim)
            return product + _channels(op.bias, x.ndim)
        bias, multiplier = requantisation(op, op.weight, source, self.policy.grids[op.name])
        accumulator = accumulator + _channels(bias, x.ndim)
        codes = self.requantized(op, accumulator, _channels(multiplier, x.ndim), source)
        value: Array = dequantize(codes, self.policy.grids[op.name].qparams)
        return value.astype(np.float32)

    def _accumulate(self, op: Linear, x: Array, codes: Array, zero_point: Any) -> Array:
        centred = (codes - zero_point).astype(np.float64).reshape(x.shape)
        return _per_row(op, centred, self._weights[op.name])


def load(policy: QuantizedPolicy, batch: int, arithmetic: str = "f32-rne") -> Reference:
    """The policy ready to run in numpy, in one of `quarl.engines.q31.ARITHMETICS`; UnsupportedError for another."""
    from quarl.engines.q31 import ARITHMETICS  # here: one of them is made of this one

    if arithmetic not in ARITHMETICS:
        raise UnsupportedError(f"no reference computes {arithmetic!r}; choose of {', '.join(ARITHMETICS)}")
    return ARITHMETICS[arithmetic](policy, batch)


def as_float(policy: Policy, observations: Array) -> dict[str, Array]:
    """Every value of a float32 policy on observations [N, *shape], float32 [N, ...]; whole batches at a time.

    For calibration: faster than `Reference`, and equal to it up to the order of float32 sums.
    """
    values: dict[str, Array] = {OBSERVATION: np.asarray(observations, np.float32)}
    for op in policy.ops:
        values[op.name] = apply(op, [values[name] for name in op.inputs])
    return values


def apply(op: Op, inputs: list[Array]) -> Array:
    """The float32 value of an operator; of a layer, with what its weights stand for."""
    return LOWERINGS[type(op)](op, *inputs)


def _linear(op: Linear, x: Array) -> Array:
    sums = unfold(op, x) @ as_float32(op.weight).reshape(op.weight.shape[0], -1).T
    sums += op.bias
    return fold(op, sums, x.shape[1:])


def _computed(kind: str, *values: Any) -> Array:
    return ARITHMETIC[kind](*values)


def _activation(op: operators.Activation, x: Array) -> Array:
    value = FUNCTIONS[op.kind](x) if op.kind in FUNCTIONS else FORMULAS[op.kind](_computed, x, *op.settings)
    return value.astype(np.float32, copy=False)


def _softmax(op: operators.Softmax, x: Array) -> Array:
    rows = x.reshape(len(x), -1, op.size)
    powers = np.exp(rows - rows.max(axis=-1, keepdims=True))
    shares: Array = powers / powers.sum(axis=-1, keepdims=True)
    return shares.reshape(x.shape)


def _pool(op: operators.Pool2d, x: Array) -> Array:
    """Averages are sums times the reciprocal of the window's size."""
    (ph, pw), (sh, sw) = op.padding, op.stride
    padding = ((0, 0), (0, 0), (ph, ph), (pw, pw))
    padded = np.pad(x, padding, constant_values=-np.inf if op.kind == "max" else 0)
    windows = np.lib.stride_tricks.sliding_window_view(padded, op.kernel, axis=(2, 3))[:, :, ::sh, ::sw]
    if op.kind == "max":
        return np.asarray(windows.max(axis=(-2, -1)))
    return np.asarray(windows.sum(axis=(-2, -1), dtype=np.float32) * np.float32(1 / math.prod(op.kernel)))


def _layer_norm(op: operators.LayerNorm, x: Array) -> Array:
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = np.square(centred).mean(axis=-1, keepdims=True)
    normal = centred * (np.float32(1) / np.sqrt(variance + np.float32(op.epsilon)))
    return np.asarray(normal * op.weight + op.bias)


LOWERINGS: Mapping[type[Op], Callable[..., Array]] = {
    operators.Dense: _linear,
    operators.Conv2d: _linear,
    operators.Activation: _activation,
    operators.Softmax: _softmax,
    operators.Pool2d: _pool,
    operators.LayerNorm: _layer_norm,
    operators.Normalize: operators.Normalize.__call__,
    operators.Scale: lambda op, x: x * op.factor,
    operators.Flatten: lambda op, x: x.reshape(len(x), -1),
    operators.Slice: lambda op, x: x[:, op.start : op.start + math.prod(op.part)].reshape(len(x), *op.part),
    operators.Concat: lambda op, *inputs: np.concatenate(inputs, axis=-1),
    operators.Add: lambda op, x, y: x + y,
}
"""What an operator computes of its inputs, in float32."""


def norms_codes(op: Op, grids: Mapping[str, ActivationGrid]) -> TypeGuard[operators.LayerNorm]:
    """Whether it is a LayerNorm of int8 codes: sums of them and of their squares are then exact in float32."""
    grid = grids.get(op.inputs[0])
    return (
        isinstance(op, operators.LayerNorm) and grid is not None and grid.bits == 8 and op.weight.size <= MAX_EXACT_NORM
    )


def averages_codes(op: Op, grids: Mapping[str, ActivationGrid]) -> TypeGuard[operators.Pool2d]:
    """Whether it averages integers: their sums are exact in float32."""
    return isinstance(op, operators.Pool2d) and op.kind == "average" and op.inputs[0] in grids


def norm_constants(op: operators.LayerNorm, grid: ActivationGrid) -> tuple[np.float32, np.float32]:
    """1 / n, and epsilon in squared steps of the grid: what a LayerNorm of codes needs besides gain and offset."""
    epsilon = np.float32(op.epsilon / np.float64(np.float32(grid.scale)) ** 2)
    return np.float32(1 / op.weight.size), max(epsilon, np.float32(TINY))


def layer_norm_of_codes(op: operators.LayerNorm, integers: Array, grid: ActivationGrid) -> Array:
    """LayerNorm of codes less their zero point, as float32 integers: see `formulas.norm_of_codes`."""
    return np.asarray(norm_of_codes(_computed, integers, *norm_constants(op, grid), op.weight, op.bias))


def unfold(op: Linear, x: Array) -> Array:
    """Inputs of each output position, so that a convolution becomes a product: [B, (P,) K] of x [B, *shape].

    P counts the output positions row by row, K runs over (channel, kernel row, kernel column); dense inputs pass.
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
    """The inverse of `unfold` for outputs: [B, P, out] to [B, out, height, width]; dense outputs pass."""
    return y.transpose(0, 2, 1).reshape(len(y), *op.shape([input_shape])) if isinstance(op, operators.Conv2d) else y


def _integers(op: Linear) -> Array:
    """The weight as a matrix [out, K]: exact integers in float64, or float32 values."""
    if isinstance(op.weight, QuantizedTensor):
        along = (-1,) + (1,) * (op.weight.codes.ndim - 1)
        matrix = op.weight.codes.astype(np.float64) - op.weight.zero_point.reshape(along)
    else:
        matrix = as_float32(op.weight)
    return np.ascontiguousarray(matrix.reshape(matrix.shape[0], -1))


def _per_row(op: Linear, x: Array, weight: Array) -> Array:
    """x (*) weight without bias, one row at a time: BLAS sums a row alone and a row of many in different orders."""
    y = np.stack([row @ weight.T for row in unfold(op, x)])
    return fold(op, y, x.shape[1:])


def _channels(values: Array, ndim: int) -> Array:
    """[out] made to broadcast along axis 1 of a value with `ndim` axes."""
    return values.reshape(-1, *(1,) * (ndim - 2))


def _rows(values: Array, ndim: int) -> Array:
    """[B, 1] made to broadcast along axis 0 of a value with `ndim` axes."""
    return values.reshape(-1, *(1,) * (ndim - 1))
