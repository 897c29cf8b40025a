"""Layers among tensors that only have names; the name of a weight determines the axis of its outputs."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from quarl.arrays import Array
from quarl.errors import QuarlError
from quarl.policy.layers import LayerWeights

OUTPUTS_LAST = {"kernel": "bias", "weights": "biases", "w": "b", "wx": "b", "wh": "b"}
"""Names in TensorFlow, Keras and Flax of weights [in, out] or [height, width, in, out], and of their biases."""
MULTIPLIERS = "statically quantised by QuaRL: its scales are multipliers of sums"
"""Description in QuaRL's own .tflite and .onnx files whose scales are not those of the weights."""


def layers(tensors: Mapping[str, Array]) -> list[LayerWeights]:
    """Return the tensors of two or more axes that are named like weights, in order; all such tensors if none is."""
    matrices = {name: array for name, array in tensors.items() if array.ndim >= 2 and array.size and _is_real(array)}
    leaves = {name: _leaf(name) for name in matrices}
    weights = [name for name, leaf in leaves.items() if leaf in OUTPUTS_LAST or "weight" in leaf or "kernel" in leaf]
    return [_layer(name, matrices[name], tensors) for name in weights or matrices]


def check_scales(about: str) -> None:
    """Refuse a file whose scales do not describe its weights."""
    if about == MULTIPLIERS:
        raise QuarlError(f"{MULTIPLIERS}, not scales of weights; inspect the policy that was exported")


def outputs_first(weight: Array) -> Array:
    """Return a weight [out, in] from [in, out], or [out, in, height, width] from [height, width, in, out]."""
    return as_numbers(np.moveaxis(weight, (-1, -2), (0, 1)))


def _layer(name: str, array: Array, tensors: Mapping[str, Array]) -> LayerWeights:
    leaf = _leaf(name)
    weight = outputs_first(array) if leaf in OUTPUTS_LAST else as_numbers(array)
    bias = tensors.get(name[: len(name) - len(leaf)] + (OUTPUTS_LAST.get(leaf) or leaf.replace("weight", "bias")))
    fits = bias is not None and _is_real(bias) and bias.shape == weight.shape[:1]
    recurrent = re.search(r"_[ih]h_l\d", leaf) is not None
    feedforward = "Dense" if weight.ndim == 2 else f"Conv{weight.ndim - 2}d"
    operator = "LSTM" if "lstm" in name.lower() else "Recurrent" if recurrent else feedforward
    return LayerWeights(name, operator, weight, as_numbers(bias) if bias is not None and fits else None)


def as_numbers(array: Array) -> Array:
    """Return the array as float32; larger numbers become infinite, which `weights_only.checked` refuses."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, np.float32)


def dequantized(codes: Array, scale: Array, zero_point: Array | None = None, axis: int = 0) -> Array:
    """Return (codes - zero point) * scale in float32.

    Args:
        codes: Integer codes.
        scale: One number, or one for every place along `axis`.
        zero_point: As `scale`; None means 0.
        axis: Axis along which scales and zero points differ.
    """
    along = [1] * codes.ndim
    if max(scale.size, 0 if zero_point is None else zero_point.size) > 1:
        along[axis] = -1
    with np.errstate(over="ignore", invalid="ignore"):  # any scales are possible; infinite results are refused later
        shift = 0 if zero_point is None else as_numbers(zero_point).reshape(along)
        return as_numbers((as_numbers(codes) - shift) * as_numbers(scale).reshape(along))


def _is_real(array: Array) -> bool:
    """Return True for floating-point numbers, including types that numpy does not know."""
    return array.dtype.kind == "f" or array.dtype.name.startswith(("bfloat16", "float8"))


def _leaf(name: str) -> str:
    return name[max(name.rfind("."), name.rfind("/")) + 1 :]
