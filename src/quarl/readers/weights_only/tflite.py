"""Layers of a .tflite file: constants that linear operators read, quantised ones as the real numbers they stand for.

Only the schema's accessors are used, which read the flatbuffer where it lies; no interpreter sees the file. What they
find is checked here, because in a damaged file offsets and lengths are any numbers.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from ai_edge_litert import schema_py_generated as schema

from quarl.arrays import Array
from quarl.errors import QuarlError
from quarl.inert.budget import current
from quarl.policy.layers import LayerWeights
from quarl.quant.packing import packed_size, unpack
from quarl.readers.weights_only import names

Operator, TensorType = schema.BuiltinOperator, schema.TensorType
FLOATS: Mapping[int, Any] = {
    TensorType.FLOAT32: np.float32,
    TensorType.FLOAT16: np.float16,
    TensorType.FLOAT64: np.float64,
    TensorType.BFLOAT16: ml_dtypes.bfloat16,
}
INTEGERS: Mapping[int, Any] = {TensorType.INT8: np.int8, TensorType.UINT8: np.uint8, TensorType.INT16: np.int16}
PACKED = {TensorType.INT4: 4, TensorType.INT2: 2}
"""Bits of codes that share a byte."""
KINDS: Mapping[int, tuple[str, tuple[int, ...]]] = {
    Operator.FULLY_CONNECTED: ("Dense", (1,)),
    Operator.CONV_2D: ("Conv2d", (1,)),
    Operator.DEPTHWISE_CONV_2D: ("Conv2d", (1,)),
    Operator.TRANSPOSE_CONV: ("ConvTranspose2d", (1,)),
    Operator.LSTM: ("LSTM", tuple(range(1, 9))),
    Operator.UNIDIRECTIONAL_SEQUENCE_LSTM: ("LSTM", tuple(range(1, 9))),
}
"""By operator: what a layer of it is called, and which of its inputs are weights."""
BIASED = (Operator.FULLY_CONNECTED, Operator.CONV_2D, Operator.DEPTHWISE_CONV_2D)
"""Operators whose third input is a bias."""


class Damaged(Exception):
    """Why the file is refused; `layers` adds the place."""


def layers(data: bytes, path: Path) -> list[LayerWeights]:
    """The weights of dense, convolution and LSTM operators, in the order of the file."""
    try:
        file = _File(data)
        names.check_scales(str(file.model.Description() or b"", "utf-8", "replace"))
        return file.layers()
    except Damaged as error:
        cause = str(error)
    except QuarlError as error:
        raise QuarlError(f"{path}: {error}") from None
    except (struct.error, ValueError, TypeError, IndexError, OverflowError, AttributeError):
        cause = "an offset leads outside it"
    raise QuarlError(f"{path} is not a sound .tflite file ({cause}); convert the model again")


class _File:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.model = schema.Model.GetRootAs(data)
        self.budget = current()
        self.codes = [self._code(index) for index in range(self._spend(self.model.OperatorCodesLength()))]

    def layers(self) -> list[LayerWeights]:
        layers: dict[tuple[int, int], LayerWeights] = {}
        for number in range(self._spend(self.model.SubgraphsLength())):
            graph = self.model.Subgraphs(number)
            operators = [graph.Operators(index) for index in range(self._spend(graph.OperatorsLength()))]
            widened = self._widened(operators)
            for operator in operators:
                for index, bias, code in self._constants(operator):
                    index = widened.get(index, index)
                    weight = self._value(graph, index) if index >= 0 and (number, index) not in layers else None
                    if weight is not None and weight.ndim >= 2 and weight.size:
                        weight = _outputs_first(code, weight)
                        name = str(graph.Tensors(index).Name() or b"", "utf-8", "replace") or f"tensor {index}"
                        offset = self._bias(graph, bias, len(weight))
                        layers[number, index] = LayerWeights(name, KINDS[code][0], weight, offset)
        return list(layers.values())

    def _constants(self, operator: Any) -> Iterator[tuple[int, int, int]]:
        """(weight, bias, code) of the operator, both by tensor, -1 for one that is left out."""
        code = self._kind(operator)
        places = KINDS[code][1] if code in KINDS else ()
        count = min(self._count(operator.InputsLength()), max(places) + 2) if places else 0
        inputs = [int(operator.Inputs(place)) for place in range(count)]
        for place in places:
            if place < count:
                yield inputs[place], inputs[place + 1] if code in BIASED and place + 1 < count else -1, code

    def _code(self, index: int) -> int:
        code = self.model.OperatorCodes(index)
        return max(int(code.BuiltinCode()), int(code.DeprecatedBuiltinCode()))  # old files have the second only

    def _kind(self, operator: Any) -> int:
        index = int(operator.OpcodeIndex())
        return self.codes[index] if index < len(self.codes) else -1

    def _widened(self, operators: list[Any]) -> dict[int, int]:
        """By tensor that a DEQUANTIZE makes: what it reads."""
        return {
            int(operator.Outputs(0)): int(operator.Inputs(0))
            for operator in operators
            if self._kind(operator) == Operator.DEQUANTIZE and operator.OutputsLength() and operator.InputsLength()
        }

    def _bias(self, graph: Any, index: int, size: int) -> Array | None:
        """float32 [size]: the tensor as a bias; None where it is left out, computed, or of another size."""
        value = None if index < 0 else self._value(graph, index)
        return None if value is None or value.size != size else value.reshape(-1)

    def _value(self, graph: Any, index: int) -> Array | None:
        """float32 numbers of a constant; None for a tensor that is computed or holds no numbers of ours."""
        if index >= self._count(graph.TensorsLength()):
            raise Damaged(f"an operator reads tensor {index}, which there is not")
        tensor = graph.Tensors(index)
        content = self._content(int(tensor.Buffer()))
        if not content.size:
            return None
        shape = tuple(int(tensor.Shape(axis)) for axis in range(min(self._count(tensor.ShapeLength()), 9)))
        size = math.prod(shape)
        if len(shape) > 8 or min(shape, default=1) < 0:
            raise Damaged(f"tensor {index} has an impossible shape")
        kind = int(tensor.Type())
        if kind not in FLOATS and kind not in INTEGERS and kind not in PACKED and kind != TensorType.INT32:
            return None
        self.budget.copy(8 * size)
        if kind in FLOATS:
            return names.as_numbers(_exactly(content, FLOATS[kind], size, index).reshape(shape))
        if kind in PACKED:
            _check_size(content, packed_size(size, PACKED[kind]), size, index)
            codes = unpack(content.data, PACKED[kind], size)
        else:
            codes = _exactly(content, INTEGERS.get(kind, np.int32), size, index)
        return self._dequantized(tensor, codes.reshape(shape))

    def _content(self, index: int) -> Array:
        """uint8: the bytes of a buffer, in the flatbuffer or behind it; none for a tensor that is computed."""
        if index >= self._count(self.model.BuffersLength()):
            raise Damaged(f"a tensor names buffer {index}, which there is not")
        buffer = self.model.Buffers(index)
        offset, size = int(buffer.Offset()), int(buffer.Size())
        if offset > 1:  # 0 and 1 say that the bytes are inside
            if offset + size > len(self.data):
                raise Damaged(f"buffer {index} lies beyond its end")
            return np.frombuffer(self.data, np.uint8)[offset : offset + size]
        if buffer.DataIsNone() or not buffer.DataLength():
            return np.zeros(0, np.uint8)
        return np.asarray(buffer.DataAsNumpy())

    def _dequantized(self, tensor: Any, codes: Array) -> Array:
        """(codes - zero point) * scale, per tensor or along its quantised axis; the codes where they have no scale."""
        about = tensor.Quantization()
        if about is None or not about.ScaleLength():
            return names.as_numbers(codes)
        scale, axis = np.asarray(about.ScaleAsNumpy()), int(about.QuantizedDimension())
        zero_point = np.asarray(about.ZeroPointAsNumpy() if about.ZeroPointLength() else [0])
        if scale.size > 1 and (not 0 <= axis < codes.ndim or scale.size != codes.shape[axis]):
            raise Damaged("the scales of a tensor do not fit its shape")
        zero_point = zero_point if zero_point.size in (1, scale.size) else zero_point[:1]
        return names.dequantized(codes, scale, zero_point, axis)

    def _spend(self, count: int) -> int:
        """The length of a list that is walked through: all together are bounded, since lists can lie in one another."""
        self.budget.parse(10 * self._count(count))  # the schema's accessors take their time
        return count

    def _count(self, count: int) -> int:
        """The length of a vector, if the file has room for it: every entry takes at least four bytes."""
        if 4 * count > len(self.data):
            raise Damaged(f"a list claims {count:,} entries")
        return count


def _exactly(content: Array, dtype: Any, size: int, index: int) -> Array:
    _check_size(content, size * np.dtype(dtype).itemsize, size, index)
    return np.frombuffer(content, dtype)


def _check_size(content: Array, num_bytes: int, size: int, index: int) -> None:
    if content.nbytes != num_bytes:
        raise Damaged(f"tensor {index} has {content.nbytes:,} bytes for {size:,} numbers")


def _outputs_first(code: int, weight: Array) -> Array:
    """[out, height, width, in] to [out, in, height, width]; depthwise weights are [1, height, width, out]."""
    if weight.ndim != 4:
        return weight
    axes = (3, 0, 1, 2) if code == Operator.DEPTHWISE_CONV_2D else (0, 3, 1, 2)
    return np.ascontiguousarray(weight.transpose(axes))
