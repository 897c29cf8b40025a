"""Weights of one layer with their name: what a policy's linear operators and files of other formats both give."""

from __future__ import annotations

from dataclasses import dataclass

from quarl.arrays import Array
from quarl.policy.graph import Policy
from quarl.policy.operators import Weight


@dataclass(frozen=True, eq=False, slots=True)
class LayerWeights:
    """A weight with its outputs along axis 0, wherever it comes from."""

    name: str
    operator: str
    """Dense, Conv2d, LSTM, ..."""
    weight: Weight
    """[out, in], [out, in, kh, kw], ...; float32 where a file of another format holds it."""
    bias: Array | None = None
    """[out]; None where the layer has none."""


def of_policy(policy: Policy) -> tuple[LayerWeights, ...]:
    """The layers of a policy, in order."""
    return tuple(LayerWeights(op.name, type(op).__name__, op.weight, op.bias) for op in policy.linear)
