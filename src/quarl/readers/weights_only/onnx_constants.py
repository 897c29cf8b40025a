"""Constants of an ONNX graph as arrays: those in the file, beside it, or made of such by a few operators."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
from onnx import helper, numpy_helper

from quarl.arrays import Array
from quarl.errors import QuarlError
from quarl.inert.budget import current
from quarl.inert.zip import escapes, read_bytes
from quarl.readers.weights_only import names

MAX_HOPS = 16
"""Operators between a constant and its reader."""


class Constants:
    """Looks up the constants of a graph."""

    def __init__(self, graph: onnx.GraphProto, folder: Path) -> None:
        """folder: where files that hold constants must lie."""
        self._folder = folder
        self._tensors = {tensor.name: tensor for tensor in graph.initializer}
        self._makers = {name: node for node in graph.node for name in node.output if name}
        self._files: dict[str, bytes] = {}
        self._values: dict[str, Array | None] = {}
        self._literals: dict[str, Array | None] = {}
        self.budget = current()

    def value(self, name: str) -> Array | None:
        """The constant that `name` is, after casts, transpositions and dequantisation; None for what is computed."""
        if name not in self._values:
            self._values[name] = self._resolve(name, MAX_HOPS)
        return self._values[name]

    def initializers(self) -> Mapping[str, Array]:
        """Those that are constants by name."""
        found = {name: self.value(name) for name in self._tensors}
        return {name: array for name, array in found.items() if array is not None}

    def source(self, name: str) -> str:
        """The name of the constant that `name` is made of: what a person called it."""
        for _ in range(MAX_HOPS):
            node = self._makers.get(name)
            if name in self._tensors or node is None or not node.input:
                break
            name = node.input[0]
        return name

    def factors(self, name: str) -> list[str]:
        """The inputs of the product that `name` is, if it is one."""
        node = self._makers.get(name)
        return list(node.input[:2]) if node is not None and node.op_type == "Mul" else []

    def _resolve(self, name: str, hops: int) -> Array | None:
        literal = self._literal(name)
        node = self._makers.get(name)
        if literal is not None or node is None or hops == 0 or not node.input:
            return literal
        if node.op_type not in ("Identity", "Cast", "Transpose", "DequantizeLinear"):
            return None
        known = node.input[0] in self._values
        source = self._values[node.input[0]] if known else self._resolve(node.input[0], hops - 1)
        if source is None or node.op_type in ("Identity", "Cast"):
            return source
        if node.op_type == "Transpose":
            return source.transpose(attributes(node).get("perm"))
        return self._dequantized(node, source, int(attributes(node).get("axis", 1)))

    def _dequantized(self, node: onnx.NodeProto, codes: Array, axis: int) -> Array | None:
        """(codes - zero point) * scale, per tensor or along `axis`; None for scales of blocks or computed ones."""
        parts = [self._literal(name) if name else None for name in node.input[1:3]]
        scale, zero_point = (*parts, None, None)[:2]
        if scale is None:
            return None
        along = [1] * codes.ndim
        if scale.size > 1:
            if scale.shape != (codes.shape[axis],):
                return None
            along[axis] = -1
        self.budget.copy(8 * codes.size)
        numbers = names.as_numbers(codes)
        if zero_point is not None:
            numbers = numbers - names.as_numbers(zero_point).reshape(along)
        return numbers * names.as_numbers(scale).reshape(along)

    def _literal(self, name: str) -> Array | None:
        """The numbers of an initializer or of a Constant node."""
        if name not in self._literals:
            tensor = self._tensors.get(name)
            node = self._makers.get(name)
            if tensor is None and node is not None and node.op_type == "Constant":
                tensor = attributes(node).get("value")
            self._literals[name] = self._numbers(tensor) if isinstance(tensor, onnx.TensorProto) else None
        return self._literals[name]

    def _numbers(self, tensor: onnx.TensorProto) -> Array | None:
        if tensor.data_type in (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING):
            return None
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            tensor = onnx.TensorProto(data_type=tensor.data_type, dims=tensor.dims, raw_data=self._external(tensor))
        array = numpy_helper.to_array(tensor)
        return array if array.dtype.kind in "fiubV" else None  # V: number types that numpy does not know

    def _external(self, tensor: onnx.TensorProto) -> bytes:
        """The bytes that the tensor has in another file, which must lie in the model's folder."""
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        if location not in self._files:
            self._files[location] = self._read(location)
        content = self._files[location]
        offset = int(entries.get("offset", "0")[:20])
        length = int(entries.get("length", str(len(content) - offset))[:20])
        if offset < 0 or length < 0 or offset + length > len(content):
            raise QuarlError(
                f"{location[:80]!r} beside it has no bytes {offset:,} to {offset + length:,}; fetch it again"
            )
        self.budget.copy(length)
        return content[offset : offset + length]

    def _read(self, location: str) -> bytes:
        if escapes(location):
            raise QuarlError(f"its weights are said to lie at {location[:80]!r}, outside its folder; they are not read")
        target = self._folder / location
        try:
            inside = target.resolve().is_relative_to(self._folder.resolve())
        except (OSError, RuntimeError):  # a name that no system takes, or links in a circle
            inside = False
        if not inside:
            raise QuarlError(f"its weights are said to lie at {location[:80]!r}, which is no file of its folder")
        return read_bytes(target)


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """The node's attributes by name."""
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
