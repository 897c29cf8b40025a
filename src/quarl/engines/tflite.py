"""A .tflite file under construction: tensors, the operators between them, and its bytes.

The file is a flatbuffer of a few kilobytes followed by the raw constants, which it names by offset and size
(`Buffer.offset` in the TensorFlow Lite schema): writing megabytes of weights costs one copy, and the runtime reads
them in place.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from numpy.typing import NDArray

Array = NDArray[Any]
Operator = schema.BuiltinOperator
TensorType = schema.TensorType

ALIGNMENT = 16
"""Bytes; what the schema asks of constants."""
UNIT = np.ones(1, np.float32)
TYPES = {
    np.dtype(np.float32): TensorType.FLOAT32,
    np.dtype(np.float16): TensorType.FLOAT16,
    np.dtype(np.int32): TensorType.INT32,
    np.dtype(np.int8): TensorType.INT8,
    np.dtype(np.uint8): TensorType.UINT8,
}
VERSIONS = {Operator.FULLY_CONNECTED: 9, Operator.CONV_2D: 5, Operator.DEQUANTIZE: 2, Operator.PAD: 2}
"""Operator versions above 1: the ones that the runtime writes for the types used here."""
OFFSET_SLOT = 6
"""Place of `offset` in the vtable of the schema's Buffer."""


class Model:
    """Tensors and operators, named by the index of the tensor they make.

    Quantised values have scale 1: their codes are counted from the zero point, and whoever needs real numbers
    multiplies. Then no runtime can round a product of scales differently from quarl.quant.affine.
    """

    def __init__(self) -> None:
        self._tensors: list[Any] = []
        self._operators: list[Any] = []
        self._codes: list[int] = []
        self._constants: list[Array] = []

    def value(self, shape: Sequence[int], dtype: Any = np.float32, zero_point: int | None = None) -> int:
        """A tensor that is computed; with a zero_point its codes are quantised."""
        quantization = None if zero_point is None else _quantization(UNIT, np.array([zero_point], np.int64))
        return self._tensor(shape, TYPES[np.dtype(dtype)], 0, quantization)

    def constant(self, array: Array, scale: Array | None = None) -> int:
        """A tensor with a fixed value; `scale` [channels] quantises it symmetrically along axis 0."""
        return self._constant(array, array.shape, TYPES[array.dtype], scale)

    def nibbles(self, packed: Array, shape: Sequence[int], scale: Array) -> int:
        """A constant of 4-bit codes, two in each byte of `packed` (uint8), low nibble first."""
        return self._constant(packed, shape, TensorType.INT4, scale)

    def shape(self, tensor: int) -> tuple[int, ...]:
        """Axes of a tensor, batch first."""
        return tuple(self._tensors[tensor].shape.tolist())

    def like(self, tensor: int, shape: Sequence[int]) -> int:
        """A computed tensor of another shape, with the type and the zero point of `tensor`."""
        model = self._tensors[tensor]
        return self._tensor(shape, model.type, 0, model.quantization)

    def add(self, code: int, inputs: Sequence[int], output: int, options: Any = None) -> int:
        """Appends an operator that computes `output` and returns it; an input of -1 is left out."""
        if code not in self._codes:
            self._codes.append(code)
        self._operators.append(
            schema.OperatorT(
                opcodeIndex=self._codes.index(code),
                inputs=np.array(inputs, np.int32),
                outputs=np.array([output], np.int32),
                builtinOptions=options,
                # The union's members are called as their classes, which end in T.
                builtinOptionsType=getattr(schema.BuiltinOptions, type(options).__name__[:-1]) if options else 0,
            )
        )
        return output

    def to_bytes(self, source: int, output: int) -> bytes:
        """The whole file of a network from tensor `source` to tensor `output`."""
        head = self._head(source, output)
        end, offsets = len(head), []
        for array in self._constants:
            offsets.append(-(-end // ALIGNMENT) * ALIGNMENT)
            end = offsets[-1] + array.nbytes
        root = schema.Model.GetRootAs(head)
        pieces: list[Any] = [head]
        written = len(head)
        for index, (array, offset) in enumerate(zip(self._constants, offsets, strict=True)):
            table = root.Buffers(index + 1)._tab
            struct.pack_into("<Q", head, table.Pos + table.Offset(OFFSET_SLOT), offset)
            pieces += [bytes(offset - written), array.data]
            written = offset + array.nbytes
        return b"".join(pieces)

    def _head(self, source: int, output: int) -> bytearray:
        """The flatbuffer; its buffers' offsets are placeholders, since they depend on its length."""
        graph = schema.SubGraphT(
            tensors=self._tensors,
            inputs=np.array([source], np.int32),
            outputs=np.array([output], np.int32),
            operators=self._operators,
        )
        codes = [
            # Readers older than the wide code field look at the deprecated one, which is a byte.
            schema.OperatorCodeT(builtinCode=code, deprecatedBuiltinCode=min(code, 127), version=VERSIONS.get(code, 1))
            for code in self._codes
        ]
        buffers = [schema.BufferT()] + [schema.BufferT(offset=ALIGNMENT, size=a.nbytes) for a in self._constants]
        model = schema.ModelT(version=3, operatorCodes=codes, subgraphs=[graph], buffers=buffers)
        builder = flatbuffers.Builder(4096)
        builder.Finish(model.Pack(builder), b"TFL3")
        return bytearray(builder.Output())

    def _constant(self, array: Array, shape: Sequence[int], kind: int, scale: Array | None) -> int:
        quantization = None if scale is None else _quantization(scale, np.zeros(scale.shape, np.int64))
        # A buffer may be empty or have no axes; the join in `to_bytes` wants one contiguous axis.
        self._constants.append(np.ascontiguousarray(array).reshape(-1))
        return self._tensor(shape, kind, len(self._constants), quantization)

    def _tensor(self, shape: Sequence[int], kind: int, buffer: int, quantization: Any) -> int:
        axes = np.array(shape, np.int32)
        self._tensors.append(
            schema.TensorT(shape=axes, type=kind, buffer=buffer, quantization=quantization, hasRank=True)
        )
        return len(self._tensors) - 1


def _quantization(scale: Array, zero_point: Array) -> Any:
    return schema.QuantizationParametersT(scale=scale.astype(np.float32, copy=False), zeroPoint=zero_point)
