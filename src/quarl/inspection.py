"""What a precision does to weights, layer by layer and in all: the rows of `quarl inspect`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from quarl import formats
from quarl.arrays import Array
from quarl.errors import short
from quarl.policy.layers import LayerWeights
from quarl.policy.operators import QuantizedTensor, Weight, as_float32
from quarl.quant.affine import MID_RISE, QParams
from quarl.quant.diagnostics import coarsest_grid, histogram, saturation, sqnr_db
from quarl.quant.spec import QuantSpec, integer_range
from quarl.quant.spec import Scheme as Rounding
from quarl.rows import Column, Row, Scheme

Minimum = Annotated[float, Column("min", "{:.4g}".format)]
Maximum = Annotated[float, Column("max", "{:.4g}".format)]
Range = Annotated[float, Column("range", "{:.4g}".format)]
Noise = Annotated[
    float | None,
    Column("SQNR dB", lambda db: "exact" if db is None else f"{db:.1f}"),
    "Signal to quantisation noise, in decibels; null where nothing changed.",
]
Histogram = Annotated[
    dict[str, list[float]],
    Column("histogram (log)", lambda histogram: formats.spark(histogram["counts"])),
    "counts and edges of the float32 weights.",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRow(Row):
    """One layer before and after quantization."""

    command = "inspect"
    layer: Annotated[str, Column("layer", short)]
    operator: Annotated[str, Column("operator", caption="{} layers")]
    """Dense, Conv2d, LSTM, ..."""
    shape: Annotated[tuple[int, ...], Column("shape", lambda shape: "×".join(map(str, shape)))]
    """[out, in] or [out, in, kh, kw]."""
    precision: Annotated[str, Column("precision", caption="{}")]
    scheme: Scheme
    min: Minimum
    max: Maximum
    range: Range
    levels: Annotated[int, Column("levels")]
    """Distinct codes in use; distinct values where the precision is a float format."""
    sqnr_db: Noise
    saturation: Annotated[float, Column("clipped %", lambda share: f"{100 * share:.2g}")]
    """Share of the weights that lie outside the grid by more than half a step, 0..1."""
    histogram: Histogram


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow(Row):
    """All weights of one model together; biases are not among them."""

    command = "inspect models"
    model: Annotated[str, Column("model", short)]
    weights: Annotated[int, Column("weights", "{:,}".format)]
    precision: Annotated[str, Column("precision", caption="{}")]
    scheme: Scheme
    min: Minimum
    max: Maximum
    range: Range
    std: Annotated[float, Column("std", "{:.4g}".format)]
    spread: Annotated[float | None, Column("max/std", formats.number)]
    """max |w| / std: how far the largest weight, which sets the step of a grid, lies from the typical one; null where
    std is 0."""
    sqnr_db: Noise
    histogram: Histogram
    layers: list[LayerRow]
    """The model's `inspect` rows."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Layer:
    """One layer's row and the levels that its weights can take."""

    row: LayerRow
    grid: Array
    """float32: every level that the coarsest channel can take, ascending; empty for float formats and huge grids."""


@np.errstate(all="ignore")  # of weights near the ends of float32
def inspect(before: Sequence[LayerWeights], after: Sequence[LayerWeights], spec: QuantSpec) -> list[Layer]:
    """Layers in the precision of `spec` against the same layers in float, in order.

    before: what was rounded; of a policy whose scheme equalises channels, those of `calibration.Calibrated.rewrite`,
    because it moves factors between layers first.
    """
    return [_layer(x, y, spec) for x, y in zip(before, after, strict=True)]


def _layer(before: LayerWeights, after: LayerWeights, spec: QuantSpec) -> Layer:
    x, y = as_float32(before.weight), as_float32(after.weight)
    codes = after.weight.codes if isinstance(after.weight, QuantizedTensor) else None
    q = _grid(after.weight, spec.scheme)
    row = LayerRow(
        layer=before.name,
        operator=before.operator,
        shape=before.weight.shape,
        levels=len(np.unique(y if codes is None else codes)),
        saturation=0.0 if q is None else saturation(x, q),
        **_compared(x, y, spec),
    )
    return Layer(row=row, grid=np.zeros(0, np.float32) if q is None else coarsest_grid(q))


@np.errstate(all="ignore")
def whole(model: str, before: Sequence[LayerWeights], after: Sequence[LayerWeights], spec: QuantSpec) -> ModelRow:
    """All weights of `model` in float, and what the precision of `spec` leaves of them."""
    x, y = (np.concatenate([as_float32(layer.weight).reshape(-1) for layer in side]) for side in (before, after))
    std = float(x.std(dtype=np.float64))
    return ModelRow(
        model=model,
        weights=x.size,
        std=std,
        spread=_finite(float(np.abs(x).max()) / std) if std > 0 else None,
        layers=[layer.row for layer in inspect(before, after, spec)],
        **_compared(x, y, spec),
    )


def _compared(x: Array, y: Array, spec: QuantSpec) -> dict[str, Any]:
    """What rows say of float weights x beside y, the real values that replace them."""
    low, high = float(x.min()), float(x.max())
    counts, edges = histogram(x)
    return {
        "precision": spec.precision,
        "scheme": spec.scheme.name,
        "min": low,
        "max": high,
        "range": high - low,
        "sqnr_db": _finite(sqnr_db(x, y)),
        "histogram": {"counts": counts.tolist(), "edges": edges.tolist()},
    }


def _grid(weight: Weight, scheme: Rounding) -> QParams | None:
    """The grid of integer weights, channel by channel; None of floats."""
    if not isinstance(weight, QuantizedTensor):
        return None
    codes = weight.codes
    along = (-1,) + (1,) * (codes.ndim - 1)
    if weight.mid_rise:
        return QParams(2 * weight.scale.reshape(along), MID_RISE, *integer_range(weight.bits, symmetric=False))
    # The 2020 formula clips nothing: its grid ends where its codes do.
    ends = (
        (int(codes.min()), int(codes.max()))
        if scheme.original
        else integer_range(weight.bits, symmetric=scheme.symmetric)
    )
    return QParams(weight.scale.reshape(along), weight.zero_point.reshape(along), *ends)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


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
