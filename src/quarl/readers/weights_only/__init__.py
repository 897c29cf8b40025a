"""Weights of files without a policy: safetensors, PyTorch, ONNX, TensorFlow Lite, frozen TensorFlow graphs.

Such a file does not describe the observation or the meaning of the output, so its network cannot be run; only its
weights can be inspected. Each reader returns layers with their outputs along axis 0, like those of a policy.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from quarl.arrays import Array
from quarl.errors import QuarlError, extras, first_line, printable
from quarl.inert.reading_budget import reading
from quarl.inert.zip import MAX_MEMBERS, Opened
from quarl.policy import artifact
from quarl.policy.layers import LayerWeights
from quarl.policy.operators import as_float32
from quarl.readers import sb2, sb3
from quarl.readers.torch_file import LEGACY_START, is_script, read_nested
from quarl.readers.weights_only import named_tensors

SUFFIXES = {".onnx": "onnx", ".pb": "frozen", ".pt": "torch", ".pth": "torch", ".ckpt": "torch", ".bin": "torch"}
"""Readers by suffix, for files whose first bytes do not identify them."""
NAMES = "a .safetensors, .pt, .onnx, .tflite or frozen TensorFlow .pb file"
MAX_AXES = 8
FORMATS = {
    "onnx": ("a valid ONNX file", "export it again"),
    "tflite": ("a valid .tflite file", "convert the model again"),
    "frozen": ("a frozen TensorFlow graph", "export the graph again"),
    "safetensors": ("a complete safetensors file", "fetch it again"),
}
"""Expected format and remedy of each reader, for files that it cannot parse; PyTorch's reader raises its own errors."""


def recognize(path: Path | Opened) -> str:
    """Return the name of the reader for the file; "" for a policy, a folder, and files of unknown kinds."""
    file = Opened.at(path)
    path, start = file.path, file.start
    if not path.is_file():
        return ""
    if start.startswith(LEGACY_START[:14], 2):
        return "torch"
    if start[4:8] == b"TFL3":
        return "tflite"
    if path.suffix in (".onnx", ".pb"):
        return SUFFIXES[path.suffix]
    if file.is_zip:
        agent = "data" in file.names or is_script(file.names) or path.suffix == ".zip"
        return "" if agent or not file.names else "torch"
    if start[8:9] == b"{":
        return "" if _is_artifact(path) else "safetensors"
    return SUFFIXES.get(path.suffix, "")


def read_weights(path: Path | Opened, kind: str = "") -> tuple[LayerWeights, ...]:
    """Return the layers of the file in its order; raise QuarlError if it is damaged or holds no weights.

    kind: result of `recognize`, if it is known already.
    """
    file = Opened.at(path)
    kind = kind or recognize(file)
    if not kind:
        raise QuarlError(f"{path} is not {NAMES}; check the path")
    with reading(path):
        data = file.contents()
        if kind == "torch":
            return checked(named_tensors.layers(read_nested(data, str(path))), path)
        try:
            with extras(f"reading .{kind}"):
                layers = importlib.import_module(f"{__name__}.{kind}").layers(data, file.path.parent)
        except QuarlError as error:
            raise error if str(error).startswith(str(path)) else type(error)(f"{path}: {error}") from None
        except Exception as error:  # libraries raise many kinds of errors for broken files
            what, way = FORMATS[kind]
            raise QuarlError(f"{path} is not {what} ({first_line(error)[:100]}); {way}") from None
        return checked(layers, path)


def read_model(path: Path | Opened) -> tuple[LayerWeights, ...]:
    """Return all weights of a Stable-Baselines model, even if QuaRL cannot run its policy.

    A recurrent policy, for example, cannot be run.

    They include critics and targets, with the names in the zip or pickle.
    """
    file = Opened.at(path)
    with reading(path):
        if file.names & {"policy.pth", "pytorch_variables.pth"}:
            return checked(named_tensors.layers(sb3.contents(file).state), path)
        _, arrays = sb2.contents(file)
        return checked(named_tensors.layers(arrays if isinstance(arrays, dict) else _numbered(arrays)), path)


def checked(layers: Sequence[LayerWeights], path: str | Path | Opened) -> tuple[LayerWeights, ...]:
    """Return the layers if they can be inspected: some weights, not too many tensors, all numbers finite.

    Names come from the file; they are made safe to print on a terminal.
    """
    if not layers:
        raise QuarlError(f"{path} holds no weights of layers (matrices of real numbers)")
    if len(layers) > MAX_MEMBERS:
        raise QuarlError(f"{path} has {len(layers):,} layers, more than the limit of {MAX_MEMBERS:,}")
    for layer in layers:
        if not 2 <= len(layer.weight.shape) <= MAX_AXES or layer.weight.size == 0:
            raise QuarlError(f"{path}: the weight of layer {layer.name[:80]!r} has shape {layer.weight.shape}")
        for array in (as_float32(layer.weight), layer.bias):
            if array is not None and not np.isfinite(array).all():
                raise QuarlError(f"{path}: layer {layer.name[:80]!r} holds NaN or infinity; it cannot be measured")
    return tuple(replace(layer, name=printable(layer.name)) for layer in layers)


def _is_artifact(path: Path) -> bool:
    """Return True for a policy that QuaRL saved, intact or not: its own reader gives the better error."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return artifact.FORMAT.encode() in file.read(min(length, artifact.SMALL))


def _numbered(arrays: list[Array]) -> dict[str, Array]:
    """Return names for the nameless arrays of old files: a vector that follows a weight is its bias."""
    named: dict[str, Array] = {}
    weight = ""
    for number, array in enumerate(arrays):
        name = f"{number}/w"
        if array.ndim == 1 and weight and array.shape == named[weight].shape[-1:]:
            name = f"{weight.removesuffix('/w')}/b"
            weight = ""
        elif array.ndim >= 2:
            weight = name
        named[name] = array
    return named
