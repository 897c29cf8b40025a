"""Weights of files without a policy that can be run: safetensors, PyTorch and ONNX.

Such a file does not tell how its network is run; only its weights can be inspected. Layers have their outputs along
axis 0, like those of a policy. The name of a weight determines the axis of its outputs; in ONNX, its reader does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import deserialize

from quarl.arrays import Array
from quarl.errors import QuarlError, UnsupportedError, extras, first_line, note, printable
from quarl.inert.reading_budget import reading
from quarl.inert.zip import MAX_MEMBERS, Opened
from quarl.policy import artifact
from quarl.policy.container import TYPES
from quarl.policy.layers import LayerWeights
from quarl.policy.operators import as_float32
from quarl.readers import sb2, sb3
from quarl.readers.torch_file import LEGACY_START, is_script, read_nested

TORCH = (".pt", ".pth", ".ckpt", ".bin")
"""Suffixes of PyTorch's files, for those whose first bytes do not identify them."""
NAMES = "a .safetensors, .pt or .onnx file"
MAX_AXES = 8
FLOATS = {
    **{kind: TYPES[kind] for kind in ("F64", "F32", "F16", "BF16")},
    **{"F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn), "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2)},
}
"""numpy types by the names of safetensors. Tensors of integers are counters and indices, not weights."""
OUTPUTS_LAST = {"kernel": "bias", "weights": "biases", "w": "b", "wx": "b", "wh": "b"}
"""Names in TensorFlow, Keras and Flax of weights [in, out] or [height, width, in, out], and of their biases."""
PRODUCTS = ("MatMul", "Gemm")
"""Operators of ONNX whose second input is a weight [in, out], unless it is transposed."""


def recognize(path: Path | Opened) -> str:
    """Return the format of the file; "" for a policy, a folder, and files of unknown kinds."""
    file = Opened.at(path)
    path, start = file.path, file.start
    if not path.is_file():
        return ""
    if start.startswith(LEGACY_START[:14], 2):
        return "torch"
    if path.suffix == ".onnx":
        return "onnx"
    if file.is_zip:
        agent = "data" in file.names or is_script(file.names) or path.suffix == ".zip"
        return "" if agent or not file.names else "torch"
    if start[8:9] == b"{":
        return "" if _is_artifact(path) else "safetensors"
    return "torch" if path.suffix in TORCH else ""


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
            return checked(_by_name(read_nested(data, str(path))), path)
        try:
            layers = _by_name(_safetensors(data)) if kind == "safetensors" else _constants(data, file.path)
        except QuarlError as error:
            raise error if str(error).startswith(str(path)) else type(error)(f"{path}: {error}") from None
        except Exception as error:  # libraries raise many kinds of errors for broken files
            what = "a complete safetensors" if kind == "safetensors" else "a valid ONNX"
            raise QuarlError(f"{path} is not {what} file ({first_line(error)[:100]}); fetch it again") from None
        return checked(layers, path)


def read_model(path: Path | Opened) -> tuple[LayerWeights, ...]:
    """Return all weights of a Stable-Baselines model, even if QuaRL cannot run its policy.

    A recurrent policy, for example, cannot be run.

    They include critics and targets, with the names in the zip or pickle.
    """
    file = Opened.at(path)
    with reading(path):
        if file.names & {"policy.pth", "pytorch_variables.pth"}:
            return checked(_by_name(sb3.contents(file).state), path)
        _, arrays = sb2.contents(file)
        return checked(_by_name(arrays if isinstance(arrays, dict) else _numbered(arrays)), path)


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


def _safetensors(data: bytes) -> dict[str, Array]:
    """Return the tensors by name; the library checks the header and every offset before it returns data."""
    entries: list[tuple[str, dict[str, Any]]] = deserialize(data)  # type: ignore[no-untyped-call]
    tensors: dict[str, Array] = {}
    for name, entry in sorted(entries, key=lambda item: item[0]):
        kind, shape = str(entry["dtype"]), tuple(entry["shape"])
        if kind in FLOATS and entry["data"]:
            tensors[name] = np.frombuffer(entry["data"], FLOATS[kind]).reshape(shape)
        elif kind.startswith("F") and kind not in FLOATS:
            raise UnsupportedError(f"tensor {name[:80]!r} has {kind[:20]} numbers; save them as F32, F16 or BF16")
    return tensors


def _constants(data: bytes, path: Path) -> list[LayerWeights]:
    """Return the constant matrices of an .onnx file, whatever reads them; a line counts those of integers."""
    with extras("reading .onnx"):
        from quarl.readers import onnx_constants
    model = onnx_constants.parsed(data, path)
    constants, nodes = onnx_constants.Constants(model, path.parent), model.graph.node
    options = [(node, onnx_constants.attributes(node)) for node in nodes if node.op_type in (*PRODUCTS, "Constant")]
    named = constants.tensors | {node.output[0]: given["value"] for node, given in options if "value" in given}
    numbers = {name: constants.numbers(tensor) for name, tensor in named.items()}
    tensors = {name: array for name, array in numbers.items() if array is not None}
    turned = {name for node, given in options if not given.get("transB") for name in node.input[1:2]}
    layers = [_layer(name, array, tensors, name in turned) for name, array in _matrices(tensors).items()]
    if codes := sum(array.ndim >= 2 and not _is_real(array) for array in tensors.values()):
        said = f"matrices of integers, as in quantized layers: {codes}; inspect the model from which they were made"
        if not layers:
            raise QuarlError(f"it holds only {said}")
        note(f"{path}: left out are {said}")
    return layers


def _by_name(tensors: Mapping[str, Array]) -> list[LayerWeights]:
    """Return the tensors of two or more axes that are named like weights, in order; all such tensors if none is."""
    matrices = _matrices(tensors)
    leaves = {name: _leaf(name) for name in matrices}
    weights = [name for name, leaf in leaves.items() if leaf in OUTPUTS_LAST or "weight" in leaf or "kernel" in leaf]
    return [_layer(name, matrices[name], tensors, leaves[name] in OUTPUTS_LAST) for name in weights or matrices]


def _matrices(tensors: Mapping[str, Array]) -> dict[str, Array]:
    return {name: array for name, array in tensors.items() if array.ndim >= 2 and array.size and _is_real(array)}


def _layer(name: str, array: Array, tensors: Mapping[str, Array], outputs_last: bool) -> LayerWeights:
    """Return the weight `array` with the bias that is named like it.

    Args:
        name: Name of the weight.
        array: The weight.
        tensors: Tensors by name, among them the bias.
        outputs_last: The weight is [in, out] or [height, width, in, out].
    """
    leaf = _leaf(name)
    weight = _as_numbers(np.moveaxis(array, (-1, -2), (0, 1)) if outputs_last else array)
    bias = tensors.get(name[: len(name) - len(leaf)] + (OUTPUTS_LAST.get(leaf) or leaf.replace("weight", "bias")))
    fits = bias is not None and _is_real(bias) and bias.shape == weight.shape[:1]
    recurrent = re.search(r"_[ih]h_l\d", leaf) is not None
    feedforward = "Dense" if weight.ndim == 2 else f"Conv{weight.ndim - 2}d"
    operator = "LSTM" if "lstm" in name.lower() else "Recurrent" if recurrent else feedforward
    return LayerWeights(name, operator, weight, _as_numbers(bias) if bias is not None and fits else None)


def _as_numbers(array: Array) -> Array:
    """Return the array as float32; larger numbers become infinite, which `checked` refuses."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, np.float32)


def _is_real(array: Array) -> bool:
    """Return True for floating-point numbers, including types that numpy does not know."""
    return array.dtype.kind == "f" or array.dtype.name.startswith(("bfloat16", "float8"))


def _leaf(name: str) -> str:
    return name[max(name.rfind("."), name.rfind("/")) + 1 :]


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
