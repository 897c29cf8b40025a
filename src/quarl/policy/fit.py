"""Conversion of one layer's weights to integers, or to narrower floats."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from quarl.arrays import Array
from quarl.errors import RAISED, QuarlError, in_one_line, note_once
from quarl.policy.operators import Conv2d, Linear, QuantizedTensor, as_float32
from quarl.quant import affine
from quarl.quant.affine import TINY, QParams, choose_qparams, quarl_2020
from quarl.quant.observers import observe
from quarl.quant.packing import storage_dtype
from quarl.quant.rounding import gptq, output_aware_qparams, second_moment
from quarl.quant.schemes import FUNCTIONS
from quarl.quant.spec import QuantSpec, integer_range

FLOAT_TYPES = {"fp32": np.float32, "fp16": np.float16, "bf16": ml_dtypes.bfloat16}
SHRINKS = np.linspace(1.0, 0.3, 15)
"""Candidate ranges for output-aware scales, as fractions of the largest weight."""
MAX_ROWS = 20_000
"""Rows of layer inputs that calibration keeps (convolutions have one per output position)."""
ROWS_AT_ONCE = 64
MAX_INPUTS = 8_192
"""Largest number of inputs of a layer that is rounded for its output: four matrices of that size squared take 2.3 GB in
float64."""


def fit(op: Linear, columns: Array, spec: QuantSpec, least: Array | None = None) -> Linear:
    """Return the layer with integer weights, rounded by the spec's scheme.

    A layer with more than MAX_INPUTS inputs is rounded to nearest under every scheme; a note reports this.

    Args:
        op: The layer.
        columns: Its inputs, [N, K].
        spec: Precision and scheme.
        least: Lower bounds of the weights' scales, [out].
    """
    if spec.scheme.rounding == "nearest":
        return nearest(op, spec, least)
    if columns.shape[1] > MAX_INPUTS:
        note_once(
            f"layer {op.name!r} has {columns.shape[1]:,} inputs: above {MAX_INPUTS:,}, rounding for the layer's output "
            f"takes too much memory, so that its weights are rounded to nearest"
        )
        return nearest(op, spec, least)
    stride = max(1, len(columns) // MAX_ROWS)
    h = second_moment(columns[::stride])
    weight = as_float32(op.weight).reshape(op.weight.shape[0], -1).astype(np.float64)
    grids = output_aware_qparams(weight, h, spec.weight_bits, SHRINKS, mid_rise=spec.mid_rise)
    q = _at_least(grids, weight, least)
    return with_codes(op, gptq(weight, h, q), q, spec.weight_bits)


def nearest(op: Linear, spec: QuantSpec, least: Array | None = None) -> Linear:
    """Return the layer with each weight at its nearest code, on the scheme's grid.

    Args:
        op: The layer.
        spec: Precision and scheme.
        least: Lower bounds of the weights' scales, [out].
    """
    weight = as_float32(op.weight).reshape(op.weight.shape[0], -1)
    scheme = spec.scheme
    if scheme.source:
        return _by_function(op, spec, least)
    if scheme.original:
        # The original treated convolutions per output channel and everything else per tensor.
        rows = weight if isinstance(op, Conv2d) else weight.reshape(1, -1)
        pairs = [quarl_2020(row, spec.weight_bits) for row in rows]
        codes = np.stack([codes for codes, _ in pairs]).reshape(weight.shape)
        scale = np.array([step for _, step in pairs], np.float32)[:, None]
        return with_codes(op, codes, QParams(scale, np.zeros_like(scale), 0, 0), spec.weight_bits)
    rows = weight if scheme.per_channel else weight.reshape(1, -1)
    ends = observe(rows, scheme.observer, bits=spec.weight_bits, symmetric=scheme.symmetric)
    low, high = (end[:, None] for end in ends)
    chosen = choose_qparams(low, high, spec.weight_bits, symmetric=scheme.symmetric, mid_rise=spec.mid_rise)
    q = _at_least(chosen, rows, least)
    codes = np.empty(weight.shape, storage_dtype(q.qmin, q.qmax))
    # Some rows at a time stay in the processor's cache; above 16 bits float32 cannot hold a code.
    wide = np.float64 if spec.weight_bits > 16 else np.float32
    for start in range(0, len(weight), ROWS_AT_ONCE):
        channels = slice(start, start + ROWS_AT_ONCE)
        grid = _of_channels(q, channels) if scheme.per_channel else q
        codes[channels] = affine.quantize(weight[channels].astype(wide, copy=False), grid)
    return with_codes(op, codes, q, spec.weight_bits)


def _by_function(op: Linear, spec: QuantSpec, least: Array | None) -> Linear:
    """Return the layer with the codes of the user's function; raise QuarlError if they are not on its grid."""
    name, weight = spec.scheme.name, as_float32(op.weight)
    if (function := FUNCTIONS.get(spec.scheme)) is None:
        raise QuarlError(f"the code of scheme {name!r} is not imported here, or has changed: quantize the fp32 policy")
    try:
        codes, scale, zero_point = (_real(part) for part in function(weight.copy(), spec.weight_bits))
    except RAISED as error:  # the user's code may raise any exception
        raise QuarlError(f"scheme {name!r} failed at layer {op.name!r}: {in_one_line(error)}") from error
    low, high = integer_range(spec.weight_bits, symmetric=False)
    wrong = ""
    if codes.shape != weight.shape:
        wrong = f"codes of shape {codes.shape} for weights of shape {weight.shape}"
    elif not scale.shape == zero_point.shape == weight.shape[:1]:
        wrong = f"scales {scale.shape} and zero points {zero_point.shape}: use one each for {len(weight)} channels"
    elif not ((scale >= TINY) & (scale <= np.finfo(np.float32).max)).all():
        wrong = "scales that are not positive and finite in float32"
    elif not all(((part == np.rint(part)) & (part >= low) & (part <= high)).all() for part in (codes, zero_point)):
        wrong = f"codes or zero points that are not integers in {low}..{high}"
    elif least is not None and ((scale < least) & (codes != zero_point[:, None]).any(axis=1)).any():
        wrong = "scales too small for the bias in static mode: use dynamic mode"
    if wrong:
        raise QuarlError(f"scheme {name!r} returns, for layer {op.name!r} at {spec.weight_bits} bits, {wrong}")
    scale = scale if least is None else np.maximum(scale, least)  # that of a row of zeros is arbitrary
    return with_codes(op, codes, QParams(scale, zero_point, low, high), spec.weight_bits)


def _real(part: Any) -> Array:
    """Return codes, scales or zero points in float64; raise TypeError if they are no real numbers, or are masked."""
    kind = "a masked array" if isinstance(part, np.ma.MaskedArray) else np.asarray(part).dtype
    if getattr(kind, "kind", "") not in tuple("iufV"):  # V: bfloat16
        raise TypeError(f"codes, scales and zero points must be real numbers, got {kind}")
    return np.asarray(part, np.float64)


def _at_least(q: QParams, rows: Array, least: Array | None) -> QParams:
    """Return q with each row's scale raised to its lower bound in `least`; rows of zeros get the largest bound.

    Nothing else determines the scale of a row of zeros.
    """
    if least is None or not least.any():
        return q
    alive = rows.any(axis=1)
    wanted = np.where(alive, least.reshape(len(rows), -1).max(axis=1), least.max()).clip(min=TINY)
    return replace(q, scale=np.maximum(np.where(alive, q.scale[:, 0], 0), wanted).astype(np.float32)[:, None])


def _of_channels(q: QParams, channels: slice) -> QParams:
    return replace(
        q, scale=q.scale[channels], zero_point=q.zero_point[channels] if np.ndim(q.zero_point) else q.zero_point
    )


def with_codes(op: Linear, codes: Array, q: QParams, bits: int) -> Linear:
    """Return the layer with these codes of its weights on the grid q; scales and zero points become one per channel.

    Codes of a grid without 0 become odd multiples of half its step, which integer kernels accept.

    Args:
        op: The layer.
        codes: Integer codes, in the number of the weights.
        q: Grid of the codes.
        bits: Nominal width of the codes.
    """
    channels, mid_rise = op.weight.shape[0], q.mid_rise
    if mid_rise:
        codes, q = 2 * codes + 1, replace(q, scale=q.scale / 2, zero_point=0)
    dtype = storage_dtype(int(codes.min(initial=0)), int(codes.max(initial=0)))
    tensor = QuantizedTensor(
        codes=codes.reshape(op.weight.shape).astype(dtype, copy=False),
        scale=np.broadcast_to(np.asarray(q.scale, np.float32).reshape(-1), channels).copy(),
        zero_point=np.broadcast_to(np.asarray(q.zero_point, np.int32).reshape(-1), channels).copy(),
        bits=bits,
        mid_rise=mid_rise,
    )
    return replace(op, weight=tensor)


def cast(op: Linear, float_type: str) -> Linear:
    """Return the layer with its weights in a narrower float type; raise QuarlError if one overflows."""
    with np.errstate(over="ignore"):
        weight = as_float32(op.weight).astype(FLOAT_TYPES[float_type], copy=False)
    if not np.isfinite(weight).all():
        raise QuarlError(
            f"a weight of layer {op.name!r} is too large for {float_type}; use bf16 or an integer precision"
        )
    return replace(op, weight=weight)
