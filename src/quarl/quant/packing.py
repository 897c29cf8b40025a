"""n-bit codes to bytes and back, for every n in 2..64, in one layout."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def storage_dtype(low: int, high: int) -> np.dtype[Any]:
    """The smallest signed numpy integer type that holds low..high."""
    for dtype in (np.int8, np.int16, np.int32):
        if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max:
            return np.dtype(dtype)
    return np.dtype(np.int64)


def packed_size(count: int, bits: int) -> int:
    """Bytes that `count` codes of `bits` bits take: rounded up to a whole byte at the end, once."""
    return (count * bits + 7) // 8


def pack(codes: Array, bits: int) -> bytes:
    """Two's-complement codes of any shape, row-major, as a stream of `bits`-bit fields, lowest bit first.

    8, 16 and 32 bits are the machine's little-endian integers; 4 bits put two codes in a byte, low nibble first.
    """
    flat = np.ascontiguousarray(codes).reshape(-1)
    if bits in (8, 16, 32):
        return flat.astype(f"<i{bits // 8}", copy=False).tobytes()
    if bits == 4:
        even = np.append(flat, np.zeros(1, flat.dtype)) if len(flat) % 2 else flat
        pairs = even.astype(np.uint8, copy=False).view("<u2")  # two codes a number: three times as fast as strides
        return ((pairs & np.uint16(0x0F)) | ((pairs >> np.uint16(4)) & np.uint16(0xF0))).astype(np.uint8).tobytes()
    size = 4 if bits < 32 else 8
    fields = flat.astype(f"<i{size}").view(np.uint8).reshape(-1, size)
    each = np.unpackbits(fields, axis=1, bitorder="little")[:, :bits]
    return np.packbits(each.reshape(-1), bitorder="little").tobytes()


def unpack(data: bytes | memoryview, bits: int, count: int) -> Array:
    """The `count` codes that `pack` wrote, sign-extended, in the smallest type that holds n-bit codes."""
    dtype = storage_dtype(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if len(data) != packed_size(count, bits):
        raise ValueError(f"{count} codes of {bits} bits take {packed_size(count, bits)} bytes, got {len(data)}")
    if bits in (8, 16, 32):
        return np.frombuffer(data, f"<i{bits // 8}")
    if bits == 4:
        both = np.frombuffer(data, np.int8)
        # An arithmetic shift sign-extends: the low nibble is moved to the top first.
        return np.stack([both << np.int8(4) >> np.int8(4), both >> np.int8(4)], axis=1).reshape(-1)[:count]
    each = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little", count=count * bits).reshape(count, bits)
    size = 4 if bits < 32 else 8
    wide = np.repeat(each[:, -1:], size * 8, axis=1)  # the sign bit fills what is above the field
    wide[:, :bits] = each
    return np.packbits(wide.reshape(-1), bitorder="little").view(f"<i{size}").astype(dtype)
