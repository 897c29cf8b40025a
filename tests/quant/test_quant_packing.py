"""Packing is lossless and as small as its bits say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarl.quant.packing import AT_ONCE, pack, packed_size, storage_dtype, unpack


@given(st.integers(2, 33), st.integers(0, 70), st.randoms(use_true_random=False))
def test_codes_come_back(bits, count, random):
    codes = np.array([random.randint(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for _ in range(count)], np.int64)
    data = pack(codes, bits)
    assert len(data) == packed_size(count, bits)
    back = unpack(data, bits, count)
    assert np.array_equal(back, codes)
    assert back.dtype == storage_dtype(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def test_four_bits_are_two_codes_a_byte_low_nibble_first():
    assert pack(np.array([1, -2, 7], np.int8), 4) == bytes([0xE1, 0x07])


def test_three_bits_by_hand():
    # 1 = 001, -1 = 111, 2 = 010: bits from the lowest up 100 111 010 -> 0b10111001, 0
    assert pack(np.array([1, -1, 2], np.int8), 3) == bytes([0b10111001, 0])


def test_a_wrong_length_is_refused():
    with pytest.raises(ValueError, match="take 2 bytes, got 3"):
        unpack(b"abc", 4, 4)


@pytest.mark.parametrize("bits", range(2, 33))
def test_a_stream_is_the_codes_bit_by_bit_however_long(bits):
    # More than one piece of work, and an end that fills neither a period nor a byte.
    num = AT_ONCE // (1 if bits <= 8 else 2 if bits <= 16 else 4) + 77
    codes = np.random.default_rng(bits).integers(-(2 ** (bits - 1)), 2 ** (bits - 1), num)
    each = codes[:, None] >> np.arange(bits) & 1
    data = pack(codes, bits)
    assert data == np.packbits(each.astype(np.uint8).reshape(-1), bitorder="little").tobytes()
    np.testing.assert_array_equal(unpack(memoryview(data), bits, num), codes)
