"""Layers of an .onnx file: constants that linear operators read, integer ones on the scales that the graph gives them.

The file is parsed by ONNX's own protocol buffers; nothing in it is run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx

from quarl.arrays import Array
from quarl.errors import QuarlError
from quarl.policy.layers import LayerWeights
from quarl.readers.weights_only import names
from quarl.readers.weights_only.onnx_constants import Constants, attributes

DENSE = ("MatMul", "Gemm", "MatMulInteger")
CONVOLUTIONS = ("Conv", "ConvInteger", "ConvTranspose")
RECURRENT = ("LSTM", "GRU", "RNN")
FUSED = {"FusedMatMul": "MatMul", "FusedGemm": "Gemm", "FusedConv": "Conv"}
"""What ONNX Runtime calls a product that it has joined to an activation or a transposition, and the product."""
QUANTIZED = {"QLinearMatMul": "MatMul", "QGemm": "Gemm", "QLinearConv": "Conv"}
"""Products of codes: each operand is followed by its scale and zero point."""
BIASES = {"QGemm": 6, "QLinearConv": 8}
"""Inputs that are biases, where it is not the third; they are on the product of the operands' scales."""
ONNX = ("", "ai.onnx")
RUNTIME = (*ONNX, "com.microsoft")
"""Domains in which an operator means what its name says: com.microsoft.nchwc has a Conv that shuffles its weights."""
PASSING = ("Identity", "Cast", "Transpose", "QuantizeLinear", "DequantizeLinear")
MAX_HOPS = 16
"""Operators between an integer product and its scale."""


def layers(data: bytes, path: Path) -> list[LayerWeights]:
    """The weights of matrix products, convolutions and recurrent layers, in the order of the graph."""
    try:
        model = onnx.load_model_from_string(data)
        names.check_scales(model.doc_string)
        with np.errstate(over="ignore", invalid="ignore"):  # factors may be any numbers; what is not finite is refused
            return _Graph(model, Constants(model.graph, path.parent)).layers()
    except QuarlError as error:
        raise QuarlError(f"{path}: {error}") from None
    except Exception as error:  # protobuf's own kind, and what its values make numpy and onnx raise
        cause = str(error).splitlines()[0][:100] if str(error) else type(error).__name__
    raise QuarlError(f"{path} is not a sound ONNX file ({cause}); export it again")


class _Graph:
    def __init__(self, model: onnx.ModelProto, constants: Constants) -> None:
        self.constants = constants
        self.nodes = list(model.graph.node)
        self.functions = {(function.domain, function.name) for function in model.functions}
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        for node in self.nodes:
            constants.budget.parse(1 + len(node.input))
            for name in node.input:
                self.readers.setdefault(name, []).append(node)

    def layers(self) -> list[LayerWeights]:
        layers: dict[str, LayerWeights] = {}
        for node in self.nodes:
            self._check_known(node)
            for name in self._weights(node):
                source = self.constants.source(name)
                value = None if source in layers else self.constants.value(name)
                if value is not None and value.size and value.ndim >= 2:
                    layers[source] = self._layer(node, source, value)
        return list(layers.values()) or names.layers(self.constants.initializers())

    def _weights(self, node: onnx.NodeProto) -> Iterator[str]:
        """The inputs of the node that are weights, if they are constant."""
        if node.domain not in RUNTIME:
            return
        if node.op_type in (*DENSE, *CONVOLUTIONS, *FUSED):
            yield from node.input[1:2]
        elif node.op_type in QUANTIZED:
            yield from node.input[3:4]
        elif node.op_type in RECURRENT:
            yield from node.input[1:3]

    def _check_known(self, node: onnx.NodeProto) -> None:
        """Refuses an operator that may hide weights: one that reads a constant matrix and is none of ONNX's own.

        Of ONNX's own, those that are not read here take tables, masks and offsets; Einsum can be any product. Functions
        that the file defines are made of such.
        """
        read_here = (*FUSED, *QUANTIZED, *PASSING) if node.domain in RUNTIME else ()
        standard = node.domain in ONNX and node.op_type != "Einsum"
        if standard or node.op_type in read_here or (node.domain, node.op_type) in self.functions:
            return
        for name in node.input:
            value = self.constants.value(name)
            if value is not None and sum(size > 1 for size in value.shape) > 1:
                operator = f"{node.domain}.{node.op_type}".removeprefix(".")
                raise QuarlError(
                    f"{operator[:80]} reads {name[:80]!r}, perhaps in an order of its own: weights would be left out; "
                    "export the model as the training library has it, before a runtime optimises it"
                )

    def _layer(self, node: onnx.NodeProto, name: str, value: Array) -> LayerWeights:
        kind = (FUSED | QUANTIZED).get(node.op_type, node.op_type)
        self.constants.budget.copy(4 * value.size)
        if kind in RECURRENT:  # [directions, gates * hidden, in]
            weight = names.as_numbers(value.reshape(-1, value.shape[-1]))
            return LayerWeights(name, "LSTM" if kind == "LSTM" else "Recurrent", weight)
        if kind in ("MatMulInteger", "ConvInteger"):
            return self._integer(node, name, value)
        operator = "Dense" if kind in DENSE else f"{kind}{value.ndim - 2}d"
        if kind == "ConvTranspose":
            value = value.swapaxes(0, 1)
        elif kind in DENSE:
            value = np.moveaxis(value, -2 if attributes(node).get("transB", 0) else -1, 0)
        alpha, beta = (np.float32(attributes(node).get(factor, 1)) for factor in ("alpha", "beta"))
        if node.op_type in QUANTIZED:
            weight, unit = self._on_scales(node, value)
            bias = self._constant(node, BIASES.get(node.op_type, -1), len(weight))
            biases = None if bias is None or unit is None else alpha * unit * bias
            return LayerWeights(name, operator, alpha * weight, biases)
        weight = alpha * names.as_numbers(value)
        if kind == "MatMul":
            return LayerWeights(name, operator, weight, self._added(node.output[0], len(weight)))
        bias = self._constant(node, 2, len(weight))
        return LayerWeights(name, operator, weight, None if bias is None else beta * bias)

    def _constant(self, node: onnx.NodeProto, place: int, *sizes: int) -> Array | None:
        """float32 [size]: that input of the node; None where there is none, or it is computed or of another size."""
        value = self.constants.value(node.input[place]) if 0 <= place < len(node.input) else None
        return None if value is None or value.size not in sizes else names.as_numbers(value.reshape(-1))

    def _on_scales(self, node: onnx.NodeProto, codes: Array) -> tuple[Array, Array | None]:
        """The numbers that the codes stand for, and what a code of the bias stands for; None where that is computed."""
        scale, zero_point = (self._constant(node, place, 1, len(codes)) for place in (4, 5))
        if scale is None or zero_point is None:
            raise QuarlError(f"the scale of {node.input[3][:80]!r} is computed or of another size; export it again")
        inputs = self._constant(node, 1, 1)
        return names.dequantized(codes, scale, zero_point), None if inputs is None else inputs * scale

    def _integer(self, node: onnx.NodeProto, name: str, codes: Array) -> LayerWeights:
        """Codes less their zero point, times the scale that their sums are multiplied with later on."""
        dense = node.op_type == "MatMulInteger"
        codes = np.moveaxis(codes, -1, 0) if dense else codes
        zero_point = self.constants.value(node.input[3]) if len(node.input) > 3 else None
        scale, scaled = self._scale(node.output[0], len(codes))
        operator = "Dense" if dense else f"Conv{codes.ndim - 2}d"
        weight = names.dequantized(codes, scale, zero_point)
        return LayerWeights(name, operator, weight, self._added(scaled, len(codes)))

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
