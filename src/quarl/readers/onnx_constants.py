"""Constants of an .onnx file, in it or beside it; the file is parsed by ONNX's own protocol buffers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import onnx
from onnx import helper, numpy_helper

from quarl.arrays import Array
from quarl.errors import QuarlError
from quarl.inert.reading_budget import current
from quarl.inert.zip import escapes, read_bytes

ONNX = ("", "ai.onnx")


def parsed(data: bytes, path: Path) -> onnx.ModelProto:
    """Return the model in the bytes of the file at `path`."""
    try:
        return onnx.load_model_from_string(data)
    except Exception as error:  # protobuf's errors have no common base
        raise QuarlError(f"{path} is not a valid ONNX file; export it again") from error


def external_files(data: bytes, path: Path) -> list[bytes]:
    """Return the contents of the files beside the model at `path` that hold its constants, by name."""
    constants = Constants(parsed(data, path), path.parent)
    entries = [entry for tensor in constants.tensors.values() for entry in tensor.external_data]
    return [constants.beside(name) for name in sorted({each.value for each in entries if each.key == "location"})]


class Constants:
    """The initializers of a model's graph, whose external files must be in the model's folder."""

    def __init__(self, model: onnx.ModelProto, folder: Path) -> None:
        self.folder, self.budget, self.files = folder, current(), dict[str, bytes]()
        self.tensors = {tensor.name: tensor for tensor in model.graph.initializer}
        for node in model.graph.node:
            self.budget.parse(1 + len(node.input))
        outside = [place(each) for each in self.tensors.values() if each.data_location == onnx.TensorProto.EXTERNAL]
        ranges = sorted((PurePosixPath(location), start, end) for location, start, end in outside)
        for (file, _, end), (other, start, _) in itertools.pairwise(ranges):
            if file == other and start < end:
                raise QuarlError(f"two of its weights overlap in {str(file)[:80]!r}; export it again")

    def numbers(self, tensor: onnx.TensorProto) -> Array | None:
        """Return the numbers of an initializer or of a Constant node; None if it does not hold numbers."""
        if tensor.data_type in (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING):
            return None
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            tensor = onnx.TensorProto(data_type=tensor.data_type, dims=tensor.dims, raw_data=self.external(tensor))
        array = numpy_helper.to_array(tensor)
        return array if array.dtype.kind in "fiubV" else None  # V: number types that numpy does not know

    def external(self, tensor: onnx.TensorProto) -> bytes:
        """Return the bytes of an initializer that are in another file, which must be in the model's folder."""
        if self.tensors.get(tensor.name) is not tensor:
            raise QuarlError("a constant of one of its nodes is in another file; only initializers are read from there")
        location, start, end = place(tensor)
        if location not in self.files:
            self.files[location] = self.beside(location)
        content = self.files[location]
        stop = len(content) if end == math.inf else int(end)
        if not 0 <= start <= stop <= len(content):
            raise QuarlError(f"{location[:80]!r} beside it has no bytes {start:,} to {stop:,}; fetch it again")
        self.budget.copy(stop - start)
        return content[start:stop]

    def beside(self, location: str) -> bytes:
        if escapes(location):
            raise QuarlError(f"its weights refer to {location[:80]!r}, outside its folder; they are not read")
        target = self.folder / location
        try:
            inside = target.resolve() == self.folder.resolve() / location  # otherwise it is, or is behind, a link
        except (OSError, RuntimeError):  # a name that no system takes, or links in a circle
            inside = False
        if not inside:
            raise QuarlError(f"its weights refer to {location[:80]!r}, which is not a file of its folder")
        return read_bytes(target)


def place(tensor: onnx.TensorProto) -> tuple[str, int, float]:
    """Return the external file of a tensor, its first byte there, and the byte after its last; infinity: to the end."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    start = int(entries.get("offset", "0")[:20])
    end = start + int(entries["length"][:20]) if "length" in entries else math.inf
    return entries.get("location", ""), start, end


def attributes(node: onnx.NodeProto, outer: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the node's attributes by name; `outer` has those of the call of its function, to which they may refer."""
    given = {each.name: helper.get_attribute_value(each) for each in node.attribute if not each.ref_attr_name}
    referred = {each.name: each.ref_attr_name for each in node.attribute if each.ref_attr_name in (outer or {})}
    return given | {name: outer[key] for name, key in referred.items()} if outer else given
