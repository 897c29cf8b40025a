"""Rows quantised at run time, each on its own, in standard ONNX operators."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quarl.engines.onnx.file import File
from quarl.quant.affine import TINY

SHIFT = 128
"""Added to int8 codes to make them uint8."""
NARROWEST = 255 * TINY
"""Smallest width of a row's range: of a narrower one, such as a row of zeros, 255 / width would be no finite number."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Tensors of a value that was quantised row by row."""

    codes: str
    """uint8 [B, *shape]: codes shifted by SHIFT."""
    scale: str
    """float32 [B]."""
    zero_point: str
    """uint8 [B], shifted likewise; "" where it is 0 in every row."""


def quantized_rows(file: File, x: str, rank: int, batch: int | None, *, positive: bool) -> Rows:
    """Tensor x [B, *shape] quantised as `quant.affine.quantize_rows` says, operation by operation.

    rank: axes of a row. positive: no number is below 0, so that the low end needs no search and has code -128.
    """
    axes = list(range(1, 1 + rank))
    high = file.node("Max", file.reduced("ReduceMax", x, axes, keepdims=False), file.number(NARROWEST))
    if positive:
        inverse = file.node("Div", file.number(255), high)
        codes = file.round(file.node("Mul", x, down_rows(file, inverse, rank, batch)), 0)
        return Rows(codes, file.node("Reciprocal", inverse), "")
    low = file.node("Min", file.reduced("ReduceMin", x, axes, keepdims=False), file.number(0))
    inverse = file.node("Div", file.number(255), file.node("Sub", high, low))
    low, high = file.node("Mul", low, inverse), file.node("Mul", high, inverse)
    qmin, qmax = file.number(-128), file.number(127)
    errors = file.node("Add", file.node("Add", qmin, low), file.node("Add", qmax, high))
    candidates = file.node("Sub", qmin, low), file.node("Sub", qmax, high)
    chosen = file.node("Where", file.node("Greater", errors, file.number(0)), *candidates)
    scale, zero_point = file.node("Reciprocal", inverse), file.round(chosen, SHIFT)
    # Scaled beforehand, because QuantizeLinear divides where quantize_rows multiplies; the zero point is each row's.
    steps = file.node("Mul", x, down_rows(file, inverse, rank, batch))
    ones = file.constant(np.ones(batch, np.float32)) if batch else file.node("Div", scale, scale)
    return Rows(file.node("QuantizeLinear", steps, ones, zero_point, axis=0), scale, zero_point)


def down_rows(file: File, tensor: str, rank: int, batch: int | None) -> str:
    """[B] made to broadcast along the first axis of a value whose rows have `rank` axes."""
    return tensor if batch == 1 else file.node("Unsqueeze", tensor, file.constant(np.arange(1, 1 + rank)))
