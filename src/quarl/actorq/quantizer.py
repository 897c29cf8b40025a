"""Quantizer: a learner's weights as n-bit codes, in one pass over them at every publish.

The scheme of post-training quantisation fits codes to calibration observations, which takes seconds at a million
weights. Most of what it wins over plain rounding comes from two of its parts, and these are cheap once what they need
from observations is known: factors that balance the channels of each layer's input, which keep the actions whatever
the weights become, and the mean input of each layer, whose product with the rounding errors belongs into the bias
(Nagel et al. 2019, section 4.2). Both are measured now and then, and used in between.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from quarl.arrays import Array
from quarl.engines.reference import as_float, unfold
from quarl.policy.graph import Policy, QuantizedPolicy
from quarl.policy.operators import Linear, Op, QuantizedTensor, as_float32
from quarl.policy.rewrite import Balance, balances, center_scores, centred, columns, in_order, scores
from quarl.quant import affine
from quarl.quant.affine import TINY, choose_qparams
from quarl.quant.packing import storage_dtype
from quarl.quant.spec import QuantSpec, Scheme, integer_range

SCHEME = Scheme(name="actorq", bias_correction=True, equalize=0.5, center_scores=True)
REFRESH_INTERVAL = 20
"""Publishes between two looks at observations; one look takes a few times as long as a publish."""
AT_ONCE = 2**17
"""Weights that are scaled, rounded and stored together: one pass over memory instead of six."""


class Quantizer:
    """Remembers what observations said while the weights change; for schemes that round to nearest, by channel."""

    def __init__(self, spec: QuantSpec) -> None:
        self.spec = spec
        self._balances: list[Balance] = []
        self._means: dict[str, Array] = {}
        self._age = 0

    @property
    def wants_observations(self) -> bool:
        """True when the next call would look at observations; otherwise they may be left out."""
        return self.spec.scheme.needs_observations and (not self._means or self._age >= REFRESH_INTERVAL)

    def __call__(self, policy: Policy, observations: Array | None = None) -> QuantizedPolicy:
        """The policy in codes; observations: a raw sample [N, *shape] of what actors meet now."""
        if self.wants_observations and observations is not None and len(observations):
            self._refresh(policy, observations)
            self._age = 0
        self._age += 1
        divided = {balance.chain: balance.scale for balance in self._balances}
        inserted = {balance.source: balance.inserted for balance in self._balances if balance.chain is None}
        multiplied = {name: balance for balance in self._balances for name in balance.consumers}
        ops: dict[str, Op] = {}
        for op in policy.ops:
            if isinstance(op, Linear):
                balance = multiplied.get(op.name)
                source = op.inputs if balance is None or balance.chain else (inserted[balance.source].name,)
                coded = self._layer(policy, op, None if balance is None else balance.scale, divided.get(op.name))
                ops[op.name] = replace(coded, inputs=source)
            else:
                ops[op.name] = op
        return QuantizedPolicy.of(policy, in_order(policy, ops, inserted), self.spec, {})

    def _refresh(self, policy: Policy, observations: Array) -> None:
        values, scheme = as_float(policy, observations), self.spec.scheme
        if scheme.equalize is not None:
            self._balances = balances(
                center_scores(policy) if scheme.center_scores else policy, values, scheme.equalize
            )
        scales = {name: balance.scale for balance in self._balances for name in balance.consumers}
        for op in policy.linear:
            rows = unfold(op, values[op.inputs[0]])
            mean = rows.reshape(-1, rows.shape[-1]).mean(axis=0, dtype=np.float64)
            factor = _of_columns(op, scales.get(op.name))
            self._means[op.name] = (mean if factor is None else mean / factor).astype(np.float32)

    def _layer(self, policy: Policy, op: Linear, multiply: Array | None, divide: Array | None) -> Linear:
        """The layer in codes. multiply: by input channel; divide: by output channel, which moves no code."""
        scheme, bits = self.spec.scheme, self.spec.weight_bits
        last = scores(policy)
        if scheme.center_scores and last is not None and op is last:
            op = centred(last)
        weight = as_float32(op.weight).reshape(op.weight.shape[0], -1)
        factor = _of_columns(op, multiply)
        mean = self._means.get(op.name) if scheme.bias_correction else None
        codes = np.empty(weight.shape, storage_dtype(*integer_range(bits)))
        scale, error = np.empty(len(weight), np.float32), np.zeros(len(weight), np.float32)
        wide = np.float64 if bits > 16 else np.float32  # above 16 bits float32 cannot hold a code
        num = max(1, AT_ONCE // weight.shape[1])
        for start in range(0, len(weight), num):
            block = slice(start, start + num)
            rows = weight[block] if factor is None else weight[block] * factor
            high = np.maximum(rows.max(axis=1, keepdims=True), -rows.min(axis=1, keepdims=True))
            q = choose_qparams(-high, high, bits, symmetric=True)
            rounded = affine.quantize(rows.astype(wide, copy=False), q)
            codes[block], scale[block] = rounded, q.scale[:, 0]
            if mean is not None:
                error[block] = rows @ mean - (rounded @ mean) * q.scale[:, 0]
        bias = op.bias + error
        if divide is not None:
            scale, bias = np.maximum(scale / divide, TINY).astype(np.float32), (bias / divide).astype(np.float32)
        tensor = QuantizedTensor(codes.reshape(op.weight.shape), scale, np.zeros(len(scale), np.int32), bits)
        return replace(op, weight=tensor, bias=bias)


def _of_columns(op: Linear, scale: Array | None) -> Array | None:
    """float32 [K]: the factor of each column of the weight as a matrix."""
    if scale is None:
        return None
    spread = columns(op, scale)
    return np.repeat(spread, int(np.prod(op.weight.shape[2:]))).astype(np.float32)
