"""Dense and Conv2d in the runtime's kernels: float, dynamic int8 or int4, static int8 or int4.

Every function appends operators to a Model and returns the tensor of the layer's output. Images are [B, H, W, C]; in a
policy they are [B, C, H, W].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from quarl.arrays import Array
from quarl.engines.litert.elementwise import binary, centered, reshape, rounded, transpose
from quarl.engines.litert.flatbuffer import Model, Operator
from quarl.engines.sums import INT32, LARGEST_DISTANCE, check_int32, fits, in_floats, requantization, symmetric, unit
from quarl.errors import UnsupportedError
from quarl.policy.graph import ActivationGrid
from quarl.policy.grids import EXACT
from quarl.policy.operators import Conv2d, Dense, Linear, QuantizedTensor, as_float32
from quarl.quant.packing import pack

NONE, RELU = schema.ActivationFunctionType.NONE, schema.ActivationFunctionType.RELU
SMALLEST = np.finfo(np.float32).tiny
"""Smallest scale: XNNPACK refuses denormal ones, and this one also rounds every accumulator to 0."""
KERNEL_CHANNELS = 8
"""Input channels that XNNPACK's int8 convolutions read at once; fewer are padded with zeros."""


def floating(model: Model, op: Linear, x: int, *, relu: bool) -> int:
    """Append a layer in float32; half floats are stored as such and widened when the file is loaded.

    Args:
        model: The file under construction.
        op: The layer.
        x: float32 tensor.
        relu: Fuse a ReLU.
    """
    if isinstance(op.weight, np.ndarray) and op.weight.dtype == np.float16:
        half = model.constant(_arrange(op, op.weight), role="weight")
        weight = model.add(Operator.DEQUANTIZE, [half], model.value(model.shape(half)))
    else:
        weight = model.constant(_arrange(op, as_float32(op.weight)), role="weight")
    return _apply(model, op, [x, weight, model.constant(op.bias, role="bias")], relu=relu)


def dynamic(model: Model, op: Linear, x: int, *, relu: bool) -> int:
    """Append a layer of codes times float32 inputs that the kernel quantizes row by row; its output is float32.

    Args:
        model: The file under construction.
        op: The layer.
        x: float32 tensor.
        relu: Fuse a ReLU.
    """
    weight = symmetric(op, "LiteRT")
    check_int32(op.name, weight.codes)
    tensors = [x, _integers(model, op, weight, weight.scale), model.constant(op.bias, role="bias")]
    return _apply(model, op, tensors, relu=relu)


def hidden(
    model: Model,
    op: Linear,
    x: int,
    source: ActivationGrid,
    target: ActivationGrid,
    *,
    relu: bool,
    anywhere: bool = False,
) -> int:
    """Append a layer of codes times codes of `source`, requantized to codes of `target`.

    It reads and returns int8; the arithmetic in between is exact.

    All scales but the weights' are 1, and the weights' are the multipliers of quant.affine.requantize.

    Args:
        model: The file under construction.
        op: The layer.
        x: Tensor of int8 codes.
        source: Grid of the input.
        target: Grid of the output.
        relu: Fuse a ReLU.
        anywhere: Codes must be the same in TFLite Micro.
    """
    weight = symmetric(op, "LiteRT")
    bias, multiplier = requantization(op, weight, source, target)
    if in_floats(weight, source, bias, multiplier, anywhere=anywhere):
        return wide(model, op, centered(model, x), source, target, relu=relu)
    check_int32(op.name, weight.codes, source.reach, bias)
    multiplier = np.maximum(multiplier, SMALLEST)
    tensors = [
        x,
        _integers(model, op, weight, multiplier, source.reach, bias),
        model.constant(bias.astype(np.int32), multiplier, role="bias"),
    ]
    return _apply(model, op, tensors, relu=relu, zero_point=target.zero_point)


def wide(model: Model, op: Linear, x: int, source: ActivationGrid, target: ActivationGrid, *, relu: bool) -> int:
    """Append a layer like `hidden` for codes of more than 8 bits; the kernels' float32 sums are exact.

    Results are rounded before they become codes, because other runtimes treat ties in their own ways.

    Args:
        model: The file under construction.
        op: The layer.
        x: Tensor of float32 integers.
        source: Grid of the input.
        target: Grid of the output.
        relu: Fuse a ReLU.
    """
    weight = symmetric(op, "LiteRT")
    bias, multiplier = requantization(op, weight, source, target)
    codes = _arrange(op, weight.codes)
    if not fits(codes, EXACT, source.reach, bias):
        raise UnsupportedError(
            f"the integer sums of layer {op.name!r} exceed 24 bits, the limit of LiteRT's float kernels"
        )
    constant = model.constant(bias.astype(np.float32), role="bias")
    accumulator = _apply(model, op, [x, _as_floats(model, codes), constant], relu=relu)
    scaled = binary(model, Operator.MUL, accumulator, model.constant(multiplier))
    whole = model.add(Operator.ROUND, [scaled], model.value(model.shape(scaled)))
    return rounded(model, whole, target)


def last(model: Model, op: Linear, x: int, source: ActivationGrid) -> int:
    """Append the last layer, with float32 outputs from the exact accumulator: float32(acc) * float32(scales) + bias.

    Products of integers and their sums are exact in float32 while they stay within 24 bits. Otherwise the weight is
    split into two halves of 4 bits. Adding their sums rounds once, like the conversion of the accumulator.

    Args:
        model: The file under construction.
        op: The layer.
        x: Tensor of float32 integers.
        source: Grid of the input.
    """
    weight = symmetric(op, "LiteRT")
    codes = _arrange(op, weight.codes)
    parts = [(codes, 1)]
    if not fits(codes, EXACT, source.reach):
        high = ((codes.astype(np.int16) + 8) >> 4).astype(np.int8)
        parts = [(high, 16), ((codes - 16 * high.astype(np.int16)).astype(np.int8), 1)]
        if not all(fits(half, EXACT, source.reach) for half, _ in parts):
            raise UnsupportedError(f"layer {op.name!r} has too many inputs for an exact static accumulator in LiteRT")
    sums = [_apply(model, op, [x, _as_floats(model, *part), -1], relu=False) for part in parts]
    total = sums[0] if len(sums) == 1 else binary(model, Operator.ADD, *sums)
    scaled = binary(model, Operator.MUL, total, model.constant(unit(weight, source).astype(np.float32)))
    return binary(model, Operator.ADD, scaled, model.constant(op.bias, role="bias"))


def _as_floats(model: Model, codes: Array, factor: int = 1) -> int:
    """Append factor * codes (int8) as float32 integers: XNNPACK widens the constant once, when the file is loaded."""
    stored = model.constant(codes, np.array([factor], np.float32), role="weight")
    return model.add(Operator.DEQUANTIZE, [stored], model.value(model.shape(stored)))


def _arrange(op: Linear, weight: Array) -> Array:
    """Return the weight in the runtime's order: [out, in] or [out, height, width, in]."""
    return weight if isinstance(op, Dense) else weight.transpose(0, 2, 3, 1)


def _integers(
    model: Model,
    op: Linear,
    weight: QuantizedTensor,
    scale: Array,
    distance: int = LARGEST_DISTANCE,
    bias: Array | float = 0.0,
) -> int:
    """Append the codes in the container with the fastest kernels: 4 bits in dense layers if they fit, otherwise 8.

    int4 kernels read two columns at a time, so an odd number of inputs is left to int8. They also add 16 times the
    products in the same 32 bits. distance, bias: as in `fits`.
    """
    codes = _arrange(op, weight.codes)
    narrow = weight.bits <= 4 and codes.min() >= -8 and codes.max() <= 7
    even = isinstance(op, Dense) and codes.shape[1] % 2 == 0
    if narrow and even and fits(codes, INT32 // 16, distance, bias):
        return model.nibbles(np.frombuffer(pack(codes, 4), np.uint8), codes.shape, scale)
    return model.constant(codes, scale, role="weight")


def _apply(model: Model, op: Linear, tensors: list[int], *, relu: bool, zero_point: int | None = None) -> int:
    """Append the kernel itself; tensors are input, weight and bias (-1: none).

    With a zero_point the output holds int8 codes.
    """
    dtype = np.float32 if zero_point is None else np.int8
    options: dict[str, Any] = {"fusedActivationFunction": RELU if relu else NONE}
    x, weight, bias = tensors
    if not isinstance(op, Conv2d):
        output = model.value((model.shape(x)[0], op.weight.shape[0]), dtype, zero_point)
        return model.add(Operator.FULLY_CONNECTED, tensors, output, asymmetricQuantizeInputs=True, **options)
    (ph, pw), (sh, sw), (kh, kw) = op.padding, op.stride, op.weight.shape[2:]
    batch, height, width, channels = model.shape(x)
    height, width = height + 2 * ph, width + 2 * pw
    if ph or pw:
        # The runtime's "same" padding is not symmetric if the stride is above 1; its PAD fills in the zero point.
        amounts = model.constant(np.array([[0, 0], [ph, ph], [pw, pw], [0, 0]], np.int32))
        x = model.add(Operator.PAD, [x, amounts], model.like(x, (batch, height, width, channels)))
    options |= {"padding": schema.Padding.VALID, "strideH": sh, "strideW": sw}
    shape = (batch, (height - kh) // sh + 1, (width - kw) // sw + 1, op.weight.shape[0])
    return model.add(Operator.CONV_2D, [x, weight, bias], model.value(shape, dtype, zero_point), **options)


def with_weight(op: Linear, rearrange: Callable[[Array], Array]) -> Linear:
    """Return the layer with its weight rearranged; scales belong to output channels, which keep their places."""
    if isinstance(op.weight, QuantizedTensor):
        return replace(op, weight=replace(op.weight, codes=rearrange(op.weight.codes)))
    return replace(op, weight=rearrange(op.weight))


def wider_than_a_pixel(op: Conv2d) -> Conv2d:
    """Return a convolution with kernels of one pixel as one of 3 x 3 with zeros around it.

    The runtime treats the former as a dense layer over pixels, and its dynamic kernels then quantize every pixel on its
    own range, not every image.
    """
    if op.weight.shape[2:] != (1, 1):
        return op
    padded = with_weight(op, lambda weight: np.pad(weight, ((0, 0), (0, 0), (1, 1), (1, 1))))
    assert isinstance(padded, Conv2d)
    return replace(padded, padding=(op.padding[0] + 1, op.padding[1] + 1))


def turned(model: Model, op: Conv2d, x: int) -> tuple[Linear, int]:
    """Return a convolution of x [B, C, H, W] as one of a tensor [B, H, W, C], and that tensor.

    A first layer reads few channels with a large stride, for which the kernels are slow. If the stride divides the
    image, each block of stride x stride pixels becomes one pixel with all their channels: the same sums of the same
    products, with stride 1. (Nature CNN's first layer in int8: 190 to 75 us on AVX2.)

    Args:
        model: The file under construction.
        op: The convolution.
        x: Tensor of images.
    """
    _, channels, height, width = model.shape(x)
    (sh, sw), (kh, kw) = op.stride, op.weight.shape[2:]
    divides = not any((height % sh, width % sw, kh % sh, kw % sw, *op.padding))
    if channels % KERNEL_CHANNELS == 0 or not divides or sh * sw == 1:
        return op, transpose(model, x, (0, 2, 3, 1))
    # Two steps with at most five axes are as fast, and TFLite Micro has no kernel for six.
    deep, (rows, columns) = channels * sh * sw, (height // sh, width // sw)
    bands = transpose(model, reshape(model, x, (channels, rows, sh * width)), (0, 2, 1, 3))
    pixels = transpose(model, reshape(model, bands, (rows, channels * sh, columns, sw)), (0, 1, 3, 2, 4))
    image = reshape(model, pixels, (rows, columns, deep))

    def in_blocks(weight: Array) -> Array:
        split = weight.reshape(len(weight), channels, kh // sh, sh, kw // sw, sw)
        return split.transpose(0, 1, 3, 5, 2, 4).reshape(len(weight), deep, kh // sh, kw // sw)

    return with_weight(replace(op, stride=(1, 1)), in_blocks), image
