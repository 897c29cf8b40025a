"""Post-training quantization of a float32 policy with a spec and calibration observations.

The operators are visited in order. Calibration observations pass through the float32 policy and through the part that
is already quantized, so each layer is fitted to the inputs that it will really see.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from quarl.arrays import Array
from quarl.engines import check_values
from quarl.engines.numpy_operators import FUNCTIONS, apply, as_float, on_grid, unfold
from quarl.errors import QuarlError
from quarl.policy.fit import cast, fit, nearest
from quarl.policy.graph import ActivationGrid, Policy, QuantizedPolicy, edge_layers
from quarl.policy.grids import RANGES, fixed_grid, grid_rules, least_scales, pixel_grid, wide_bits, wide_grid
from quarl.policy.layers import LayerWeights
from quarl.policy.operators import (
    OBSERVATION,
    Activation,
    Conv2d,
    Dense,
    Linear,
    Op,
    QuantizedTensor,
)
from quarl.policy.rewrite import center_scores, equalize, pin_saturated
from quarl.quant.affine import QParams, choose_qparams, dequantize, fake_quantize, quantize_rows
from quarl.quant.observers import finite_extent
from quarl.quant.spec import QuantSpec

SATURATING = np.geomspace(0.9, 0.02, 24)
"""Candidate ranges, as fractions of the calibrated one, for the inputs of a tanh or sigmoid, which flatten numbers far
from 0."""


def quantize(policy: Policy, spec: QuantSpec, observations: Array | None = None) -> QuantizedPolicy:
    """Return the policy in the precision of `spec`.

    Args:
        policy: The float32 policy.
        spec: Precision, scheme and mode.
        observations: Raw calibration observations [N, *observation_shape], from the policy's own rollouts. Static mode
            needs them, as do schemes with output-aware rounding or bias correction.

    Raises:
        QuarlError: The observations are missing or do not fit the policy, or a weight overflows.
    """
    return Calibrated(policy, observations).quantize(spec)


class Calibrated:
    """A policy and its calibration observations, for several specs that share the passes in float32."""

    def __init__(self, policy: Policy, observations: Array | None = None) -> None:
        self.policy, self.observations = policy, observations
        self._rewritten: dict[tuple[object, ...], tuple[Policy, dict[str, Array]]] = {}

    @np.errstate(all="ignore")  # weights near the ends of float32 overflow; infinite results are refused
    def quantize(self, spec: QuantSpec) -> QuantizedPolicy:
        """Return the policy in the precision of `spec`."""
        policy = self.policy
        if not spec.needs_observations:
            of_layer = _layer_specs(policy, spec)
            ops = [_rounded(op, of_layer[op.name]) if isinstance(op, Linear) else op for op in policy.ops]
            return QuantizedPolicy.of(policy, ops, spec, {})
        return _Pass(*self.rewrite(spec), spec, self._observations(spec)).run()

    @np.errstate(all="ignore")
    def rewrite(self, spec: QuantSpec) -> tuple[Policy, Mapping[str, Array]]:
        """Return the float32 policy after the scheme's rewrites, which keep its actions, and its values.

        The weights of this policy are rounded. The result is kept for the next spec with the same rewrites; others are
        dropped.
        """
        pins = spec.mode == "dynamic" and spec.activation_bits is not None
        key = spec.scheme.center_scores, spec.scheme.equalize, pins
        if key not in self._rewritten:
            self._rewritten.clear()
            self._rewritten[key] = _rewrite(self.policy, self._observations(spec), *key)
        return self._rewritten[key]

    def prepare(self, spec: QuantSpec) -> None:
        """Run the passes that `quantize` needs for any spec with the same rewrites."""
        if spec.needs_observations:
            self.rewrite(spec)

    def _observations(self, spec: QuantSpec) -> Array:
        given, expected = self.observations, self.policy.observation_shape
        if given is None or len(given) == 0:
            raise QuarlError(
                f"scheme {spec.scheme.name!r} in {spec.mode} mode needs calibration observations; "
                "pass observations=..., or use scheme 'per-channel' in dynamic mode"
            )
        if given.shape[1:] != expected:
            raise QuarlError(f"calibration observations are {given.shape[1:]} each, the policy expects {expected}")
        if self.policy.observation_dtype == "uint8" and given.dtype != np.uint8:
            raise QuarlError(f"calibration observations are {given.dtype}, the policy expects bytes 0..255 (uint8)")
        if not np.isfinite(given).all():
            raise QuarlError("a calibration observation holds NaN or infinity; leave such rows out")
        return given


def _rewrite(
    policy: Policy, observations: Array, center: bool, equalizing: float | None, pins: bool
) -> tuple[Policy, dict[str, Array]]:
    """Return the policy after these rewrites, and all its values on the observations."""
    if center:
        policy = center_scores(policy)
    values = as_float(policy, observations)
    check_values(policy, observations, values)
    if equalizing is not None:
        policy = equalize(policy, values, equalizing)
        values = as_float(policy, observations)
    if pins:
        pinned = pin_saturated(policy, values)
        if pinned is not policy:
            policy, values = pinned, as_float(pinned, observations)
    return policy, values


def quantised(calibrated: Calibrated, spec: QuantSpec) -> QuantizedPolicy:
    """Return the policy in that precision; raise QuarlError if the policy would not change."""
    policy = calibrated.quantize(spec)
    if policy.coverage == 0:
        raise QuarlError(f"{spec.precision} covers no weight of this policy; nothing would be quantized")
    return policy


@np.errstate(all="ignore")
def round_layers(layers: Sequence[LayerWeights], spec: QuantSpec) -> tuple[LayerWeights, ...]:
    """Return the layers of any file in the precision of `spec`, each weight at its nearest value; biases do not change.

    Nothing runs, so there are no observations: `spec.scheme` must not need any.
    """
    if spec.float_type is None and spec.scheme.needs_observations:
        raise ValueError(f"scheme {spec.scheme.name!r} needs observations, but layers alone have none")
    rounded = []
    for layer in layers:
        arguments = (layer.name, (), layer.weight, np.zeros(0, np.float32))
        op: Linear = Dense(*arguments) if len(layer.weight.shape) == 2 else Conv2d(*arguments)
        rounded.append(replace(layer, weight=_rounded(op, spec).weight))
    return tuple(rounded)


def _layer_specs(policy: Policy, spec: QuantSpec) -> dict[str, QuantSpec]:
    """Return the spec of each layer."""
    edges = edge_layers(policy)
    return {op.name: spec.of_layer(op.name, edge=op.name in edges) for op in policy.linear}


def _rounded(op: Linear, spec: QuantSpec) -> Linear:
    """Return the layer in a precision that needs no observations."""
    return nearest(op, spec) if spec.float_type is None else cast(op, spec.float_type)


def regridded(policy: QuantizedPolicy, observations: Array, *, symmetric_activations: bool = False) -> QuantizedPolicy:
    """Return a dynamic policy in static mode, with activation grids calibrated on observations.

    The codes of its weights stay the same. Only rows of weights that are tiny compared with their bias are rounded
    again.

    Args:
        policy: The dynamic policy.
        observations: Raw observations [N, *shape].
        symmetric_activations: The grids have zero point 0.
    """
    with np.errstate(all="ignore"):
        values = as_float(policy, observations)
        check_values(policy, observations, values)
        spec = replace(policy.spec, mode="static", symmetric_activations=symmetric_activations)
        return _Pass(policy, values, spec, observations).run()


class _Pass:
    """One pass over the operators, with calibration values of both policies."""

    def __init__(self, policy: Policy, float_values: Mapping[str, Array], spec: QuantSpec, observations: Array) -> None:
        self.policy, self.spec, self.float_values = policy, spec, float_values
        self.values: dict[str, Array] = {OBSERVATION: np.asarray(observations, np.float32)}
        self.static = spec.mode == "static"
        self.grids: dict[str, ActivationGrid] = {}
        self.of_layer = _layer_specs(policy, spec)
        self.rules = grid_rules(policy) if self.static else {}

    def run(self) -> QuantizedPolicy:
        ops: list[Op] = []
        for op in self.policy.ops:
            if isinstance(op, Linear):
                layer, value = self._linear(op)
                ops.append(layer)
            else:
                ops.append(self._exact(op))
                value = apply(ops[-1], [self.values[name] for name in op.inputs])
            self.values[op.name] = self._on_grid(op, value)
        return QuantizedPolicy.of(self.policy, ops, self.spec, self.grids, self._box() if self.static else None)

    def _exact(self, op: Op) -> Op:
        """Return the operator, with the tanh of a wide state as a ratio, whose bits every engine computes."""
        rule = self.rules.get(op.inputs[0])
        if isinstance(op, Activation) and op.kind == "tanh" and rule is not None and rule.bits > 8:
            return replace(op, kind="tanh_ratio")
        return op

    def _box(self) -> tuple[Array, Array] | None:
        """Return the ends of the calibration observations; None for images, whose bytes have ends of their own."""
        x = self.values[OBSERVATION]
        return None if self.policy.observation_dtype == "uint8" else (x.min(axis=0), x.max(axis=0))

    def _linear(self, op: Linear) -> tuple[Linear, Array]:
        x = self._quantized_input(op.inputs[0])
        columns = unfold(op, x).reshape(-1, int(np.prod(op.weight.shape[1:])))
        target = self.float_values[op.name]
        hidden = self.static and op.name in self.rules
        spec = self.of_layer[op.name]
        least = least_scales(op.bias.astype(np.float64), self.grids[op.inputs[0]], spec.weight_bits) if hidden else None
        keeps = isinstance(op.weight, QuantizedTensor) and (least is None or bool((op.weight.scale >= least).all()))
        fitted = op if keeps else fit(op, columns, spec, least)
        value = apply(fitted, [x])
        if self.spec.scheme.bias_correction:
            axes = (0, *range(2, value.ndim))
            error = (target - value).mean(axis=axes, dtype=np.float64).astype(np.float32)
            fitted = replace(fitted, bias=fitted.bias + error)
            value = value + error.reshape(-1, *(1,) * (value.ndim - 2))
        return fitted, value

    def _quantized_input(self, name: str) -> Array:
        """Return the value `name` as the integer kernel reads it, in real numbers."""
        x = self.values[name]
        if self.spec.activation_bits is None:
            return x
        if not self.static:
            rows: Array = dequantize(*quantize_rows(x.reshape(len(x), -1), self.spec.activation_bits))
            return rows.reshape(x.shape)
        if name not in self.grids:
            self.grids[name] = self._input_grid(name, x)
        return on_grid(x, self.grids[name])

    def _on_grid(self, op: Op, value: Array) -> Array:
        """Return the value on its grid in static mode; values of float operators do not change."""
        rule = self.rules.get(op.name)
        if rule is None or rule.kind in ("observation", "pixels", "input"):
            return value
        if rule.kind == "rounded":
            self.grids[op.name] = ActivationGrid(scale=rule.step, zero_point=0, bits=rule.bits)
        elif rule.kind == "same":
            self.grids[op.name] = self.grids[rule.source]
        elif rule.kind == "fixed":
            bits, symmetric = self.spec.activation_bits or 8, self.spec.symmetric_activations
            self.grids[op.name] = fixed_grid(rule.function, bits, symmetric=symmetric)
        else:
            self.grids[op.name] = self._grid(value, rule.function if rule.kind == "layer" else "", power=rule.power)
        return on_grid(value, self.grids[op.name])

    def _input_grid(self, name: str, x: Array) -> ActivationGrid:
        """Return the grid of a value that layers read and that is not the output of an integer layer."""
        rule = self.rules[name]
        if self.spec.activation_bits == 8 and rule.kind == "pixels":
            return pixel_grid(rule.step, symmetric=self.spec.symmetric_activations)
        if self.spec.activation_bits == 8 and rule.kind == "observation":
            bits = wide_bits(self.policy, name, lambda layer: self.of_layer[layer].code_bits)
            wide = wide_grid(float(np.abs(x).max(initial=0.0)), bits)
            if wide is not None:
                return wide
        return self._grid(x)

    def _grid(self, x: Array, function: str = "", *, power: bool = False) -> ActivationGrid:
        """Return the grid of values x; before a bounded function, the one with the least error after it.

        power: its step is a power of two.
        """
        bits, symmetric = self.spec.activation_bits or 8, self.spec.symmetric_activations
        seen = (np.maximum(x, 0) if function == "relu" else x).reshape(1, -1)
        low, high = (side[0].astype(np.float64) for side in finite_extent(seen))

        def covering(share: float) -> QParams:
            q = choose_qparams(low * share, high * share, bits, symmetric=symmetric)
            if not power:
                return q
            step = np.float32(2.0 ** np.ceil(np.log2(q.scale)))
            wider = share * (step / q.scale)
            return replace(choose_qparams(low * wider, high * wider, bits, symmetric=symmetric), scale=step)

        q = covering(1.0)
        if function in RANGES or power:
            exact = (f := FUNCTIONS.get(function, np.asarray))(x)
            q = min(
                (q, *map(covering, SATURATING)),
                key=lambda grid: float(np.square(f(fake_quantize(x, grid)) - exact).mean()),
            )
        return ActivationGrid(scale=float(q.scale), zero_point=int(q.zero_point), bits=bits)
