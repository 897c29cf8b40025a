"""Values of a foreign program that depend on the observation, and the graph that computes them.

A reader of ONNX, TorchScript or an exported module evaluates its operators one after the other for one observation.
Constants are numpy arrays. A result that depends on the observation is a `Value`: a name in the graph, or an affine
form that later operators can still change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from quarl.arrays import Array
from quarl.errors import UnsupportedError
from quarl.inert.reading_budget import Budget, current
from quarl.policy.operators import (
    Activation,
    Add,
    Concat,
    Conv2d,
    Dense,
    Flatten,
    L2Norm,
    LayerNorm,
    Linear,
    Mul,
    Op,
    Pool2d,
    Shape,
    Slice,
    Softmax,
    as_float32,
)
from quarl.readers.affine_values import Elementwise, Layer, aligned

MAX_RUNS = 256
"""Largest number of consecutive parts into which a rearrangement may cut a value."""
MAX_REDUCED = 2048
"""Largest number of elements whose sum or mean becomes a layer."""


@dataclass(frozen=True, eq=False, slots=True)
class Unknown:
    """A value without a counterpart in the graph; reading it raises the error.

    A product with a constant zero does not read it. Neither does the position of its largest number, which may be known
    from another value.
    """

    error: UnsupportedError
    order: Value | None = None
    """Value with the same order of its numbers."""


@dataclass(frozen=True, eq=False, slots=True)
class Choice:
    """Positions of the largest numbers of some values: the numbers of a discrete action."""

    scores: tuple[Value, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Length:
    """The Euclidean length of a row; only a division of the row by it has a counterpart."""

    of: Value
    least: float = 0.0


@dataclass(frozen=True, eq=False, slots=True)
class Value:
    """A value that depends on the observation."""

    shape: Shape
    """Shape in the file, with a batch axis of 1 if the file has one."""
    form: str | Elementwise | Layer | Length | Unknown | Choice
    """Name in the graph, which has the same numbers in order, or what computes it."""

    @property
    def size(self) -> int:
        return math.prod(self.shape)


Operand = Value | Array
"""An argument of an operator: a value or a constant."""


class Symbolic:
    """The builder of one graph. Equal operators become one."""

    def __init__(self, budget: Budget | None = None) -> None:
        self.operators: dict[str, Op] = {}
        self.shapes: dict[str, Shape] = {}
        """Shapes of values in the graph, by name, without the batch axis."""
        self.behind: set[str] = set()
        """Names of values that depend on a layer."""
        self.names: dict[Value, str] = {}
        self.same: dict[tuple[Any, ...], str] = {}
        """Names of operators by their complete description."""
        self.starts: dict[str, Array] = {}
        """State at the start of an episode, part by part, by the name under which operators read the last one."""
        self.hidden: set[str] = set()
        """Names of hidden states of recurrent layers, which are between -1 and 1."""
        self.budget = budget or current()

    def source(self, name: str, shape: Shape) -> Value:
        """Return an input of the program; `shape` includes the batch axis."""
        self.shapes[name] = shape[1:] or (math.prod(shape),)
        return Value(shape, name)

    def state(self, name: str, start: Array) -> Value:
        """Return a part of the state of the last step; products of two values have a counterpart from then on.

        Args:
            name: Name of the part.
            start: Its numbers at the start of an episode, in the shape that it has in the file.

        Raises:
            UnsupportedError: Another value has the name.
        """
        if name in self.shapes:
            raise UnsupportedError(f"a state is named {name[:60]!r}, as another value is; rename it")
        self.shapes[name], self.starts[name] = (start.size,), start
        self.behind.add(name)
        return Value(start.shape, name)

    def ops(self, output: Value) -> list[Op]:
        """Return the operators that compute the output, in order; the last one returns a row."""
        return self.needed([self.name(output, (output.size,))])

    def needed(self, names: Iterable[str]) -> list[Op]:
        """Return the operators that compute the values, in order."""
        needed = set(names)
        for op in reversed(self.operators.values()):
            needed.update(op.inputs if op.name in needed else ())
        return [op for op in self.operators.values() if op.name in needed]

    def add_ops(self, *ops: Op) -> str:
        """Add a chain of operators, of which each reads the one before; return the name of the last value."""
        name = ""
        for op in ops:
            made = replace(op, inputs=(name,)) if name else op
            arrays = (getattr(made, field.name) for field in fields(made) if field.name != "name")
            key = type(made), *((a.shape, a.tobytes()) if isinstance(a, np.ndarray) else a for a in arrays)
            if key not in self.same:
                name, number = made.name, 2
                while name in self.shapes:
                    name, number = f"{made.name}.{number}", number + 1
                self.shapes[name] = made.shape([self.shapes[source] for source in made.inputs])
                self.operators[name], self.same[key] = replace(made, name=name), name
                if isinstance(made, Linear) or self.behind.intersection(made.inputs):
                    self.behind.add(name)
            name = self.same[key]
        return name

    def name(self, x: Value, shape: Shape | None = None) -> str:
        """Return the name of the value in the graph, after adding its operators.

        Args:
            x: The value.
            shape: Its shape in the graph, without the batch axis; None accepts the shape that it has there.

        Raises:
            UnsupportedError: The graph cannot compute the value.
        """
        if x not in self.names:
            match x.form:
                case Unknown():
                    raise x.form.error
                case Choice():
                    raise UnsupportedError("an operator reads the chosen action; only the output may be one")
                case Length():
                    raise UnsupportedError(
                        "an operator reads the length of a value; only a division by it is supported"
                    )
                case Layer():
                    self.names[x] = self.add_ops(x.form.made())
                case Elementwise():
                    self.names[x] = self.add_ops(*x.form.ops(self.shapes[x.form.source])) or x.form.source
                case _:
                    self.names[x] = x.form
        name = self.names[x]
        if shape is not None and self.shapes[name] != shape:
            name = self.add_ops(Flatten(f"{name}.flatten", (name,))) if len(self.shapes[name]) > 1 else name
            name = name if self.shapes[name] == shape else self.add_ops(Slice(f"{name}.shaped", (name,), 0, shape))
        return name

    def affine(self, x: Value, factor: Any, offset: Any = 0.0) -> Operand:
        """Return x * factor + offset for constants that broadcast with x; a factor of 0 gives a constant.

        Args:
            x: The value.
            factor: Factor of each number.
            offset: Offset of each number.

        Raises:
            UnsupportedError: A constant is not finite.
        """
        factor, offset = np.asarray(factor, np.float64), np.asarray(offset, np.float64)
        shape = np.broadcast_shapes(x.shape, factor.shape, offset.shape)
        self.budget.copy(8 * math.prod(shape))
        if not (np.isfinite(factor).all() and np.isfinite(offset).all()):
            raise UnsupportedError("its constant is not finite, or it divides by 0")
        if not factor.any():
            return np.broadcast_to(offset, shape).astype(np.float32)
        if (factor == 1).all() and not offset.any() and shape == x.shape:
            return x
        if isinstance(x.form, Unknown):
            return Value(
                shape, replace(x.form, order=x.form.order if factor.size == offset.size == 1 and factor > 0 else None)
            )
        x = self.broadcast(x, shape)
        if isinstance(x.form, Layer) and x not in self.names:
            axes = x.shape[1:] if isinstance(x.form.op, Conv2d) else x.shape
            self.budget.copy(2 * x.form.rows.nbytes)
            gain, shift = (np.broadcast_to(n, x.shape).reshape(axes) for n in (factor, offset))
            if (changed := x.form.affine(gain, shift, axes)) is not None:
                return Value(x.shape, changed)
        form = x.form if isinstance(x.form, Elementwise) else Elementwise(self.name(x))
        factor, offset = (n if n.size == 1 else np.broadcast_to(n, x.shape) for n in (factor, offset))
        return Value(x.shape, form.affine(factor, offset))

    def add(self, a: Operand, b: Operand, factor: float = 1) -> Operand:
        """Return a + factor * b.

        Args:
            a: First term.
            b: Second term.
            factor: Factor of `b`.

        Raises:
            UnsupportedError: The graph has no such sum.
        """
        if not isinstance(b, Value):
            return self.affine(a, 1, factor * np.asarray(b, np.float64)) if isinstance(a, Value) else a + factor * b
        if not isinstance(a, Value):
            return self.affine(b, factor, a)
        if unknown := next((x.form for x in (a, b) if isinstance(x.form, Unknown)), None):
            whole = a if b.size == 1 else b if a.size == 1 and factor > 0 else None
            shape = np.broadcast_shapes(a.shape, b.shape)
            return Value(shape, Unknown(unknown.error, whole and self.order(whole)))
        forms, shape = (a.form, b.form), np.broadcast_shapes(a.shape, b.shape)
        if all(isinstance(form, Layer) and isinstance(form.op, Dense) for form in forms):
            first, second = (form for form in forms if isinstance(form, Layer))
            rows, more = aligned(first.rows, shape), factor * aligned(second.rows, shape)
            if (first.op.name, first.op.inputs) == (second.op.name, second.op.inputs):
                return Value(shape, replace(first, rows=rows + more))
            if {first.op.inputs[0], second.op.inputs[0]} & self.starts.keys():
                # one layer of the input and the last state, as gates are
                joined = self.add_ops(Concat(f"{first.op.name}.joined", first.op.inputs + second.op.inputs))
                rows = np.concatenate([rows[:-1], more[:-1], rows[-1:] + more[-1:]])
                both = replace(first.op, inputs=(joined,), weight=np.zeros((1, len(rows) - 1), np.float32))
                return Value(shape, Layer(both, rows))
        scaled = b if factor == 1 else self.affine(b, factor)
        if not isinstance(scaled, Value):
            return self.add(a, scaled)
        row = shape[1:] or (1,)
        terms = [x if x.size == 1 else self.broadcast(x, shape) for x in (a, scaled)]
        names = [self.name(x, row if x.size == math.prod(shape) else (1,) * len(row)) for x in terms]
        return Value(shape, self.add_ops(Add(f"{names[0]}.add", (names[0], names[1]))))

    def multiply(self, a: Operand, b: Operand) -> Operand:
        """Return a * b: one of them is constant, or b is the sigmoid of a."""
        if not isinstance(a, Value) and not isinstance(b, Value):
            return np.asarray(np.multiply(a, b))
        if not isinstance(a, Value) or not isinstance(b, Value):
            x, constant = (a, b) if isinstance(a, Value) else (b, a)
            assert isinstance(x, Value)
            return self.affine(x, constant)
        for x, gate in ((a, b), (b, a)):
            op = self.operators.get(gate.form) if isinstance(gate.form, str) else None
            if isinstance(op, Activation) and op.kind == "sigmoid" and op.inputs == (self.name(x),):
                return self.activation(x, "silu")
        if not self.starts or a.size != b.size:
            raise UnsupportedError("it multiplies two values; only a constant can scale a value")
        names = [self.name(x, (x.size,)) for x in (a, b)]
        return Value(
            np.broadcast_shapes(a.shape, b.shape), self.add_ops(Mul(f"{names[0]}.times", (names[0], names[1])))
        )

    def divide(self, a: Operand, b: Operand) -> Operand:
        """Return a / b: b is constant, or the length of a."""
        if isinstance(b, Value):
            if isinstance(b.form, Length) and isinstance(a, Value) and self.name(a) == self.name(b.form.of):
                name = self.name(a, (a.size,))
                return Value(a.shape, self.add_ops(L2Norm(f"{name}.l2_norm", (name,), a.size, b.form.least)))
            raise UnsupportedError("it divides by a value; only a constant can scale a value")
        if not isinstance(a, Value):
            return np.asarray(np.divide(a, b))
        if not np.asarray(b).all():
            raise UnsupportedError("it divides by 0")
        return self.affine(a, 1 / np.asarray(b, np.float64))

    def linear(self, name: str, x: Value, weight: Array, bias: Array | None = None) -> Value:
        """Return x @ weight.T + bias, a layer whose constant factors and offsets can still change.

        Args:
            name: Name of the layer.
            x: The input, one row.
            weight: Weight [out, in].
            bias: Bias [out]; None means 0.

        Raises:
            UnsupportedError: The input is not one row of that width.
        """
        if x.shape[-1:] != weight.shape[1:] or x.size != weight.shape[1]:
            raise UnsupportedError(
                f"it reads {list(x.shape)}, its weight {list(weight.shape)}; flatten the value before it"
            )
        shape = *x.shape[:-1], len(weight)
        layer = self.layer(Dense(name, (), as_float32(weight), _bias(bias, weight)), x, (x.size,))
        return Value(shape, replace(layer, rows=layer.rows.reshape(-1, *shape)))

    def convolution(
        self, name: str, x: Value, weight: Array, bias: Array | None, stride: tuple[int, int], padding: tuple[int, int]
    ) -> Value:
        """Return the cross-correlation of an image [1, C, H, W].

        Args:
            name: Name of the layer.
            x: The image.
            weight: Weight [out, in, kh, kw].
            bias: Bias [out]; None means 0.
            stride: Step of the window, (rows, columns).
            padding: Margin of zeros, (rows, columns).
        """
        op = Conv2d(name, (), as_float32(weight), _bias(bias, weight), stride, padding)
        return Value((1, *op.shape([x.shape[1:]])), self.layer(op, x, x.shape[1:]))

    def layer(self, op: Linear, x: Value, shape: Shape) -> Layer:
        """Return the layer `op` of the value x, which takes over constant factors of values behind other layers.

        Args:
            op: The layer, without inputs.
            x: Its input.
            shape: Shape of the input in the graph.
        """
        self.budget.copy(8 * math.prod(op.weight.shape))
        if isinstance(x.form, Elementwise) and x.form.source in self.behind and self.shapes[x.form.source] == shape:
            read = replace(x.form, factor=_shaped(x.form.factor, shape), offset=_shaped(x.form.offset, shape))
            if (reading := Layer.of(op).reading(read, shape)) is not None:
                return reading
        return Layer.of(replace(op, inputs=(self.name(x, shape),)))

    def activation(self, x: Value, kind: str, settings: tuple[float, ...] = (), name: str = "") -> Value:
        """Return an elementwise function of the value, one of ACTIVATIONS.

        Args:
            x: The value.
            kind: Name of the function.
            settings: Numbers that it takes.
            name: Last part of the operator's name; "" takes the function's.
        """
        source = self.name(x)
        return Value(x.shape, self.add_ops(Activation(f"{source}.{name or kind}", (source,), kind, settings)))

    def clip(self, x: Value, low: float, high: float) -> Value:
        """Return the value within two bounds, which may be infinite; statistics in front of it clip themselves.

        Args:
            x: The value.
            low: Lower bound.
            high: Upper bound.
        """
        if not low < high:
            raise UnsupportedError(f"its bounds {low:g} and {high:g} leave no number between them")
        if -low == high == math.inf:
            return x
        if isinstance(x.form, Length) and high == math.inf:
            return Value(x.shape, replace(x.form, least=max(low, x.form.least)))
        form = x.form if isinstance(x.form, Elementwise) else Elementwise(self.name(x))
        if 0 < high == -low and (np.asarray(form.factor) > 0).all():
            return Value(x.shape, self.add_ops(*form.ops(self.shapes[form.source], high)))
        return self.activation(x, "clip", (low, high))

    def softmax(self, x: Value) -> Value:
        """Return softmax over the last axis."""
        if isinstance(x.form, Unknown):
            return Value(x.shape, x.form)
        name = self.name(x, (x.size,))
        return Value(x.shape, self.add_ops(Softmax(f"{name}.softmax", (name,), x.shape[-1])))

    def layer_norm(self, name: str, x: Value, weight: Array, bias: Array, epsilon: float) -> Value:
        """Return LayerNorm over the last axis.

        Args:
            name: Name of the operator.
            x: The value.
            weight: Gain of each number.
            bias: Offset of each number.
            epsilon: Number added to the variance.
        """
        row = x.shape[1:] or x.shape
        return Value(x.shape, self.add_ops(LayerNorm(name, (self.name(x, row),), weight, bias, epsilon)))

    def pool(self, x: Value, kind: str, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int]) -> Value:
        """Return the maximum or the average of windows of an image [1, C, H, W].

        Args:
            x: The image.
            kind: "max" or "average".
            kernel: Size of the window, (rows, columns).
            stride: Step of the window.
            padding: Margin of zeros.
        """
        name = self.name(x, x.shape[1:])
        k, s, p = ((n[0], n[1]) for n in (kernel, stride, padding))
        made = self.add_ops(Pool2d(f"{name}.{kind}", (name,), kind, k, s, p))
        return Value((1, *self.shapes[made]), made)

    def combine(self, x: Value, kind: str, function: Callable[[Array], Array]) -> Value:
        """Return sums or means of the numbers of a value: rows of the dense layer that computes it, or of another one.

        Args:
            x: The value.
            kind: Name of the layer's operation.
            function: Sum or mean of numbers [n, *x.shape].

        Raises:
            UnsupportedError: The value is too large and no dense layer computes it.
        """
        layer = x.form
        if not (isinstance(layer, Layer) and isinstance(layer.op, Dense)):
            if x.size > MAX_REDUCED:
                raise UnsupportedError(f"it adds more than {MAX_REDUCED:,} numbers that are not outputs of a layer")
            weight = np.eye(x.size, dtype=np.float32)
            layer = self.layer(Dense(f"{self.name(x)}.{kind}", (), weight, _bias(None, weight)), x, (x.size,))
        rows = function(layer.rows.reshape(-1, *x.shape))
        return Value(rows.shape[1:], replace(layer, rows=rows))

    def broadcast(self, x: Value, shape: Shape) -> Value:
        """Return the value repeated to the shape."""
        return x if x.shape == shape else self.move(x, np.broadcast_to(indices(x), shape))

    def move(self, x: Value, places: Array) -> Value:
        """Return the numbers of x at these flat indices, in the shape of `places`.

        Reshape, transpose, slice, split, gather and expand are such moves: apply them to `indices(x)`.

        Raises:
            UnsupportedError: The numbers would be cut into too many parts.
        """
        self.budget.copy(8 * places.size)
        flat, shape, form = places.reshape(-1), places.shape, x.form
        whole = flat.size == x.size and (flat == np.arange(x.size)).all()
        if whole and shape == x.shape:
            return x
        if isinstance(form, Choice | Length):
            return Value(shape, form)
        if isinstance(form, Unknown):
            return Value(shape, form if whole else replace(form, order=form.order and self.move(form.order, places)))
        if isinstance(form, Layer) and isinstance(form.op, Dense) and not (x in self.names and not whole):
            self.budget.copy(0 if whole else form.rows.nbytes // x.size * flat.size)
            rows = form.rows.reshape(-1, x.size)[:, slice(None) if whole else flat].reshape(-1, *shape)
            moved = Value(shape, replace(form, rows=rows))
            if whole and x in self.names:
                self.names[moved] = self.names[x]
            return moved
        if whole and isinstance(form, Elementwise):
            numbers = (np.broadcast_to(n, x.shape).reshape(shape) for n in (form.factor, form.offset))
            return Value(shape, Elementwise(form.source, *numbers))
        if whole:
            return Value(shape, self.name(x))
        row = self.name(x, (x.size,))
        runs = np.split(flat, np.flatnonzero(np.diff(flat) != 1) + 1)
        if len(runs) > MAX_RUNS:
            raise UnsupportedError("it rearranges the numbers of a value")
        names = tuple(self.add_ops(Slice(f"{row}.{run[0]}", (row,), int(run[0]), (len(run),))) for run in runs)
        return Value(shape, names[0] if len(names) == 1 else self.add_ops(Concat(f"{row}.parts", names)))

    def concat(self, parts: Sequence[Operand], axis: int) -> Operand:
        """Return the parts joined along the axis; the chosen numbers of discrete actions stay apart."""
        values = [part for part in parts if isinstance(part, Value)]
        if not values:
            self.budget.copy(sum(8 * part.size for part in parts))
            return np.concatenate([part for part in parts if not isinstance(part, Value)], axis)
        if len(parts) == 1:
            return values[0]
        starts = np.cumsum([0, *(part.size for part in parts)])
        self.budget.copy(8 * int(starts[-1]))
        places = np.concatenate([indices(part) + s for part, s in zip(parts, starts, strict=False)], axis)
        if all(isinstance(value.form, Choice) for value in values) and len(values) == len(parts):
            forms = [value.form for value in values if isinstance(value.form, Choice)]
            return Value(places.shape, Choice(tuple(score for form in forms for score in form.scores)))
        if len(values) < len(parts):
            raise UnsupportedError("it joins values with constants")
        names = tuple(self.name(value, (value.size,)) for value in values)
        return self.move(Value((int(starts[-1]),), self.add_ops(Concat(f"{names[0]}.concat", names))), places)

    def argmax(self, x: Value, shape: Shape) -> Value:
        """Return the position of the largest number of a row, a discrete action of this shape."""
        return Value(shape, Choice((self.order(x),)))

    def monotone(self, x: Value, error: UnsupportedError) -> Value:
        """Return an increasing function of the value that is not an operator: only its order can be read."""
        return Value(x.shape, Unknown(error, self.order(x)))

    def order(self, x: Value) -> Value:
        """Return a value whose numbers have the same order, in front of softmax and logarithms."""
        while isinstance(x.form, Unknown) and x.form.order is not None:
            x = x.form.order
        form = x.form
        if isinstance(form, Elementwise) and np.ptp(form.factor) == np.ptp(form.offset) == 0 < np.max(form.factor):
            return self.order(Value(x.shape, form.source))
        op = self.operators.get(form) if isinstance(form, str) else None
        if isinstance(op, Softmax) and op.size == x.size:
            return self.order(Value(x.shape, op.inputs[0]))
        return x

    def flat(self, x: Value) -> Value:
        """Return the value as one row without a batch axis."""
        return self.move(x, np.arange(x.size))

    def reopened(self, x: Value) -> Value:
        """Return the value as the layer that computes it, whose factors and offsets can change; other values as is."""
        op = self.operators.get(x.form) if isinstance(x.form, str) else None
        if not isinstance(op, Dense):
            return x
        layer = Layer.of(op)
        return Value(x.shape, replace(layer, rows=layer.rows.reshape(-1, *x.shape)))


def indices(x: Operand) -> Array:
    """Return the flat index of every number of the operand, in its shape."""
    current().copy(8 * x.size)
    return np.arange(x.size).reshape(x.shape)


def _bias(bias: Array | None, weight: Array) -> Array:
    return np.zeros(len(weight), np.float32) if bias is None else as_float32(bias).reshape(len(weight))


def _shaped(numbers: Any, shape: Shape) -> Any:
    """Return factors or offsets in the graph's axes; a single number stays as it is."""
    return numbers if np.size(numbers) == 1 else np.asarray(numbers).reshape(shape)
