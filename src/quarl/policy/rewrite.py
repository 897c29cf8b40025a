"""Rewrites that keep a policy's actions and make it easier to quantize."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from quarl.arrays import Array
from quarl.policy.graph import Policy, behind_linear, readers
from quarl.policy.grids import joins_state
from quarl.policy.operators import Activation, Concat, Dense, Flatten, Linear, Normalize, Op, Scale, as_float32

HOMOGENEOUS = ("relu", "leaky_relu", "prelu")
"""Functions with f(s x) = s f(x) for s > 0, through which the scale of a channel can pass."""
FAR = 16.0
"""Ratio of two factors from which on an input and a state are balanced; below it their common grid has enough bits."""
NEGLIGIBLE = 2.0**-10
"""Share of the largest channel below which a channel is ignored, a quarter of an int8 step.

Some channels stay below it in calibration, both themselves and in their contribution to the layer: the position of an
axis that never moved, or a contact that never happened. They may carry more later. With a factor fitted to noise such a
channel would outgrow all others and take the range for itself.
"""


def center_scores(policy: Policy) -> Policy:
    """Return the policy with the mean over its discrete scores subtracted from each score.

    Neither an argmax nor a softmax depends on a number added to all scores, but a quantizer does. Action values share a
    large common part, and the small differences that decide would be rounded on its grid.
    """
    last = scores(policy)
    return policy if last is None else replace(policy, ops=(*policy.ops[:-1], centered(last)))


def scores(policy: Policy) -> Dense | None:
    """Return the last layer if an argmax over its outputs chooses the action; otherwise None."""
    last = policy.ops[-1]
    return last if policy.head.kind == "argmax" and isinstance(last, Dense) else None


def centered(op: Dense) -> Dense:
    """Return the layer with the mean over its outputs subtracted from each."""
    weight, bias = as_float32(op.weight), op.bias
    mean = weight.mean(axis=0, keepdims=True, dtype=np.float64)
    return replace(op, weight=weight - mean.astype(np.float32), bias=bias - bias.mean())


@dataclass(frozen=True, eq=False, slots=True)
class Balance:
    """Factors for the channels of one value that layers read: divided here, multiplied into its readers."""

    source: str
    scale: Array
    """float64 [C], 1 on average."""
    chain: str | None
    """Layer whose rows are divided; None if an operator of its own divides."""
    consumers: tuple[str, ...]
    """Layers whose columns are multiplied."""

    @property
    def inserted(self) -> Scale:
        """Return the operator that divides if no layer can."""
        return Scale(f"{self.source}.equalized", (self.source,), (1 / self.scale).astype(np.float32))


def equalize(policy: Policy, values: Mapping[str, Array], alpha: float) -> Policy:
    """Return the policy with the channels of its layers' inputs brought to similar extents.

    Channel j of a layer's input is divided by s_j = max|x_j|**alpha / max|w_j|**(1 - alpha), and its weights are
    multiplied by it (Xiao et al. 2023, equation 4). Behind a ReLU the division is free, because it goes into the
    preceding layer (Nagel et al. 2019, section 4.1). At the observation and at values that a Concat joins, whose
    ranges differ most, it costs one float32 multiplication.

    Args:
        policy: The policy.
        values: All values of the policy on calibration observations.
        alpha: Exponent of the extents.
    """
    return equalized(policy, balances(policy, values, alpha))


def balances(policy: Policy, values: Mapping[str, Array], alpha: float) -> list[Balance]:
    """Return the factors of `equalize`, in the order of the graph. They keep the actions whatever the weights become.

    Args:
        policy: The policy.
        values: All values of the policy on calibration observations.
        alpha: Exponent of the extents.
    """
    balanced = []
    for source, chain, consumers in readings(policy):
        values_of = np.abs(values[source]).max(axis=0)
        extent = values_of.reshape(values_of.shape[0] if chain is None else chain.weight.shape[0], -1).max(axis=1)
        reads = [np.abs(as_float32(op.weight)).max(axis=0).reshape(len(extent), -1).max(axis=1) for op in consumers]
        weight = np.max(reads, axis=0)
        scale = factors(np.where(_negligible(extent) & _negligible(extent * weight), 0, extent), weight, alpha)
        names = tuple(op.name for op in consumers)
        if joins_state(policy, source):
            # C computes gates in integers, which products by other numbers than powers of two would end.
            if scale.max() < FAR * scale.min():
                continue
            scale = 2.0 ** np.round(np.log2(scale))
        balanced.append(Balance(source, scale, None if chain is None else chain.name, names))
    return balanced


def readings(policy: Policy) -> Iterator[tuple[str, Linear | None, list[Linear]]]:
    """Yield each value whose channels can be balanced, the layer that can divide them, and all layers that read them.

    At the observation and behind a Concat an operator of its own divides, so the layer is missing (None). Readers that
    are not layers keep the value as it is.
    """
    readers_of, behind = readers(policy), behind_linear(policy)
    ops = {op.name: op for op in policy.ops}
    for source in dict.fromkeys(op.inputs[0] for op in policy.linear):
        consumers = [op for op in readers_of[source] if isinstance(op, Linear)]
        alone = len(consumers) == len(readers_of[source])
        chain = _producer(ops, readers_of, source) if alone else None
        divides = source not in behind or isinstance(ops[source], Concat)
        if chain is not None or (divides and all(isinstance(op, Dense) for op in consumers)):
            yield source, chain, consumers


def factors(extent: Array, weight: Array, alpha: float) -> Array:
    """Return the factors s [C] of channels; 1 on average, and for channels that are silent or unread.

    Args:
        extent: Largest absolute value of each channel, [C].
        weight: Largest absolute weight that reads each channel, [C].
        alpha: Exponent of the extents.
    """
    extent, weight = extent.astype(np.float64), weight.astype(np.float64)
    alive = (extent > 0) & (weight > 0)
    scale = np.ones(len(extent))
    scale[alive] = extent[alive] ** alpha / weight[alive] ** (1 - alpha)
    if alive.any():
        scale[alive] /= np.exp(np.log(scale[alive]).mean())
    return scale


def _negligible(values: Array) -> Array:
    small: Array = values < NEGLIGIBLE * values.max()
    return small


def equalized(policy: Policy, balanced: Iterable[Balance]) -> Policy:
    """Return the policy with these factors in its weights."""
    ops: dict[str, Any] = {op.name: op for op in policy.ops}
    inserted: dict[str, Op] = {}
    for balance in balanced:
        scale, scaled = balance.scale, balance.source
        if balance.chain is None:
            inserted[balance.source] = balance.inserted
            scaled = balance.inserted.name
        else:
            chain = ops[balance.chain]
            weight = as_float32(chain.weight) / scale.reshape(-1, *(1,) * (len(chain.weight.shape) - 1))
            ops[chain.name] = replace(chain, weight=weight.astype(np.float32), bias=(chain.bias / scale).astype("f4"))
        for name in balance.consumers:
            ops[name] = replace(ops[name], inputs=(scaled,), weight=_columns_times(ops[name], scale))
    return replace(policy, ops=tuple(in_order(policy, ops, inserted)))


def pin_saturated(policy: Policy, values: Mapping[str, Array]) -> Policy:
    """Return the policy with saturated tanh values in front of layers pinned to exactly -1 and 1.

    Only a tanh that saturates at both ends is pinned. The range of such a row is [-1, 1], and on its grid -1 is halfway
    between two codes. One unit in the last place, in which no two implementations of tanh agree, would move the whole
    row by a code. The values are stretched by 2**-14, far less than an int8 step, and clipped.
    """
    ops: list[Op] = []
    renamed: dict[str, str] = {}
    read_by_layers = {op.inputs[0] for op in policy.linear}
    for op in policy.ops:
        ops.append(replace(op, inputs=tuple(renamed.get(name, name) for name in op.inputs)))
        if isinstance(op, Activation) and op.kind == "tanh" and op.name in read_by_layers:
            reached = np.abs(values[op.name]) >= 1 - 2.0**-16
            if (reached & (values[op.name] > 0)).any() and (reached & (values[op.name] < 0)).any():
                zeros = np.zeros(values[op.name].shape[1:])
                pinned = Normalize(f"{op.name}.pinned", (op.name,), zeros, zeros + (1 + 2.0**-14) ** -2, 0.0, 1.0)
                ops.append(pinned)
                renamed[op.name] = pinned.name
    return replace(policy, ops=tuple(ops)) if renamed else policy


def _producer(ops: Mapping[str, Op], readers_of: Mapping[str, list[Op]], name: str) -> Linear | None:
    """Return the layer whose channels reach `name` through homogeneous functions with no other reader."""
    passed_activation = False
    while name in ops:
        op = ops[name]
        if isinstance(op, Linear):
            return op if passed_activation and len(readers_of[op.name]) == 1 else None
        if isinstance(op, Activation) and op.kind in HOMOGENEOUS:
            passed_activation = True
        elif not isinstance(op, Flatten):
            return None
        name = op.inputs[0]
        if name in ops and len(readers_of[name]) != 1:
            return None
    return None


def _columns_times(op: Linear, scale: Array) -> Array:
    """Return the weight with input channel j multiplied by scale[j]."""
    weight = as_float32(op.weight)
    product: Array = weight * columns(op, scale).reshape(1, -1, *(1,) * (weight.ndim - 2))
    return product.astype(np.float32)


def columns(op: Linear, scale: Array) -> Array:
    """Return the factor of each input channel of a layer.

    A flattened image repeats the factor of each of its channels.
    """
    return np.repeat(scale, op.weight.shape[1] // len(scale))


def in_order(policy: Policy, ops: Mapping[str, Op], inserted: Mapping[str, Op]) -> Iterable[Op]:
    """Yield `ops` in the order of the policy's, and each of `inserted` right after the value of its key."""
    waiting = dict(inserted)
    values = {policy.ops[0].inputs[0]}
    for op in policy.ops:
        for source in [name for name in waiting if name in values]:
            yield waiting.pop(source)
        yield ops[op.name]
        values.add(op.name)
