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

FOLDED = ("Constant", "Identity", "Cast", "Transpose", "DequantizeLinear")
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
        self.budget = current()

    def value(self, name: str) -> Array | None:
        """The constant that `name` is, after casts, transpositions and dequantisation; None for what is computed."""
        if name not in self._values:
            self._values[name] = None  # of what is made of itself
            self._values[name] = self._resolve(name)
        return self._values[name]

    def initializers(self) -> Mapping[str, Array]:
        """Those that are constants by name."""
        values = {name: self.value(name) for name in self._tensors}
        return {name: array for name, array in values.items() if array is not None}

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

    def _resolve(self, name: str) -> Array | None:
        if name in self._tensors:
            return self._numbers(self._tensors[name])
        node = self._makers.get(name)
        if node is None or node.op_type not in FOLDED:
            return None
        told = attributes(node)
        if node.op_type == "Constant":
            return self._numbers(told["value"]) if isinstance(told.get("value"), onnx.TensorProto) else None
        source, scale, zero_point, *_ = (*map(self.value, node.input[:3]), None, None, None)
        if source is None or node.op_type in ("Identity", "Cast"):
            return source
        if node.op_type == "Transpose":
            return source.transpose(told.get("perm"))
        axis = int(told.get("axis", 1))
        if scale is None or (scale.size > 1 and scale.shape != (source.shape[axis],)):
            return None  # it is computed, or of blocks
        self.budget.copy(8 * source.size)
        return names.dequantized(source, scale, zero_point, axis)

    def _numbers(self, tensor: onnx.TensorProto) -> Array | None:
        """The numbers of an initializer or of a Constant node."""
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
