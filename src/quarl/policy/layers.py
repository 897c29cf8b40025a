"""Weights of one layer with their name.

This is the common form of a policy's linear operators and of files in other formats.
"""

from __future__ import annotations

from dataclasses import dataclass

from quarl.arrays import Array
from quarl.policy.graph import Policy
from quarl.policy.operators import Weight


@dataclass(frozen=True, eq=False, slots=True)
class LayerWeights:
    """A weight with its outputs along axis 0, from any source."""

    name: str
    operator: str
    """Kind of the layer: Dense, Conv2d, LSTM, ..."""
    weight: Weight
    """[out, in], [out, in, kh, kw], ...; float32 for files of other formats."""
    bias: Array | None = None
    """[out]; None if the layer has none."""


def of_policy(policy: Policy) -> tuple[LayerWeights, ...]:
    """Return the layers of a policy, in order."""
    return tuple(LayerWeights(op.name, type(op).__name__, op.weight, op.bias) for op in policy.linear)
