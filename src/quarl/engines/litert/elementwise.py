"""Operators without weights, in float32 or on the order of axes, and conversions between float32 and int8 codes.

Every function appends operators to a Model and returns the tensor of their result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from quarl.arrays import Array
from quarl.engines.litert.flatbuffer import Model, Operator
from quarl.engines.numpy_operators import Norm, codes_formula
from quarl.policy import formulas
from quarl.policy.graph import ActionHead, ActivationGrid
from quarl.policy.operators import LEAKY_SLOPE, Activation, L2Norm, Normalize, Pool2d, Shape, Slice, Softmax, windows

KERNELS = {
    "relu": Operator.RELU,
    "tanh": Operator.TANH,
    "sigmoid": Operator.LOGISTIC,
    "elu": Operator.ELU,
    "leaky_relu": Operator.LEAKY_RELU,
    **{kind: getattr(Operator, kind.upper()) for kind in ("log", "round", "sqrt")},
}
BINARY = {kind: getattr(Operator, kind.upper()) for kind in ("add", "sub", "mul", "div")}
BINARY |= {"min": Operator.MINIMUM, "max": Operator.MAXIMUM}


def binary(model: Model, code: int, a: int, b: int) -> int:
    """Append float32 a (code) b; b has the shape of a or is repeated along its axes.

    Args:
        model: The file under construction.
        code: Operator.
        a: First tensor.
        b: Second tensor.
    """
    return model.add(code, [a, b], model.value(model.shape(a)))


def each(model: Model, code: int, x: int, numbers: Any) -> int:
    """Append float32 x (code) a constant: one number, or one for each element along the last axes of x.

    Args:
        model: The file under construction.
        code: Operator.
        x: Tensor.
        numbers: The constant.
    """
    return binary(model, code, x, _constant(model, numbers))


def clip(model: Model, x: int, low: float, high: float) -> int:
    """Append a clip of x to low and high; an infinite end does not clip.

    Args:
        model: The file under construction.
        x: Tensor.
        low: Lower bound.
        high: Upper bound.
    """
    x = each(model, Operator.MINIMUM, x, high) if np.isfinite(high) else x
    return each(model, Operator.MAXIMUM, x, low) if np.isfinite(low) else x


def quantized(model: Model, x: int, grid: ActivationGrid) -> int:
    """Append int8 codes of float32 x: divided by the scale like in quant.affine.quantize, then rounded on scale 1.

    Args:
        model: The file under construction.
        x: float32 tensor.
        grid: Grid of the codes.
    """
    return rounded(model, each(model, Operator.DIV, x, grid.scale), grid)


def rounded(model: Model, steps: int, grid: ActivationGrid) -> int:
    """Append int8 codes of float32 steps of the grid, or of bytes: clamp(round(steps) + zero_point), ties to even.

    Args:
        model: The file under construction.
        steps: Tensor that counts steps.
        grid: Grid of the codes.
    """
    return model.add(Operator.QUANTIZE, [steps], model.value(model.shape(steps), np.int8, grid.zero_point))


def counted(model: Model, steps: int, grid: ActivationGrid) -> int:
    """Append codes from float32 steps of a grid of any bits, as float32 integers counted from the zero point.

    Args:
        model: The file under construction.
        steps: Tensor that counts steps.
        grid: Grid of the codes.
    """
    within = clip(model, steps, *grid.steps)
    return model.add(Operator.ROUND, [within], model.value(model.shape(within)))


def centered(model: Model, codes: int) -> int:
    """Append int8 codes as float32 integers, counted from their zero point."""
    return model.add(Operator.DEQUANTIZE, [codes], model.value(model.shape(codes)))


def activation(model: Model, op: Activation, x: int) -> int:
    """Append the function of float32 x."""
    f = partial(_computed, model)
    return f(op.kind, x) if op.kind in KERNELS else formulas.FORMULAS[op.kind](f, x, *op.settings)


def _computed(model: Model, kind: str, x: int, *y: Any) -> int:
    """Append one operation of a formula, on a tensor and another one or numbers."""
    if kind in BINARY:
        return (binary if isinstance(y[0], int) else each)(model, BINARY[kind], x, *y)
    if kind == "sum":
        return _reduced(model, Operator.SUM, x)
    options = {"alpha": LEAKY_SLOPE} if kind == "leaky_relu" else {}
    return model.add(KERNELS[kind], [x], model.value(model.shape(x)), **options)


def softmax(model: Model, op: Softmax, x: int) -> int:
    """Append the softmax of each `size` numbers of rows x."""
    rows = reshape(model, x, (model.shape(x)[1] // op.size, op.size))
    shares = model.add(Operator.SOFTMAX, [rows], model.value(model.shape(rows)), beta=1.0)
    return reshape(model, shares, model.shape(x)[1:])


def pool(model: Model, op: Pool2d, x: int) -> int:
    """Append the pooling of images.

    Args:
        model: The file under construction.
        op: The operator.
        x: Tensor of images [B, H, W, C], in float32, or in int8 codes for the maximum of each window.
    """
    batch, height, width, channels = model.shape(x)
    if any(op.padding):
        margin = [(0, 0), *((n, n) for n in op.padding), (0, 0)]
        padded = model.like(x, (batch, height + 2 * op.padding[0], width + 2 * op.padding[1], channels))
        tensors = [x, model.constant(np.array(margin, np.int32))]
        if op.kind == "max":
            tensors.append(model.lowest(x))
        x = model.add(Operator.PADV2 if op.kind == "max" else Operator.PAD, tensors, padded)
    size = windows((channels, *model.shape(x)[1:3]), op.kernel, op.stride, (0, 0))
    options = {"strideH": op.stride[0], "strideW": op.stride[1], "filterHeight": op.kernel[0]}
    code = Operator.MAX_POOL_2D if op.kind == "max" else Operator.AVERAGE_POOL_2D
    output = model.like(x, (batch, *size, channels))
    return model.add(code, [x], output, padding=schema.Padding.VALID, filterWidth=op.kernel[1], **options)


def looked_up(model: Model, entries: Array, codes: int, grid: ActivationGrid) -> int:
    """Append a lookup of each code in a table of 256 codes of `grid`, lowest code first.

    Args:
        model: The file under construction.
        entries: The table.
        codes: Tensor of int8 codes.
        grid: Grid of the entries.
    """
    shape = model.shape(codes)
    wide = model.add(Operator.CAST, [codes], model.value(shape, np.int32))
    offset = model.constant(np.array([-np.iinfo(np.int8).min], np.int32))
    index = model.add(Operator.ADD, [wide, offset], model.value(shape, np.int32))
    return model.add(Operator.GATHER, [model.constant(entries), index], model.value(shape, np.int8, grid.zero_point))


def normalize(model: Model, op: Normalize, x: int) -> int:
    """Append the normalization of x, in the order of operations of `Normalize.__call__`."""
    for part in filter(np.any, op.mean_parts):
        x = each(model, Operator.SUB, x, part)
    scaled = each(model, Operator.MUL, x, op.inverse_std)
    return clip(model, scaled, -op.clip, op.clip)


def norm(model: Model, op: Norm, x: int) -> int:
    """Append the normalization of x over its last axis."""
    if isinstance(op, L2Norm):
        return formulas.l2_norm(partial(_computed, model), x, op.epsilon**2)  # type: ignore[no-any-return]
    offset = binary(model, Operator.SUB, x, _reduced(model, Operator.MEAN, x))
    variance = each(
        model, Operator.ADD, _reduced(model, Operator.MEAN, binary(model, Operator.MUL, offset, offset)), op.epsilon
    )
    inverse = model.add(Operator.RSQRT, [variance], model.value(model.shape(variance)))
    normalized = binary(model, Operator.MUL, offset, inverse)
    return each(model, Operator.ADD, each(model, Operator.MUL, normalized, op.weight), op.bias)


def norm_of_codes(model: Model, op: Norm, integers: int, grid: ActivationGrid) -> int:
    """Append the normalization of x over its last axis, from its codes minus their zero point as float32 integers.

    Args:
        model: The file under construction.
        op: The operator.
        integers: Tensor of codes minus their zero point.
        grid: Grid of the codes.
    """
    formula, numbers = codes_formula(op, grid)
    return formula(partial(_computed, model), integers, *numbers)  # type: ignore[no-any-return]


def gathered(model: Model, x: int, numbers: range) -> int:
    """Append a selection of columns of rows x [B, n]; a kernel that slices would fix the batch."""
    places = model.constant(np.array(numbers, np.int32))
    return model.add(Operator.GATHER, [x, places], model.value((1, len(numbers))), axis=1)


def slice(model: Model, op: Slice, x: int) -> int:
    """Append the operator's part of rows x."""
    row = gathered(model, x, range(op.start, op.start + math.prod(op.part)))
    return row if len(op.part) == 1 else reshape(model, row, op.part)


def concat(model: Model, tensors: list[int]) -> int:
    """Append the tensors joined along the last axis."""
    shapes = [model.shape(tensor) for tensor in tensors]
    joined = (*shapes[0][:-1], sum(shape[-1] for shape in shapes))
    return model.add(Operator.CONCATENATION, tensors, model.value(joined), axis=len(joined) - 1)


def transpose(model: Model, x: int, axes: Sequence[int]) -> int:
    """Append tensor x with its axes in another order."""
    shape = model.shape(x)
    order = model.constant(np.array(axes, np.int32))
    return model.add(Operator.TRANSPOSE, [x, order], model.like(x, [shape[axis] for axis in axes]))


def reshape(model: Model, x: int, shape: Shape) -> int:
    """Append tensor x with other axes behind the batch."""
    axes = model.constant(np.array([-1, *shape], np.int32))
    return model.add(Operator.RESHAPE, [x, axes], model.like(x, (model.shape(x)[0], *shape)))


def flat_order(shape: Shape) -> Array:
    """Return the policy's index of each element of an image [C, H, W] that is flattened as [H, W, C]."""
    return np.arange(np.prod(shape)).reshape(shape).transpose(1, 2, 0).reshape(-1)


def action(model: Model, head: ActionHead, output: int) -> int:
    """Append the head's greedy action for the network's output; discrete scores do not change."""
    if head.is_discrete:
        return output
    if head.kind == "gaussian":
        output = gathered(model, output, range(head.low.size))
    f = partial(_computed, model)
    return formulas.action(f, output, head.low, head.high, squashed=head.kind != "clip")  # type: ignore[no-any-return]


def _constant(model: Model, numbers: Any) -> int:
    """Append float32 numbers; equal ones become a single number, for which kernels are faster."""
    array = np.atleast_1d(np.asarray(numbers, np.float32))
    first = array.reshape(-1)[:1]
    return model.constant(first if (array == first).all() else array)


def _reduced(model: Model, code: int, x: int) -> int:
    shape = model.shape(x)
    axis = model.constant(np.array([len(shape) - 1], np.int32))
    return model.add(code, [x, axis], model.value((*shape[:-1], 1)), keepDims=True)
