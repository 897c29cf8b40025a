"""Weights of a layer as 32-bit words for the C kernels, and multipliers as they read them.

A word has fields of 2, 4 or 8 bits of four rows and two or more columns. Columns 2j and 2j + 1 are 16 bits apart.
Columns are filled up to a multiple of 4, rows likewise. A field is the code plus an offset. Weights of 3 bits are two
planes, of two bits and of one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from quarl.arrays import Array
from quarl.errors import UnsupportedError

KERNELS = {"four2": 2, "odd2": 2, "four3": 3, "odd3": 3, "four4": 4, "four8": 8, "wide8": 8}
"""Bits of a weight by the kernel that sums four rows; the "odd" ones are for grids without a level at 0."""
SIGNED_SUM = 2**23
"""Bound of the sums of four8, which has 256 times a sum in 32 bits."""


class Words(NamedTuple):
    """Arguments of a layer's call."""

    kernel: str
    """A key of KERNELS."""
    offset: int
    """Number that is subtracted from each field, or from its double, to give the code."""
    words: int
    """Words per four rows."""
    table: Array
    """uint32 [groups of four rows, words]."""


def by_fours(count: int) -> int:
    """Return the number of rows or columns that kernels read for `count` of them: the next multiple of four."""
    return -(-count // 4) * 4


def words_per_group(kernel: str, k: int) -> int:
    """Return the number of words of four rows of `k` columns."""
    return (by_fours(k) // 4 * KERNELS[kernel] + 1) // 2


def pack(rows: Array, distance: int) -> Words:
    """Pack codes of weights in the fewest bits that hold them.

    Args:
        rows: int8 codes [n, k].
        distance: Largest absolute value of the layer's input.
    """
    codes = rows.astype(np.int64)
    for kernel, bits in KERNELS.items():
        odd = kernel.startswith("odd")
        offset = 2**bits - 1 if odd else 2 ** (bits - 1)
        fields = codes + offset
        if odd and (fields & 1).any():
            continue
        fields >>= odd
        if kernel == "four8" and np.abs(codes).sum(axis=1).max() * distance >= SIGNED_SUM:
            continue
        if fields.min() >= 0 and fields.max() < 2**bits:
            break
    if kernel == "four8":
        fields[1::2] ^= 128  # bytes with a sign
    grid = np.pad(fields.astype(np.uint32), [(0, -size % 4) for size in fields.shape])
    planes = [_plane(grid & 3, 2), _plane(grid >> 2, 1)] if bits == 3 else [_plane(grid, bits)]
    table = np.concatenate(planes, axis=1)
    return Words(kernel, offset, table.shape[1], table)


def multipliers(multiplier: Array, largest: float) -> tuple[int, Array]:
    """Return the shift of a layer's sums, and the code of each row's multiplier, uint32.

    The code is 128 times the mantissa, plus the exponent in the form that `requantized` in kernels.c reads.

    Args:
        multiplier: float32 [n], above 0.
        largest: Bound of the sums' absolute values, below 2**31.
    """
    shift = 31 - int(largest).bit_length()
    bits = multiplier.view(np.uint32)
    exponent = (bits >> 23).astype(np.int64) - shift - 93
    if exponent.max() > 127:
        raise UnsupportedError(f"C has no kernel for the scale {multiplier.max():g} between two layers")
    codes = (bits & 0x7FFFFF | 0x800000) << 7 | exponent.clip(0).astype(np.uint32)
    return shift, np.where(exponent < 0, np.uint32(0), codes)  # a product below a quarter gives 0


def _plane(fields: Array, bits: int) -> Array:
    """Return the words [groups, words] of fields [4 * groups, 4 * quads]."""
    groups, per = len(fields) // 4, 16 // bits
    # In the order of the kernels: pairs of columns, then the four rows; both columns of a pair beside each other.
    ordered: Array = fields.reshape(groups, 4, -1, 2).transpose(0, 2, 1, 3).reshape(groups, -1, 2)
    ordered = np.pad(ordered, ((0, 0), (0, -ordered.shape[1] % per), (0, 0))).reshape(groups, -1, per, 2)
    places = bits * np.arange(per)[:, None] + [0, 16]
    words: Array = np.bitwise_or.reduce(ordered << places.astype(np.uint32), axis=(2, 3))
    return words
