"""Layers of an .onnx file: the constants that linear operators read, integer ones with the scales of the graph.

The file is parsed by ONNX's own protocol buffers; nothing in it is run. Constants are in the file, beside it, or the
result of a few operators on constants.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from quarl.arrays import Array
from quarl.errors import QuarlError
from quarl.policy.layers import LayerWeights
from quarl.readers.onnx_constants import ONNX, Constants, attributes
from quarl.readers.weights_only import named_tensors

LAYERS = {
    **dict.fromkeys(("MatMul", "Gemm", "FusedMatMul", "FusedGemm", "MatMulInteger", "QLinearMatMul", "QGemm"), "Dense"),
    **dict.fromkeys(("Conv", "FusedConv", "ConvInteger", "QLinearConv"), "Conv"),
    **{"ConvTranspose": "ConvTranspose", "LSTM": "LSTM", "GRU": "Recurrent", "RNN": "Recurrent"},
}
"""Layer name by operator with weights, including those that ONNX Runtime fuses with others."""
RECURRENT = ("LSTM", "Recurrent")
ADDED = ("MatMul", "FusedMatMul", "MatMulInteger", "ConvInteger")
"""Operators whose bias is added by another one."""
QUANTIZED = {"QLinearMatMul": -1, "QGemm": 6, "QLinearConv": 8}
"""Index of the bias, or -1, for products of codes; the bias is on the product of the operands' scales. Each operand is
followed by its scale and zero point."""
RUNTIME = (*ONNX, "com.microsoft")
"""Domains in which an operator has its standard meaning: com.microsoft.nchwc has a Conv that shuffles its weights."""
PASSING = ("Identity", "Cast", "Transpose", "QuantizeLinear", "DequantizeLinear")
MAX_HOPS = 16
"""Largest number of operators between a constant and its reader, or an integer product and its scale."""


def layers(data: bytes, folder: Path) -> list[LayerWeights]:
    """Return the weights of matrix products, convolutions and recurrent layers, in the order of the graph.

    folder: folder that must contain the external files of constants.
    """
    model = onnx.load_model_from_string(data)
    named_tensors.check_scales(model.doc_string)
    with np.errstate(over="ignore", invalid="ignore"):  # any factors are possible; infinite results are refused
        return _Graph(model, folder).layers()


class _Graph(Constants):
    def __init__(self, model: onnx.ModelProto, folder: Path) -> None:
        super().__init__(model, folder)
        self.nodes = model.graph.node
        self.functions = {(function.domain, function.name) for function in model.functions}
        self.makers = {name: node for node in self.nodes for name in node.output if name}
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        self.values: dict[str, Array | None] = {}
        for node in self.nodes:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)

    def layers(self) -> list[LayerWeights]:
        layers: dict[str, LayerWeights] = {}
        for node in self.nodes:
            self.check_known(node)
            kind = LAYERS.get(node.op_type) if node.domain in RUNTIME else None
            first, end = (1, 3) if kind in RECURRENT else (3, 4) if node.op_type in QUANTIZED else (1, 2)
            for name in node.input[first:end] if kind is not None else ():
                source = self.source(name)
                value = None if source in layers else self.value(name)
                if value is not None and value.size and value.ndim >= 2:
                    layers[source] = self.layer(node, source, value)
        if layers:
            return list(layers.values())
        return named_tensors.layers({name: value for name in self.tensors if (value := self.value(name)) is not None})

    def check_known(self, node: onnx.NodeProto) -> None:
        """Refuse an operator that may hide weights: one outside ONNX's own set that reads a constant matrix.

        ONNX's own operators that are not read here take tables, masks and offsets, except Einsum, which can be any
        product. Functions that the file defines consist of such operators.
        """
        read_here = node.domain in RUNTIME and (node.op_type in LAYERS or node.op_type in PASSING)
        standard = node.domain in ONNX and node.op_type != "Einsum"
        if standard or read_here or (node.domain, node.op_type) in self.functions:
            return
        for name in node.input:
            value = self.value(name)
            if value is not None and sum(size > 1 for size in value.shape) > 1:
                operator = f"{node.domain}.{node.op_type}".removeprefix(".")
                raise QuarlError(
                    f"{operator[:80]} reads {name[:80]!r}, perhaps in an order of its own: weights would be left out; "
                    "export the model as the training library has it, before a runtime optimizes it"
                )

    def layer(self, node: onnx.NodeProto, name: str, value: Array) -> LayerWeights:
        """Return the weight `value`, named `name`, as the node reads it, with its bias.

        Args:
            node: The node that reads the weight.
            name: Name of the weight.
            value: The weight in the layout of ONNX.

        Raises:
            QuarlError: The scale of a quantized weight is computed, or has the wrong size.
        """
        kind, options = LAYERS[node.op_type], attributes(node)
        self.budget.copy(4 * value.size)
        if kind in RECURRENT:  # [directions, gates * hidden, in]
            return LayerWeights(name, kind, named_tensors.as_numbers(value.reshape(-1, value.shape[-1])))
        dense = -2 if options.get("transB", 0) else -1
        weight = np.moveaxis(value, {"Dense": dense, "ConvTranspose": 1}.get(kind, 0), 0)
        alpha, beta = (np.float32(options.get(factor, 1)) for factor in ("alpha", "beta"))
        if node.op_type in QUANTIZED:
            places = 4, 5, QUANTIZED[node.op_type]
            scale, zero_point, bias = (self.input(node, place, 1, len(weight)) for place in places)
            if scale is None or zero_point is None:
                raise QuarlError(f"the scale of {node.input[3][:80]!r} is computed or of another size; export it again")
            weight, inputs = named_tensors.dequantized(weight, scale, zero_point), self.input(node, 1, 1)
            bias = None if bias is None or inputs is None or len(bias) != len(weight) else inputs * scale * bias
            beta = alpha
        elif node.op_type in ADDED:
            output = node.output[0]
            if node.op_type.endswith("Integer"):  # codes, whose sums are multiplied with their scale later on
                scale, output = self.scale(output, len(weight))
                weight = named_tensors.dequantized(
                    weight, scale, self.value(node.input[3]) if len(node.input) > 3 else None
                )
            bias = self.added(output, len(weight))
        else:
            bias = self.input(node, 2, len(weight))
        operator = kind if kind == "Dense" else f"{kind}{weight.ndim - 2}d"
        weight = alpha * named_tensors.as_numbers(weight)
        return LayerWeights(name, operator, weight, None if bias is None else beta * bias)

    def input(self, node: onnx.NodeProto, place: int, *sizes: int) -> Array | None:
        """Return an input of the node, float32 [size]; None if it is missing, computed or of another size."""
        value = self.value(node.input[place]) if 0 <= place < len(node.input) else None
        return None if value is None or value.size not in sizes else named_tensors.as_numbers(value.reshape(-1))

    def scale(self, name: str, size: int) -> tuple[Array, str]:
        """Return the constant that multiplies the product `name`, one number or one per output, and the result.

        Casts, a product with the scale of the inputs, and the share of their zero point may be between them.
        """
        for _ in range(MAX_HOPS):
            following = self.readers.get(name, [])
            if len(following) != 1 or not following[0].output:
                break
            node = following[0]
            if node.op_type not in ("Cast", "Sub", "Add", "Mul"):
                break
            if node.op_type == "Mul":
                factors = [factor for factor in node.input[:2] if factor != name]
                makers = [self.makers[factor] for factor in factors if factor in self.makers]
                factors += [factor for maker in makers if maker.op_type == "Mul" for factor in maker.input[:2]]
                for factor in factors:
                    value = self.value(factor)
                    if value is not None and value.size in (1, size):
                        return named_tensors.as_numbers(value.reshape(-1)), node.output[0]
            name = node.output[0]
        return np.ones(1, np.float32), name

    def added(self, name: str, size: int) -> Array | None:
        """Return the constant, float32 [size], that is added to `name`."""
        for node in self.readers.get(name, [])[:MAX_HOPS]:
            for place, term in enumerate(node.input[:2] if node.op_type == "Add" else ()):
                if term != name and (value := self.input(node, place, size)) is not None:
                    return value
        return None

    def source(self, name: str) -> str:
        """Return the name of the constant from which `name` is computed: the name that its author chose."""
        for _ in range(MAX_HOPS):
            node = self.makers.get(name)
            if name in self.tensors or node is None or not node.input:
                break
            name = node.input[0]
        return name

    def value(self, name: str) -> Array | None:
        """Return the constant `name` after casts, transpositions and dequantization; None for a computed value."""
        if name not in self.values:
            self.values[name] = None  # breaks cycles
            if name in self.tensors:
                self.values[name] = self.numbers(self.tensors[name])
            elif name in self.makers:
                self.values[name] = self.folded(self.makers[name])
        return self.values[name]

    def folded(self, node: onnx.NodeProto) -> Array | None:
        """Return the node's result from constants.

        None if its operator is not supported, or it reads computed values.
        """
        options = attributes(node)
        if node.op_type == "Constant":
            tensor = options.get("value")
            return self.numbers(tensor) if isinstance(tensor, onnx.TensorProto) else None
        if node.op_type not in PASSING or node.op_type == "QuantizeLinear":
            return None
        source, scale, zero_point, *_ = (*map(self.value, node.input[:3]), None, None, None)
        if source is None or node.op_type in ("Identity", "Cast"):
            return source
        if node.op_type == "Transpose":
            return source.transpose(options.get("perm"))
        axis = int(options.get("axis", 1))
        if scale is None or (scale.size > 1 and scale.shape != (source.shape[axis],)):
            return None  # it is computed, or quantizes blocks
        self.budget.copy(8 * source.size)
        return named_tensors.dequantized(source, scale, zero_point, axis)
