"""Values that are affine in another one, and their folding into the layers that produce them.

Constant factors and offsets of a module become part of the weights of a neighboring layer. They are float64 until the
operator is built, in torch's axes without the batch axis.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from quarl.arrays import Array
from quarl.policy.operators import Conv2d, Linear, Normalize, Op, Scale, Shape, as_float32


@dataclass(frozen=True, eq=False, slots=True)
class Elementwise:
    """factor * value + offset; both have the shape [*shape] or []."""

    source: str
    factor: Any = 1.0
    offset: Any = 0.0

    def affine(self, factor: Array, offset: Array) -> Elementwise:
        """Return the value times `factor` plus `offset`, which both broadcast to the shape of the value."""
        return replace(self, factor=self.factor * factor, offset=self.offset * factor + offset)

    def ops(self, shape: Shape, clip: float = math.inf) -> list[Op]:
        """Return the operators of this value: none, a Scale, a Normalize that shifts, scales and clips, or both.

        Args:
            shape: Shape of the value in the graph.
            clip: Bound of the absolute value; infinity does not clip.
        """
        factor, offset = (np.asarray(numbers, np.float64) for numbers in (self.factor, self.offset))
        names = f"{self.source}.scale", f"{self.source}.{'normalize' if offset.any() else 'clamp'}"
        if (factor <= 0).any() or not (offset.any() or clip < math.inf):
            number = factor.flat[:1].reshape(()) if (factor == factor.flat[0]).all() else factor.reshape(shape)
            scales: list[Op] = (
                [Scale(names[0], (self.source,), number.astype(np.float32))] if (number != 1).any() else []
            )
            return scales + (Elementwise(names[0], 1.0, offset).ops(shape, clip) if offset.any() else [])
        mean, variance = (
            np.zeros(shape) + n.reshape(shape if n.size > 1 else ()) for n in (-offset / factor, factor**-2.0)
        )
        return [Normalize(names[1], (self.source,), mean, variance, 0.0, clip)]


@dataclass(frozen=True, eq=False, slots=True)
class Layer:
    """A layer in float64: `rows` [in + 1, *shape] hold the contribution of each input, and the bias in the last row.

    For a dense layer, `shape` is the shape of its value. For a convolution, `shape` is [out] and `in` counts the
    numbers of a kernel.
    """

    op: Linear
    rows: Array

    @classmethod
    def of(cls, op: Linear) -> Layer:
        """Return the layer that computes the same as the operator `op`."""
        weight = as_float32(op.weight).reshape(len(op.bias), -1)
        return cls(op, np.concatenate([weight.T, op.bias[None]]).astype(np.float64))

    def affine(self, factor: Array, offset: Array, shape: Shape) -> Layer | None:
        """Return the layer for the value [*shape] times `factor` plus `offset`; None if they vary inside a channel.

        Args:
            factor: Factor, broadcast to `shape`.
            offset: Offset, broadcast to `shape`.
            shape: Shape of the layer's value.

        Returns:
            The changed layer; None if factor or offset differ between the pixels of one channel of a convolution.
        """
        if isinstance(self.op, Conv2d):
            factor, offset = (np.broadcast_to(n, shape).reshape(len(self.op.bias), -1) for n in (factor, offset))
            if (factor != factor[:, :1]).any() or (offset != offset[:, :1]).any():
                return None
            factor, offset, shape = factor[:, 0], offset[:, 0], shape[:1]
        rows = aligned(self.rows, shape) * factor
        rows[-1] += offset
        return replace(self, rows=rows)

    def made(self) -> Linear:
        """Return the operator; a dense layer returns its outputs as one row."""
        flat = self.rows.reshape(len(self.rows), -1).astype(np.float32)
        weight = np.ascontiguousarray(flat[:-1].T).reshape(-1, *self.op.weight.shape[1:])
        return replace(self.op, weight=weight, bias=flat[-1].copy())

    def reading(self, read: Elementwise, shape: Shape) -> Layer | None:
        """Return the layer that reads the source of `read` instead of `read` itself; None if there is no such layer.

        A convolution cannot take over an offset that it pads with zeros, or factors and offsets that differ between
        pixels.

        Args:
            read: The value that the layer reads now.
            shape: Shape of that value.
        """
        factor, offset = (np.broadcast_to(numbers, shape) for numbers in (read.factor, read.offset))
        if isinstance(self.op, Conv2d):
            if any((n != n[:, :1, :1]).any() for n in (factor, offset)) or (offset.any() and any(self.op.padding)):
                return None
            kernel = self.op.weight.shape[1:]
            factor, offset = (np.broadcast_to(n[:, :1, :1], kernel).reshape(-1) for n in (factor, offset))
        rows = self.rows.copy()
        rows[-1] += offset @ rows[:-1]
        rows[:-1] *= factor[:, None]
        return Layer(replace(self.op, inputs=(read.source,)), rows)


def aligned(rows: Array, shape: Shape) -> Array:
    """Return rows [n, *axes] broadcast to [n, *shape]."""
    axes = rows.shape[1:]
    return np.broadcast_to(rows.reshape(-1, *(1,) * (len(shape) - len(axes)), *axes), (len(rows), *shape))
