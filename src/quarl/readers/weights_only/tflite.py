"""Layers of a .tflite file: constants that linear operators read, quantized ones as the real numbers they stand for.

Only the schema's accessors are used, which read the flatbuffer where it lies; no interpreter sees the file. What they
find is checked here, because in a damaged file offsets and lengths are any numbers.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from ai_edge_litert import schema_py_generated as schema

from quarl.arrays import Array
from quarl.inert.objects import Malformed
from quarl.inert.reading_budget import current
from quarl.policy.layers import LayerWeights
from quarl.quant.packing import packed_size, unpack
from quarl.readers.weights_only import named_tensors

Operator, TensorType = schema.BuiltinOperator, schema.TensorType
NUMBERS: Mapping[int, Any] = {
    TensorType.FLOAT32: np.float32,
    TensorType.FLOAT16: np.float16,
    TensorType.FLOAT64: np.float64,
    TensorType.BFLOAT16: ml_dtypes.bfloat16,
    TensorType.INT8: np.int8,
    TensorType.UINT8: np.uint8,
    TensorType.INT16: np.int16,
    TensorType.INT32: np.int32,
}
PACKED = {TensorType.INT4: 4, TensorType.INT2: 2}
"""Bits of codes that share a byte."""
KINDS: Mapping[int, tuple[str, range]] = {
    Operator.FULLY_CONNECTED: ("Dense", range(1, 2)),
    Operator.CONV_2D: ("Conv2d", range(1, 2)),
    Operator.DEPTHWISE_CONV_2D: ("Conv2d", range(1, 2)),
    Operator.TRANSPOSE_CONV: ("ConvTranspose2d", range(1, 2)),
    Operator.LSTM: ("LSTM", range(1, 9)),
    Operator.UNIDIRECTIONAL_SEQUENCE_LSTM: ("LSTM", range(1, 9)),
}
"""By operator: what a layer of it is called, and which of its inputs are weights."""
BIASED = ("Dense", "Conv2d")
"""Layers whose third input is a bias."""


def layers(data: bytes, folder: Path) -> list[LayerWeights]:
    """The weights of dense, convolution and LSTM operators, in the order of the file."""
    try:
        file = _File(data)
        named_tensors.check_scales(str(file.model.Description() or b"", "utf-8", "replace"))
        return file.layers()
    except (struct.error, ValueError, TypeError, IndexError, OverflowError, AttributeError):
        raise Malformed("an offset leads outside it") from None


class _File:
    def __init__(self, data: bytes) -> None:
        self.data, self.budget, self.model = data, current(), schema.Model.GetRootAs(data)
        codes = self.tables(self.model, "OperatorCodes")  # old files have the deprecated one only
        self.codes = {
            index: max(int(code.BuiltinCode()), int(code.DeprecatedBuiltinCode())) for index, code in enumerate(codes)
        }

    def layers(self) -> list[LayerWeights]:
        layers: dict[tuple[int, int], LayerWeights] = {}
        for number, graph in enumerate(self.tables(self.model, "Subgraphs")):
            operators = [
                (self.codes.get(int(operator.OpcodeIndex()), -1), operator)
                for operator in self.tables(graph, "Operators")
            ]
            widened = {  # by tensor that a DEQUANTIZE makes: what it reads
                int(operator.Outputs(0)): int(operator.Inputs(0))
                for code, operator in operators
                if code == Operator.DEQUANTIZE and operator.OutputsLength() and operator.InputsLength()
            }
            for code, operator in operators:
                if code not in KINDS:
                    continue
                kind, places = KINDS[code]
                inputs = _vector(operator, "Inputs")[: places.stop + 1].tolist()
                for place in places[: max(len(inputs) - 1, 0)]:
                    index = widened.get(inputs[place], inputs[place])
                    weight = self._value(graph, index) if (number, index) not in layers else None
                    if weight is not None and weight.ndim >= 2 and weight.size:
                        weight = _outputs_first(code, weight)
                        name = str(graph.Tensors(index).Name() or b"", "utf-8", "replace") or f"tensor {index}"
                        bias = self._value(graph, inputs[2]) if kind in BIASED and len(inputs) > 2 else None
                        bias = None if bias is None or bias.size != len(weight) else bias.reshape(-1)
                        layers[number, index] = LayerWeights(name, kind, weight, bias)
        return list(layers.values())

    def _value(self, graph: Any, index: int) -> Array | None:
        """float32 numbers of a constant; None for a tensor that is left out, computed or holds no numbers of ours."""
        if index < 0:
            return None
        tensor = self.table(graph, "Tensors", index, "an operator reads tensor")
        content, kind = self._content(tensor), int(tensor.Type())
        if not content.size:
            return None
        shape = tuple(_vector(tensor, "Shape")[:9].tolist())
        size = math.prod(shape)
        if len(shape) > 8 or min(shape, default=1) < 0:
            raise Malformed(f"tensor {index} has an impossible shape")
        if kind not in NUMBERS and kind not in PACKED:
            return None
        num_bytes = packed_size(size, PACKED[kind]) if kind in PACKED else size * np.dtype(NUMBERS[kind]).itemsize
        if content.nbytes != num_bytes:
            raise Malformed(f"tensor {index} has {content.nbytes:,} bytes for {size:,} numbers")
        self.budget.copy(8 * size)
        packed = kind in PACKED
        codes = unpack(content.data, PACKED[kind], size) if packed else np.frombuffer(content, NUMBERS[kind])
        return _dequantized(tensor, codes.reshape(shape))

    def _content(self, tensor: Any) -> Array:
        """uint8: the bytes of the tensor's buffer, in the flatbuffer or behind it; none where it is computed."""
        index = int(tensor.Buffer())
        buffer = self.table(self.model, "Buffers", index, "a tensor names buffer")
        offset, size = int(buffer.Offset()), int(buffer.Size())
        if offset <= 1:  # 0 and 1 say that the bytes are inside
            return _vector(buffer, "Data").view(np.uint8)
        if offset + size > len(self.data):
            raise Malformed(f"buffer {index} lies beyond its end")
        return np.frombuffer(self.data, np.uint8)[offset : offset + size]

    def tables(self, parent: Any, name: str) -> list[Any]:
        """A list that is walked through: all together are bounded, since lists can lie in one another."""
        count = self._count(parent, name)
        self.budget.parse(10 * count)  # the schema's accessors take their time
        return [getattr(parent, name)(index) for index in range(count)]

    def table(self, parent: Any, name: str, index: int, who: str) -> Any:
        """The entry of that number of a list, which `who` asks for."""
        if index >= self._count(parent, name):
            raise Malformed(f"{who} {index}, which there is not")
        return getattr(parent, name)(index)

    def _count(self, parent: Any, name: str) -> int:
        """The length of a list, if the file has room for it: every entry takes at least four bytes."""
        count = int(getattr(parent, f"{name}Length")())
        if 4 * count > len(self.data):
            raise Malformed(f"a list claims {count:,} entries")
        return count


def _vector(parent: Any, name: str) -> Array:
    """The numbers of a list, where they lie; ValueError where that is outside the file."""
    return np.asarray(
        getattr(parent, f"{name}AsNumpy")() if getattr(parent, f"{name}Length")() else np.zeros(0, np.int32)
    )


def _dequantized(tensor: Any, codes: Array) -> Array:
    """(codes - zero point) * scale, per tensor or along its quantized axis; float numbers and codes without as such."""
    about = tensor.Quantization() if codes.dtype.kind in "iu" else None
    if about is None or not about.ScaleLength():
        return named_tensors.as_numbers(codes)
    scale, zero_point, axis = _vector(about, "Scale"), _vector(about, "ZeroPoint"), int(about.QuantizedDimension())
    if scale.size > 1 and (not 0 <= axis < codes.ndim or scale.size != codes.shape[axis]):
        raise Malformed("the scales of a tensor do not fit its shape")
    if zero_point.size != scale.size:
        zero_point = zero_point[:1] if zero_point.size else np.zeros(1)
    return named_tensors.dequantized(codes, scale, zero_point, axis)


def _outputs_first(code: int, weight: Array) -> Array:
    """[out, height, width, in] to [out, in, height, width]; depthwise weights are [1, height, width, out]."""
    if weight.ndim != 4:
        return weight
    axes = (3, 0, 1, 2) if code == Operator.DEPTHWISE_CONV_2D else (0, 3, 1, 2)
    return np.ascontiguousarray(weight.transpose(axes))
