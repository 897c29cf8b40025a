"""Recurrent policies as graphs: a state is a part of the row, gates are dense layers, and one step is one call.

In static mode gates are codes of 8 bits, sigmoids in steps of 1/256, tanhs of 1/128; the cell of an LSTM is carried in
steps of 2^-11 up to 16, and hidden states in steps of 1/128. Sums of their products are then below 2^24 steps, exact in
float32, so that every engine carries the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from quarl.arrays import Array
from quarl.errors import UnsupportedError
from quarl.policy.formulas import EXACT
from quarl.policy.graph import Policy, readers, shapes
from quarl.policy.operators import (
    OBSERVATION,
    Activation,
    Add,
    Concat,
    Dense,
    Linear,
    Mul,
    Op,
    Rounded,
    Scale,
    Slice,
)

SEEN = "seen"
"""Name of the observation without the state."""
HIDDEN = 8, 2.0**-7
"""Bits and step of a hidden state, which is between -1 and 1."""
CELL = 16, 2.0**-11
"""Bits and step of the cell of an LSTM, and of a state of which nothing is known."""

Append = Callable[[Op], str]
"""Function that adds an operator to a graph, and returns the name of its value."""


class Weights(NamedTuple):
    """Weights of a recurrent layer in torch's order, float32: gates i, f, g, o of an LSTM, or r, z, n of a GRU."""

    input: Array
    """[gates * H, K]."""
    hidden: Array
    """[gates * H, H]."""
    input_bias: Array
    """[gates * H]."""
    hidden_bias: Array
    """[gates * H]."""

    def gate(self, number: int) -> Weights:
        """Return the rows of one gate."""
        size = self.hidden.shape[1]
        return Weights(*(array[number * size : (number + 1) * size] for array in self))


class State(NamedTuple):
    """A part of the state."""

    last: str
    """Name under which operators read the state of the last step."""
    next: str
    """Name of the value that is the state of the next step."""
    start: Array
    """State at the start of an episode, float32 [n]."""
    kind: tuple[int, float] = CELL
    """HIDDEN or CELL."""


class Port(NamedTuple):
    """An input of a file, and the output that belongs to it."""

    name: str
    """Name of the input: that of the observation, or of a part of the state."""
    value: str
    """Value of the policy that the input is."""
    next: str
    """Name of the output."""
    computed: str
    """Value of the policy that the output is."""


def lstm(add: Append, name: str, x: str, last: tuple[str, str], weights: Weights) -> tuple[str, str]:
    """Return the names of the hidden state and the cell that an LSTM computes.

    Args:
        add: Adds an operator.
        name: Name of the layer.
        x: Name of its input.
        last: Names of hidden state and cell of the last step.
        weights: Weights of the gates i, f, g, o.
    """
    joined = add(Concat(f"{name}.joined", (x, last[0])))
    i, f, g, o = (
        _gate(add, f"{name}.{gate}", joined, weights.gate(number), "tanh" if gate == "g" else "sigmoid")
        for number, gate in enumerate("ifgo")
    )
    kept, new = add(Mul(f"{name}.kept", (f, last[1]))), add(Mul(f"{name}.new", (i, g)))
    cell = add(Add(f"{name}.cell", (kept, new)))
    return add(Mul(f"{name}.hidden", (o, add(Activation(f"{cell}.tanh", (cell,), "tanh"))))), cell


def gru(add: Append, name: str, x: str, last: str, weights: Weights, *, before: bool = True) -> str:
    """Return the name of the hidden state that a GRU computes.

    Args:
        add: Adds an operator.
        name: Name of the layer.
        x: Name of its input.
        last: Name of the hidden state of the last step.
        weights: Weights of the gates r, z, n.
        before: ONNX's linear_before_reset, as in torch: the reset gate scales the product of the hidden state, and not
            the hidden state itself.
    """
    joined, new = add(Concat(f"{name}.joined", (x, last))), weights.gate(2)
    r, z = (_gate(add, f"{name}.{gate}", joined, weights.gate(number), "sigmoid") for number, gate in enumerate("rz"))
    if before:
        product = add(Dense(f"{name}.n.hidden", (last,), new.hidden, new.hidden_bias))
        direct = add(Dense(f"{name}.n.input", (x,), new.input, new.input_bias))
        total = add(Add(f"{name}.n", (direct, add(Mul(f"{name}.reset", (r, product))))))
        n = add(Activation(f"{name}.n.tanh", (total,), "tanh"))
    else:
        n = _gate(add, f"{name}.g", add(Concat(f"{name}.both", (x, add(Mul(f"{name}.reset", (r, last)))))), new, "tanh")
    # n + z (h - n) is (1 - z) n + z h without a rounding of 1 - z
    away = add(Add(f"{name}.away", (last, add(Scale(f"{name}.less", (n,), np.array(-1, np.float32))))))
    return add(Add(f"{name}.hidden", (n, add(Mul(f"{name}.kept", (z, away))))))


def _gate(add: Append, name: str, joined: str, weights: Weights, function: str) -> str:
    """Add a layer that reads the input followed by the hidden state, and its function."""
    both = np.concatenate([weights.input, weights.hidden], axis=1)
    layer = add(Dense(name, (joined,), both, weights.input_bias + weights.hidden_bias))
    return add(Activation(f"{name}.{function}", (layer,), function))


def remembering(size: int, states: Sequence[State], ops: Iterable[Op], output: str) -> dict[str, Any]:
    """Return the fields observation_shape, ops and state of a policy with a memory.

    The state's parts, and sums in front of functions, are rounded to grids in static mode, so that a function of them
    has the same codes in every engine.

    Args:
        size: Numbers of an observation, which operators read under the name SEEN.
        states: Parts of the state.
        ops: Operators in order.
        output: Name of the value that the action head reads.
    """
    row: list[Op] = [Slice(SEEN, (OBSERVATION,), 0, (size,))]
    place = size
    for state in states:
        row.append(part := Slice(f"{state.last}.read", (OBSERVATION,), place, state.start.shape))
        row.append(Rounded(state.last, (part.name,), *state.kind))
        place += state.start.size
    kinds, done = {state.next: state.kind for state in states}, {op.name: op for op in row}
    for op in ops:
        # What reads a state, or a sum, as codes of 8 bits has a grid of 8 bits for it.
        source = done.get(op.inputs[0])
        wide = isinstance(source, Rounded) and source.bits > 8 and isinstance(op, Linear)
        inexact = isinstance(op, Activation) and op.kind not in ("relu", "leaky_relu", *EXACT)
        if source is not None and (wide or (inexact and isinstance(source, Add | Mul | Concat))):
            coded = Rounded(f"{source.name}.codes", (source.name,), 8, 0.0)
            done.setdefault(coded.name, coded)
            op = replace(op, inputs=(coded.name, *op.inputs[1:]))
        if op.name in kinds:
            exact = replace(op, name=f"{op.name}.exact")
            done[exact.name], op = exact, Rounded(op.name, (exact.name,), *kinds[op.name])
        done[op.name] = op
    last = Concat(f"{output}.joined", (output, *(state.next for state in states)))
    start = np.concatenate([state.start for state in states])
    return {"observation_shape": (place,), "ops": (*done.values(), last), "state": start.astype(np.float32)}


def ports(policy: Policy, *, apart: bool = True) -> list[Port]:
    """Return the inputs and outputs of a policy's file: observation and output, then the parts of the state, in order.

    Args:
        policy: The policy.
        apart: The state is apart from the observation; otherwise there is one row of both.

    Raises:
        UnsupportedError: The graph does not read its state part by part, as `remembering` makes it do.
    """
    if not (apart and policy.state.size):
        return [Port(OBSERVATION, OBSERVATION, "output", policy.output)]
    shape_of, readers_of, computed = shapes(policy), readers(policy), policy.ops[-1].inputs
    read = readers_of[OBSERVATION]
    names = [OBSERVATION, *(readers_of[part.name][0].name for part in read[1:])]
    following = ["output", *(f"{name}.next" for name in names[1:])]
    sizes = [policy.seen[0], *(shape_of[name][0] for name in computed[1:])]
    if (
        [(op.start, op.part) if isinstance(op, Slice) else None for op in read]
        != [(sum(sizes[:place]), (size,)) for place, size in enumerate(sizes)]
        or shape_of[computed[0]] != (policy.head.width,)
        or len({*names, *following}) < 2 * len(names)
    ):
        raise UnsupportedError("no file has its state as inputs: the graph does not read it in parts of its own names")
    return list(map(Port, names, [op.name for op in read], following, computed))
