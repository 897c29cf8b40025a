"""Layers of an .onnx file: constants that linear operators read, integer ones on the scales that the graph gives them.

The file is parsed by ONNX's own protocol buffers; nothing in it is run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from quarl.errors import QuarlError
from quarl.policy.foreign import names
from quarl.policy.foreign.onnx_constants import Constants, attributes
from quarl.policy.layers import LayerWeights

Array = NDArray[Any]
DENSE = ("MatMul", "Gemm", "MatMulInteger")
CONVOLUTIONS = ("Conv", "ConvInteger", "ConvTranspose")
RECURRENT = ("LSTM", "GRU", "RNN")
MAX_HOPS = 16
"""Operators between an integer product and its scale."""


def layers(data: bytes, path: Path) -> list[LayerWeights]:
    """The weights of matrix products, convolutions and recurrent layers, in the order of the graph."""
    try:
        graph = onnx.load_model_from_string(data).graph
        return _Graph(graph, Constants(graph, path.parent, len(data))).layers()
    except QuarlError as error:
        raise QuarlError(f"{path}: {error}") from None
    except Exception as error:  # protobuf's own kind, and what its values make numpy and onnx raise
        cause = str(error).splitlines()[0][:100] if str(error) else type(error).__name__
    raise QuarlError(f"{path} is not a sound ONNX file ({cause}); export it again")


class _Graph:
    def __init__(self, graph: onnx.GraphProto, constants: Constants) -> None:
        self.constants = constants
        self.nodes = list(graph.node)
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        for node in self.nodes:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)

    def layers(self) -> list[LayerWeights]:
        found: dict[str, LayerWeights] = {}
        for node in self.nodes:
            for name in self._weights(node):
                source = self.constants.source(name)
                value = None if source in found else self.constants.value(name)
                if value is not None and value.size and value.ndim >= 2:
                    found[source] = self._layer(node, source, value)
        return list(found.values()) or names.layers(self.constants.initializers())

    def _weights(self, node: onnx.NodeProto) -> Iterator[str]:
        """The inputs of the node that are weights, if they are constant."""
        if node.op_type in (*DENSE, *CONVOLUTIONS):
            yield from node.input[1:2]
        elif node.op_type in RECURRENT:
            yield from node.input[1:3]

    def _layer(self, node: onnx.NodeProto, name: str, value: Array) -> LayerWeights:
        kind = node.op_type
        self.constants.spend(4 * value.size)
        if kind in RECURRENT:  # [directions, gates * hidden, in]
            weight = names.as_numbers(value.reshape(-1, value.shape[-1]))
            return LayerWeights(name, "LSTM" if kind == "LSTM" else "Recurrent", weight)
        if kind in ("MatMulInteger", "ConvInteger"):
            return self._integer(node, name, value)
        operator = "Dense" if kind in DENSE else f"{kind}{value.ndim - 2}d"
        if kind == "ConvTranspose":
            value = value.swapaxes(0, 1)
        elif kind == "MatMul" or (kind == "Gemm" and not attributes(node).get("transB", 0)):
            value = np.moveaxis(value, -1, 0)
        weight = names.as_numbers(value)
        if kind == "MatMul":
            return LayerWeights(name, operator, weight, self._added(node.output[0], len(weight)))
        bias = self.constants.value(node.input[2]) if len(node.input) > 2 else None
        fitting = names.as_numbers(bias.reshape(-1)) if bias is not None and bias.size == len(weight) else None
        return LayerWeights(name, operator, weight, fitting)

    def _integer(self, node: onnx.NodeProto, name: str, codes: Array) -> LayerWeights:
        """Codes less their zero point, times the scale that their sums are multiplied with later on."""
        dense = node.op_type == "MatMulInteger"
        weight = names.as_numbers(np.moveaxis(codes, -1, 0) if dense else codes)
        along = (-1,) + (1,) * (weight.ndim - 1)
        zero_point = self.constants.value(node.input[3]) if len(node.input) > 3 else None
        if zero_point is not None:
            weight = weight - names.as_numbers(zero_point).reshape(along)
        scale, scaled = self._scale(node.output[0], len(weight))
        operator = "Dense" if dense else f"Conv{codes.ndim - 2}d"
        return LayerWeights(name, operator, weight * scale.reshape(along), self._added(scaled, len(weight)))

    def _scale(self, name: str, size: int) -> tuple[Array, str]:
        """The constant, one number or one for each output, that the product `name` is multiplied with, and the result.

        Between them there may be casts, a product with the scale of the inputs, and the share of their zero point.
        """
        for _ in range(MAX_HOPS):
            following = self.readers.get(name, [])
            if len(following) != 1 or not following[0].output:
                break
            node = following[0]
            if node.op_type not in ("Cast", "Sub", "Add", "Mul"):
                break
            if node.op_type == "Mul":
                others = [other for other in node.input[:2] if other != name]
                for other in (*others, *(far for near in others for far in self.constants.factors(near))):
                    value = self.constants.value(other)
                    if value is not None and value.size in (1, size):
                        return names.as_numbers(value.reshape(-1)), node.output[0]
            name = node.output[0]
        return np.ones(1, np.float32), name

    def _added(self, name: str, size: int) -> Array | None:
        """float32 [size]: the constant that is added to `name`."""
        for node in self.readers.get(name, [])[:MAX_HOPS]:
            for other in node.input[:2] if node.op_type == "Add" else ():
                value = self.constants.value(other) if other != name else None
                if value is not None and value.size == size:
                    return names.as_numbers(value.reshape(-1))
        return None
