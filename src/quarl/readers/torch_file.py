"""Tensors of a PyTorch file as numpy arrays, by name. The pickle in it is read as data, without PyTorch."""

from __future__ import annotations

import io
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from quarl.arrays import Array
from quarl.errors import QuarlError, UnsupportedError
from quarl.inert.objects import MAX_DIMENSIONS, Inert, Malformed
from quarl.inert.pickle import PERSISTENT, interpret
from quarl.inert.reading_budget import current, reading
from quarl.inert.zip import MAX_MEMBERS, unpack
from quarl.policy.container import LENGTH_BYTES, Bytes

MAX_NESTING = 4
"""Levels of nested dicts that are searched; a checkpoint has its state dict in the first or second."""
LEGACY_START, LEGACY_VERSION = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", 1001
"""Start of files before PyTorch 1.6, after the pickle's protocol: the number 0x1950a86a20f9469cfc6c as magic."""
MAX_INDEX = 2**40
"""Largest index into a storage: numbers from a file are only multiplied after a check of their size."""
PROGRAMS = {
    "/constants.pkl": "TorchScript",
    "/archive_format": "a program of torch.export",
    "serialized_exported_program.json": "a program of torch.export",
}
"""Kinds of programs by the ending of a zip member's name; the last is how PyTorch wrote .pt2 files before 2.8."""
NAMES = re.compile(
    r"collections OrderedDict"
    r"|torch (Size|device|\w+Storage|bool|(u?int|float|bfloat|complex)\w+)"
    r"|torch\.storage UntypedStorage"
    r"|torch\._utils _rebuild_(parameter(_with_state)?|tensor(_v[23])?|sparse_tensor)"
    r"|torch\.serialization _get_layout"
    r"|numpy(\._?core)?(\.multiarray scalar| dtype)|_codecs encode"  # a reward beside the parameters
)
"""Globals that state dicts name."""
_REBUILD = "torch._utils._rebuild_"
_TYPES: Mapping[str, Any] = {
    **{"float": np.float32, "double": np.float64, "half": np.float16, "bfloat16": ml_dtypes.bfloat16},
    **{"long": np.int64, "int": np.int32, "short": np.int16, "char": np.int8, "byte": np.uint8, "bool": np.bool_},
    **{f"float{bits}": np.dtype(f"f{bits // 8}") for bits in (16, 32, 64)},
    **{f"{kind}int{bits}": np.dtype(f"{kind or 'i'}{bits // 8}") for bits in (8, 16, 32, 64) for kind in ("", "u")},
    **{name: getattr(ml_dtypes, name) for name in ("float8_e4m3fn", "float8_e5m2")},
}
"""numpy types by PyTorch's names of number types, and of storages without "Storage"."""


def read_tensors(data: bytes, where: str) -> dict[str, Array]:
    """Return the float32 (or integer) arrays of the state dict in `data`, the bytes of a .pth file.

    Floating tensors come out as float32. Raises QuarlError for a damaged file and for anything but a flat dict of dense
    tensors; `where` names the file.
    """
    with reading(where):
        state, storages = _load(data, where)
        if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
            raise QuarlError(f"{where} holds a {_kind(state)}, not the parameters of a policy by name")
        return _arrays(state.items(), storages, where)


def read_nested(data: bytes, where: str, *, halves: bool = True) -> dict[str, Array]:
    """Return the arrays of a checkpoint: tensors of nested dicts, with names joined by dots.

    Other entries are left out. Numbers of half precision become float32, or are refused without `halves`.
    """
    with reading(where):
        state, storages = _load(data, where)
        if not isinstance(state, dict):
            raise QuarlError(f"{where} holds a {_kind(state)}, not parameters by name")
        tensors = (entry for entry in _entries(state, "", MAX_NESTING) if is_tensor(entry[1]))
        return _arrays(tensors, storages, where, halves)


def is_script(names: Collection[str]) -> bool:
    """Return whether a zip with these members is a TorchScript archive."""
    return any(name.endswith("/constants.pkl") for name in names)


def program(members: Collection[str]) -> str:
    """Return an error text if a zip with these members holds a program, which can only be run; "" otherwise."""
    kind = next((kind for end, kind in PROGRAMS.items() if any(name.endswith(end) for name in members)), "")
    way = "give its nn.Module to quarl.from_module, or to torch.onnx.export, whose file quarl inspect reads"
    return kind and f"is {kind}, whose code is never run: {way}"


def _kind(value: Any) -> str:
    return value.name[:80] if isinstance(value, Inert) else type(value).__name__


def is_tensor(value: Any) -> bool:
    """Return whether a value of a pickle describes a tensor."""
    return isinstance(value, Inert) and value.called and value.path.startswith(_REBUILD)


def _arrays(
    entries: Iterable[tuple[str, Any]], storages: Mapping[str, Bytes], where: str, halves: bool = True
) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    for name, value in entries:
        if len(arrays) >= MAX_MEMBERS:
            raise QuarlError(f"{where} has more than the {MAX_MEMBERS:,} tensors that are read")
        if name in arrays:
            raise QuarlError(f"{where} has two tensors named {name[:80]!r}; it is damaged or forged")
        arrays[name] = dense(value, storages, f"{where}: {name[:80]!r}", halves=halves)
    return arrays


def _entries(state: dict[Any, Any], prefix: str, levels: int) -> Iterator[tuple[str, Any]]:
    """Yield every (name, value) of a dict and its nested dicts, including the dicts; keys are text or small numbers."""
    for key, value in state.items():
        current().parse()  # a small file can name one dict many times, each time inside another
        if isinstance(key, str) or (type(key) is int and abs(key) < 2**31):
            name = f"{prefix}{str(key)[:200]}"
            yield name, value
            if isinstance(value, dict) and levels > 1:
                yield from _entries(value, f"{name}.", levels - 1)


def _load(data: bytes, where: str) -> tuple[Any, Mapping[str, Bytes]]:
    """Return the content of the file's pickle, with inert tensors, and the bytes of storages by their keys."""
    if not data.startswith(b"PK"):
        try:
            return _load_legacy(data, where)
        except Malformed as error:
            raise QuarlError(f"{where} is not a zip, and damaged as a file of PyTorch before 1.6: {error}") from None
    members = unpack(data, where)
    if said := program(members):
        raise UnsupportedError(f"{where} {said}")
    pickled = next((name for name in members if name.lower().endswith("data.pkl")), None)  # PyTorch takes any case
    try:
        if pickled is None:
            raise Malformed("it has no data.pkl")
        folder = pickled[: -len("data.pkl")]
        if members.get(f"{folder}byteorder", b"little") != b"little":
            raise Malformed("it was saved by a big-endian machine")
        state = interpret(members[pickled], where, allowed=NAMES)
    except Malformed as error:
        raise QuarlError(
            f"{where} is not a file of tensors ({error}); it is damaged or holds code, which is never run"
        ) from None
    return state, {name.removeprefix(f"{folder}data/"): content for name, content in members.items()}


def _load_legacy(data: bytes, where: str) -> tuple[Any, Mapping[str, Bytes]]:
    """Load the format before PyTorch 1.6: five pickles, then each storage as its length and its numbers."""
    file, beside = io.BytesIO(data), list[Any]()
    file.seek(2 + len(LEGACY_START))
    if not data.startswith(LEGACY_START, 2) or interpret(file, where, NAMES) != LEGACY_VERSION:
        raise Malformed("it does not begin as one")
    system = interpret(file, where, NAMES)
    if not isinstance(system, dict) or system.get("little_endian") is not True:
        raise Malformed("it was saved by a big-endian machine")
    state, keys = interpret(file, where, NAMES, beside), interpret(file, where, NAMES)
    types = {kept[2]: kept[1] for kept in beside if isinstance(kept, tuple) and len(kept) > 4 and type(kept[2]) is str}
    storages: dict[str, Bytes] = {}
    position = file.tell()
    for key in keys if isinstance(keys, list) else ():
        if type(key) is not str or (dtype := _dtype(types.get(key))) is None:
            raise Malformed("it has a storage that nothing refers to")
        start = position + LENGTH_BYTES
        position = start + int.from_bytes(data[position:start], "little") * dtype.itemsize
        if position > len(data):
            raise Malformed("it ends before its numbers do")
        storages[key] = memoryview(data)[start:position]
    return state, storages


def _dtype(kind: Any) -> np.dtype[Any] | None:
    """Return the type for PyTorch's name of a number type or of a storage; None if policies do not use it."""
    dtype = _TYPES.get(kind.name.removesuffix("Storage").lower()) if isinstance(kind, Inert) else None
    return None if dtype is None else np.dtype(dtype)


def dense(value: Any, storages: Mapping[str, Bytes], where: str, *, halves: bool = True) -> Array:
    """Return the numbers of a dense tensor; every number that describes it comes from the file.

    Args:
        value: The inert tensor.
        storages: Bytes of storages by key.
        where: The tensor in errors.
        halves: Widen numbers of half precision to float32; otherwise refuse them.
    """
    if isinstance(value, Inert) and value.path.startswith(f"{_REBUILD}parameter") and value.args:
        value = value.args[0]  # ignore the other state of a parameter
    if not is_tensor(value):
        raise QuarlError(f"{where} is a {_kind(value)}, not a tensor")
    if not value.path.startswith(f"{_REBUILD}tensor") or len(value.args) < 4:
        raise UnsupportedError(f"{where} is not a plain dense tensor")
    storage, offset, shape, strides = value.args[:4]
    kept = storage.args[0] if isinstance(storage, Inert) and storage.path == PERSISTENT else ()
    if (
        not isinstance(kept, tuple)
        or len(kept) < 5
        or not isinstance(kept[2], str)
        or kept[2] not in storages
        or kept[5:] not in ((), (None,))
    ):
        raise QuarlError(f"{where} has no numbers in the file; it is damaged")
    spelt = value.args[6] if value.path.endswith("_v3") and len(value.args) > 6 else kept[1]
    dtype, numbers = _dtype(spelt), storages[kept[2]]
    if dtype is None:
        raise UnsupportedError(f"{where} holds {_kind(spelt).lower()[:40]} numbers; save it as float32")
    if dtype.itemsize < 4 and dtype.kind in "fV" and not halves:
        raise UnsupportedError(f"{where} has half precision; save the module as float32")
    for sizes in (shape, strides, (offset,)):
        if not isinstance(sizes, tuple) or not all(type(n) is int and 0 <= n < MAX_INDEX for n in sizes):
            raise QuarlError(f"{where} has an impossible shape; the file is damaged")
    if len(shape) != len(strides) or len(shape) > MAX_DIMENSIONS:
        raise QuarlError(f"{where} has an impossible shape; the file is damaged")
    size, room = int(np.prod(shape, dtype=object)), len(numbers) // dtype.itemsize
    end = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) + 1
    if size > room or (size and end > room):
        raise QuarlError(f"{where} claims shape {shape}, more numbers than the file holds")
    flat = np.ndarray((room,), dtype, numbers)[offset:]
    array = np.lib.stride_tricks.as_strided(flat, shape, [step * dtype.itemsize for step in strides], writeable=False)
    wanted = np.float32 if dtype.kind in "fV" or dtype.name.startswith(("bfloat", "float8")) else dtype
    current(where).copy(size * np.dtype(wanted).itemsize)
    return np.array(array, wanted)  # a copy: the file's memory is not kept alive by one small tensor
