"""States of policies in .onnx files: their inputs and outputs, and ONNX's recurrent operators."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from quarl.errors import UnsupportedError
from quarl.policy.operators import Shape
from quarl.policy.recurrent import Weights
from quarl.readers import recurrent_values
from quarl.readers.onnx_operators import Call
from quarl.readers.symbolic import Symbolic, Value

ORDER: Mapping[str, list[int]] = {"LSTM": [0, 2, 3, 1], "GRU": [1, 0, 2]}
"""Places of torch's gates, i, f, g, o or r, z, n, among those of ONNX, i, o, f, c or z, r, h."""
FUNCTIONS = [b"sigmoid", b"tanh", b"tanh"]
"""Functions of the gates, of the cell's input and of the cell; a GRU has the first two."""
MEMORIES = ("h", "c", "hidden", "cell", "hiddenstate", "cellstate", "recurrent", "memory")
"""Names of states, as `_stem` returns them."""
MARKS = r"(?<![a-z])(ins?|outs?|inputs?|outputs?|prev|previous|last|next|new|init|initial)(?![a-z])|[\W_]"
"""Parts of a name that tell the last state from the next one."""


def pairs(inputs: Mapping[str, Shape], outputs: Mapping[str, Shape], sources: Mapping[str, set[str]]) -> dict[str, str]:
    """Return the outputs that are the next states, by the inputs that are the last ones.

    Names decide first, as h_in and h_out, then shapes. Inputs and outputs of one shape are paired in order if there are
    as many of both.

    Args:
        inputs: Shapes of inputs that may be states.
        outputs: Shapes of outputs that may be states.
        sources: Inputs from which each output is computed.

    Raises:
        UnsupportedError: An output has the name of a state, but no input has it.
    """
    found: dict[str, str] = {}
    stems = {name: _stem(name) for name in (*inputs, *outputs)}
    known = {"", *(stems[name] for name in inputs)}
    if lost := [n for n in outputs if stems[n] in MEMORIES and n.lower() != stems[n] and stems[n] not in known]:
        raise UnsupportedError(
            f"output {lost[0][:60]!r} is a state, but no input is the last one, or --fix makes it constant; "
            "export the state as an input and an output"
        )
    for traits in (stems, {**inputs, **outputs}):
        free = [name for name in inputs if name not in found and not name.lower().startswith("obs")]
        left = [name for name in outputs if name not in found.values() and sources[name].intersection(free)]
        for trait in dict.fromkeys(traits[name] for name in free):
            last, later = ([name for name in names if traits[name] == trait] for names in (free, left))
            found.update(zip(last, later, strict=True) if len(last) == len(later) else ())
    return found


def _stem(name: str) -> str:
    """Return the common part of the names of a last and a next state: h of h_in and h_out, hx and hy, h0 and hn."""
    stem = re.sub(r"([hc])[0nxy]$", r"\1", re.sub(MARKS, "", name.lower()))
    return stem if stem.strip("0123456789") else name


def layer(graph: Symbolic, call: Call) -> list[Value]:
    """Return the results of a node LSTM or GRU: the hidden state of its only step, then the next state.

    Raises:
        UnsupportedError: The node reads several steps, forgets, or computes otherwise than layers of torch.
    """
    x, options, order = call.value, call.options, ORDER[call.kind]
    count, last = len(order), [each for each in call.inputs[5 : 3 + len(order)] if isinstance(each, Value)]
    kernel, recurrent = (np.asarray(call.given(place), np.float32) for place in (1, 2))
    bias = np.asarray(call.given(3, default=np.zeros((1, 2 * kernel.shape[1]))), np.float32)
    _, rows, size = shape = recurrent.shape
    functions = [each.lower() for each in options.get("activations", FUNCTIONS[: count - 1])]
    refusals = {
        "it does not run forward only": options.get("direction", b"forward") != b"forward",
        f"it reads {list(x.shape)}; only one step of one row is supported": x.shape[:-1] != (1, 1),
        "its activations are not sigmoid and tanh": functions != FUNCTIONS[: count - 1],
        "it has peepholes, which are not supported": call.given(7) is not None,
        "it clips its gates, which is not supported": "clip" in options,
        "it couples its gates (input_forget), which is not supported": bool(options.get("input_forget")),
        "its sequence_lens is not 1": bool((np.asarray(call.given(4, default=1)) != 1).any()),
        "it forgets, as its start is constant; export the state as inputs and outputs": len(last) != count - 2,
        "its weights do not fit its input and its state": rows != count * size
        or (kernel.shape, shape, bias.shape) != ((1, rows, x.size), (1, rows, size), (1, 2 * rows))
        or any(each.size != size for each in last),
    }
    if wrong := [why for why, holds in refusals.items() if holds]:
        raise UnsupportedError(wrong[0])
    graph.budget.copy(4 * (kernel.nbytes + recurrent.nbytes))
    arrays = (kernel[0], recurrent[0], *bias.reshape(2, rows))
    weights = Weights(*(a.reshape(count, size, -1)[order].reshape(a.shape) for a in arrays))
    before = bool(options.get("linear_before_reset"))
    made: Sequence[Value] = (
        recurrent_values.lstm(graph, call.name, x, last, weights)
        if call.kind == "LSTM"
        else [recurrent_values.gru(graph, call.name, x, last[0], weights, before=before)]
    )
    return [Value((1, 1, 1, size), made[0].form), *made]
