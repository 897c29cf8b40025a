"""Effect of a precision on weights, layer by layer and in total: the rows of `quarl inspect`."""

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
from quarl.rows import Column, Payload, Row, Scheme

Minimum = Annotated[float, Column("min", "{:.4g}".format)]
Maximum = Annotated[float, Column("max", "{:.4g}".format)]
Range = Annotated[float, Column("range", "{:.4g}".format)]
Noise = Annotated[
    float | None,
    Column("SQNR dB", lambda db: "exact" if db is None else f"{db:.1f}"),
    "Signal to quantization noise, in decibels; null if nothing changed.",
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
    """Distinct codes in use; distinct values for a float format."""
    payload: Payload
    sqnr_db: Noise
    saturation: Annotated[float, Column("clipped %", lambda share: f"{100 * share:.2g}")]
    """Share of the weights outside the grid by more than half a step, 0..1."""
    histogram: Histogram


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow(Row):
    """All weights of one model together, without biases."""

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
    """max |w| / std: distance of the largest weight, which sets the step of a grid, from the typical one; null if std
    is 0."""
    payload: Payload
    sqnr_db: Noise
    histogram: Histogram
    layers: list[LayerRow]
    """`inspect` rows of the model."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Layer:
    """One layer's row and the levels that its weights can take."""

    row: LayerRow
    grid: Array
    """float32 levels that the coarsest channel can take, ascending; empty for float formats and huge grids."""


@np.errstate(all="ignore")  # weights near the ends of float32 overflow
def inspect(before: Sequence[LayerWeights], after: Sequence[LayerWeights], spec: QuantSpec) -> list[Layer]:
    """Compare layers in the precision of `spec` with the same layers in float, in order.

    Args:
        before: The layers before rounding. For a policy whose scheme equalizes channels, they come from
            `calibration.Calibrated.rewrite`, which moves factors between layers first.
        after: The same layers in the precision of `spec`.
        spec: Precision and scheme.
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
        payload=_payload([after]),
        **_compared(x, y, spec),
    )
    return Layer(row=row, grid=np.zeros(0, np.float32) if q is None else coarsest_grid(q))


@np.errstate(all="ignore")
def whole(model: str, before: Sequence[LayerWeights], after: Sequence[LayerWeights], spec: QuantSpec) -> ModelRow:
    """Return the row of all weights of a model, in float and in the precision of `spec`.

    Args:
        model: Name of the model.
        before: Its layers in float.
        after: Its layers in the precision of `spec`.
        spec: Precision and scheme.
    """
    x, y = (np.concatenate([as_float32(layer.weight).reshape(-1) for layer in side]) for side in (before, after))
    std = float(x.std(dtype=np.float64))
    return ModelRow(
        model=model,
        weights=x.size,
        std=std,
        spread=_finite(float(np.abs(x).max()) / std) if std > 0 else None,
        layers=[layer.row for layer in inspect(before, after, spec)],
        payload=_payload(after),
        **_compared(x, y, spec),
    )


def _payload(layers: Sequence[LayerWeights]) -> int:
    return sum(array.nbytes for layer in layers for array in (layer.weight, layer.bias) if array is not None)


def _compared(x: Array, y: Array, spec: QuantSpec) -> dict[str, Any]:
    """Return the fields of a row that compare float weights x with y, the real values that replace them."""
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
    """Return the grid of integer weights, channel by channel; None for floats."""
    if not isinstance(weight, QuantizedTensor):
        return None
    codes = weight.codes
    along = (-1,) + (1,) * (codes.ndim - 1)
    if weight.mid_rise:
        return QParams(2 * weight.scale.reshape(along), MID_RISE, *integer_range(weight.bits, symmetric=False))
    # The 2020 formula clips nothing: its grid ends at its extreme codes.
    ends = (
        (int(codes.min()), int(codes.max()))
        if scheme.original
        else integer_range(weight.bits, symmetric=scheme.symmetric)
    )
    return QParams(weight.scale.reshape(along), weight.zero_point.reshape(along), *ends)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def weight_bias_line(file: str, layers: Sequence[LayerWeights]) -> str:
    """Return the original's line about a model file: extremes of all its weights and biases, and the difference.

    Source: visualize_pkl.py, `<file> : weight_bias_min: <min> , weight_bias_max: <max> , range: <max-min>`.
    """
    tensors = [as_float32(layer.weight) for layer in layers]
    tensors += [layer.bias for layer in layers if layer.bias is not None]
    low = np.float32(min(array.min() for array in tensors))
    high = np.float32(max(array.max() for array in tensors))
    span = float(high) - float(low)  # overflows in float32 if both are near its ends
    return f"{file} : weight_bias_min: {low} , weight_bias_max: {high} , range: {span}"
