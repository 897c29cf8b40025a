"""A static QuantizedPolicy as calls of kernels: which one computes each value, and where in two buffers values lie."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from quarl.arrays import Array
from quarl.engines.reference import norm_constants, norms_codes
from quarl.engines.sums import check_int32, requantisation, unit
from quarl.engines.tables import table
from quarl.errors import QuarlError, UnsupportedError
from quarl.export.c.program import Call, Program, parameters
from quarl.policy import operators
from quarl.policy.graph import ActivationGrid, QuantizedPolicy, final_linear, readers, shapes, ungridded
from quarl.policy.operators import OBSERVATION, Linear, Op, QuantizedTensor
from quarl.quant.affine import quantize

ELSEWHERE = "targets tflite and onnx have one"


class Place(NamedTuple):
    """Where in a buffer a value begins."""

    buffer: str
    """x: the observation; y: the network's output; c: codes; r: real numbers; a: the action."""
    start: int = 0


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Value:
    """A value of the policy in C."""

    size: int
    real: Place | None = None
    codes: Place | None = None
    """Counted from the zero point of `grid`."""
    grid: ActivationGrid | None = None
    bytes_as: Array | None = None
    """Of bytes of the observation, which lie at `real`: the float32 number that each of the 256 stands for."""


@dataclass(slots=True)
class Buffer:
    """Places for the values that are needed at one time."""

    size: int = 0
    taken: list[tuple[int, int, int]] = field(default_factory=list)
    """(start, end, the last operator that reads it)."""

    def place(self, size: int, now: int, until: int) -> int:
        """The first place of that size that nothing lies in which is still read after operator `now`."""
        self.taken = sorted(block for block in self.taken if block[2] >= now)
        start = 0
        for begin, end, _ in self.taken:
            if start + size <= begin:
                break
            start = max(start, end)
        self.taken.append((start, start + size, until))
        self.size = max(self.size, start + size)
        return start


class Lowering:
    """Appends calls operator by operator; conversions between reals and codes are made when first needed."""

    def __init__(self, policy: QuantizedPolicy) -> None:
        if policy.spec.mode != "static" or policy.spec.activation_bits is None:
            raise UnsupportedError("C computes in static integers alone: quantise with --mode static")
        if (name := ungridded(policy)) is not None:
            raise QuarlError(f"value {name!r} has no grid; calibrate the policy anew")
        self.policy = policy
        self.final = final_linear(policy)
        self.shapes = shapes(policy)
        self.readers = readers(policy)
        self.buffers = {"c": Buffer(), "r": Buffer()}
        self.tables: dict[str, Array] = {}
        self.calls: list[Call] = []
        self.now = 0
        self.until = self._last_reads()
        size = math.prod(policy.observation_shape)
        is_bytes = policy.observation_dtype == "uint8"
        every = np.arange(256, dtype=np.float32) if is_bytes else None
        self.values = {OBSERVATION: Value(size=size, real=Place("x"), bytes_as=every)}
        self.observation = ("uint8_t" if is_bytes else "uint32_t", size)

    def program(self, comment: str) -> Program:
        """The whole policy."""
        for now, op in enumerate(self.policy.ops):
            self.now = now
            if type(op) not in LOWERINGS:
                raise UnsupportedError(f"C has no kernel for {type(op).__name__} {op.name!r}; {ELSEWHERE}")
            if op.name not in self.values:
                self.values[op.name] = LOWERINGS[type(op)](self, op)
        raw = self.values[self.policy.output]
        if (place := self.real(self.policy.output)).buffer != "y":
            self.call("copy", raw.size, place, Place("y"))
        network, self.calls = self.calls, []
        action = self._head(raw.size)
        return Program(
            comment=comment,
            observation=self.observation,
            raw=raw.size,
            action=action,
            codes=self.buffers["c"].size,
            reals=self.buffers["r"].size,
            tables=self.tables,
            network=tuple(network),
            head=tuple(self.calls),
        )

    def call(self, kernel: str, *arguments: Any) -> None:
        """Appends a call; float32 numbers are written as bits, arrays become tables."""
        wanted = parameters(kernel)
        written = []
        for parameter, value in zip(wanted, arguments, strict=True):
            if isinstance(value, Place):
                written.append(f"{value.buffer} + {value.start}")
            elif parameter.extent:
                written.append(self._table(parameter.name, parameter.ctype, value))
            else:
                real = parameter.ctype == "real"
                written.append(f"0x{int(np.float32(value).view(np.uint32)):08x}u" if real else str(int(value)))
        self.calls.append(Call(kernel, tuple(written)))

    def real(self, name: str) -> Place:
        """Where the float32 numbers of a value lie."""
        value = self.values[name]
        if value.bytes_as is not None:
            raise UnsupportedError(f"C has no kernel that reads the bytes of {name!r} as real numbers; {ELSEWHERE}")
        if value.real is None:
            assert value.codes is not None
            assert value.grid is not None
            place = self.place("r", name, value.size)
            self.call("dequantize", value.size, value.codes, np.float32(value.grid.scale), place)
            self.values[name] = value = replace(value, real=place)
        assert value.real is not None
        return value.real

    def codes(self, name: str) -> Place:
        """Where the codes of a value on its grid lie."""
        value, grid = self.values[name], self.policy.grids[name]
        if value.codes is None or value.grid != grid:
            place = self.quantized(name, grid, self.place("c", name, value.size))
            self.values[name] = value = replace(value, codes=place, grid=grid)
        assert value.codes is not None
        return value.codes

    def quantized(self, name: str, grid: ActivationGrid, place: Place) -> Place:
        """Appends what puts a value's numbers on a grid, at `place`."""
        value, scale = self.values[name], np.float32(grid.scale)
        if max(grid.steps) > 32767 or min(grid.steps) < -32768:
            raise UnsupportedError(f"value {name!r} has codes of more than 16 bits from its zero point; {ELSEWHERE}")
        if value.bytes_as is not None:
            codes = quantize(value.bytes_as, grid.qparams)
            self.call("quantize_bytes", value.size, value.real, self._int8(codes, name), grid.zero_point, place)
        elif math.frexp(scale)[0] == 0.5 and scale > 2.0**-126:
            self.call("quantize_shift", value.size, self.real(name), np.float32(1) / scale, *grid.steps, place)
        else:
            self.call("quantize", value.size, self.real(name), scale, *grid.steps, place)
        return place

    def place(self, buffer: str, name: str, size: int, *, over: Place | None = None) -> Place:
        """A place for a value; over: where what it is made of lies, if it may lie there as well."""
        if buffer == "r" and name == self.policy.output:
            return Place("y")
        taken = self.buffers[buffer].taken
        if over is not None and over.buffer == buffer:
            taken[:] = [block for block in taken if block[2] > self.now]
        return Place(buffer, self.buffers[buffer].place(size, self.now, self.until[name]))

    def _last_reads(self) -> dict[str, int]:
        """The number of the last operator that reads each value, or what is a view of it."""
        until = {self.policy.output: len(self.policy.ops)}
        for index, op in reversed(list(enumerate(self.policy.ops))):
            view = isinstance(op, operators.Flatten | operators.Slice) or self._fused(op)
            for name in op.inputs:
                until[name] = max(until.get(name, 0), until[op.name] if view else index)
        return until

    def _fused(self, op: Op) -> bool:
        """Whether it is a ReLU that the layer before it clips to."""
        if not isinstance(op, operators.Activation) or op.kind != "relu" or len(self.readers[op.inputs[0]]) > 1:
            return False
        source, grids = op.inputs[0], self.policy.grids
        layer = any(each.name == source and source not in self.final for each in self.policy.linear)
        return layer and grids[source] == grids.get(op.name)

    def _linear(self, op: Linear) -> Value:
        weight, source = _symmetric(op), self.policy.grids.get(op.inputs[0])
        assert source is not None
        size, x = math.prod(self.shapes[op.name]), self.codes(op.inputs[0])
        rows = weight.codes.reshape(len(weight.codes), -1)
        narrow = weight.bits <= 4 and rows.min() >= -8 and rows.max() <= 7
        codes, kind = (_nibbles(rows), "4") if narrow else (rows, "8")
        if op.name in self.final:
            if not isinstance(op, operators.Dense):
                raise UnsupportedError(f"C has no kernel for the last layer {op.name!r}, a {type(op).__name__}")
            check_int32(op.name, weight.codes, source.reach)
            place = self.place("r", op.name, size)
            scale = unit(weight, source).astype(np.float32)
            self.call("last" + kind, *rows.shape, codes, scale, op.bias, x, place)
            return Value(size=size, real=place)
        target = self.policy.grids[op.name]
        if target.bits > 8:
            raise UnsupportedError(f"C has no kernel for the {target.bits}-bit values of layer {op.name!r}")
        bias, multiplier = requantisation(op, weight, source, target)
        check_int32(op.name, weight.codes, source.reach, bias)
        low, high = target.steps
        relu = self.readers[op.name][0]
        if self._fused(relu):
            low = max(low, 0)
        tables = (codes, bias, multiplier)
        if isinstance(op, operators.Conv2d):
            channels, height, width = self.shapes[op.inputs[0]]
            row = Place("c", self.buffers["c"].place(rows.shape[1], self.now, self.now))
            place = self.place("c", op.name, size)
            sizes = (*op.weight.shape[2:], *op.stride, *op.padding, *self.shapes[op.name][1:])
            numbers = (len(rows), channels, height, width, *sizes)
            self.call("conv" + kind, *numbers, *tables, x, low, high, row, place)
        else:
            place = self.place("c", op.name, size)
            self.call("dense" + kind, *rows.shape, *tables, x, low, high, 1, place)
        value = Value(size=size, codes=place, grid=target)
        if self._fused(relu):
            self.values[relu.name] = value
        return value

    def _activation(self, op: operators.Activation) -> Value:
        name, target = op.inputs[0], self.policy.grids.get(op.name)
        source, on_codes = self.values[name], name in self.policy.grids and target is not None
        if on_codes and source.codes is not None and source.grid == self.policy.grids[name]:
            assert target is not None
            if source.grid.bits > 8 or target.bits > 8:
                raise UnsupportedError(f"C has no kernel for {op.kind} {op.name!r} of more than 8 bits; {ELSEWHERE}")
            entries = np.resize(self._int8(table(op, source.grid, target), op.name), 256)
            place = self.place("c", op.name, source.size, over=source.codes)
            self.call("look_up", source.size, source.codes, source.grid.steps[0], entries, target.zero_point, place)
            return Value(size=source.size, codes=place, grid=target)
        if op.kind != "relu":
            raise UnsupportedError(f"C has no kernel for {op.kind} {op.name!r} of real numbers; {ELSEWHERE}")
        x = self.real(name)
        value = Value(size=source.size, real=self.place("r", op.name, source.size, over=x))
        self.call("rectify", source.size, x, value.real)
        if on_codes:
            assert target is not None
            self.values[op.name] = value
            value = replace(value, real=None, codes=self.codes(op.name), grid=target)
        return value

    def _layer_norm(self, op: operators.LayerNorm) -> Value:
        name = op.inputs[0]
        if not norms_codes(op, self.policy.grids):
            raise UnsupportedError(f"C has no kernel for LayerNorm {op.name!r} of real numbers; {ELSEWHERE}")
        x, n, size = self.codes(name), op.weight.size, self.values[name].size
        place = self.place("r", op.name, size)
        constants = (*norm_constants(op, self.policy.grids[name]), op.weight, op.bias)
        for start in range(0, size, n):
            self.call("layer_norm", n, _after(x, start), *constants, _after(place, start))
        return Value(size=size, real=place)

    def _normalize(self, op: operators.Normalize) -> Value:
        x, size = self.real(op.inputs[0]), op.mean.size
        place = self.place("r", op.name, size, over=x)
        clip = np.float32(op.clip)
        self.call("normalize", size, x, *op.mean_parts, op.inverse_std, -clip, clip, place)
        return Value(size=size, real=place)

    def _scale(self, op: operators.Scale) -> Value:
        source = self.values[op.inputs[0]]
        if source.bytes_as is not None and not op.factor.shape:
            return replace(source, bytes_as=source.bytes_as * op.factor)
        x = self.real(op.inputs[0])
        place = self.place("r", op.name, source.size, over=x)
        self.call("scale_each", source.size, x, np.broadcast_to(op.factor, self.shapes[op.name]), place)
        return Value(size=source.size, real=place)

    def _slice(self, op: operators.Slice) -> Value:
        value = self.values[op.inputs[0]]
        real = value.real if value.bytes_as is not None else self.real(op.inputs[0])
        assert real is not None
        return Value(size=math.prod(op.part), real=_after(real, op.start), bytes_as=value.bytes_as)

    def _concat(self, op: operators.Concat) -> Value:
        if len(self.shapes[op.name]) > 1:
            raise UnsupportedError(f"C has no kernel for Concat {op.name!r} of images; {ELSEWHERE}")
        parts = [(self.real(name), self.values[name].size) for name in op.inputs]
        size = sum(n for _, n in parts)
        place, start = self.place("r", op.name, size), 0
        for x, n in parts:
            self.call("copy", n, x, _after(place, start))
            start += n
        return Value(size=size, real=place)

    def _add(self, op: operators.Add) -> Value:
        a, b = sorted(op.inputs, key=lambda name: -self.values[name].size)
        x, y, size = self.real(a), self.real(b), self.values[a].size
        place = self.place("r", op.name, size)
        if self.values[b].size == size:
            self.call("sum_each", size, x, y, place)
        else:
            for i in range(size):
                self.call("sum_each", 1, _after(x, i), y, _after(place, i))
        return Value(size=size, real=place)

    def _head(self, size: int) -> tuple[str, int]:
        """Appends what makes the action of the output; its C type and how many numbers it has."""
        head, y, a = self.policy.head, Place("y"), Place("a")
        if head.kind == "argmax":
            start = 0
            segments = head.segments or (size,)
            for index, n in enumerate(segments):
                first = 0 if head.segments or head.zero_based else head.start
                self.call("argmax", n, _after(y, start), first, _after(a, index))
                start += n
            return "int32_t", len(segments)
        if head.kind == "binary":
            self.call("positive", size, y, a)
            return "int32_t", size
        bounds = head.low.astype(np.float32), head.high.astype(np.float32)
        if head.kind == "clip":
            self.call("clip", size, y, *bounds, a)
        else:
            self.call("squash", head.low.size, y, *bounds, bounds[1] - bounds[0], a)
        return "uint32_t", head.low.size

    def _int8(self, codes: Array, name: str) -> Array:
        if codes.min() < -128 or codes.max() > 127:
            raise UnsupportedError(f"C has no kernel for codes of {name!r} beyond 8 bits; {ELSEWHERE}")
        return codes

    def _table(self, role: str, ctype: str, values: Array) -> str:
        """The name of the table of these numbers."""
        flat = np.ascontiguousarray(values).reshape(-1)
        if ctype == "uint32_t":
            flat = flat.astype(np.float32).view(np.uint32)
        flat = flat.astype(ctype.removesuffix("_t"))
        for name, other in self.tables.items():
            if other.dtype == flat.dtype and np.array_equal(other, flat):
                return name
        name = f"{role}{len(self.tables)}"
        self.tables[name] = flat
        return name


LOWERINGS: Mapping[type[Op], Callable[[Lowering, Any], Value]] = {
    operators.Dense: Lowering._linear,
    operators.Conv2d: Lowering._linear,
    operators.Activation: Lowering._activation,
    operators.LayerNorm: Lowering._layer_norm,
    operators.Normalize: Lowering._normalize,
    operators.Scale: Lowering._scale,
    operators.Flatten: lambda into, op: into.values[op.inputs[0]],
    operators.Slice: Lowering._slice,
    operators.Concat: Lowering._concat,
    operators.Add: Lowering._add,
}


def _symmetric(op: Linear) -> QuantizedTensor:
    weight = op.weight
    if not isinstance(weight, QuantizedTensor) or weight.codes.dtype != np.int8 or weight.zero_point.any():
        raise UnsupportedError(f"layer {op.name!r} has weights that are no symmetric codes of 8 bits or fewer")
    return weight


def _nibbles(rows: Array) -> Array:
    """Column j low, column j + (k + 1) / 2 high; 8 more than each code, so that an odd row's last half is 0."""
    half = (rows.shape[1] + 1) // 2
    padded = np.pad(rows.astype(np.int64), ((0, 0), (0, 2 * half - rows.shape[1])), constant_values=-8) + 8
    return padded[:, :half] | padded[:, half:] << 4


def _after(place: Place, start: int) -> Place:
    return Place(place.buffer, place.start + start)
