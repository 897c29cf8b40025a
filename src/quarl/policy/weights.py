"""Tensors of a PyTorch file as numpy arrays, by name; nothing in the file is executed."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.errors import QuarlError, UnsupportedError
from quarl.policy.container import unpack

Array = NDArray[Any]


def read_tensors(data: bytes, where: str) -> dict[str, Array]:
    """float32 (or integer) arrays of the state dict that `data`, the bytes of a .pth file, holds.

    Floating tensors come out as float32. Raises QuarlError for a damaged file and for anything but a flat dict of
    dense CPU tensors; `where` names the file.
    """
    # Before torch sees it: its zip reader would unpack a bomb, and knows older formats that are not zips at all.
    if not data.startswith(b"PK"):
        raise UnsupportedError(
            f"{where} is no zip: it was saved by PyTorch older than 1.6 or is damaged; load it there and save it again"
        )
    unpack(data, where)
    state = _load(data, where)
    if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
        raise QuarlError(f"{where} holds a {type(state).__name__}, not the parameters of a policy by name")
    return {name: _array(value, f"{where}: {name[:80]!r}") for name, value in state.items()}


def _load(data: bytes, where: str) -> Any:
    import torch  # here, because readers of files without tensors need not wait for it

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # damaged files make it warn about protocols before it fails
        try:
            return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        except Exception as error:  # a damaged file reaches every kind: Unicode, Key, Type, Assertion, struct, ...
            kind = type(error).__name__
    raise QuarlError(f"{where} is not a file of tensors ({kind}); it is damaged or holds code, which is never run")


def _array(value: Any, where: str) -> Array:
    """The tensor's numbers. Its description comes from the file, so nothing is read before it is checked."""
    import torch

    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        raise QuarlError(f"{where} is a {type(value).__name__}, not a tensor")
    if value.layout != torch.strided or value.device.type != "cpu" or value.is_quantized or value.is_nested:
        raise UnsupportedError(f"{where} is not a plain dense tensor")
    if value.numel() * value.element_size() > value.untyped_storage().nbytes():
        raise QuarlError(f"{where} claims shape {tuple(value.shape)}, more numbers than the file holds")
    if value.is_complex():
        raise UnsupportedError(f"{where} holds complex numbers")
    value = value.detach()
    array = (value.float() if value.is_floating_point() else value).contiguous().numpy()
    return np.array(array)  # a copy: the file's memory is not kept alive by one small tensor
