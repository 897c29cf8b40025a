"""Protocol buffers written and mutated field by field: frozen TensorFlow graphs without TensorFlow."""

from __future__ import annotations

import random
import struct
from typing import Any

import numpy as np

from quarl.inert.objects import Malformed
from quarl.readers.weights_only import frozen
from stress.fuzz import mutate

DTYPES = {"float32": 1, "float64": 2, "int32": 3, "bfloat16": 14, "float16": 19}


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, value: int | bytes | str) -> bytes:
    """A field as protobuf writes it: a varint, or bytes behind their length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def attribute(name: str, value: bytes) -> bytes:
    return field(5, field(1, name) + field(2, value))


def shape_of(sizes: Any) -> bytes:
    return field(2, b"".join(field(2, field(1, int(size))) for size in sizes))


def tensor(array: np.ndarray) -> bytes:
    """TensorProto with the array's bytes."""
    return field(1, DTYPES[array.dtype.name]) + shape_of(array.shape) + field(4, array.tobytes())


def listed(dtype: str, sizes: Any, number: int, packed: bytes) -> bytes:
    """TensorProto whose numbers stand in the repeated field `number`."""
    return field(1, DTYPES[dtype]) + shape_of(sizes) + field(number, packed)


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def node(name: str, operator: str, *inputs: str, **attributes: bytes) -> bytes:
    parts = [field(1, name), field(2, operator), *(field(3, source) for source in inputs)]
    return field(1, b"".join([*parts, *(attribute(key, value) for key, value in attributes.items())]))


def constant(name: str, array: np.ndarray | bytes) -> bytes:
    """A Const node; bytes are a TensorProto of their own."""
    return node(name, "Const", value=field(8, array if isinstance(array, bytes) else tensor(array)))


def variable(name: str, array: np.ndarray | bytes) -> bytes:
    """What freezing makes of a variable: a constant and the Identity that read it."""
    return constant(name, array) + node(f"{name}/read", "Identity", name)


def dense(name: str, weight: np.ndarray, bias: np.ndarray, source: str, operator: str = "BiasAdd") -> bytes:
    """A layer of Stable-Baselines 2: x @ w + b."""
    return (
        variable(f"{name}/w", weight)
        + variable(f"{name}/b", bias)
        + node(f"{name}/MatMul", "MatMul", source, f"{name}/w/read")
        + node(f"{name}/add", operator, f"{name}/MatMul", f"{name}/b/read")
    )


def graph() -> bytes:
    """Two layers with everything that the reader knows: an Identity, a transposed product, a convolution."""
    rng = np.random.default_rng(0)

    def numbers(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    return b"".join(
        (
            node("input/Ob", "Placeholder", dtype=field(6, 1)),
            dense("model/pi_fc0", numbers(3, 4), numbers(4), "input/Ob", "Add"),
            node("model/Tanh", "Tanh", "model/pi_fc0/add"),
            variable("model/pi/w", numbers(2, 4)),
            node("model/pi/MatMul", "MatMul", "model/Tanh", "model/pi/w/read", transpose_b=field(5, 1)),
            variable("model/c1/w", numbers(2, 2, 1, 3).astype(np.float16)),
            node("model/c1/Conv2D", "Conv2D", "x", "model/c1/w/read"),
            variable("model/fill/w", listed("float32", (2, 3), 5, floats(1.0, 2.0))),
            node("model/fill/MatMul", "MatMul", "x", "model/fill/w/read"),
        )
    )


Field = tuple[int, frozen.Value]
ODD = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)


def protobuf(rng: random.Random, data: bytes) -> bytes:
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
        fields[at] = number, memoryview(_changed(rng, bytes(value), depth + 1))
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
            fields[at] = number, memoryview(rng.randbytes(rng.randrange(12)))
    return _joined(fields)


def _split(data: bytes) -> list[Field]:
    """The fields of a message; none where it is text or numbers."""
    try:
        return list(frozen.fields(memoryview(data)))
    except Malformed:
        return []


def _joined(fields: list[Field]) -> bytes:
    return b"".join(
        field(max(number, 1), value if isinstance(value, int) else bytes(value)) for number, value in fields
    )
