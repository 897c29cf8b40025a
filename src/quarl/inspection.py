"""What a precision does to weights, layer by layer and in all: the rows of `quarl inspect`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quarl.arrays import Array
from quarl.policy.layers import LayerWeights
from quarl.policy.operators import QuantizedTensor, Weight, as_float32
from quarl.quant.affine import QParams
from quarl.quant.diagnostics import Diagnostics, diagnose, histogram, sqnr_db
from quarl.quant.spec import QuantSpec, Scheme, integer_range


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Layer:
    """One layer before and after quantisation."""

    name: str
    operator: str
    """Dense, Conv2d, LSTM, ..."""
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
            "sqnr_db": _finite(found.sqnr_db),
            "saturation": found.saturation,
            "histogram": _histogram(found.counts, found.edges),
        }


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Whole:
    """All weights of one model together; biases are not among them."""

    model: str
    layers: list[Layer]
    num_weights: int
    minimum: float
    maximum: float
    std: float
    spread: float
    """max |w| / std: how far the largest weight, which sets the step of a grid, lies from the typical one."""
    sqnr_db: float
    counts: Array
    """int64 [bins]."""
    edges: Array
    """float64 [bins + 1]."""

    @property
    def range(self) -> float:
        return self.maximum - self.minimum

    def to_json(self) -> dict[str, Any]:
        """The model's row, with those of its layers in it."""
        return {
            "model": self.model,
            "weights": self.num_weights,
            "precision": self.layers[0].precision,
            "scheme": self.layers[0].scheme,
            "min": self.minimum,
            "max": self.maximum,
            "range": self.range,
            "std": self.std,
            "spread": _finite(self.spread),
            "sqnr_db": _finite(self.sqnr_db),
            "histogram": _histogram(self.counts, self.edges),
            "layers": [layer.to_json() for layer in self.layers],
        }


@np.errstate(all="ignore")  # of weights near the ends of float32
def inspect(before: Sequence[LayerWeights], after: Sequence[LayerWeights], spec: QuantSpec) -> list[Layer]:
    """Layers in the precision of `spec` against the same layers in float, in order.

    before: what was rounded; of a policy whose scheme equalises channels, those of `ptq.Calibrated.rewrite`, because it
    moves factors between layers first.
    """
    return [
        Layer(
            name=x.name,
            operator=x.operator,
            shape=x.weight.shape,
            precision=spec.precision,
            scheme=spec.scheme.name,
            diagnostics=_diagnose(x.weight, y.weight, spec.scheme),
        )
        for x, y in zip(before, after, strict=True)
    ]


@np.errstate(all="ignore")
def whole(model: str, before: Sequence[LayerWeights], after: Sequence[LayerWeights], spec: QuantSpec) -> Whole:
    """All weights of `model` in float, and what the precision of `spec` leaves of them."""
    x, y = (np.concatenate([as_float32(layer.weight).reshape(-1) for layer in side]) for side in (before, after))
    counts, edges = histogram(x)
    std = float(x.std(dtype=np.float64))
    return Whole(
        model=model,
        layers=inspect(before, after, spec),
        num_weights=x.size,
        minimum=float(x.min()),
        maximum=float(x.max()),
        std=std,
        spread=float(np.abs(x).max()) / std if std > 0 else math.inf,
        sqnr_db=sqnr_db(x, y),
        counts=counts,
        edges=edges,
    )


def _diagnose(before: Weight, after: Weight, scheme: Scheme) -> Diagnostics:
    x = as_float32(before)
    if not isinstance(after, QuantizedTensor):
        return diagnose(x, as_float32(after))
    codes = after.codes
    # The 2020 formula clips nothing: its grid ends where its codes do.
    ends = (
        (int(codes.min()), int(codes.max()))
        if scheme.original
        else integer_range(after.bits, symmetric=scheme.symmetric)
    )
    along = (-1,) + (1,) * (codes.ndim - 1)
    grid = QParams(after.scale.reshape(along), after.zero_point.reshape(along), *ends)
    return diagnose(x, as_float32(after), codes=codes, q=grid)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _histogram(counts: Array, edges: Array) -> dict[str, list[float]]:
    return {"counts": counts.tolist(), "edges": edges.tolist()}


def weight_bias_line(file: str, layers: Sequence[LayerWeights]) -> str:
    """The original's line about a model file: extremes of all its weights and biases, and the difference.

    Source: visualize_pkl.py, `<file> : weight_bias_min: <min> , weight_bias_max: <max> , range: <max-min>`.
    """
    tensors = [as_float32(layer.weight) for layer in layers]
    tensors += [layer.bias for layer in layers if layer.bias is not None]
    low = np.float32(min(array.min() for array in tensors))
    high = np.float32(max(array.max() for array in tensors))
    span = float(high) - float(low)  # which float32 cannot hold where both are near its ends
    return f"{file} : weight_bias_min: {low} , weight_bias_max: {high} , range: {span}"
