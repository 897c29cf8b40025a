"""Operators without weights to quantize, in float32, and rows quantized at run time, as nodes of an .onnx file."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from quarl.engines.numpy_operators import Norm, codes_formula
from quarl.engines.onnx.model_file import File
from quarl.policy import formulas
from quarl.policy.graph import ActionHead, ActivationGrid
from quarl.policy.operators import LEAKY_SLOPE, Activation, L2Norm, LayerNorm, Normalize, Pool2d, Softmax
from quarl.quant.affine import TINY

NODES = {"relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid"}
SHIFT = 128
"""Offset from int8 codes to uint8."""
NARROWEST = 255 * TINY
"""Smallest width of a row's range: 255 / width of a narrower one, such as a row of zeros, would not be finite."""


def action(file: File, head: ActionHead, output: str) -> str:
    """Append the greedy action of a continuous head for the network's output."""
    if head.kind == "gaussian":
        ends = (file.constant(np.array([end], np.int64)) for end in (0, head.low.size, 1))
        output = file.node("Slice", output, *ends)
    f = partial(_computed, file)
    return formulas.action(f, output, head.low, head.high, squashed=head.kind != "clip")  # type: ignore[no-any-return]


def activation(file: File, op: Activation, x: str) -> str:
    """Append the function of the tensor x."""
    f, formula = partial(_computed, file), formulas.FORMULAS.get(op.kind)
    return f(op.kind, x) if formula is None else formula(f, x, *op.settings)


def _computed(file: File, kind: str, *values: Any) -> str:
    """Append one operation of a formula, on tensors and numbers."""
    tensors = [value if isinstance(value, str) else file.constant(np.asarray(value, np.float32)) for value in values]
    if kind == "elu":
        return _elu(file, *tensors)
    if kind == "leaky_relu":
        return file.node("LeakyRelu", *tensors, alpha=LEAKY_SLOPE)
    if kind == "sum":
        return file.reduced("ReduceSum", tensors[0], [-1], keepdims=True)
    return file.node(NODES.get(kind, kind.title()), *tensors)


def softmax(file: File, op: Softmax, x: str) -> str:
    """Append the softmax of each `size` numbers of rows x."""
    rows = file.node("Reshape", x, file.constant(np.array([0, -1, op.size])))
    return file.node("Reshape", file.node("Softmax", rows, axis=-1), file.constant(np.array([0, -1])))


def pool(file: File, op: Pool2d, x: str, channels: int) -> str:
    """Append the maxima of the windows of images x, or their sums times the reciprocal of the window's size.

    Sums are computed by a convolution with ones, because runtimes divide averages in different ways.

    Args:
        file: The file under construction.
        op: The operator.
        x: Tensor of images.
        channels: Channels of the images.
    """
    if op.kind == "max":
        return file.node("MaxPool", x, kernel_shape=op.kernel, strides=op.stride, pads=op.padding * 2)
    ones = file.constant(np.ones((channels, 1, *op.kernel), np.float32))
    sums = file.node("Conv", x, ones, strides=op.stride, pads=op.padding * 2, group=channels)
    return file.node("Mul", sums, file.number(1 / math.prod(op.kernel)))


def normalize(file: File, op: Normalize, x: str, *, unfolded: bool) -> str:
    """Append the normalization of x, in the order of operations of `Normalize.__call__`.

    Args:
        file: The file under construction.
        op: The operator.
        x: Tensor of observations.
        unfolded: Keep OpenVINO from merging the constants of the operations, which would lose the mean's second part.
    """
    for index, part in enumerate(filter(np.any, op.mean_parts)):
        x = file.node("Sub", x, file.constant(part, f"{op.name}.mean.{index}"))
        if unfolded:  # the maximum is the number itself
            x = file.node("Max", x, file.number(-math.inf))
    scaled = file.node("Mul", x, file.constant(op.inverse_std, f"{op.name}.inverse_std"))
    if op.clip == math.inf:
        return scaled
    return file.node("Clip", scaled, file.number(-op.clip), file.number(op.clip))


def _elu(file: File, x: str) -> str:
    """Append exp(x) - 1 below 0, as 2t / (1 - t) with t = tanh(x / 2).

    ONNX Runtime's own Elu rounds the last few numbers of an array differently from the rest, so a row's values would
    depend on its batch.
    """
    t = file.node("Tanh", file.node("Mul", file.node("Min", x, file.number(0)), file.number(0.5)))
    negative = file.node("Div", file.node("Mul", t, file.number(2)), file.node("Sub", file.number(1), t))
    return file.node("Add", file.node("Relu", x), negative)


def norm(file: File, op: Norm, x: str) -> str:
    """Append a norm of real numbers operation by operation.

    ONNX Runtime's LayerNormalization computes the variance as a difference of two large sums.
    """
    if isinstance(op, L2Norm):
        return formulas.l2_norm(partial(_computed, file), x, op.epsilon**2)  # type: ignore[no-any-return]
    centered = file.node("Sub", x, _mean(file, x))
    variance = _mean(file, file.node("Mul", centered, centered))
    deviation = file.node("Sqrt", file.node("Add", variance, file.number(op.epsilon)))
    normal = file.node("Mul", centered, file.node("Reciprocal", deviation))
    gain, offset = file.constant(op.weight, f"{op.name}.gain"), file.constant(op.bias, f"{op.name}.offset")
    return file.scaled(normal, gain, offset)


def norm_of_codes(file: File, op: Norm, integers: str, grid: ActivationGrid) -> str:
    """Append a norm of codes minus their zero point, as float32 integers.

    Args:
        file: The file under construction.
        op: The operator.
        integers: Tensor of codes minus their zero point.
        grid: Grid of the codes.
    """
    formula, numbers = codes_formula(op, grid)
    if isinstance(op, LayerNorm):
        gain, offset = file.constant(op.weight, f"{op.name}.gain"), file.constant(op.bias, f"{op.name}.offset")
        numbers = (*numbers[:-2], gain, offset)
    return formula(partial(_computed, file), integers, *numbers)  # type: ignore[no-any-return]


def _mean(file: File, x: str) -> str:
    return file.reduced("ReduceMean", x, [-1], keepdims=True)


def quantized_rows(file: File, x: str, rank: int, batch: int | None, *, positive: bool) -> tuple[str, str, str]:
    """Append the quantization of tensor x [B, *shape] like `quant.affine.quantize_rows`, operation by operation.

    Args:
        file: The file under construction.
        x: float32 tensor.
        rank: Axes of a row.
        batch: Number of rows; None leaves it open.
        positive: No number is below 0, so the low end needs no search and has code -128.

    Returns:
        Tensors of the codes, uint8 [B, *shape] shifted by SHIFT, of their scales, float32 [B], and of their zero
        points, uint8 [B] shifted likewise; the last is "" if it is 0 in every row.
    """
    axes = list(range(1, 1 + rank))
    high = file.node("Max", file.reduced("ReduceMax", x, axes, keepdims=False), file.number(NARROWEST))
    if positive:
        inverse = file.node("Div", file.number(255), high)
        codes = file.round(file.node("Mul", x, down_rows(file, inverse, rank, batch)), 0)
        return codes, file.node("Reciprocal", inverse), ""
    low = file.node("Min", file.reduced("ReduceMin", x, axes, keepdims=False), file.number(0))
    inverse = file.node("Div", file.number(255), file.node("Sub", high, low))
    low, high = file.node("Mul", low, inverse), file.node("Mul", high, inverse)
    qmin, qmax = file.number(-128), file.number(127)
    errors = file.node("Add", file.node("Add", qmin, low), file.node("Add", qmax, high))
    candidates = file.node("Sub", qmin, low), file.node("Sub", qmax, high)
    chosen = file.node("Where", file.node("Greater", errors, file.number(0)), *candidates)
    scale, zero_point = file.node("Reciprocal", inverse), file.round(chosen, SHIFT)
    # Scaled first, because QuantizeLinear divides but quantize_rows multiplies; each row has its own zero point.
    steps = file.node("Mul", x, down_rows(file, inverse, rank, batch))
    ones = file.constant(np.ones(batch, np.float32)) if batch else file.node("Div", scale, scale)
    return file.node("QuantizeLinear", steps, ones, zero_point, axis=0), scale, zero_point


def down_rows(file: File, tensor: str, rank: int, batch: int | None) -> str:
    """Append [B] shaped to broadcast along the first axis of a value whose rows have `rank` axes."""
    return tensor if batch == 1 else file.node("Unsqueeze", tensor, file.constant(np.arange(1, 1 + rank)))
