"""Images and weights in the runtime's order: [B, H, W, C] instead of the policy's [B, C, H, W]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from quarl.arrays import Array
from quarl.engines.litert.file import Model, Operator
from quarl.policy.operators import Conv2d, Linear, QuantizedTensor, Shape

KERNEL_CHANNELS = 8
"""Input channels that XNNPACK's int8 convolutions read at once; fewer are padded with zeros."""


def transpose(model: Model, x: int, axes: Sequence[int]) -> int:
    """Tensor x with its axes in another order."""
    shape = model.shape(x)
    order = model.constant(np.array(axes, np.int32))
    return model.add(Operator.TRANSPOSE, [x, order], model.like(x, [shape[axis] for axis in axes]))


def reshape(model: Model, x: int, shape: Shape) -> int:
    """Tensor x with other axes behind the batch."""
    axes = model.constant(np.array([-1, *shape], np.int32))
    return model.add(Operator.RESHAPE, [x, axes], model.like(x, (model.shape(x)[0], *shape)))


def flat_order(shape: Shape) -> Array:
    """Of an image [C, H, W] that is flattened as [H, W, C]: the policy's index of each element."""
    return np.arange(np.prod(shape)).reshape(shape).transpose(1, 2, 0).reshape(-1)


def with_weight(op: Linear, rearrange: Callable[[Array], Array]) -> Linear:
    """The layer with its weight rearranged; scales belong to output channels, which stay where they are."""
    if isinstance(op.weight, QuantizedTensor):
        return replace(op, weight=replace(op.weight, codes=rearrange(op.weight.codes)))
    return replace(op, weight=rearrange(op.weight))


def wider_than_a_pixel(op: Conv2d) -> Conv2d:
    """A convolution with kernels of one pixel as one of 3 x 3 with zeros around it.

    The runtime takes the former for a dense layer over pixels, and its dynamic kernels then quantise every pixel on a
    range of its own, not every image.
    """
    if op.weight.shape[2:] != (1, 1):
        return op
    padded = with_weight(op, lambda weight: np.pad(weight, ((0, 0), (0, 0), (1, 1), (1, 1))))
    assert isinstance(padded, Conv2d)
    return replace(padded, padding=(op.padding[0] + 1, op.padding[1] + 1))


def turned(model: Model, op: Conv2d, x: int) -> tuple[Linear, int]:
    """A convolution of x [B, C, H, W] as one of the returned tensor [B, H, W, C].

    A first layer reads few channels with a large stride, for which the kernels are slow. Where the stride divides
    the image, each block of stride x stride pixels becomes one pixel with all their channels: the same sums of the
    same products, with stride 1. (Nature CNN's first layer in int8: 190 to 75 us on AVX2.)
    """
    _, channels, height, width = model.shape(x)
    (sh, sw), (kh, kw) = op.stride, op.weight.shape[2:]
    divides = not any((height % sh, width % sw, kh % sh, kw % sw, *op.padding))
    if channels % KERNEL_CHANNELS == 0 or not divides or sh * sw == 1:
        return op, transpose(model, x, (0, 2, 3, 1))
    blocks = reshape(model, x, (channels, height // sh, sh, width // sw, sw))
    pixels = transpose(model, blocks, (0, 2, 4, 1, 3, 5))
    deep = channels * sh * sw

    def in_blocks(weight: Array) -> Array:
        split = weight.reshape(len(weight), channels, kh // sh, sh, kw // sw, sw)
        return split.transpose(0, 1, 3, 5, 2, 4).reshape(len(weight), deep, kh // sh, kw // sw)

    image = reshape(model, pixels, (height // sh, width // sw, deep))
    return with_weight(replace(op, stride=(1, 1)), in_blocks), image
