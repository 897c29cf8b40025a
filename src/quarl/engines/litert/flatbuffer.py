"""A .tflite file under construction: tensors, the operators between them, and its bytes.

The file is a head of a few kilobytes, a flatbuffer, followed by the constants: writing megabytes of weights costs one
copy, and the runtime reads them in place. In a file for any runtime they belong to the flatbuffer (`Buffer.data` in the
TensorFlow Lite schema: a vector may be anywhere behind the table that names it). A file for LiteRT alone names them by
offset and size (`Buffer.offset`), which has no bound of 2 GB. Heads of the same network differ only in scales and
offsets: one is built, the next are patched.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

from quarl.arrays import Array

Operator = schema.BuiltinOperator
TensorType = schema.TensorType

ALIGNMENT = 16
"""Alignment of constants in bytes, from the schema."""
TYPES = {
    np.dtype(np.float32): TensorType.FLOAT32,
    np.dtype(np.float16): TensorType.FLOAT16,
    np.dtype(np.int64): TensorType.INT64,
    np.dtype(np.int32): TensorType.INT32,
    np.dtype(np.int16): TensorType.INT16,
    np.dtype(np.int8): TensorType.INT8,
    np.dtype(np.uint8): TensorType.UINT8,
}
VERSIONS = {Operator.FULLY_CONNECTED: 9, Operator.CONV_2D: 5, Operator.DEQUANTIZE: 2, Operator.PAD: 2}
"""Operator versions above 1: the ones that the runtime writes for the types used here."""
LINEAR = (Operator.FULLY_CONNECTED, Operator.CONV_2D)
NAMED_ALIKE = (
    "add cast concatenation dequantize div fully_connected gather leaky_relu mul pad quantize reshape softmax sub"
)
OPTIONS = {
    **{
        getattr(Operator, n.upper()): getattr(schema, f"{n.title().replace('_', '')}OptionsT")
        for n in NAMED_ALIKE.split()
    },
    **dict.fromkeys((Operator.MAXIMUM, Operator.MINIMUM), schema.MaximumMinimumOptionsT),
    **dict.fromkeys((Operator.MEAN, Operator.SUM), schema.ReducerOptionsT),
    **dict.fromkeys((Operator.MAX_POOL_2D, Operator.AVERAGE_POOL_2D), schema.Pool2DOptionsT),
    Operator.PADV2: schema.PadV2OptionsT,
    Operator.CONV_2D: schema.Conv2DOptionsT,
    Operator.TRANSPOSE: schema.TransposeOptionsT,
}
"""Tables of operators' options; some runtimes refuse an operator without its table, even if it is empty."""
DATA_SLOT, OFFSET_SLOT, SCALE_SLOT = 4, 6, 8
"""Places of `data` and `offset` in the vtable of the schema's Buffer, and of `scale` in QuantizationParameters'."""
LARGEST_INSIDE = 2_000_000_000
"""Bytes of constants that fit into a flatbuffer, whose offsets have 31 bits; larger ones are placed behind it."""
HEADS = 16
"""Number of cached flatbuffers: an actor with new weights every second writes the same network again and again."""


class _Tensor(NamedTuple):
    shape: tuple[int, ...]
    kind: int
    buffer: int = 0
    """0 for a computed tensor; otherwise the number of its constant, counted from 1."""
    num_scales: int = 0
    """Number of scales; 0 if the tensor is not quantized."""
    zero_point: int = 0


class _Operator(NamedTuple):
    code: int
    inputs: tuple[int, ...]
    output: int
    options: tuple[tuple[str, Any], ...]
    """(field, value) pairs of its table in OPTIONS."""


class Model:
    """Tensors and operators; an operator is named by the index of its output tensor.

    Quantized values have scale 1, unless they are `scaled`: their codes are counted from the zero point, and readers of
    real numbers multiply. So no runtime can round a product of scales differently from quarl.quant.affine.
    """

    def __init__(self) -> None:
        self.scope = ""
        """Prefix of the names of new tensors: the policy's operator that they belong to."""
        self._tensors: list[_Tensor] = []
        self._roles: list[tuple[str, str]] = []
        self._operators: list[_Operator] = []
        self._constants: list[Array] = []
        self._scales: dict[int, Array] = {}

    def value(self, shape: Sequence[int], dtype: Any = np.float32, zero_point: int | None = None) -> int:
        """Add a computed tensor; with a zero_point its codes are quantized.

        Args:
            shape: Shape of the tensor.
            dtype: numpy type.
            zero_point: Zero point of the codes; None for real numbers.
        """
        kind = TYPES[np.dtype(dtype)]
        if zero_point is None:
            return self._add(_Tensor(tuple(shape), kind))
        return self._add(_Tensor(tuple(shape), kind, num_scales=1, zero_point=zero_point))

    def scaled(self, shape: Sequence[int], scale: float, dtype: Any = np.int16, zero_point: int = 0) -> int:
        """Add a computed tensor of codes with a scale of its own, for kernels that read it.

        Args:
            shape: Shape of the tensor.
            scale: Real value of a code.
            dtype: numpy type of the codes.
            zero_point: Zero point of the codes.
        """
        tensor = self.value(shape, dtype, zero_point)
        self._scales[tensor] = np.array([scale], np.float32)
        return tensor

    def constant(self, array: Array, scale: Array | None = None, *, role: str = "") -> int:
        """Add a tensor with a fixed value; `scale` [channels] quantizes it symmetrically along axis 0.

        Args:
            array: The value.
            scale: Scales of its channels; None for real numbers.
            role: Ending of its name, weight or bias.
        """
        return self._constant(array, array.shape, TYPES[array.dtype], scale, role)

    def nibbles(self, packed: Array, shape: Sequence[int], scale: Array) -> int:
        """Add a weight of 4-bit codes, two in each byte of `packed` (uint8), low nibble first.

        Args:
            packed: The codes.
            shape: Shape of the weight.
            scale: Scales of its channels.
        """
        return self._constant(packed, shape, TensorType.INT4, scale, "weight")

    def lowest(self, tensor: int) -> int:
        """Add a constant below all numbers that a tensor of this type can hold."""
        if self._tensors[tensor].kind == TensorType.FLOAT32:
            return self.constant(np.array([-np.inf], np.float32))
        lowest = self.constant(np.array([-128], np.int8), np.ones(1, np.float32))
        self._tensors[lowest] = self._tensors[lowest]._replace(zero_point=self._tensors[tensor].zero_point)
        return lowest

    def shape(self, tensor: int) -> tuple[int, ...]:
        """Return the shape of a tensor, batch first."""
        return self._tensors[tensor].shape

    def like(self, tensor: int, shape: Sequence[int]) -> int:
        """Add a computed tensor of another shape, with the type and the zero point of `tensor`."""
        return self._add(self._tensors[tensor]._replace(shape=tuple(shape), buffer=0))

    def add(self, code: int, inputs: Sequence[int], output: int, **options: Any) -> int:
        """Append an operator that computes `output`, and return `output`; an input of -1 is left out.

        Args:
            code: Operator.
            inputs: Input tensors.
            output: Output tensor.
            options: Fields of the operator's table of options.
        """
        self._operators.append(_Operator(code, tuple(inputs), output, tuple(options.items())))
        return output

    def multiplies_integers(self) -> bool:
        """Return whether a layer's kernel reads its codes directly, not widened to float32."""
        return any(
            operator.code in LINEAR and self._tensors[operator.inputs[1]].kind in (TensorType.INT8, TensorType.INT4)
            for operator in self._operators
        )

    def foreign_to_micro(self) -> str:
        """Return the features that TFLite Micro has no kernels for; "" if it runs the file."""
        kinds = [
            [self._tensors[tensor].kind for tensor in op.inputs[:2]] for op in self._operators if op.code in LINEAR
        ]
        causes = {
            "activations quantized at run time (mode='dynamic')": any(x == TensorType.FLOAT32 != w for x, w in kinds),
            "4-bit weights": any(weight == TensorType.INT4 for _, weight in kinds),
            "half floats": any(tensor.kind == TensorType.FLOAT16 for tensor in self._tensors),
            "weights beyond 2 GB": not self._fits_inside(),
        }
        return " and ".join(cause for cause, is_there in causes.items() if is_there)

    def to_bytes(
        self,
        sources: Sequence[int],
        outputs: Sequence[int],
        names: Sequence[str] | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> bytes:
        """Return the whole file of a network.

        Args:
            sources: Input tensors.
            outputs: Output tensors.
            names: Names of the inputs and then the outputs, in a file for any runtime: its tensors have names, and its
                constants are inside the flatbuffer.
            metadata: Texts by name, which runtimes ignore.
        """
        sizes = tuple(array.nbytes for array in self._constants)
        inside = names is not None and self._fits_inside()
        network = tuple(self._tensors), tuple(self._operators), sizes, tuple(sources), tuple(outputs)
        named = () if names is None else self._names(dict(zip((*sources, *outputs), names, strict=True)))
        content, offsets, places = _head(*network, named, inside, tuple((metadata or {}).items()))
        head = bytearray(content)
        for tensor, scale in self._scales.items():
            head[places[tensor] : places[tensor] + scale.nbytes] = scale.tobytes()
        pieces: list[Any] = [head]
        written = len(head)
        for array, place in zip(self._constants, offsets, strict=True):
            length = struct.pack("<I", array.nbytes) if inside else b""  # a vector begins with its length
            start = -(-(written + len(length)) // ALIGNMENT) * ALIGNMENT
            struct.pack_into("<I" if inside else "<Q", head, place, start - len(length) - place if inside else start)
            pieces += [bytes(start - len(length) - written), length, array.data]
            written = start + array.nbytes
        return b"".join(pieces)

    def _names(self, ends: dict[int, str]) -> tuple[str, ...]:
        """Return a unique name for each tensor: SCOPE.ROLE for the first of its role, otherwise SCOPE:NUMBER."""
        names: list[str] = []
        for number, (scope, role) in enumerate(self._roles):
            name = ends.get(number, f"{scope}.{role}")
            names.append(name if number in ends or (role and name not in names) else f"{scope}:{number}")
        return tuple(names)

    def _fits_inside(self) -> bool:
        return sum(array.nbytes for array in self._constants) < LARGEST_INSIDE

    def _constant(self, array: Array, shape: Sequence[int], kind: int, scale: Array | None, role: str) -> int:
        # A buffer may be empty or have no axes; the join in `to_bytes` needs one contiguous axis.
        self._constants.append(np.ascontiguousarray(array).reshape(-1))
        num_scales = 0 if scale is None else len(scale)
        tensor = self._add(_Tensor(tuple(shape), kind, len(self._constants), num_scales), role)
        if scale is not None:
            self._scales[tensor] = scale.astype(np.float32, copy=False)
        return tensor

    def _add(self, tensor: _Tensor, role: str = "") -> int:
        self._roles.append((self.scope, role))
        self._tensors.append(tensor)
        return len(self._tensors) - 1


def operators(content: bytes) -> list[str]:
    """Return the names of the operators in a .tflite file, as the schema has them."""
    names, model = {code: name for name, code in vars(Operator).items()}, schema.Model.GetRootAs(content)
    return sorted(names[model.OperatorCodes(number).BuiltinCode()] for number in range(model.OperatorCodesLength()))


@functools.lru_cache(HEADS)
def _head(
    tensors: tuple[_Tensor, ...],
    operators: tuple[_Operator, ...],
    sizes: tuple[int, ...],
    sources: tuple[int, ...],
    outputs: tuple[int, ...],
    names: tuple[str, ...],
    inside: bool,
    metadata: tuple[tuple[str, str], ...],
) -> tuple[bytes, tuple[int, ...], dict[int, int]]:
    """Return the flatbuffer of a network without its constants and scales.

    Args:
        tensors: Its tensors.
        operators: Its operators.
        sizes: Bytes of each constant.
        sources: Input tensors.
        outputs: Output tensors.
        names: Names of the tensors; empty if they have none.
        inside: Constants belong to the flatbuffer.
        metadata: Texts by name.

    Returns:
        The bytes, with 1 for every scale and placeholders for offsets; the position of each constant's offset, from
        which offsets of vectors inside are counted; and the start of the scales of each quantized tensor.
    """
    codes = list(dict.fromkeys(operator.code for operator in operators))
    graph = schema.SubGraphT(
        tensors=list(map(_tensor, tensors, names or [None] * len(tensors))),
        inputs=np.array(sources, np.int32),
        outputs=np.array(outputs, np.int32),
        operators=[_operator(operator, codes.index(operator.code), named=bool(names)) for operator in operators],
    )
    wanted = [
        # Readers older than the wide code field look at the deprecated one, which is a byte.
        schema.OperatorCodeT(builtinCode=code, deprecatedBuiltinCode=min(code, 127), version=VERSIONS.get(code, 1))
        for code in codes
    ]
    nothing = np.zeros(0, np.uint8)
    buffers = [schema.BufferT()] + [
        schema.BufferT(data=nothing) if inside else schema.BufferT(offset=ALIGNMENT, size=size) for size in sizes
    ]
    # Buffer 0 is empty by convention, constants follow, and texts come last.
    entries = [schema.MetadataT(name, len(buffers) + number) for number, (name, _) in enumerate(metadata)]
    buffers += [schema.BufferT(data=np.frombuffer(text.encode(), np.uint8)) for _, text in metadata]
    model = schema.ModelT(version=3, operatorCodes=wanted, subgraphs=[graph], buffers=buffers, metadata=entries or None)
    builder = flatbuffers.Builder(4096)
    builder.Finish(model.Pack(builder), b"TFL3")
    content = bytes(builder.Output())
    # Find the bytes to patch: the offset of each constant, and the scales of each tensor.
    root = schema.Model.GetRootAs(content)
    tables = [root.Buffers(index + 1)._tab for index in range(len(sizes))]
    offsets = tuple(table.Pos + table.Offset(DATA_SLOT if inside else OFFSET_SLOT) for table in tables)
    scales = {}
    for index, tensor in enumerate(tensors):
        if tensor.num_scales:
            table = root.Subgraphs(0).Tensors(index).Quantization()._tab
            scales[index] = table.Vector(table.Offset(SCALE_SLOT))
    return content, offsets, scales


def _tensor(tensor: _Tensor, name: str | None) -> Any:
    quantization = None
    if num := tensor.num_scales:
        zero_point = np.full(num, tensor.zero_point, np.int64)
        quantization = schema.QuantizationParametersT(scale=np.ones(num, np.float32), zeroPoint=zero_point)
    axes = np.array(tensor.shape, np.int32)
    return schema.TensorT(
        shape=axes, type=tensor.kind, buffer=tensor.buffer, name=name, quantization=quantization, hasRank=True
    )


def _operator(operator: _Operator, index: int, *, named: bool) -> Any:
    written = schema.OperatorT(
        opcodeIndex=index,
        inputs=np.array(operator.inputs, np.int32),
        outputs=np.array([operator.output], np.int32),
    )
    if operator.code in OPTIONS and (operator.options or named):
        table = OPTIONS[operator.code]
        written.builtinOptions = table(**dict(operator.options))
        # The union's members have the names of their classes, which end in T.
        written.builtinOptionsType = getattr(schema.BuiltinOptions, table.__name__[:-1])
    return written
