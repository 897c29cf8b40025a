"""Post-training quantisation: a float32 policy, a spec and calibration observations to a QuantizedPolicy.

The operators are visited in order. Calibration observations travel two roads, through the float32 policy and
through the one quantised so far, so that each layer is fitted to the inputs it will really see.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from quarl.engines.reference import FUNCTIONS, apply, as_float, fold, on_grid, unfold
from quarl.errors import QuarlError
from quarl.policy.graph import ActivationGrid, Policy, QuantizedPolicy, final_linear
from quarl.policy.operators import (
    OBSERVATION,
    Activation,
    Conv2d,
    Dense,
    Flatten,
    Linear,
    Op,
    QuantizedTensor,
    as_float32,
)
from quarl.policy.rewrite import center_scores, equalize, pin_saturated
from quarl.quant import affine
from quarl.quant.affine import QParams, choose_qparams, dequantize, fake_quantize, quantize_rows, quarl_2020
from quarl.quant.observers import observer
from quarl.quant.packing import storage_dtype
from quarl.quant.rounding import gptq, output_aware_qparams, second_moment
from quarl.quant.spec import QuantSpec, integer_range

Array = NDArray[Any]
FLOAT_TYPES = {"fp32": np.float32, "fp16": np.float16, "bf16": ml_dtypes.bfloat16}
SHRINKS = np.linspace(1.0, 0.3, 15)
"""Ranges, as fractions of the largest weight, among which output-aware scales are chosen."""
SATURATING = np.geomspace(0.9, 0.02, 24)
"""The same for the inputs of tanh and sigmoid, which flatten whatever is far from 0."""
MAX_ROWS = 20_000
"""Rows of layer inputs that calibration keeps (convolutions give one per output position)."""
EXACT = 2**24
"""float32 holds every integer up to here."""
ROWS_AT_ONCE = 64
FIXED_GRIDS = {
    "tanh": ActivationGrid(scale=1 / 128, zero_point=0),
    "sigmoid": ActivationGrid(scale=1 / 256, zero_point=-128),
}
"""Functions with a known range have the grids that LiteRT's int8 kernels prescribe."""


def quantize(policy: Policy, spec: QuantSpec, observations: Array | None = None) -> QuantizedPolicy:
    """The policy in the precision of `spec`.

    observations: raw calibration observations [N, *observation_shape], from the policy's own rollouts; needed by
    static mode and by schemes with output-aware rounding or bias correction.
    """
    if spec.float_type is not None:
        return _with(policy, spec, [_cast(op, spec.float_type) for op in policy.ops], {})
    needed = spec.scheme.needs_observations or (spec.mode == "static" and spec.activation_bits is not None)
    if not needed:
        ops = [_nearest(op, spec) if isinstance(op, Dense | Conv2d) else op for op in policy.ops]
        return _with(policy, spec, ops, {})
    if observations is None or len(observations) == 0:
        raise QuarlError(
            f"scheme {spec.scheme.name!r} in {spec.mode} mode needs calibration observations; "
            "pass observations=..., or use scheme 'per-channel' in dynamic mode"
        )
    if observations.shape[1:] != policy.observation_shape:
        raise QuarlError(
            f"calibration observations are {observations.shape[1:]} each, the policy expects {policy.observation_shape}"
        )
    return _Calibration(rewritten(policy, spec, observations), spec, observations).run()


def rewritten(policy: Policy, spec: QuantSpec, observations: Array) -> Policy:
    """The float32 policy whose weights `quantize` rounds: the same actions, after the scheme's rewrites."""
    if spec.scheme.center_scores:
        policy = center_scores(policy)
    if spec.scheme.equalize is not None:
        policy = equalize(policy, as_float(policy, observations), spec.scheme.equalize)
    if spec.mode == "dynamic" and spec.activation_bits is not None:
        policy = pin_saturated(policy, as_float(policy, observations))
    return policy


class _Calibration:
    """One pass over the operators with calibration values on both roads."""

    def __init__(self, policy: Policy, spec: QuantSpec, observations: Array) -> None:
        self.policy, self.spec = policy, spec
        self.float_values = as_float(policy, observations)
        self.values: dict[str, Array] = {OBSERVATION: np.asarray(observations, np.float32)}
        self.static = spec.mode == "static" and spec.activation_bits is not None
        self.grids: dict[str, ActivationGrid] = {}
        self.final = final_linear(policy)
        self.behind_layers: set[str] = set()
        # The function right behind a layer shapes its grid: no code is spent on what it drops or flattens.
        self.function_of = {op.inputs[0]: op.kind for op in policy.ops if isinstance(op, Activation)}

    def run(self) -> QuantizedPolicy:
        ops: list[Op] = []
        for op in self.policy.ops:
            if isinstance(op, Dense | Conv2d):
                done, value = self._linear(op)
                ops.append(done)
            else:
                ops.append(op)
                value = apply(op, [self.values[name] for name in op.inputs])
            if isinstance(op, Dense | Conv2d) or self.behind_layers.intersection(op.inputs):
                self.behind_layers.add(op.name)
            self.values[op.name] = self._on_grid(op, value) if self.static else value
        return _with(self.policy, self.spec, ops, self.grids)

    def _linear(self, op: Linear) -> tuple[Linear, Array]:
        x = self._quantized_input(op.inputs[0])
        columns = unfold(op, x).reshape(-1, int(np.prod(op.weight.shape[1:])))
        target = self.float_values[op.name]
        fitted = _fit(op, columns, self.spec)
        weight = as_float32(fitted.weight).reshape(fitted.weight.shape[0], -1)
        value = fold(op, unfold(op, x) @ weight.T + op.bias, x.shape[1:])
        if self.spec.scheme.bias_correction:
            axes = (0, *range(2, value.ndim))
            error = (target - value).mean(axis=axes, dtype=np.float64).astype(np.float32)
            fitted = replace(fitted, bias=fitted.bias + error)
            value = value + error.reshape(-1, *(1,) * (value.ndim - 2))
        return fitted, value

    def _quantized_input(self, name: str) -> Array:
        """What the integer kernel makes of the value `name`, as real numbers."""
        x = self.values[name]
        if self.spec.activation_bits is None:
            return x
        if not self.static:
            rows: Array = dequantize(*quantize_rows(x.reshape(len(x), -1), self.spec.activation_bits))
            return rows.reshape(x.shape)
        if name not in self.grids:
            self.grids[name] = self._wide_grid(name, x) or self._grid(x)
        return on_grid(x, self.grids[name])

    def _on_grid(self, op: Op, value: Array) -> Array:
        """Static mode: values between integer layers live on grids; those of float operators stay as they are."""
        if isinstance(op, Dense | Conv2d) and op.name not in self.final:
            self.grids[op.name] = self._grid(value, self.function_of.get(op.name))
        elif isinstance(op, Activation) and op.inputs[0] in self.grids and op.name not in self.grids:
            if op.kind == "relu":
                self.grids[op.name] = self.grids[op.inputs[0]]
            else:
                self.grids[op.name] = FIXED_GRIDS.get(op.kind) or self._grid(value)
        elif isinstance(op, Flatten) and op.inputs[0] in self.grids:
            self.grids[op.name] = self.grids[op.inputs[0]]
        else:
            return value
        return on_grid(value, self.grids[op.name])

    def _wide_grid(self, name: str, x: Array) -> ActivationGrid | None:
        """The grid of the observation in front of dense layers: more bits than 8, where they come free. Else None.

        Its calibrated range is many times what decides near rest, and a static int8 grid leaves dead zones there. A
        dense layer over few features can take more bits at no loss of exactness: while K products and the bias stay
        below 2**24, float32 kernels compute the integer sum without rounding. The scale is a power of two, so that
        engines may merge it with the multiplication before it, and the range keeps a factor of two in hand for
        observations that calibration did not meet.
        """
        if name in self.behind_layers:
            return None
        readers = [op for op in self.policy.linear if op.inputs[0] == name]
        if self.spec.activation_bits != 8 or not all(isinstance(op, Dense) for op in readers):
            return None
        extent = float(np.abs(x).max(initial=0.0))
        if not 0 < extent < np.inf:
            return None
        qmax = integer_range(self.spec.weight_bits)[1]
        products = qmax * max(op.weight.shape[1] for op in readers)
        bits = min(16, 1 + math.floor(math.log2(EXACT / 2 / products)))
        smallest = 2 * extent / (2 ** (bits - 1) - 1)
        for op in readers:
            # The other half of what is exact is the bias's, in steps of the smallest weight scale that may be chosen.
            weight = np.abs(as_float32(op.weight)).max(axis=1) * SHRINKS.min() / qmax
            steps = 2 * np.abs(op.bias) / np.maximum(weight, np.finfo(np.float32).tiny) / (EXACT / 2)
            smallest = max(smallest, float(steps.max()))
        scale = 2.0 ** math.ceil(math.log2(smallest))
        if extent / scale < 256:
            return None
        return ActivationGrid(scale=scale, zero_point=0, bits=bits)

    def _grid(self, x: Array, function: str | None = None) -> ActivationGrid:
        """The grid of values x; before a bounded function, the one that leaves the least error behind it."""
        bits = self.spec.activation_bits or 8
        watch = observer(self.spec.scheme.activation_observer, bits=bits, symmetric=False)
        watch.update((np.maximum(x, 0) if function == "relu" else x).reshape(1, -1))
        low, high = (side[0] for side in watch.ranges())
        q = choose_qparams(low, high, bits, symmetric=False)
        if function in FIXED_GRIDS:
            exact, f = FUNCTIONS[function](x), FUNCTIONS[function]
            narrower = (choose_qparams(low * s, high * s, bits, symmetric=False) for s in SATURATING)
            q = min((q, *narrower), key=lambda grid: float(np.square(f(fake_quantize(x, grid)) - exact).mean()))
        return ActivationGrid(scale=float(q.scale), zero_point=int(q.zero_point), bits=bits)


def _fit(op: Linear, columns: Array, spec: QuantSpec) -> Linear:
    """The layer with integer weights, rounded as the scheme says; columns are its inputs [N, K]."""
    if spec.scheme.rounding == "nearest":
        return _nearest(op, spec)
    stride = max(1, len(columns) // MAX_ROWS)
    h = second_moment(columns[::stride])
    weight = as_float32(op.weight).reshape(op.weight.shape[0], -1).astype(np.float64)
    q = output_aware_qparams(weight, h, spec.weight_bits, SHRINKS)
    return _with_codes(op, gptq(weight, h, q), q, spec.weight_bits)


def _nearest(op: Linear, spec: QuantSpec) -> Linear:
    """The layer with each weight at its nearest code, on the scheme's grid."""
    weight = as_float32(op.weight).reshape(op.weight.shape[0], -1)
    scheme = spec.scheme
    if scheme.original:
        # The original treated convolutions per output channel and everything else per tensor.
        rows = weight if isinstance(op, Conv2d) else weight.reshape(1, -1)
        pairs = [quarl_2020(row, spec.weight_bits) for row in rows]
        codes = np.stack([codes for codes, _ in pairs]).reshape(weight.shape)
        scale = np.array([step for _, step in pairs], np.float32)[:, None]
        return _with_codes(op, codes, QParams(scale, np.zeros_like(scale), 0, 0), spec.weight_bits)
    watch = observer(scheme.observer, bits=spec.weight_bits, symmetric=scheme.symmetric)
    watch.update(weight if scheme.per_channel else weight.reshape(1, -1))
    low, high = (side[:, None] for side in watch.ranges())
    q = choose_qparams(low, high, spec.weight_bits, symmetric=scheme.symmetric)
    codes = np.empty(weight.shape, storage_dtype(q.qmin, q.qmax))
    # Some rows at a time stay in the processor's cache; above 16 bits float32 cannot hold a code.
    wide = np.float64 if spec.weight_bits > 16 else np.float32
    for start in range(0, len(weight), ROWS_AT_ONCE):
        some = slice(start, start + ROWS_AT_ONCE)
        of_some = _of_channels(q, some) if scheme.per_channel else q
        codes[some] = affine.quantize(weight[some].astype(wide, copy=False), of_some)
    return _with_codes(op, codes, q, spec.weight_bits)


def _of_channels(q: QParams, some: slice) -> QParams:
    return replace(
        q, scale=q.scale[some], zero_point=q.zero_point if isinstance(q.zero_point, int) else q.zero_point[some]
    )


def _with_codes(op: Linear, codes: Array, q: QParams, bits: int) -> Linear:
    channels = op.weight.shape[0]
    dtype = storage_dtype(int(codes.min(initial=0)), int(codes.max(initial=0)))
    tensor = QuantizedTensor(
        codes=codes.reshape(op.weight.shape).astype(dtype, copy=False),
        scale=np.broadcast_to(np.asarray(q.scale, np.float32).reshape(-1), channels).copy(),
        zero_point=np.broadcast_to(np.asarray(q.zero_point, np.int32).reshape(-1), channels).copy(),
        bits=bits,
    )
    return replace(op, weight=tensor)


def _cast(op: Op, float_type: str) -> Op:
    if not isinstance(op, Dense | Conv2d):
        return op
    with np.errstate(over="ignore"):
        weight = as_float32(op.weight).astype(FLOAT_TYPES[float_type], copy=False)
    if not np.isfinite(weight).all():
        raise QuarlError(
            f"a weight of layer {op.name!r} is too large for {float_type}; use bf16 or an integer precision"
        )
    return replace(op, weight=weight)


def _with(policy: Policy, spec: QuantSpec, ops: list[Op], grids: Mapping[str, ActivationGrid]) -> QuantizedPolicy:
    kept = {f.name: getattr(policy, f.name) for f in fields(Policy) if f.name != "ops"}
    return QuantizedPolicy(**kept, ops=tuple(ops), spec=spec, grids=dict(grids))
