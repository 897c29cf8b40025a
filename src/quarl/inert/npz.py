"""Arrays of .npy and .npz data: the header is matched, never evaluated, and nothing is unpickled."""

from __future__ import annotations

import math
import re
from typing import Final

import numpy as np

from quarl.arrays import Array
from quarl.errors import QuarlError, UnsupportedError
from quarl.inert.objects import numeric_dtype
from quarl.inert.zip import unpack

_HEADER: Final = re.compile(
    rb"\{'descr': ?'([^']{1,16})', 'fortran_order': ?(True|False), "
    rb"'shape': ?\(((?:\d{1,15}L?, ?)*(?:\d{1,15}L?)?)\),? ?\}[ \n]*"
)
"""Header that numpy writes (numpy/lib/format.py, format versions 1 to 3); Python 2 wrote 3L for 3."""
MAX_HEADER = 10_000


def read_npz(data: bytes, where: str) -> dict[str, Array]:
    """Return the arrays of an .npz archive by name, read-only; `where` names it in errors."""
    members = unpack(data, where)
    return {name.removesuffix(".npy"): read_npy(raw, f"{where}: {name[:80]!r}") for name, raw in members.items()}


def read_npy(data: bytes, where: str) -> Array:
    """Return the array of an .npy file as a read-only view of `data`; only numbers and booleans are accepted."""
    if len(data) < 10 or data[:6] != b"\x93NUMPY" or data[6] not in (1, 2, 3):
        raise QuarlError(f"{where} is not an .npy array; the file is damaged")
    start = 10 if data[6] == 1 else 12
    length = int.from_bytes(data[8:start], "little")
    if length > MAX_HEADER or start + length > len(data):
        raise QuarlError(f"{where} claims a header of {length:,} bytes; the file is damaged")
    match = _HEADER.fullmatch(data[start : start + length])
    if match is None:
        raise QuarlError(f"{where} has a header that numpy does not write; the file is damaged")
    descr, fortran, dimensions = match.groups()
    dtype = numeric_dtype(descr.decode("latin-1"))
    if dtype is None:
        raise UnsupportedError(f"{where} holds {descr.decode('latin-1')!r} elements; only arrays of numbers are read")
    shape = tuple(int(n) for n in re.findall(rb"\d+", dimensions))
    if len(shape) > 8 or math.prod(shape) * dtype.itemsize != len(data) - start - length:
        raise QuarlError(f"{where} claims shape {shape[:8]}, which does not match the file's size; it is damaged")
    try:
        return np.ndarray(shape, dtype, data, start + length, order="F" if fortran == b"True" else "C")
    except ValueError:  # a zero beside dimensions that overflow
        raise QuarlError(f"{where} claims an impossible shape; the file is damaged") from None
