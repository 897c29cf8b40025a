"""Action heads of policies whose files do not describe the environment: what the output means, and its bounds."""

from __future__ import annotations

import math

import numpy as np

from quarl.arrays import Array
from quarl.errors import QuarlError
from quarl.policy.graph import ActionHead
from quarl.policy.operators import Activation, Normalize
from quarl.readers.affine_values import Elementwise
from quarl.readers.symbolic import Choice, Symbolic, Value

KINDS = "raw, clip[:LOW,HIGH], tanh[:LOW,HIGH], argmax[:2,3,...], gaussian"
ACTION_NAMES = ("action", "actions", "continuous_actions", "deterministic_continuous_actions")
"""Names of outputs that are the action itself."""


def resolve(graph: Symbolic, output: Value, name: str, asked: str) -> tuple[Value, ActionHead, str]:
    """Return the last value of the network, the head that turns it into an action, and a line about its origin.

    Args:
        graph: The graph.
        output: The output of the file.
        name: Its name.
        asked: The head that the user asks for, as in "clip:-1,1"; "" leaves it to the file.

    Raises:
        QuarlError: The file decides otherwise, or more than one head fits.
    """
    kind, _, text = asked.partition(":")
    network, head, reason = decided(graph, output)
    if head is not None:
        if kind not in ("", head.kind) or text:
            raise QuarlError(f"output {name!r} {reason}, which decides its head: drop --head {asked}")
        return network, head, f"head {head.kind}: output {name!r} {reason}"
    said = f"head {asked}: as asked for"
    if not kind and name.lower() in ACTION_NAMES:
        kind, said = (
            "raw",
            f"head raw: output {name!r} is the action, without bounds; its scale and offset stay outside",
        )
    if not kind:
        raise QuarlError(f"output {name!r} of {output.size} numbers fits several heads; choose one of --head {KINDS}")
    scores = graph.order(output) if kind == "argmax" and not text else output
    return scores, stated(kind, text, output.size), said


def stated(kind: str, text: str, size: int) -> ActionHead:
    """Return the head for `kind` and the numbers after it."""
    try:
        numbers = [float(number) for number in text.split(",")] if text else []
    except ValueError:
        raise QuarlError(f"--head {kind}:{text} does not list numbers; use {KINDS}") from None
    if kind == "argmax" and all(n.is_integer() and n >= 1 for n in numbers) and sum(numbers) in (0, size):
        return ActionHead("argmax", segments=tuple(map(int, numbers)))
    bounded = kind in ("clip", "tanh") and len(numbers) in (0, 2) and (not numbers or numbers[0] < numbers[1])
    low, high = numbers if bounded and numbers else (-1.0, 1.0)
    if kind == "raw" and not numbers:
        return continuous("clip", -math.inf, math.inf, size)
    if bounded:
        return continuous("tanh" if kind == "tanh" else "clip", low, high, size)
    if kind == "gaussian" and not numbers and size % 2 == 0:
        return continuous("gaussian", low, high, size // 2)
    raise QuarlError(f"--head {kind}{text and ':'}{text} does not fit an output of {size} numbers; use {KINDS}")


def continuous(kind: str, low: float | Array, high: float | Array, size: int) -> ActionHead:
    """Return a head of continuous actions.

    Args:
        kind: "clip", "tanh" or "gaussian".
        low: Lower bounds.
        high: Upper bounds.
        size: Number of actions.
    """
    ends = (np.broadcast_to(np.asarray(end, np.float32).reshape(-1), (size,)).copy() for end in (low, high))
    return ActionHead(kind, *ends)  # type: ignore[arg-type]


def decided(graph: Symbolic, output: Value) -> tuple[Value, ActionHead | None, str]:
    """Return the value before the head that the file contains, this head, and what shows it; None if it has none.

    Tanh and Clip behind the network become bounds. Constant factors and offsets behind them become part of the bounds.
    """
    form = output.form
    if isinstance(form, Choice):
        scores = graph.concat([graph.flat(score) for score in form.scores], 0)
        assert isinstance(scores, Value)
        segments = tuple(score.size for score in form.scores)
        head = ActionHead("argmax", segments=segments if len(segments) > 1 or output.size > 1 else ())
        return scores, head, "is the position of the largest score"
    source = form.source if isinstance(form, Elementwise) else form if isinstance(form, str) else ""
    ends: tuple[float, ...]
    match graph.operators.get(source):
        case Activation(kind="tanh") as op:
            kind, ends = "tanh", (-1.0, 1.0)
        case Activation(kind="clip") as op:
            kind, ends = "clip", op.settings
        case Normalize() as op if not op.mean.any() and (op.variance == 1).all() and op.clip < math.inf:
            kind, ends = "clip", (-op.clip, op.clip)
        case _:
            return output, None, ""
    factor, offset = (form.factor, form.offset) if isinstance(form, Elementwise) else (1.0, 0.0)
    factor, offset = (np.broadcast_to(n, output.shape).reshape(-1) for n in (factor, offset))
    bounds = np.sort([factor * end + offset for end in ends], axis=0)
    inner = graph.reopened(Value((output.size,), op.inputs[0]))
    scales = (np.sign(factor), 0.0) if kind == "tanh" else (factor, offset)
    network = graph.affine(inner, *scales)
    if not isinstance(network, Value) or not factor.all():
        return output, None, ""
    return network, continuous(kind, bounds[0], bounds[1], output.size), f"ends in {kind.capitalize()}"
