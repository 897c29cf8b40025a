"""Layers of a frozen TensorFlow graph: a GraphDef, read as data without TensorFlow.

Freezing turns a variable into a Const node "model/pi/w" and its reader into an Identity node "model/pi/w/read". The
operators that use it determine the axis of the outputs. Field numbers: tensorflow/core/framework/{graph, node_def,
attr_value, tensor, tensor_shape}.proto.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from quarl.arrays import Array
from quarl.inert.objects import Malformed
from quarl.inert.reading_budget import current
from quarl.policy.layers import LayerWeights
from quarl.readers.weights_only import named_tensors

MAX_VARINT = 10
"""Bytes of a 64-bit number, seven bits in each."""
Value = int | memoryview
"""A varint, or the bytes of any other field."""
FLOATS: Mapping[int, tuple[Any, int]] = {
    1: (np.float32, 5),
    2: (np.float64, 6),
    14: (ml_dtypes.bfloat16, 13),
    19: (np.float16, 13),
}
"""numpy type by DataType, and the field of TensorProto that lists its numbers. Other types are not weights."""
SIXTEEN_BITS = 13
"""Field whose numbers are varints, not bytes."""
MAX_HOPS = 16
"""Largest number of nodes that pass a constant on to its reader."""
KINDS = {
    "MatMul": "Dense",
    "Conv2D": "Conv2d",
    "DepthwiseConv2dNative": "Conv2d",
    "Conv2DBackpropInput": "ConvTranspose2d",
    "Conv3D": "Conv3d",
}
"""Operators whose second input is a weight."""
PASSING = ("Identity", "StopGradient", "Enter", "Snapshot")
ADDING = ("BiasAdd", "Add", "AddV2")


class _Node(NamedTuple):
    name: str
    operator: str
    inputs: list[str]
    attributes: list[memoryview]


def layers(data: bytes, folder: Path) -> list[LayerWeights]:
    """Return the constants that matrix products and convolutions read; if there are none, those named like weights."""
    return _Graph(memoryview(data)).layers()


class _Graph:
    def __init__(self, data: memoryview) -> None:
        if bytes(data[:1]) == b"\x08":
            raise Malformed("it is a SavedModel, whose variables are in other files; freeze it first")
        self.nodes: dict[str, _Node] = {}
        for message in grouped(data).get(1, []):
            node = _node(_bytes(message))
            self.nodes.setdefault(node.name, node)
        self.values: dict[str, Array | None] = {}

    def layers(self) -> list[LayerWeights]:
        layers: dict[str, LayerWeights] = {}
        added = self._added()
        for node in self.nodes.values():
            source = self._constant(node.inputs[1]) if len(node.inputs) > 1 else None
            if source is None or source.name in layers or node.operator not in KINDS:
                continue
            weight = self._weight(node, source)
            if weight is not None:
                bias = self._bias(added.get(node.name, ()), len(weight))
                operator = "LSTM" if "lstm" in source.name.lower() else KINDS[node.operator]
                layers[source.name] = LayerWeights(source.name, operator, weight, bias)
        if layers:
            return list(layers.values())
        constants = {node.name: self._value(node) for node in self.nodes.values() if node.operator == "Const"}
        return named_tensors.layers({name: array for name, array in constants.items() if array is not None})

    def _constant(self, name: str) -> _Node | None:
        """Return the Const node behind `name`, through nodes that pass it on."""
        for _ in range(MAX_HOPS):
            node = self.nodes.get(name)
            if node is None or node.operator not in PASSING or not node.inputs:
                return node if node is not None and node.operator == "Const" else None
            name = node.inputs[0]
        return None

    def _added(self) -> dict[str, list[str]]:
        """Return the names of the terms that are added to each node."""
        added: dict[str, list[str]] = {}
        for node in self.nodes.values():
            if node.operator in ADDING and len(node.inputs) > 1:
                for term, other in (node.inputs[:2], node.inputs[1::-1]):
                    added.setdefault(term, []).append(other)
        return added

    def _weight(self, node: _Node, source: _Node) -> Array | None:
        """Return the weight that `node` reads, outputs first; None if the constant does not fit the operator."""
        value = self._value(source)
        axes = {"MatMul": 2, "Conv3D": 5}.get(node.operator, 4)
        if value is None or value.size == 0 or value.ndim != axes:
            return None
        match node.operator:
            case "MatMul":
                flag = self._attribute(node, "transpose_b", 5)
                return named_tensors.as_numbers(value) if flag else named_tensors.outputs_first(value)
            case "DepthwiseConv2dNative":  # [height, width, in, multiplier]: each output reads one input
                outputs = value.transpose(2, 3, 0, 1).reshape(-1, 1, *value.shape[:2])
                return named_tensors.as_numbers(outputs)
            case "Conv2DBackpropInput":  # [height, width, out, in]
                return named_tensors.as_numbers(value.transpose(2, 3, 0, 1))
        return named_tensors.outputs_first(value)

    def _bias(self, candidates: Sequence[str], size: int) -> Array | None:
        for name in candidates:
            source = self._constant(name)
            value = None if source is None else self._value(source)
            if value is not None and value.shape == (size,):
                return named_tensors.as_numbers(value)
        return None

    def _attribute(self, node: _Node, name: str, field: int) -> Value | None:
        """Return field `field` of the attribute's AttrValue."""
        for entry in node.attributes:
            parts = grouped(entry)
            if _text(_last(parts, 1)) == name:
                value: Value | None = _last(grouped(_bytes(_last(parts, 2))), field, None)
                return value
        return None

    def _value(self, node: _Node) -> Array | None:
        """Return the real numbers of a Const node; None if it holds other data."""
        if node.name not in self.values:
            tensor = self._attribute(node, "value", 8)
            self.values[node.name] = None if tensor is None else self._tensor(_bytes(tensor), node.name)
        return self.values[node.name]

    def _tensor(self, message: memoryview, name: str) -> Array | None:
        parts = grouped(message)
        shape = self._shape(_bytes(_last(parts, 2)), name)
        kind, content = _last(parts, 1, 0), _bytes(_last(parts, 4))
        if kind not in FLOATS:
            return None
        dtype, field = FLOATS[kind]
        size = math.prod(shape)
        if not content:
            return self._fill(self._numbers(parts.get(field, []), dtype, field), size, name).reshape(shape)
        if len(content) != size * np.dtype(dtype).itemsize:
            raise Malformed(f"constant {name[:80]!r} claims shape {shape}, which does not match its content")
        return np.frombuffer(content, dtype).reshape(shape)

    def _shape(self, message: memoryview, name: str) -> tuple[int, ...]:
        shape = tuple(_last(grouped(_bytes(axis)), 1, 0) for axis in grouped(message).get(2, []))
        # a negative size is written as its two's complement
        if len(shape) > 8 or not all(type(n) is int and n < 2**63 for n in shape) or math.prod(shape) >= 2**31:
            raise Malformed(f"constant {name[:80]!r} has a shape that no weight can have")
        return shape

    def _numbers(self, parts: Sequence[Value], dtype: Any, field: int) -> Array:
        """Return the numbers of a repeated field, packed or one by one."""
        if field == SIXTEEN_BITS:
            codes = [code for part in parts for code in ([part] if isinstance(part, int) else varints(part))]
            return (np.array(codes, np.uint64) & np.uint64(0xFFFF)).astype(np.uint16).view(dtype)
        return np.frombuffer(b"".join(map(_bytes, parts)), dtype) if parts else np.zeros(0, dtype)

    def _fill(self, numbers: Array, size: int, name: str) -> Array:
        """Return as many numbers as the shape needs; the last one is repeated for those that are left out."""
        if len(numbers) == size:
            return numbers
        missing = size - len(numbers)
        if missing < 0:
            raise Malformed(f"constant {name[:80]!r} has {len(numbers):,} numbers, but its shape has {size:,}")
        current().copy(missing * numbers.itemsize)  # shapes can ask for terabytes
        return np.concatenate([numbers, np.full(missing, numbers[-1] if len(numbers) else 0, numbers.dtype)])


def _node(message: memoryview) -> _Node:
    parts = grouped(message)
    inputs = [_text(name).partition(":")[0] for name in parts.get(3, [])]  # the first output of a node
    return _Node(_text(_last(parts, 1)), _text(_last(parts, 2)), inputs, list(map(_bytes, parts.get(5, []))))


def _last(parts: Mapping[int, list[Value]], number: int, default: Any = b"") -> Any:
    """Return the field's value; the last one in a message counts."""
    return parts.get(number, [default])[-1]


def _bytes(value: Value) -> memoryview:
    if isinstance(value, int):
        raise Malformed("it has a number in place of bytes")
    return memoryview(value)


def _text(value: Value) -> str:
    return str(_bytes(value), "utf-8", "replace")


def fields(data: memoryview) -> Iterator[tuple[int, Value]]:
    """Yield (number, value) of every field of the message, in the file's order and on its budget.

    Source: protobuf.dev/programming-guides/encoding. Groups, which it deprecates, are refused.
    """
    budget, at = current(), 0
    while at < len(data):
        budget.parse()
        tag, at = varint(data, at)
        number, kind = tag >> 3, tag & 7
        if number == 0 or kind not in (0, 1, 2, 5):
            raise Malformed("a field has an invalid number or wire type")
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
    """Return the values of every field of the message by its number, in the file's order."""
    groups: dict[int, list[Value]] = {}
    for number, value in fields(data):
        groups.setdefault(number, []).append(value)
    return groups


def varints(data: memoryview) -> list[int]:
    """Return the numbers of a packed field."""
    budget, numbers, at = current(), list[int](), 0
    while at < len(data):
        budget.parse()
        value, at = varint(data, at)
        numbers.append(value)
    return numbers


def varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return (number 0..2**64 - 1, place after it) of the varint at `at`."""
    value = 0
    for index in range(MAX_VARINT):
        if at + index >= len(data):
            raise Malformed("it ends within a number")
        byte = data[at + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at + index + 1
    raise Malformed("a number has more than 64 bits")
