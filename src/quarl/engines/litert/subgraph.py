"""QuantizedPolicy to .tflite: each operator of the policy becomes the kernels that compute exactly its value.

Images are [B, C, H, W] in a policy and [B, H, W, C] in the runtime. They are transposed once, before the first
convolution, and if one is flattened, its order is folded into the columns of the layers that read it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from quarl.arrays import Array
from quarl.engines.litert import elementwise
from quarl.engines.litert.flatbuffer import Model, Operator
from quarl.engines.litert.linear import dynamic, floating, hidden, last, turned, wide, wider_than_a_pixel, with_weight
from quarl.engines.lookup_tables import steady_scale, table
from quarl.engines.numpy_operators import Norm, averages_codes, norms_codes
from quarl.engines.sums import check_bits
from quarl.policy import operators
from quarl.policy.graph import ActivationGrid, QuantizedPolicy, final_linear, readers, shapes
from quarl.policy.grids import pixel_grid
from quarl.policy.operators import OBSERVATION, Linear, Op, QuantizedTensor
from quarl.policy.recurrent import ports


def write(
    policy: QuantizedPolicy,
    *,
    acts: bool = False,
    say: Callable[[str], None] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> bytes:
    """Return the .tflite file of the policy for one row at a time; a runtime may resize its batch.

    The input is the raw observation [1, *shape], float32 or uint8. The output is float32 [1, n], the input of the
    policy's head. A policy with a memory reads one row with its state; if it acts, each part of the state is an input
    and an output of its own, as in `policy.recurrent.ports`.

    Args:
        policy: The policy.
        acts: Return the greedy action itself unless actions are discrete, as in files for other runtimes.
        say: Receives one line about features that TFLite Micro has no kernels for.
        metadata: Texts by name to store in the file.

    Raises:
        UnsupportedError: The runtime has no kernels for the precision or an operator.
    """
    lowering = Lowering(policy, acts=acts)
    content = lowering.to_bytes(metadata)
    if say is not None and (foreign := lowering.model.foreign_to_micro()):
        say(f"this file is for LiteRT: TFLite Micro has no kernels for {foreign}; it runs fp32 and static int8")
    return content


@dataclass(slots=True, kw_only=True)
class Value:
    """A value of the policy in the file: a float32 tensor, an int8 tensor of codes, or both."""

    real: int | None = None
    codes: int | None = None
    grid: ActivationGrid | None = None
    """Grid of a value that exists only as codes: the output of an integer layer, and values computed from it."""
    scaled: operators.Scale | None = None
    """Operator of the value, while it is not needed in float32."""
    turned: bool = False
    """True for images [B, H, W, C]."""
    order: Array | None = None
    """Policy's index of each element of a flattened transposed image."""


class Lowering:
    """Builder of the file, operator by operator; conversions between reals and codes are added when first needed."""

    def __init__(self, policy: QuantizedPolicy, *, acts: bool = False) -> None:
        check_bits(policy, "LiteRT")
        self.policy = policy
        self.acts = acts
        self.ports = ports(policy, apart=acts)
        self.model = Model()
        self.model.scope = OBSERVATION
        self.final = final_linear(policy)
        self.shapes = shapes(policy)
        self.readers = readers(policy)
        if policy.observation_dtype == "uint8":
            self.sources = [self.model.value((1, *policy.observation_shape), np.uint8, 0)]
            self.values = {OBSERVATION: Value()}
        else:
            self.sources = [self.model.value((1, *self.shapes[port.value])) for port in self.ports]
            self.values = {port.value: Value(real=real) for port, real in zip(self.ports, self.sources, strict=True)}

    def to_bytes(self, metadata: Mapping[str, str] | None = None) -> bytes:
        """Return the file."""
        for op in self.policy.ops:
            if op.name not in self.values:
                self.model.scope = op.name
                self.values[op.name] = LOWERINGS[type(op)](self, op)
        output, *parts = (self.real(port.computed) for port in self.ports)
        if not self.acts:
            return self.model.to_bytes(self.sources, [output], metadata=metadata)
        self.model.scope = "action"
        # A tensor has one name, and a part may be an input or the output, too: each part is copied.
        outputs = [elementwise.action(self.model, self.policy.head, output), *(self.times(part, 1) for part in parts)]
        names = [*(port.name for port in self.ports), *(port.next for port in self.ports)]
        return self.model.to_bytes(self.sources, outputs, names, metadata)

    def plain(self, name: str) -> int:
        """Return the float32 tensor of a value, with the axes of the policy."""
        tensor = self.real(name)
        return elementwise.transpose(self.model, tensor, (0, 3, 1, 2)) if self.values[name].turned else tensor

    def real(self, name: str) -> int:
        """Return the float32 tensor of a value, with the axes that it has."""
        value = self.values[name]
        if value.real is None and name == OBSERVATION:
            # Bytes are codes on a grid of integers: XNNPACK has no cast, but it dequantizes.
            value.real = elementwise.centered(self.model, self.sources[0])
        if value.real is None and value.scaled is not None:
            value.real = self.times(self.plain(value.scaled.inputs[0]), value.scaled.factor)
        if value.real is None:
            assert value.grid is not None
            value.real = self.times(elementwise.centered(self.model, self.codes(name)), value.grid.scale)
        return value.real

    def times(self, x: int, numbers: Any) -> int:
        """Append a float32 tensor times a constant."""
        return elementwise.each(self.model, Operator.MUL, x, numbers)

    def codes(self, name: str) -> int:
        """Return the int8 tensor of a value on its grid."""
        value, grid = self.values[name], self.policy.grids[name]
        if value.codes is None and self.acts and self._counts_bytes(value.scaled, grid):
            # LiteRT's two kernels through float32 are faster, but TFLite Micro needs four times the memory for them.
            value.codes = elementwise.rounded(self.model, self.sources[0], grid)
        if value.codes is None:
            value.codes = elementwise.quantized(self.model, self.real(name), grid)
        return value.codes

    def _counts_bytes(self, op: operators.Scale | None, grid: ActivationGrid) -> bool:
        """Return whether codes on the grid of the value of `op` are the bytes of the observation minus 128."""
        if op is None or op.factor.shape or op.inputs[0] != OBSERVATION or self.policy.observation_dtype != "uint8":
            return False
        return grid == pixel_grid(float(op.factor))

    def wide_codes(self, name: str) -> int:
        """Return the codes of a value on a grid of more than 8 bits, as float32 integers."""
        grid, scaled = self.policy.grids[name], self.values[name].scaled
        if scaled is not None and math.frexp(grid.scale)[0] == 0.5:
            # Dividing by a power of two is exact, so that it can be part of the factor.
            steps = self.times(self.plain(scaled.inputs[0]), scaled.factor / np.float32(grid.scale))
        else:
            steps = elementwise.each(self.model, Operator.DIV, self.plain(name), grid.scale)
        return elementwise.counted(self.model, steps, grid)

    def _norm(self, op: Norm) -> Value:
        if norms_codes(op, self.policy.grids):
            integers = elementwise.centered(self.model, self.codes(op.inputs[0]))
            return Value(real=elementwise.norm_of_codes(self.model, op, integers, self.policy.grids[op.inputs[0]]))
        return Value(real=elementwise.norm(self.model, op, self.plain(op.inputs[0])))

    def _pool(self, op: operators.Pool2d) -> Value:
        source, name = self.values[op.inputs[0]], op.inputs[0]
        if averages_codes(op, self.policy.grids):
            x = elementwise.centered(self.model, self.codes(name))
        else:
            x = self.real(name) if source.grid is None else self.codes(name)
        if not source.turned:
            x = elementwise.transpose(self.model, x, (0, 2, 3, 1))
        pooled = elementwise.pool(self.model, op, x)
        if op.kind == "max" and source.grid is not None:
            return Value(codes=pooled, grid=source.grid, turned=True)
        grid = self.policy.grids.get(name) if op.kind == "average" else None
        return Value(real=pooled if grid is None else self.times(pooled, grid.scale), turned=True)

    def _add(self, op: operators.Add) -> Value:
        long, short = sorted(map(self.plain, op.inputs), key=self.model.shape, reverse=True)
        return Value(real=elementwise.binary(self.model, Operator.ADD, long, short))

    def _rounded(self, op: operators.Rounded) -> Value:
        real, grid = self.real(op.inputs[0]), self.policy.grids.get(op.name)
        return Value(real=real) if grid is None else self._on(real, grid, evenly=self.acts)

    def _on(self, real: int, grid: ActivationGrid, *, turned: bool = False, evenly: bool = False) -> Value:
        """Return real numbers on the grid.

        Args:
            real: float32 tensor.
            grid: The grid.
            turned: It has images [B, H, W, C].
            evenly: Round halves to even in TFLite Micro, too, whose QUANTIZE does not; products are often halves.
        """
        if grid.bits <= 8 and not evenly:
            return Value(codes=elementwise.quantized(self.model, real, grid), grid=grid, turned=turned)
        integers = elementwise.counted(self.model, elementwise.each(self.model, Operator.DIV, real, grid.scale), grid)
        if grid.bits <= 8:
            return Value(codes=elementwise.rounded(self.model, integers, grid), grid=grid)
        return Value(real=self.times(integers, grid.scale), turned=turned)

    def _linear(self, op: Linear) -> Value:
        spec, name, relu = self.policy.spec, op.inputs[0], self._relu_of(op)
        integers = isinstance(op.weight, QuantizedTensor) and spec.activation_bits is not None
        if integers and spec.mode == "static":
            return self._static(op, relu)
        op, x = self._arranged(op, self.real(name))
        if integers and isinstance(op, operators.Conv2d):
            op = wider_than_a_pixel(op)
        layer = dynamic if integers else floating
        value = Value(real=layer(self.model, op, x, relu=relu is not None), turned=isinstance(op, operators.Conv2d))
        if relu is not None:
            self.values[relu.name] = value
        return value

    def _static(self, op: Linear, relu: operators.Activation | None) -> Value:
        name, source = op.inputs[0], self.policy.grids[op.inputs[0]]
        op, x = self._arranged(op, self.wide_codes(name) if source.bits > 8 else self.codes(name))
        if op.name in self.final:
            integers = x if source.bits > 8 else elementwise.centered(self.model, x)
            return Value(real=last(self.model, op, integers, source), turned=isinstance(op, operators.Conv2d))
        target = self.policy.grids[op.name]
        if relu is not None and target != self.policy.grids.get(relu.name):
            relu = None
        if source.bits > 8:
            codes = wide(self.model, op, x, source, target, relu=relu is not None)
        else:
            # A code that is off by one can be a large part of a row's deviation, which a LayerNorm divides by.
            anywhere = self.acts and any(isinstance(reader, operators.LayerNorm) for reader in self.readers[op.name])
            codes = hidden(self.model, op, x, source, target, relu=relu is not None, anywhere=anywhere)
        value = Value(codes=codes, grid=target, turned=isinstance(op, operators.Conv2d))
        if relu is not None:
            self.values[relu.name] = value
        return value

    def _arranged(self, op: Linear, x: int) -> tuple[Linear, int]:
        """Return the layer and its input in the runtime's order."""
        source = self.values[op.inputs[0]]
        if isinstance(op, operators.Conv2d) and not source.turned:
            return turned(self.model, op, x)
        order = source.order
        return (op, x) if order is None else (with_weight(op, lambda weight: weight[:, order]), x)

    def _relu_of(self, op: Linear) -> operators.Activation | None:
        """Return the ReLU that can be part of the layer's kernel: the only reader of its output."""
        readers = self.readers.get(op.name, [])
        if len(readers) == 1 and isinstance(readers[0], operators.Activation) and readers[0].kind == "relu":
            return readers[0]
        return None

    def _activation(self, op: operators.Activation) -> Value:
        source, target = self.values[op.inputs[0]], self.policy.grids.get(op.name)
        if source.grid is None or target is None or target.bits > 8:
            real = elementwise.activation(self.model, op, self.real(op.inputs[0]))
            if target is None or op.inputs[0] not in self.policy.grids:
                return Value(real=real, turned=source.turned)
            return self._on(real, target, turned=source.turned)
        codes = self.codes(op.inputs[0])
        scale = steady_scale(op, source.grid, target)
        if scale is None:
            codes = elementwise.looked_up(self.model, table(op, source.grid, target), codes, target)
        else:
            x = self.times(elementwise.centered(self.model, codes), scale)
            codes = elementwise.quantized(self.model, elementwise.activation(self.model, op, x), target)
        return Value(codes=codes, grid=target, turned=source.turned)

    def _flatten(self, op: operators.Flatten) -> Value:
        source, shape = self.values[op.inputs[0]], self.shapes[op.inputs[0]]
        readers = self.readers.get(op.name, [])
        value = Value()
        if source.turned and readers and all(isinstance(reader, operators.Dense) for reader in readers):
            value.order = elementwise.flat_order(shape)
        if source.grid is not None and source.grid == self.policy.grids.get(op.name):
            value.grid, tensor = source.grid, self.codes(op.inputs[0])
        else:
            tensor = self.real(op.inputs[0])
        if source.turned and value.order is None:
            tensor = elementwise.transpose(self.model, tensor, (0, 3, 1, 2))
        tensor = elementwise.reshape(self.model, tensor, self.shapes[op.name])
        value.codes, value.real = (None, tensor) if value.grid is None else (tensor, None)
        return value


LOWERINGS: Mapping[type[Op], Callable[[Lowering, Any], Value]] = {
    operators.Dense: Lowering._linear,
    operators.Conv2d: Lowering._linear,
    operators.Activation: Lowering._activation,
    operators.Softmax: lambda into, op: Value(real=elementwise.softmax(into.model, op, into.plain(op.inputs[0]))),
    operators.Pool2d: Lowering._pool,
    operators.LayerNorm: Lowering._norm,
    operators.L2Norm: Lowering._norm,
    operators.Normalize: lambda into, op: Value(real=elementwise.normalize(into.model, op, into.plain(op.inputs[0]))),
    operators.Scale: lambda into, op: Value(scaled=op),
    operators.Flatten: Lowering._flatten,
    operators.Slice: lambda into, op: Value(real=elementwise.slice(into.model, op, into.plain(op.inputs[0]))),
    operators.Concat: lambda into, op: Value(real=elementwise.concat(into.model, list(map(into.plain, op.inputs)))),
    operators.Add: Lowering._add,
    operators.Mul: lambda into, op: Value(
        real=elementwise.binary(into.model, Operator.MUL, *map(into.plain, op.inputs))
    ),
    operators.Rounded: Lowering._rounded,
}
"""Function that appends an operator's kernels to the file."""
