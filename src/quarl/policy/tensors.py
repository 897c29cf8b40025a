"""The safetensors container without copies: arrays that are views of its bytes, and pieces that only need a join.

The format is safetensors': the length of a JSON header, the header, the numbers. The library itself copies every tensor
once to read it and twice to write it, and an actor that waits for its new weights would wait for that.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from quarl.arrays import Array
from quarl.errors import QuarlError
from quarl.inert.budget import read_json

Bytes = bytes | bytearray | memoryview
DTYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "I32": np.dtype(np.int32),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F16": np.dtype(np.float16),
    "U8": np.dtype(np.uint8),
}
"""safetensors' names of the number types a policy may hold, widest first: the order in which they lie there."""
METADATA = "__metadata__"
LENGTH_BYTES = 8
ALIGNMENT = 8
"""Bytes; what the header is padded to with spaces."""


def pieces(tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> list[bytes | memoryview]:
    """What the file is, in order; tensors: contiguous arrays of the types in DTYPES."""
    names = {dtype: name for name, dtype in DTYPES.items()}
    ordered = sorted(tensors, key=lambda name: (list(names).index(tensors[name].dtype), name))
    header: dict[str, Any] = {METADATA: dict(metadata)}
    end = 0
    for name in ordered:
        array = tensors[name]
        header[name] = {
            "dtype": names[array.dtype],
            "shape": array.shape,
            "data_offsets": [end, end + array.nbytes],
        }
        end += array.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    numbers = [tensors[name].reshape(-1).view(np.uint8).data for name in ordered]
    return [len(text).to_bytes(LENGTH_BYTES, "little"), text, *numbers]


def parse(data: Bytes) -> tuple[dict[str, tuple[str, tuple[int, ...], memoryview]], dict[str, Any]]:
    """(type, shape and bytes of each tensor, metadata); every byte belongs to the header or to exactly one tensor."""
    view = memoryview(data).cast("B")
    start = LENGTH_BYTES + int.from_bytes(view[:LENGTH_BYTES], "little")
    if len(view) < LENGTH_BYTES or start > len(view):
        raise _damaged("it ends before its header does")
    try:
        header = read_json(str(view[LENGTH_BYTES:start], "utf-8"), "its header")
        metadata = header.pop(METADATA)
        found = {name: _entry(entry) for name, entry in header.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise _damaged("its header is no table of tensors") from None
    end = 0
    for name, (dtype, shape, begin, stop) in sorted(found.items(), key=lambda item: item[1][2:]):
        if dtype not in DTYPES:
            raise QuarlError(f"tensor {name!r} has dtype {dtype[:20]}, which a policy cannot hold")
        if begin != end or stop - begin != math.prod(shape) * DTYPES[dtype].itemsize:
            raise _damaged(f"the place of tensor {name!r} does not fit its shape")
        end = stop
    if end != len(view) - start:
        raise _damaged("its length is not that of its tensors")
    return {name: (d, shape, view[start + a : start + b]) for name, (d, shape, a, b) in found.items()}, metadata


MAX_AXES, MAX_NUMBER = 16, 2**48
"""Of a shape: numbers out of a file are not multiplied before they are known to be of a size."""


def _entry(entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    """(type, shape, first byte, byte after the last) of a tensor."""
    shape, (begin, stop) = tuple(entry["shape"]), entry["data_offsets"]
    numbers = (*shape, begin, stop)
    if len(shape) > MAX_AXES or not all(type(n) is int and 0 <= n < MAX_NUMBER for n in numbers):  # True is an int too
        raise ValueError
    return str(entry["dtype"]), shape, begin, stop


def _damaged(why: str) -> QuarlError:
    return QuarlError(f"the safetensors container is damaged ({why}); save the policy again")
