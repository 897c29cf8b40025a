"""Pack n-bit codes into bytes and unpack them, for every n in 2..64, in one layout.

Up to 32 bits, shifts and masks on 64-bit numbers pack eight bytes of codes at once. Wider codes are split into single
bits.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from quarl.arrays import Array

AT_ONCE = 2**18
"""Bytes of codes per block: small enough for the processor's cache, large enough to hide numpy's call overhead."""
Joint = tuple[int, np.uint64, np.uint64 | None]
"""(first word of a group in the stream, first bit in that word, 64 - bit if the group reaches into the next word)."""


def storage_dtype(low: int, high: int) -> np.dtype[Any]:
    """Return the smallest signed numpy integer type that holds low..high."""
    for dtype in (np.int8, np.int16, np.int32):
        if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max:
            return np.dtype(dtype)
    return np.dtype(np.int64)


def packed_size(count: int, bits: int) -> int:
    """Return the bytes of `count` codes of `bits` bits, rounded up to a whole byte once at the end."""
    return (count * bits + 7) // 8


def pack(codes: Array, bits: int) -> bytes:
    """Return two's-complement codes of any shape, row-major, as a stream of `bits`-bit fields, lowest bit first.

    8, 16 and 32 bits are the machine's little-endian integers; 4 bits put two codes in a byte, low nibble first.
    """
    flat = np.ascontiguousarray(codes).reshape(-1)
    if bits in (8, 16, 32):
        return flat.astype(f"<i{bits // 8}", copy=False).tobytes()
    if bits == 4:
        return _to_nibbles(flat.astype(np.int8, copy=False))
    if bits < 32:
        return _squeeze(flat, bits)
    each = np.unpackbits(flat.astype("<i8").view(np.uint8).reshape(-1, 8), axis=1, bitorder="little")[:, :bits]
    return np.packbits(each.reshape(-1), bitorder="little").tobytes()


def unpack(data: bytes | memoryview, bits: int, count: int) -> Array:
    """Return the `count` codes that `pack` wrote, sign-extended, in the smallest type that holds n-bit codes.

    Args:
        data: The packed codes.
        bits: Bits of a code.
        count: Number of codes.

    Raises:
        ValueError: `data` has another size than `count` codes of these bits.
    """
    if len(data) != packed_size(count, bits):
        raise ValueError(f"{count} codes of {bits} bits take {packed_size(count, bits)} bytes, got {len(data)}")
    if bits in (8, 16, 32):
        return np.frombuffer(data, f"<i{bits // 8}")
    if bits == 4:
        return _from_nibbles(np.frombuffer(data, np.uint8))[:count]
    if bits < 32:
        return _spread(data, bits, count)
    each = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little", count=count * bits).reshape(count, bits)
    wide = np.repeat(each[:, -1:], 64, axis=1)  # extend the sign above the field
    wide[:, :bits] = each
    return np.packbits(wide.reshape(-1), bitorder="little").view("<i8").astype(np.int64)


def _to_nibbles(flat: Array) -> bytes:
    """Pack 4-bit codes, which kernels and published weights use most, in a third of the general path's time."""
    pairs = (np.append(flat, np.int8(0)) if len(flat) % 2 else flat).view("<u2")
    packed = np.empty(len(pairs), np.uint8)
    for start in range(0, len(pairs), AT_ONCE):
        block = pairs[start : start + AT_ONCE]
        upper = block >> np.uint16(4)
        upper &= np.uint16(0xF0)
        upper |= block & np.uint16(0x0F)
        packed[start : start + AT_ONCE] = upper
    return packed.tobytes()


def _from_nibbles(packed: Array) -> Array:
    codes = np.empty(2 * len(packed), np.int8)
    for start in range(0, len(packed), AT_ONCE):
        block = packed[start : start + AT_ONCE].astype("<u2")
        both = block << np.uint16(4)
        both |= block
        both &= np.uint16(0x0F0F)
        fields = both.view(np.int8)
        fields ^= np.int8(8)
        np.subtract(fields, np.int8(8), out=codes[2 * start : 2 * (start + AT_ONCE)])  # extends the sign
    return codes


@functools.cache
def _plan(bits: int) -> tuple[int, int, int, list[tuple[np.uint64, np.uint64, np.uint64]], list[Joint]]:
    """(field, groups, words, steps, joints) of n-bit codes.

    field: bits of the integers that hold codes. steps: (mask of every second field, mask of the others, distance by
    which these move) until the codes of 64 bits are one group. joints: the places of `groups` groups in `words` words.
    """
    field = 8 if bits <= 8 else 16 if bits <= 16 else 32
    steps, stride, width = [], field, bits
    while stride < 64:
        low = sum((2**width - 1) << place for place in range(0, 64, 2 * stride))
        steps.append((np.uint64(low), np.uint64(low << stride), np.uint64(stride - width)))
        stride, width = 2 * stride, 2 * width
    groups, words = 64 // math.gcd(width, 64), width // math.gcd(width, 64)
    places = [divmod(j * width, 64) for j in range(groups)]
    joints = [(w, np.uint64(bit), np.uint64(64 - bit) if bit + width > 64 else None) for w, bit in places]
    return field, groups, words, steps, joints


def _squeeze(flat: Array, bits: int) -> bytes:
    field, groups, words, steps, joints = _plan(bits)
    period = groups * 64 // field  # codes
    chunk = AT_ONCE * 8 // field // period * period
    pieces = []
    for start in range(0, len(flat), chunk):
        part = flat[start : start + chunk].astype(f"<i{field // 8}", copy=False)
        padded = np.zeros(-(-len(part) // period) * period, f"<u{field // 8}")
        np.bitwise_and(part.view(padded.dtype), padded.dtype.type(2**bits - 1), out=padded[: len(part)])
        group: Array = padded.view("<u8")
        for low, high, distance in steps:
            upper = group & high
            upper >>= distance
            group &= low
            group |= upper
        group = group.reshape(-1, groups)
        stream = np.zeros((len(group), words), "<u8")
        for j, (word, bit, rest) in enumerate(joints):
            stream[:, word] |= group[:, j] << bit
            if rest is not None:
                stream[:, word + 1] |= group[:, j] >> rest
        pieces.append(stream.reshape(-1).view(np.uint8)[: packed_size(len(part), bits)])
    return b"".join(piece.data for piece in pieces)


def _spread(data: bytes | memoryview, bits: int, count: int) -> Array:
    field, groups, words, steps, joints = _plan(bits)
    period = groups * 64 // field
    chunk = AT_ONCE * 8 // field // period * period
    packed = np.frombuffer(data, np.uint8)
    codes = np.empty(count, f"<i{field // 8}")
    sign = codes.dtype.type(1 << (bits - 1))
    whole = np.uint64(2 ** (bits * 64 // field) - 1)
    # Chunks stay in the processor's cache; each is unpacked in words, then spread in halving steps.
    for start in range(0, count, chunk):
        out = codes[start : start + chunk]
        first, size = start * bits // 8, packed_size(len(out), bits)
        stream = np.zeros((-(-len(out) // period), words), "<u8")
        stream.reshape(-1).view(np.uint8)[:size] = packed[first : first + size]
        group = np.empty((len(stream), groups), "<u8")
        for j, (word, bit, rest) in enumerate(joints):
            np.right_shift(stream[:, word], bit, out=group[:, j])
            if rest is not None:
                group[:, j] |= stream[:, word + 1] << rest
        group &= whole
        for low, high, distance in reversed(steps):
            upper = group << distance
            upper &= high
            group &= low
            group |= upper
        fields = group.reshape(-1).view(codes.dtype)[: len(out)]
        fields ^= sign
        np.subtract(fields, sign, out=out)  # extends the sign: 0..2**n - 1 to -2**(n-1)..
    return codes
