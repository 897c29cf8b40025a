"""The arithmetic "int16x8": int8 weights and int16 activations without zero points, as in TensorFlow Lite's kernels.

TFLite Micro and LiteRT compute convolutions in it alike, bit for bit, and dense layers as convolutions of one pixel:
LiteRT's FULLY_CONNECTED rounds a product of doubles instead. Scales are 1.5 times powers of two. The kernels of TANH,
LOGISTIC and MUL are then exact shifts, and LiteRT does not use the faster ones that it has for powers of two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from quarl.arrays import Array
from quarl.engines.lookup_tables import table
from quarl.engines.sums import requantization, symmetric, unit
from quarl.errors import UnsupportedError
from quarl.policy.graph import ActivationGrid, Policy, QuantizedPolicy, behind_linear, readers
from quarl.policy.operators import Activation, Dense, Linear
from quarl.quant.affine import requantize_twice

TARGET = "tflite-int16x8"
LOW, HIGH = -(2**15), 2**15 - 1
UNIT = ActivationGrid(scale=2.0**-15, zero_point=0, bits=16)
"""Grid of results of tanh and sigmoid, which the kernels prescribe."""
SATURATED = 12.0
"""Number at which tanh and sigmoid have reached the end of UNIT."""
SQUASHING = {"tanh", "sigmoid"}
KERNELS = {"Dense", "relu", "silu", "elu", *SQUASHING}
"""Operators with integer kernels, of which the file consists."""
NARROW = (
    ActivationGrid(scale=1.5 * 2.0**-6, zero_point=127, bits=8),
    ActivationGrid(scale=2.0**-8, zero_point=127, bits=8),
)
"""Grids of elu's table, from and to int8 codes, for inputs from -6 to 0; no entry is near the middle of two codes."""
RAISED = 0x800000000000000000000000000000800011009020440005C0467BAEFA7BD110
"""Bits of the entries of SIGMOID that the kernels' table has one above the nearest integer."""
SIGMOID: Array = np.rint(2.0**16 / (1 + np.exp(np.arange(256) / -24))).astype(np.int64) + [
    RAISED >> entry & 1 for entry in range(256)
]
"""2**16 * sigmoid(entry / 24), the kernels' table, between whose entries they interpolate."""


def entry(policy: Policy) -> str:
    """Return the name of the value that the file reads: the input of the first layer, after the normalizer."""
    return policy.linear[0].inputs[0]


def grids(policy: QuantizedPolicy) -> dict[str, ActivationGrid]:
    """Return the int16 grid of every value in the file by name, in order.

    A layer that writes the output has no calibrated grid. Its grid covers all sums of inputs in their calibrated
    ranges.

    Raises:
        UnsupportedError: An operator has no integer kernel, or a layer has other weights than int8.
    """
    if policy.state.size:
        raise UnsupportedError(f"{TARGET} has no kernels for policies with a memory: use --to tflite, onnx or c")
    first = entry(policy)
    if policy.spec.mode != "static" or first not in policy.grids:
        raise UnsupportedError(f"{TARGET} takes static integer policies, not {policy.spec.in_words}: use --mode static")
    found = {first: _grid(2 * policy.grids[first].reach * policy.grids[first].scale)}
    behind, readers_of = behind_linear(policy), readers(policy)
    for op in policy.ops:
        kind = op.kind if isinstance(op, Activation) else type(op).__name__
        if op.name in behind and (kind not in KERNELS or op.inputs[0] not in found):
            raise UnsupportedError(f"{TARGET} has no integer kernel for {op.name!r} ({kind}): use --to tflite, or c")
        if isinstance(op, Dense):
            functions = {reader.kind for reader in readers_of.get(op.name, []) if isinstance(reader, Activation)}
            found[op.name] = _grid_of_layer(policy, op, found[op.inputs[0]], functions)
        elif op.name in behind:
            found[op.name] = UNIT if kind in SQUASHING else found[op.inputs[0]]
    return found


def _grid_of_layer(policy: QuantizedPolicy, op: Dense, source: ActivationGrid, functions: set[str]) -> ActivationGrid:
    """Return the grid of the output of a layer.

    Args:
        policy: The policy.
        op: The layer.
        source: Grid of its input.
        functions: Activation functions that read its output.
    """
    weight, known, head = symmetric(op, TARGET), policy.grids.get(op.name), policy.head
    sums = np.abs(weight.codes, dtype=np.float64).sum(axis=1) * -LOW
    reached = float((sums * unit(weight, source) + np.abs(op.bias)).max())
    if known is None:
        read = policy.grids[op.inputs[0]]
        ends = np.array(read.steps) * read.scale
        products = np.sort((weight.codes * weight.scale[:, None])[..., None] * ends)
        extent = float(np.abs(products.sum(axis=1) + op.bias[:, None]).max())
    else:
        extent = known.reach * known.scale
    if op.name == policy.output and head.kind == "clip":
        extent = min(extent, float(np.abs([head.low, head.high]).max()))
    elif functions <= SQUASHING and (functions or (op.name == policy.output and head.kind == "tanh")):
        extent = min(extent, SATURATED)
    elif "elu" in functions:
        extent = max(extent, 1.0)
    grid = _grid(extent)
    steps, multiplier = layer(op, source, grid)
    fits = multiplier.max() < 2.0**7 and (sums + np.abs(steps)).max() < 2.0**47 and reached / grid.scale < 2.0**31
    if not fits or (functions & {"silu", "elu", *SQUASHING} and grid.scale > 1.5):
        raise UnsupportedError(f"layer {op.name!r} leaves the bounds of int16x8 kernels: use --to tflite, or c")
    return grid


def _grid(extent: float) -> ActivationGrid:
    """Return the grid of scale 1.5 * 2**k that covers [-extent, extent]."""
    smallest = max(extent, 2.0**-15) / HIGH
    return ActivationGrid(scale=1.5 * 2.0 ** math.ceil(math.log2(smallest / 1.5)), zero_point=0, bits=16)


def layer(op: Linear, source: ActivationGrid, target: ActivationGrid) -> tuple[Array, Array]:
    """Return the bias of a layer in units of its sums, float64 [out], and its multipliers, float64 [out].

    Args:
        op: The layer.
        source: Grid of its input.
        target: Grid of its output.
    """
    weight = symmetric(op, TARGET)
    return requantization(op, weight, source, target)[0], unit(weight, source) / target.scale


def activation(kind: str, codes: Array, source: ActivationGrid) -> Array:
    """Return the codes of relu, tanh, sigmoid, silu or elu, on the grid that `grids` gives them.

    Args:
        kind: The function.
        codes: Codes of the input, int64.
        source: Grid of the input.
    """
    if kind == "relu":
        return np.maximum(codes, 0)
    if kind == "silu":
        products = codes * activation("sigmoid", codes, source)
        return requantize_twice(products, np.array(UNIT.scale), 0, LOW, HIGH).astype(np.int64)
    if kind == "elu":
        low, bent = NARROW
        entries = requantize_twice(codes, np.array(source.scale / low.scale), low.zero_point, -128, 127)
        values = table(Activation(name="", inputs=("",), kind="elu"), low, bent)[entries.astype(np.int64) + 128]
        wide = requantize_twice(values - np.int64(bent.zero_point), np.array(bent.scale / source.scale), 0, LOW, HIGH)
        return np.maximum(codes, wide.astype(np.int64))
    # Count the input in 24ths of the table's entries, with 8 or 9 bits behind the point.
    shift = round(-math.log2(source.scale / 1.5))
    steps = (codes * 18432 + (1 << shift >> 1)) >> shift
    bits, drop, end, middle = (8, 8, 0xFFFF << 8, 0) if kind == "tanh" else (9, 10, 0x7FFF << 10, 1 << 24)
    place, rest = np.abs(steps) >> bits, np.abs(steps) & ((1 << bits) - 1)
    low, high = SIGMOID[np.minimum(place, 254)], SIGMOID[np.minimum(place + 1, 255)]
    value = np.where(place >= 255, end, (low << bits) + rest * (high - low)) - (1 << 15 + bits)
    return (middle + (1 << drop - 1) + np.where(steps >= 0, value, -1 - value)) >> drop


def io(policy: QuantizedPolicy) -> Mapping[str, Any]:
    """Return the contract's description of the file's input and output."""
    found, first = grids(policy), entry(policy)
    before = [
        {"kind": type(op).__name__, "name": op.name, **op.arrays}
        | {name: getattr(op, name) for name in ("epsilon", "clip") if hasattr(op, name)}
        for op in policy.ops
        if op.name not in found or op.name == first
    ]
    return {
        "input": {
            "value": first,
            "scale": found[first].scale,
            "codes": "clip(round(x / scale), -32768, 32767), ties to even; x is the result of before, in float32",
            "before": before,
        },
        "output": {"value": policy.output, "scale": found[policy.output].scale},
        "int8_tables": [op.name for op in policy.ops if isinstance(op, Activation) and op.kind == "elu"],
    }
