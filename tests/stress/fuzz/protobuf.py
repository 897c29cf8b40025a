"""Protocol buffers written and mutated field by field, without their schema."""

from __future__ import annotations

import random

from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from stress.fuzz import mutate


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, value: int | bytes) -> bytes:
    """A field as protobuf writes it: a varint, or bytes behind their length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


Field = tuple[int, int | bytes]
ODD = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)


def message(rng: random.Random, data: bytes) -> bytes:
    """The message with one to three fields removed, repeated, moved or changed, at any depth; lengths are right."""
    for _ in range(rng.randrange(1, 4)):
        data = _changed(rng, data, 0)
    return data


def _changed(rng: random.Random, data: bytes, depth: int) -> bytes:
    fields = _split(data)
    if not fields or depth > 8:
        return mutate.any_bytes(rng, data)
    at = rng.randrange(len(fields))
    number, value = fields[at]
    if not isinstance(value, int) and rng.random() < 0.75:
        fields[at] = number, _changed(rng, value, depth + 1)
        return _joined(fields)
    match rng.randrange(6):
        case 0:
            del fields[at]
        case 1:
            fields.insert(rng.randrange(len(fields) + 1), fields[at])
        case 2:
            fields[at] = rng.choice((0, 1, 2, 3, 5, 8, 13, 500)), value
        case 3:
            other = rng.randrange(len(fields))
            fields[at], fields[other] = fields[other], fields[at]
        case 4:
            fields[at] = number, rng.choice(ODD)
        case 5:
            fields[at] = number, rng.randbytes(rng.randrange(12))
    return _joined(fields)


def _split(data: bytes) -> list[Field]:
    """The varints and byte strings of a message; none where it is text or numbers, or has other fields."""
    try:
        found = list(UnknownFieldSet(Empty.FromString(data)))
    except DecodeError:
        return []
    return [(one.field_number, one.data) for one in found] if all(one.wire_type in (0, 2) for one in found) else []


def _joined(fields: list[Field]) -> bytes:
    return b"".join(field(max(number, 1), value) for number, value in fields)
