"""Recurrent layers and states of a foreign program, in the graph that `symbolic` builds for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quarl.errors import UnsupportedError
from quarl.policy import recurrent
from quarl.policy.operators import Activation, Mul, Slice
from quarl.policy.recurrent import CELL, HIDDEN, State, Weights
from quarl.readers.symbolic import Symbolic, Value


def remembering(graph: Symbolic, observation: Value, output: Value, carried: Mapping[str, Value]) -> dict[str, Any]:
    """Return the fields of a policy with a memory, as `policy.recurrent.remembering` does.

    Args:
        graph: The graph.
        observation: The observation, a source named SEEN.
        output: Value that the action head reads.
        carried: The next state, part by part, by the names of `starts`.

    Raises:
        UnsupportedError: The next state has another shape.
    """
    outputs = [graph.name(x, (x.size,)) for x in (output, *carried.values())]
    # A state that is the observation, or another state, has an operator of its own, which static mode rounds.
    outputs = [
        name if name in graph.operators else graph.add_ops(Slice(f"{name}.copied", (name,), 0, graph.shapes[name]))
        for name in outputs
    ]
    for part, value in carried.items():
        if value.shape != graph.starts[part].shape:
            raise UnsupportedError(
                f"the state {part[:60]!r} has shape {list(graph.starts[part].shape)}, the next one {list(value.shape)}"
            )
    states, ops = [], graph.needed(outputs)
    for part, name in zip(carried, outputs[1:], strict=True):
        if not any(part in op.inputs for op in ops):
            raise UnsupportedError(
                f"the state {part[:60]!r} is written, but the output does not depend on it: leave it out"
            )
        makers = [graph.operators.get(each) for each in getattr(graph.operators.get(name), "inputs", ())]
        kinds = {op.kind for op in makers if isinstance(op, Activation)}
        hidden = name in graph.hidden or (isinstance(graph.operators.get(name), Mul) and kinds == {"sigmoid", "tanh"})
        states.append(State(part, name, graph.starts[part].reshape(-1), HIDDEN if hidden else CELL))
    return recurrent.remembering(observation.size, states, ops, outputs[0])


def lstm(graph: Symbolic, name: str, x: Value, last: Sequence[Value], weights: Weights) -> tuple[Value, Value]:
    """Return the hidden state and the cell of a layer, in the shapes of those of the last step.

    Args:
        graph: The graph.
        name: Name of the layer.
        x: Its input.
        last: Hidden state and cell of the last step.
        weights: Weights of the gates i, f, g, o.
    """
    row, h, c = (graph.name(each, (each.size,)) for each in (x, *last))
    made = recurrent.lstm(graph.add_ops, name, row, (h, c), weights)
    graph.hidden.add(made[0])
    return Value(last[0].shape, made[0]), Value(last[1].shape, made[1])


def gru(graph: Symbolic, name: str, x: Value, last: Value, weights: Weights, *, before: bool = True) -> Value:
    """Return the hidden state of a layer, in the shape of that of the last step.

    Args:
        graph: The graph.
        name: Name of the layer.
        x: Its input.
        last: Hidden state of the last step.
        weights: Weights of the gates r, z, n.
        before: The reset gate scales the product of the hidden state, as `policy.recurrent.gru` explains.
    """
    row, h = (graph.name(each, (each.size,)) for each in (x, last))
    graph.hidden.add(made := recurrent.gru(graph.add_ops, name, row, h, weights, before=before))
    return Value(last.shape, made)
