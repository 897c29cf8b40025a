"""Tensors of a PyTorch file as numpy arrays, by name; nothing in the file is executed."""

from __future__ import annotations

import io
import pickletools
import re
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.errors import QuarlError, UnsupportedError
from quarl.policy.container import LIMIT_BYTES, MAX_MEMBERS, unpack

Array = NDArray[Any]
MAX_NESTING = 4
"""Dicts in dicts that are searched: a checkpoint has its state dict in the first or second."""
MAX_ENTRIES = 16 * MAX_MEMBERS
"""Entries that are looked at: a small file can name one dict many times, each time inside another."""
_NAMES = re.compile(
    r"collections OrderedDict"
    r"|torch (Size|device|\w+Storage|bool|(u?int|float|bfloat|complex)\w+)"
    r"|torch\.storage UntypedStorage"
    r"|torch\._utils _rebuild_(parameter(_with_state)?|tensor(_v[23])?|sparse_tensor)"
    r"|torch\.serialization _get_layout"
)
"""What state dicts name. PyTorch's own list is longer, and a call of bytearray makes gigabytes of one number."""


def read_tensors(data: bytes, where: str) -> dict[str, Array]:
    """float32 (or integer) arrays of the state dict that `data`, the bytes of a .pth file, holds.

    Floating tensors come out as float32. Raises QuarlError for a damaged file and for anything but a flat dict of
    dense CPU tensors; `where` names the file.
    """
    state = _load(data, where)
    if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
        raise QuarlError(f"{where} holds a {type(state).__name__}, not the parameters of a policy by name")
    return _arrays(state.items(), where)


def read_nested(data: bytes, where: str) -> dict[str, Array]:
    """The same of a checkpoint: tensors of dicts in dicts, their names joined with dots; the rest is left out."""
    import torch

    state = _load(data, where)
    if not isinstance(state, dict):
        raise QuarlError(f"{where} holds a {type(state).__name__}, not parameters by name")
    entries = _bounded(_entries(state, "", MAX_NESTING), where)
    return _arrays(((name, value) for name, value in entries if isinstance(value, torch.Tensor)), where)


def _arrays(entries: Iterable[tuple[str, Any]], where: str) -> dict[str, Array]:
    """The tensors as arrays, bounded together: a file can name one tensor many times."""
    found: dict[str, Array] = {}
    total = 0
    for name, value in entries:
        at = f"{where}: {name[:80]!r}"
        _check(value, at)
        total += value.numel() * value.element_size()
        if len(found) >= MAX_MEMBERS or total > LIMIT_BYTES:
            raise QuarlError(f"{where} has more than the {MAX_MEMBERS:,} tensors or {LIMIT_BYTES:,} bytes of them")
        found[name] = _array(value)
    return found


def _bounded(entries: Iterator[tuple[str, Any]], where: str) -> Iterator[tuple[str, Any]]:
    for count, entry in enumerate(entries):
        if count >= MAX_ENTRIES:
            raise QuarlError(f"{where} has more than {MAX_ENTRIES:,} entries; save the parameters alone")
        yield entry


def _entries(state: dict[Any, Any], prefix: str, levels: int) -> Iterator[tuple[str, Any]]:
    """Every (name, value) of a dict and of those in it, dicts themselves too; keys are text or small numbers."""
    for key, value in state.items():
        if isinstance(key, str) or (type(key) is int and abs(key) < 2**31):
            name = f"{prefix}{str(key)[:200]}"
            yield name, value
            if isinstance(value, dict) and levels > 1:
                yield from _entries(value, f"{name}.", levels - 1)


def _load(data: bytes, where: str) -> Any:
    # Before torch sees it: its zip reader would unpack a bomb, and knows older formats that are not zips at all.
    if not data.startswith(b"PK"):
        raise UnsupportedError(
            f"{where} is no zip: it was saved by PyTorch older than 1.6 or is damaged; load it there and save it again"
        )
    members = unpack(data, where)
    pickles = [members[name] for name in members if name.lower().endswith("data.pkl")]  # PyTorch takes any case
    import torch  # here, because readers of files without tensors need not wait for it

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # damaged files make it warn about protocols before it fails
        try:
            unknown = [name for pickle in pickles for name in _names(pickle) if not _NAMES.fullmatch(name)]
            if not unknown:
                return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
            cause = f"it names {unknown[0][:80].replace(' ', '.')}"
        except Exception as error:  # a damaged file reaches every kind: Unicode, Key, Type, Assertion, struct, ...
            cause = type(error).__name__
    raise QuarlError(f"{where} is not a file of tensors ({cause}); it is damaged or holds code, which is never run")


def _names(pickle: bytes) -> Iterator[str]:
    """What the pickle names, as "module name"; GLOBAL is the only opcode for it that PyTorch's reader knows."""
    return (str(argument) for opcode, argument, _ in pickletools.genops(pickle) if opcode.name == "GLOBAL")


def _check(value: Any, where: str) -> None:
    """Refuses all but dense tensors in memory that have the numbers they claim: descriptions come from the file."""
    import torch

    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        raise QuarlError(f"{where} is a {type(value).__name__}, not a tensor")
    if value.layout != torch.strided or value.device.type != "cpu" or value.is_quantized or value.is_nested:
        raise UnsupportedError(f"{where} is not a plain dense tensor")
    if value.numel() * value.element_size() > value.untyped_storage().nbytes():
        raise QuarlError(f"{where} claims shape {tuple(value.shape)}, more numbers than the file holds")
    if value.is_complex():
        raise UnsupportedError(f"{where} holds complex numbers")


def _array(value: Any) -> Array:
    value = value.detach()
    array = (value.float() if value.is_floating_point() else value).contiguous().numpy()
    return np.array(array)  # a copy: the file's memory is not kept alive by one small tensor
