"""A .tflite file under construction: tensors, the operators between them, and its bytes.

The file is a flatbuffer of a few kilobytes followed by the raw constants, which it names by offset and size
(`Buffer.offset` in the TensorFlow Lite schema): writing megabytes of weights costs one copy, and the runtime reads
them in place. Flatbuffers of the same network differ in scales and offsets alone: one is built, the next are patched.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from numpy.typing import NDArray

Array = NDArray[Any]
Operator = schema.BuiltinOperator
TensorType = schema.TensorType

ALIGNMENT = 16
"""Bytes; what the schema asks of constants."""
TYPES = {
    np.dtype(np.float32): TensorType.FLOAT32,
    np.dtype(np.float16): TensorType.FLOAT16,
    np.dtype(np.int32): TensorType.INT32,
    np.dtype(np.int8): TensorType.INT8,
    np.dtype(np.uint8): TensorType.UINT8,
}
VERSIONS = {Operator.FULLY_CONNECTED: 9, Operator.CONV_2D: 5, Operator.DEQUANTIZE: 2, Operator.PAD: 2}
"""Operator versions above 1: the ones that the runtime writes for the types used here."""
LINEAR = (Operator.FULLY_CONNECTED, Operator.CONV_2D)
OFFSET_SLOT, SCALE_SLOT = 6, 8
"""Places of `offset` and `scale` in the vtables of the schema's Buffer and QuantizationParameters."""
HEADS = 16
"""Flatbuffers that are kept: an actor that gets new weights every second writes the same network again and again."""


class _Tensor(NamedTuple):
    shape: tuple[int, ...]
    kind: int
    buffer: int = 0
    """0: computed; else the constant of that number, counted from 1."""
    num_scales: int = 0
    """0 where the tensor is not quantised."""
    zero_point: int = 0


class _Operator(NamedTuple):
    code: int
    inputs: tuple[int, ...]
    output: int
    options: type[Any] | None
    fields: tuple[tuple[str, Any], ...]
    """Of the options."""


class _Plan(NamedTuple):
    """All of a flatbuffer but scales and offsets."""

    tensors: tuple[_Tensor, ...]
    operators: tuple[_Operator, ...]
    sizes: tuple[int, ...]
    """Bytes of each constant."""
    source: int
    output: int
    names: tuple[str, str]
    """Of these two."""
    about: str


class _Head(NamedTuple):
    content: bytes
    """With 1 for every scale and placeholders for offsets."""
    offsets: tuple[int, ...]
    """Where the offset of each constant is."""
    scales: dict[int, int]
    """Where the scales of each quantised tensor start."""


class Model:
    """Tensors and operators, named by the index of the tensor they make.

    Quantised values have scale 1: their codes are counted from the zero point, and whoever needs real numbers
    multiplies. Then no runtime can round a product of scales differently from quarl.quant.affine.
    """

    def __init__(self) -> None:
        self._tensors: list[_Tensor] = []
        self._operators: list[_Operator] = []
        self._constants: list[Array] = []
        self._scales: dict[int, Array] = {}

    def value(self, shape: Sequence[int], dtype: Any = np.float32, zero_point: int | None = None) -> int:
        """A tensor that is computed; with a zero_point its codes are quantised."""
        kind = TYPES[np.dtype(dtype)]
        if zero_point is None:
            return self._add(_Tensor(tuple(shape), kind))
        return self._add(_Tensor(tuple(shape), kind, num_scales=1, zero_point=zero_point))

    def constant(self, array: Array, scale: Array | None = None) -> int:
        """A tensor with a fixed value; `scale` [channels] quantises it symmetrically along axis 0."""
        return self._constant(array, array.shape, TYPES[array.dtype], scale)

    def nibbles(self, packed: Array, shape: Sequence[int], scale: Array) -> int:
        """A constant of 4-bit codes, two in each byte of `packed` (uint8), low nibble first."""
        return self._constant(packed, shape, TensorType.INT4, scale)

    def shape(self, tensor: int) -> tuple[int, ...]:
        """Axes of a tensor, batch first."""
        return self._tensors[tensor].shape

    def like(self, tensor: int, shape: Sequence[int]) -> int:
        """A computed tensor of another shape, with the type and the zero point of `tensor`."""
        return self._add(self._tensors[tensor]._replace(shape=tuple(shape), buffer=0))

    def add(self, code: int, inputs: Sequence[int], output: int, options: Any = None) -> int:
        """Appends an operator that computes `output` and returns it; an input of -1 is left out."""
        fields = () if options is None else tuple(vars(options).items())
        self._operators.append(_Operator(code, tuple(inputs), output, type(options) if options else None, fields))
        return output

    def multiplies_integers(self) -> bool:
        """Whether a layer's kernel reads its codes as such, not widened to float32."""
        return any(
            operator.code in LINEAR and self._tensors[operator.inputs[1]].kind in (TensorType.INT8, TensorType.INT4)
            for operator in self._operators
        )

    def to_bytes(self, source: int, output: int, names: tuple[str, str] = ("", ""), about: str = "") -> bytes:
        """The whole file of a network from tensor `source` to tensor `output`, which have these names."""
        sizes = tuple(array.nbytes for array in self._constants)
        made = _head(_Plan(tuple(self._tensors), tuple(self._operators), sizes, source, output, names, about))
        head = bytearray(made.content)
        for tensor, scale in self._scales.items():
            head[made.scales[tensor] : made.scales[tensor] + scale.nbytes] = scale.tobytes()
        pieces: list[Any] = [head]
        written = len(head)
        for array, place in zip(self._constants, made.offsets, strict=True):
            offset = -(-written // ALIGNMENT) * ALIGNMENT
            struct.pack_into("<Q", head, place, offset)
            pieces += [bytes(offset - written), array.data]
            written = offset + array.nbytes
        return b"".join(pieces)

    def _constant(self, array: Array, shape: Sequence[int], kind: int, scale: Array | None) -> int:
        # A buffer may be empty or have no axes; the join in `to_bytes` wants one contiguous axis.
        self._constants.append(np.ascontiguousarray(array).reshape(-1))
        num_scales = 0 if scale is None else len(scale)
        tensor = self._add(_Tensor(tuple(shape), kind, len(self._constants), num_scales))
        if scale is not None:
            self._scales[tensor] = scale.astype(np.float32, copy=False)
        return tensor

    def _add(self, tensor: _Tensor) -> int:
        self._tensors.append(tensor)
        return len(self._tensors) - 1


@functools.lru_cache(HEADS)
def _head(plan: _Plan) -> _Head:
    """The flatbuffer of a plan, and where in it the numbers are that the plan leaves open."""
    codes = list(dict.fromkeys(operator.code for operator in plan.operators))
    tensors = [_tensor(tensor) for tensor in plan.tensors]
    for place, name in zip((plan.source, plan.output), plan.names, strict=True):
        tensors[place].name = name or None
    graph = schema.SubGraphT(
        tensors=tensors,
        inputs=np.array([plan.source], np.int32),
        outputs=np.array([plan.output], np.int32),
        operators=[_operator(operator, codes.index(operator.code)) for operator in plan.operators],
    )
    wanted = [
        # Readers older than the wide code field look at the deprecated one, which is a byte.
        schema.OperatorCodeT(builtinCode=code, deprecatedBuiltinCode=min(code, 127), version=VERSIONS.get(code, 1))
        for code in codes
    ]
    buffers = [schema.BufferT()] + [schema.BufferT(offset=ALIGNMENT, size=size) for size in plan.sizes]
    about = plan.about or None
    model = schema.ModelT(version=3, operatorCodes=wanted, subgraphs=[graph], buffers=buffers, description=about)
    builder = flatbuffers.Builder(4096)
    builder.Finish(model.Pack(builder), b"TFL3")
    content = bytes(builder.Output())
    root = schema.Model.GetRootAs(content)
    tables = [root.Buffers(index + 1)._tab for index in range(len(plan.sizes))]
    offsets = tuple(table.Pos + table.Offset(OFFSET_SLOT) for table in tables)
    scales = {}
    for index, tensor in enumerate(plan.tensors):
        if tensor.num_scales:
            table = root.Subgraphs(0).Tensors(index).Quantization()._tab
            scales[index] = table.Vector(table.Offset(SCALE_SLOT))
    return _Head(content, offsets, scales)


def _tensor(tensor: _Tensor) -> Any:
    quantization = None
    if num := tensor.num_scales:
        zero_point = np.full(num, tensor.zero_point, np.int64)
        quantization = schema.QuantizationParametersT(scale=np.ones(num, np.float32), zeroPoint=zero_point)
    axes = np.array(tensor.shape, np.int32)
    return schema.TensorT(shape=axes, type=tensor.kind, buffer=tensor.buffer, quantization=quantization, hasRank=True)


def _operator(operator: _Operator, index: int) -> Any:
    made = schema.OperatorT(
        opcodeIndex=index,
        inputs=np.array(operator.inputs, np.int32),
        outputs=np.array([operator.output], np.int32),
    )
    if operator.options is not None:
        made.builtinOptions = operator.options(**dict(operator.fields))
        # The union's members are called as their classes, which end in T.
        made.builtinOptionsType = getattr(schema.BuiltinOptions, operator.options.__name__[:-1])
    return made
