"""The safetensors container without copies: arrays are views of its bytes, and its pieces only need joining.

The format is safetensors': the length of a JSON header, the header, the numbers. The library itself copies every tensor
once to read it and twice to write it, which would delay actors that wait for new weights.
"""

from __future__ import annotations

import hashlib
import json
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from quarl.arrays import Array
from quarl.errors import QuarlError
from quarl.inert.reading_budget import read_json

Bytes = bytes | bytearray | memoryview
TYPES = {
    "F64": np.dtype(np.float64),
    "I64": np.dtype(np.int64),
    "U64": np.dtype(np.uint64),
    "F32": np.dtype(np.float32),
    "I32": np.dtype(np.int32),
    "U32": np.dtype(np.uint32),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F16": np.dtype(np.float16),
    "I16": np.dtype(np.int16),
    "U16": np.dtype(np.uint16),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
"""safetensors' names of the number types, widest first: the order in the file, which keeps tensors aligned."""
NAMES = {dtype: name for name, dtype in TYPES.items()}
DTYPES = {name: TYPES[name] for name in ("F64", "F32", "I32", "BF16", "F16", "U8")}
"""Types that a policy may hold."""
METADATA = "__metadata__"
LENGTH_BYTES = 8
ALIGNMENT = 8
"""Multiple of bytes to which the header is padded with spaces."""


def ordered(tensors: Mapping[str, Array]) -> list[str]:
    """Return the names in the order of the tensors in the file."""
    return sorted(tensors, key=lambda name: (list(NAMES).index(tensors[name].dtype), name))


def header(table: Mapping[str, tuple[str, Sequence[int]]], metadata: Mapping[str, str], *, ascii_only: bool) -> bytes:
    """Return the bytes in front of the numbers: the header's length and the header.

    Args:
        table: Name in TYPES and shape of each tensor, in the order of the file.
        metadata: Texts by name.
        ascii_only: Escape other letters instead of writing UTF-8.
    """
    fields: dict[str, Any] = {METADATA: dict(metadata)}
    end = 0
    for name, (dtype, shape) in table.items():
        begin, end = end, end + TYPES[dtype].itemsize * math.prod(map(operator.index, shape))
        fields[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(fields, separators=(",", ":"), ensure_ascii=ascii_only).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def pieces(tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> list[bytes | memoryview]:
    """Return the pieces of the file in order; tensors must be contiguous arrays of the types in DTYPES."""
    names = ordered(tensors)
    table = {name: (NAMES[tensors[name].dtype], tensors[name].shape) for name in names}
    return [header(table, metadata, ascii_only=False), *(raw(tensors[name]) for name in names)]


def raw(array: Array) -> memoryview:
    """Return the bytes of a contiguous array."""
    return array.reshape(-1).view(np.uint8).data


def digest(array: Array) -> str:
    """Return the sha256 of the array's bytes."""
    return hashlib.sha256(raw(array)).hexdigest()


def sealed(manifest: str) -> dict[str, str]:
    """Return the metadata of a container that holds a JSON manifest, with its sha256."""
    return {"manifest": manifest, "sha256": hashlib.sha256(manifest.encode()).hexdigest()}


def unsealed(metadata: Mapping[str, Any], kind: str) -> Any:
    """Return the manifest of `sealed`; raise QuarlError if it is damaged or of another format."""
    if sealed(metadata["manifest"])["sha256"] != metadata["sha256"]:
        raise QuarlError("the manifest does not match its sha256; the file is damaged")
    manifest = read_json(metadata["manifest"], "the manifest")
    if manifest["format"] != kind:
        raise QuarlError(f"format {manifest['format']!r} is not {kind!r}")
    return manifest


def parse(
    data: Bytes, types: Mapping[str, np.dtype[Any]] = DTYPES
) -> tuple[dict[str, tuple[str, tuple[int, ...], memoryview]], dict[str, Any]]:
    """Return type, shape and bytes of each tensor, and the metadata.

    Every byte must belong to the header or to exactly one tensor. types: types that the container may hold.
    """
    view = memoryview(data).cast("B")
    start = LENGTH_BYTES + int.from_bytes(view[:LENGTH_BYTES], "little")
    if len(view) < LENGTH_BYTES or start > len(view):
        raise _damaged("it ends before its header does")
    try:
        fields = read_json(str(view[LENGTH_BYTES:start], "utf-8"), "its header")
        metadata = fields.pop(METADATA)
        entries = {name: _entry(entry) for name, entry in fields.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise _damaged("its header is not a table of tensors") from None
    end = 0
    for name, (dtype, shape, begin, stop) in sorted(entries.items(), key=lambda item: item[1][2:]):
        if dtype not in types:
            raise QuarlError(f"tensor {name!r} has dtype {dtype[:20]}, which is not supported here")
        if begin != end or stop - begin != math.prod(shape) * types[dtype].itemsize:
            raise _damaged(f"the place of tensor {name!r} does not fit its shape")
        end = stop
    if end != len(view) - start:
        raise _damaged("its length does not match its tensors")
    return {name: (d, shape, view[start + a : start + b]) for name, (d, shape, a, b) in entries.items()}, metadata


MAX_AXES, MAX_NUMBER = 16, 2**48
"""Limits of a shape: numbers from a file are not multiplied before their size is checked."""


def _entry(entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    """Return (type, shape, first byte, byte after the last) of a tensor."""
    shape, (begin, stop) = tuple(entry["shape"]), entry["data_offsets"]
    numbers = (*shape, begin, stop)
    if len(shape) > MAX_AXES or not all(type(n) is int and 0 <= n < MAX_NUMBER for n in numbers):  # True is an int too
        raise ValueError
    return str(entry["dtype"]), shape, begin, stop


def _damaged(why: str) -> QuarlError:
    return QuarlError(f"the safetensors container is damaged ({why}); save it again")
