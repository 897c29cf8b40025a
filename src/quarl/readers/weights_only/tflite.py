"""Layers of a .tflite file: the constants that linear operators read; quantized ones become real numbers.

Only the schema's accessors are used, which read the flatbuffer in place; no interpreter sees the file. The results are
checked here, because offsets and lengths in a damaged file are arbitrary.
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
"""Layer name by operator, and the range of its inputs that are weights."""
BIASED = ("Dense", "Conv2d")
"""Layers whose third input is a bias."""


def layers(data: bytes, folder: Path) -> list[LayerWeights]:
    """Return the weights of dense, convolution and LSTM operators, in the order of the file."""
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
            widened = {  # input by output of each DEQUANTIZE
                int(operator.Outputs(0)): int(operator.Inputs(0))
                for code, operator in operators
                if code == Operator.DEQUANTIZE and operator.OutputsLength() and operator.InputsLength()
            }
            # Each weight counts once, even if several operators read it.
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
        """Return the float32 numbers of a constant.

        None for a tensor that is left out, computed or of an unknown type.
        """
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
        """Return the bytes of the tensor's buffer (uint8), in the flatbuffer or behind it.

        The array is empty for a computed tensor.
        """
        index = int(tensor.Buffer())
        buffer = self.table(self.model, "Buffers", index, "a tensor names buffer")
        offset, size = int(buffer.Offset()), int(buffer.Size())
        if offset <= 1:  # 0 and 1 mean that the bytes are inside
            return _vector(buffer, "Data").view(np.uint8)
        if offset + size > len(self.data):
            raise Malformed(f"buffer {index} is beyond its end")
        return np.frombuffer(self.data, np.uint8)[offset : offset + size]

    def tables(self, parent: Any, name: str) -> list[Any]:
        """Return the entries of a list; their total is bounded, because lists can be nested."""
        count = self._count(parent, name)
        self.budget.parse(10 * count)  # the schema's accessors take their time
        return [getattr(parent, name)(index) for index in range(count)]

    def table(self, parent: Any, name: str, index: int, who: str) -> Any:
        """Return the entry of a list at an index; `who` names the reader in the error.

        Args:
            parent: Table with the list.
            name: Name of the list in the schema.
            index: Index of the entry, which may be invalid.
            who: Start of the error message, which names the reader of the entry.

        Raises:
            Malformed: There is no entry at the index.
        """
        if index >= self._count(parent, name):
            raise Malformed(f"{who} {index}, which does not exist")
        return getattr(parent, name)(index)

    def _count(self, parent: Any, name: str) -> int:
        """Return the length of a list, if it fits into the file: every entry takes at least four bytes."""
        count = int(getattr(parent, f"{name}Length")())
        if 4 * count > len(self.data):
            raise Malformed(f"a list claims {count:,} entries")
        return count


def _vector(parent: Any, name: str) -> Array:
    """Return the numbers of a list in place; raise ValueError if they are outside the file."""
    return np.asarray(
        getattr(parent, f"{name}AsNumpy")() if getattr(parent, f"{name}Length")() else np.zeros(0, np.int32)
    )


def _dequantized(tensor: Any, codes: Array) -> Array:
    """Return (codes - zero point) * scale, per tensor or along its axis; other numbers are returned as they are."""
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
    """Return a weight [out, in, height, width] from [out, height, width, in], or depthwise [1, height, width, out]."""
    if weight.ndim != 4:
        return weight
    axes = (3, 0, 1, 2) if code == Operator.DEPTHWISE_CONV_2D else (0, 3, 1, 2)
    return np.ascontiguousarray(weight.transpose(axes))
