"""What a precision does to a policy's weights, layer by layer: the rows of `quarl inspect`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.policy.graph import Policy, QuantizedPolicy
from quarl.policy.operators import Linear, QuantizedTensor, as_float32
from quarl.quant.affine import QParams
from quarl.quant.diagnostics import Diagnostics, diagnose
from quarl.quant.spec import Scheme, integer_range

Array = NDArray[Any]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Layer:
    """One linear operator before and after quantisation."""

    name: str
    operator: str
    """Dense or Conv2d."""
    shape: tuple[int, ...]
    """[out, in] or [out, in, kh, kw]."""
    precision: str
    scheme: str
    diagnostics: Diagnostics

    def to_json(self) -> dict[str, Any]:
        """The layer's row: plain values, null for an infinite signal-to-noise ratio."""
        found = self.diagnostics
        return {
            "layer": self.name,
            "operator": self.operator,
            "shape": list(self.shape),
            "precision": self.precision,
            "scheme": self.scheme,
            "min": found.minimum,
            "max": found.maximum,
            "range": found.range,
            "levels": found.levels,
            "sqnr_db": found.sqnr_db if math.isfinite(found.sqnr_db) else None,
            "saturation": found.saturation,
            "histogram": {"counts": found.counts.tolist(), "edges": found.edges.tolist()},
        }


def inspect(policy: Policy, quantized: QuantizedPolicy) -> list[Layer]:
    """Layers of `quantized` against the same layers of the float `policy`, in order.

    policy: what was rounded, that is, `ptq.rewritten` of the one that was read: a scheme that equalises channels moves
    factors between layers first.
    """
    return [
        Layer(
            name=before.name,
            operator=type(before).__name__,
            shape=before.weight.shape,
            precision=quantized.spec.precision,
            scheme=quantized.spec.scheme.name,
            diagnostics=_diagnose(before, after, quantized.spec.scheme),
        )
        for before, after in zip(policy.linear, quantized.linear, strict=True)
    ]


def _diagnose(before: Linear, after: Linear, scheme: Scheme) -> Diagnostics:
    x, weight = as_float32(before.weight), after.weight
    if not isinstance(weight, QuantizedTensor):
        return diagnose(x, as_float32(weight))
    codes = weight.codes
    # The 2020 formula clips nothing: its grid ends where its codes do.
    ends = (
        (int(codes.min()), int(codes.max()))
        if scheme.original
        else integer_range(weight.bits, symmetric=scheme.symmetric)
    )
    along = (-1,) + (1,) * (codes.ndim - 1)
    grid = QParams(weight.scale.reshape(along), weight.zero_point.reshape(along), *ends)
    return diagnose(x, as_float32(weight), codes=codes, q=grid)


def weight_bias_line(file: str, policy: Policy) -> str:
    """The original's line about a model file: extremes of all its weights and biases, and the difference.

    Source: visualize_pkl.py, `<file> : weight_bias_min: <min> , weight_bias_max: <max> , range: <max-min>`.
    """
    tensors = [array for op in policy.linear for array in (as_float32(op.weight), op.bias)]
    low = np.float32(min(array.min() for array in tensors))
    high = np.float32(max(array.max() for array in tensors))
    return f"{file} : weight_bias_min: {low} , weight_bias_max: {high} , range: {high - low}"
