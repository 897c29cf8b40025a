"""Fields of a protocol buffer, read as data: no message types, no recursion."""

from __future__ import annotations

from collections.abc import Iterator

from quarl.inert.budget import current
from quarl.inert.objects import Malformed

MAX_VARINT = 10
"""Bytes of a 64-bit number, seven bits in each."""

Value = int | memoryview
"""A varint, or the bytes of anything else."""


def fields(data: memoryview) -> Iterator[tuple[int, Value]]:
    """(number, value) of every field of the message, in the file's order and on its budget.

    Source: protobuf.dev/programming-guides/encoding. Groups, which it deprecates, are refused.
    """
    budget, at = current(), 0
    while at < len(data):
        budget.parse()
        tag, at = varint(data, at)
        number, kind = tag >> 3, tag & 7
        if number == 0 or kind not in (0, 1, 2, 5):
            raise Malformed("a field has a number or a kind that there is not")
        if kind == 0:
            value, at = varint(data, at)
            yield number, value
            continue
        size = {1: 8, 5: 4}.get(kind, 0)
        if kind == 2:
            size, at = varint(data, at)
        if size > len(data) - at:
            raise Malformed("a field is longer than the message that it is in")
        yield number, data[at : at + size]
        at += size


def grouped(data: memoryview) -> dict[int, list[Value]]:
    """The values of every field of the message by its number, in the file's order."""
    groups: dict[int, list[Value]] = {}
    for number, value in fields(data):
        groups.setdefault(number, []).append(value)
    return groups


def varints(data: memoryview) -> list[int]:
    """The numbers of a packed field."""
    budget, numbers, at = current(), list[int](), 0
    while at < len(data):
        budget.parse()
        value, at = varint(data, at)
        numbers.append(value)
    return numbers


def varint(data: memoryview, at: int) -> tuple[int, int]:
    """(number 0..2**64 - 1, place after it) of the varint at `at`."""
    value = 0
    for index in range(MAX_VARINT):
        if at + index >= len(data):
            raise Malformed("it ends within a number")
        byte = data[at + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at + index + 1
    raise Malformed("a number has more than 64 bits")


def signed(value: int) -> int:
    """The int64 that a varint stands for: negative numbers are written as their two's complement."""
    return value - 2**64 if value >= 2**63 else value
