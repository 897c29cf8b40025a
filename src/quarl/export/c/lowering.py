"""A static QuantizedPolicy as calls of kernels: the kernel of each value, and its place in one of two buffers."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from quarl import __version__
from quarl.arrays import Array
from quarl.engines.lookup_tables import table
from quarl.engines.numpy_operators import Norm, codes_formula, norms_codes
from quarl.engines.sums import check_int32, requantization, symmetric, unit
from quarl.errors import QuarlError, UnsupportedError
from quarl.export.c import fixed_point
from quarl.export.c.places import Buffer, Place, Value
from quarl.export.c.program import Call, Program, parameters
from quarl.export.c.weight_words import by_fours, multipliers, pack
from quarl.export.contract import digests
from quarl.policy import operators
from quarl.policy.graph import QuantizedPolicy, final_linear, readers, shapes, ungridded
from quarl.policy.operators import OBSERVATION, Linear, Op
from quarl.quant.affine import quantize
from quarl.saturation import ends


class Lowering:
    """Builder of a program that appends calls operator by operator; conversions are added when first needed."""

    def __init__(self, policy: QuantizedPolicy) -> None:
        if policy.spec.mode != "static" or policy.spec.activation_bits is None:
            raise UnsupportedError("C computes only in static integers: quantize with --mode static")
        if (name := ungridded(policy)) is not None:
            raise QuarlError(f"value {name!r} has no grid; calibrate the policy again")
        self.policy = policy
        self.final = final_linear(policy)
        self.shapes = shapes(policy)
        self.readers = readers(policy)
        self.ends = ends(policy)
        self.codes_buffer, self.reals_buffer = Buffer(), Buffer()
        self.tables: dict[str, Array] = {}
        self.layers: dict[str, str] = {}
        self.calls: list[Call] = []
        self.now = 0
        self.until = self._last_reads()
        # With a memory, the last operator joins the outputs and the next state, whose parts are computed in place.
        parts = policy.ops[-1].inputs if policy.state.size else ()
        self.outputs = {policy.output: 0} | dict(zip(parts, self._starts(parts), strict=False))
        size = math.prod(policy.observation_shape)
        is_bytes = policy.observation_dtype == "uint8"
        every = np.arange(256, dtype=np.float32) if is_bytes else None
        self.values = {OBSERVATION: Value(size=size, real=Place("x"), bytes_as=every)}

    def program(self, comment: str, name: str = "policy") -> Program:
        """Return the whole policy."""
        for now, op in enumerate(self.policy.ops):
            self.now = now
            if type(op) not in LOWERINGS:
                raise _missing(f"{type(op).__name__} {op.name!r}")
            if op.name not in self.values:
                self.values[op.name] = LOWERINGS[type(op)](self, op)
        # The output must be in y; a clip without bounds copies it.
        raw = self.values[self.policy.output].size
        if (place := self.real(self.policy.output)).buffer != "y":
            self.call("clip", raw, place, -np.inf, np.inf, Place("y"))
        network, self.calls = tuple(self.calls), []
        a, action = self._head(self.policy.num_outputs)
        head, self.calls, self.now = tuple(self.calls), [], len(self.policy.ops)
        if (box := self.policy.box) is not None:
            box = box if not (size := self.policy.state.size) else (box[0][:-size], box[1][:-size])
            alike = all(np.ptp(end) == 0 for end in box)
            tables = (end.ravel()[: 1 if alike else None] for end in box)
            self.call("outside", box[0].size, not alike, Place("x"), *tables)
        start = self._table("start", "uint32_t", self.policy.state) if self.policy.state.size else ""
        weights, grids = (digest[:16] for digest in digests(self.policy).values())
        x = "uint32_t" if self.values[OBSERVATION].bytes_as is None else "uint8_t"
        return Program(
            comment=comment,
            name=name,
            identity=f"{name} quarl {__version__} weights {weights} grids {grids}",
            x=x,
            a=a,
            observation=self.values[OBSERVATION].size,
            raw=raw,
            state=self.policy.state.size,
            start=start,
            action=action,
            codes=max(self.codes_buffer.size, 1),
            reals=max(self.reals_buffer.size, 1),
            tables=self.tables,
            layers=self.layers,
            network=network,
            head=head,
            seen=tuple(self.calls),
        )

    def call(self, kernel: str, *arguments: Any) -> None:
        """Append a call; float32 numbers are written as bits, arrays become tables."""
        written = []
        for parameter, value in zip(parameters(kernel), arguments, strict=True):
            if isinstance(value, Place):
                written.append(f"{value.buffer} + {value.start}")
            elif isinstance(value, str):
                written.append(value)
            elif parameter.extent:
                written.append(self._table(parameter.name, parameter.ctype, value))
            elif parameter.ctype == "real":
                written.append(f"0x{int(np.float32(value).view(np.uint32)):08x}u")
            else:
                written.append(str(int(value)))
        self.calls.append(Call(kernel, tuple(written)))

    def real(self, name: str) -> Place:
        """Return the place of a value's float32 numbers."""
        value = self.values[name]
        if value.bytes_as is not None:
            raise _missing(f"the bytes of {name!r} as real numbers")
        if value.real is None:
            kept = fixed_point.steps(self, name) if self.policy.state.size else None
            place = self.place_real(name, value.size)
            if kept is not None:
                power = math.copysign(1, kept.scale), math.log2(abs(kept.scale))
                self.call("to_real", value.size, kept.place, *power, place)
            else:
                assert value.grid is not None
                self.call("dequantize", value.size, value.codes, value.grid.scale, place)
            self.values[name] = value = replace(value, real=place, steps=kept)
        assert value.real is not None
        return value.real

    def codes(self, name: str) -> Place:
        """Return the place of a value's codes on its grid."""
        value, grid = self.values[name], self.policy.grids[name]
        if value.codes is not None and value.grid == grid:
            return value.codes
        place, scale = self.place_codes(name, value.size), np.float32(grid.scale)
        if grid.steps[0] < -(2**15) or grid.steps[1] >= 2**15:
            raise _missing(f"codes of {name!r} further than 16 bits from their zero point")
        if value.bytes_as is not None:
            codes = _int8(quantize(value.bytes_as, grid.qparams), name)
            self.call("quantize_bytes", value.size, value.real, codes, grid.zero_point, place)
        elif self.policy.state.size:
            fixed_point.settle(self, name, grid, place)
        elif math.frexp(scale)[0] == 0.5 and scale > 2.0**-126:
            self.call("quantize_shift", value.size, self.real(name), 1 / scale, *grid.steps, place)
        else:
            self.call("quantize", value.size, self.real(name), scale, *grid.steps, place)
        self.count(name, value.size, place)
        self.values[name] = replace(self.values[name], codes=place, grid=grid)
        return place

    def count(self, name: str, size: int, place: Place) -> None:
        """Append a count of the codes of a value at the ends of its grid, if these count.

        Args:
            name: Name of the value.
            size: Number of codes.
            place: Place of the codes.
        """
        if name in self.ends:
            self.call("COUNT", list(self.policy.grids).index(name), size, place, *self.ends[name])

    def place_codes(self, name: str, size: int, *, over: bool = False) -> Place:
        """Return a place for the codes of a value.

        Args:
            name: Name of the value.
            size: Number of codes.
            over: Allow the place of the operator's input, if no other operator reads it.
        """
        return Place("c", self.codes_buffer.place(size, self.now, self.until[name], over=over))

    def place_real(self, name: str, size: int, *, over: bool = False) -> Place:
        """Return a place for the float32 numbers of a value.

        Args:
            name: Name of the value.
            size: Number of elements.
            over: Allow the place of the operator's input, if no other operator reads it.
        """
        if name in self.outputs:
            return Place("y", self.outputs[name])
        return Place("r", self.reals_buffer.place(size, self.now, self.until[name], over=over))

    def place_steps(self, size: int, until: int) -> Place:
        """Return a place for steps, among real numbers, that operators up to `until` read."""
        return Place("r", self.reals_buffer.place(size, self.now, until))

    def _last_reads(self) -> dict[str, int]:
        """Return the index of the last operator that reads each value, or a view of it."""
        until = {self.policy.output: len(self.policy.ops)}
        for index, op in reversed(list(enumerate(self.policy.ops))):
            kinds = (operators.Flatten, operators.Slice, *[operators.Scale] * bool(self.policy.state.size))
            view = isinstance(op, kinds) or self._fused(op)
            for name in op.inputs:
                until[name] = max(until.get(name, 0), until[op.name] if view else index)
        return until

    def _fused(self, op: Op) -> bool:
        """Return whether it is a ReLU that the layer before it computes by clipping."""
        if not isinstance(op, operators.Activation) or op.kind != "relu" or len(self.readers[op.inputs[0]]) > 1:
            return False
        source, grids = op.inputs[0], self.policy.grids
        layer = any(each.name == source and source not in self.final for each in self.policy.linear)
        return layer and grids[source] == grids.get(op.name)

    def _linear(self, op: Linear) -> Value:
        weight, source, x = symmetric(op, "C"), self.policy.grids[op.inputs[0]], self.codes(op.inputs[0])
        size, rows = math.prod(self.shapes[op.name]), weight.codes.reshape(len(weight.codes), -1)
        kernel, offset, words, table = pack(rows, source.reach)
        # Kernels read columns by fours; what is behind the last one counts for nothing.
        padded = by_fours(rows.shape[1])
        if not isinstance(op, operators.Conv2d):
            self.codes_buffer.size = max(self.codes_buffer.size, x.start + padded)
        # The last layer returns real numbers, all others codes on their grid.
        if op.name in self.final:
            if not isinstance(op, operators.Dense):
                raise _missing(f"the last layer {op.name!r}, a {type(op).__name__}")
            check_int32(op.name, weight.codes, source.reach)
            place = self.place_real(op.name, size)
            self.call("last", kernel, offset, words, *rows.shape, table, unit(weight, source), op.bias, x, place)
            return Value(size=size, real=place)
        target, relu = self.policy.grids[op.name], self.readers[op.name][0]
        if target.bits > 8:
            raise _missing(f"the {target.bits}-bit values of layer {op.name!r}")
        bias, multiplier = requantization(op, weight, source, target)
        check_int32(op.name, weight.codes, source.reach, bias)
        sums = np.abs(rows.astype(np.int64)).sum(axis=1) * source.reach + np.abs(bias)
        shift, codes = multipliers(multiplier, sums.max())
        # A fused ReLU clips codes at the zero point.
        low, high = target.steps
        numbers = (table, bias, codes, x, max(low, 0) if self._fused(relu) else low, high)
        if isinstance(op, operators.Conv2d):
            row = Place("c", self.codes_buffer.place(padded, self.now, self.now))
            place = self.place_codes(op.name, size)
            window = (*self.shapes[op.inputs[0]], *op.weight.shape[2:], *op.stride, *op.padding)
            to = self.shapes[op.name][1:]
            self.call("convolve", kernel, offset, words, shift, len(rows), *window, *to, *numbers, row, place)
        else:
            place = self.place_codes(op.name, size)
            self.call("dense", kernel, offset, words, shift, *rows.shape, *numbers, 1, place)
        self.count(op.name, size, place)
        value = Value(size=size, codes=place, grid=target)
        if self._fused(relu):
            self.values[relu.name] = value
        return value

    def _activation(self, op: operators.Activation) -> Value:
        name, target, source = op.inputs[0], self.policy.grids.get(op.name), self.values[op.inputs[0]]
        grid = self.policy.grids.get(name)
        if target is not None and source.codes is not None and source.grid == grid is not None:
            if (
                op.kind == "tanh_ratio"
                and target.bits <= 8
                and (found := fixed_point.threshold(self, op, grid, target))
            ):
                return found
            if grid.bits > 8 or target.bits > 8:
                raise _missing(f"{op.kind} {op.name!r} of more than 8 bits")
            entries = np.resize(_int8(table(op, grid, target), op.name), 256)
            place = self.place_codes(op.name, source.size, over=True)
            self.call("look_up", source.size, source.codes, grid.steps[0], entries, target.zero_point, place)
            return Value(size=source.size, codes=place, grid=target)
        if op.kind != "relu":
            raise _missing(f"{op.kind} {op.name!r} of real numbers")
        value = self._each(op, "clip", 0, np.inf)
        if target is not None and grid is not None:
            self.values[op.name] = value
            value = replace(value, real=None, codes=self.codes(op.name), grid=target)
        return value

    def _each(self, op: Op, kernel: str, *numbers: Any) -> Value:
        """Append a kernel on each real number of the operator's input; return its value."""
        x, size = self.real(op.inputs[0]), self.values[op.inputs[0]].size
        place = self.place_real(op.name, size, over=True)
        self.call(kernel, size, x, *numbers, place)
        return Value(size=size, real=place)

    def _norm(self, op: Norm) -> Value:
        if not norms_codes(op, self.policy.grids):
            raise _missing(f"{type(op).__name__} {op.name!r} of real numbers")
        x, n, size = self.codes(op.inputs[0]), self.shapes[op.name][-1], self.values[op.inputs[0]].size
        place, (_, numbers) = self.place_real(op.name, size), codes_formula(op, self.policy.grids[op.inputs[0]])
        kernel = "l2_norm" if isinstance(op, operators.L2Norm) else "layer_norm"
        for start in range(0, size, n):
            self.call(kernel, n, x.after(start), *numbers, place.after(start))
        return Value(size=size, real=place)

    def _normalize(self, op: operators.Normalize) -> Value:
        x, size = self.real(op.inputs[0]), op.mean.size
        place = self.place_real(op.name, size, over=True)
        for part in filter(np.any, op.mean_parts):
            self.call("sum", size, x, -part, place)
            x = place
        self.call("scale", size, x, op.inverse_std, place)
        self.call("clip", size, place, -op.clip, op.clip, place)
        return Value(size=size, real=place)

    def _scale(self, op: operators.Scale) -> Value:
        source = self.values[op.inputs[0]]
        if source.bytes_as is not None and not op.factor.shape:
            return replace(source, bytes_as=source.bytes_as * op.factor)
        kept = fixed_point.steps(self, op.inputs[0]) if self.policy.state.size and not op.factor.shape else None
        if kept is not None and fixed_point.is_power(float(op.factor)):
            return Value(size=source.size, steps=kept._replace(scale=kept.scale * float(op.factor)))
        return self._each(op, "scale", np.broadcast_to(op.factor, self.shapes[op.name]))

    def _slice(self, op: operators.Slice) -> Value:
        value = self.values[op.inputs[0]]
        real = self.real(op.inputs[0]) if value.bytes_as is None else value.real
        assert real is not None
        return Value(size=math.prod(op.part), real=real.after(op.start), bytes_as=value.bytes_as)

    def _concat(self, op: operators.Concat) -> Value:
        if len(self.shapes[op.name]) > 1:
            raise _missing(f"Concat {op.name!r} of images")
        starts, grid = self._starts(op.inputs), self.policy.grids.get(op.name)
        if self.policy.state.size and grid and all(isinstance(reader, Linear) for reader in self.readers[op.name]):
            place = self.place_codes(op.name, starts[-1])
            for name, start in zip(op.inputs, starts, strict=False):
                fixed_point.settle(self, name, grid, place.after(start))
            self.count(op.name, starts[-1], place)
            return Value(size=starts[-1], codes=place, grid=grid)
        parts = [(self.real(name), self.values[name].size) for name in op.inputs]
        place = self.place_real(op.name, starts[-1])
        for (x, n), start in zip(parts, starts, strict=False):
            if x != place.after(start):
                self.call("clip", n, x, -np.inf, np.inf, place.after(start))
        return Value(size=starts[-1], real=place)

    def _starts(self, names: Sequence[str]) -> list[int]:
        """Return the places of values in a row of all, and its size."""
        return list(itertools.accumulate((math.prod(self.shapes[name]) for name in names), initial=0))

    def _add(self, op: operators.Add) -> Value:
        if self.policy.state.size and (found := fixed_point.add(self, op)):
            return found
        a, b = sorted(op.inputs, key=lambda name: -self.values[name].size)
        x, y, size = self.real(a), self.real(b), self.values[a].size
        place, step = self.place_real(op.name, size), self.values[b].size
        for start in range(0, size, step):
            self.call("sum", step, x.after(start), y, place.after(start))
        return Value(size=size, real=place)

    def _head(self, size: int) -> tuple[str, int]:
        """Append the head that turns the output into the action; return the action's C type and size."""
        head, y, a = self.policy.head, Place("y"), Place("a")
        if head.kind == "argmax":
            segments = head.segments or (size,)
            for index, n in enumerate(segments):
                self.call("argmax", n, y.after(sum(segments[:index])), head.first, a.after(index))
            return "int32_t", len(segments)
        if head.kind == "binary":
            self.call("positive", size, y, a)
            return "int32_t", size
        low, high = (ends.astype(np.float32).reshape(-1) for ends in (head.low, head.high))
        alike = (low == low[0]).all() and (high == high[0]).all()
        for index in range(1 if alike else low.size):
            ends = (low[index], high[index]) if head.kind == "clip" else (low[index], high[index], (high - low)[index])
            kernel = "clip" if head.kind == "clip" else "squash"
            self.call(kernel, low.size if alike else 1, y.after(index), *ends, a.after(index))
        return "uint32_t", low.size

    def _table(self, role: str, ctype: str, values: Array) -> str:
        """Return the name of the table of these numbers."""
        flat = np.ascontiguousarray(values).reshape(-1)
        if ctype != "uint32_t":
            flat = flat.astype(ctype.removesuffix("_t"))
        elif flat.dtype != np.uint32:  # words of weights and codes of multipliers are as they are
            flat = flat.astype(np.float32).view(np.uint32)
        for name, other in self.tables.items():
            if other.dtype == flat.dtype and np.array_equal(other, flat):
                return name
        self.tables[name := f"{role}{len(self.tables)}"] = flat
        layer = [*(op.name for op in self.policy.ops), "box"][self.now]
        self.layers[name] = re.sub(r"[^\w.:/-]", "-", layer, flags=re.ASCII)
        return name


LOWERINGS: Mapping[type[Op], Callable[[Lowering, Any], Value]] = {
    operators.Dense: Lowering._linear,
    operators.Conv2d: Lowering._linear,
    operators.Activation: Lowering._activation,
    operators.LayerNorm: Lowering._norm,
    operators.L2Norm: Lowering._norm,
    operators.Normalize: Lowering._normalize,
    operators.Scale: Lowering._scale,
    operators.Flatten: lambda into, op: into.values[op.inputs[0]],
    operators.Slice: Lowering._slice,
    operators.Concat: Lowering._concat,
    operators.Add: Lowering._add,
    operators.Mul: fixed_point.multiply,
    operators.Rounded: fixed_point.rounded,
}


def _int8(codes: Array, name: str) -> Array:
    if codes.min() < -128 or codes.max() > 127:
        raise _missing(f"codes of {name!r} beyond 8 bits")
    return codes


def _missing(what: str) -> UnsupportedError:
    return UnsupportedError(f"C has no kernel for {what}; targets tflite and onnx have one")
