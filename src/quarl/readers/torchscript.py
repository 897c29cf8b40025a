"""Policies in TorchScript archives: their code is read as text and becomes the policy's graph; nothing is run."""

from __future__ import annotations

import math

from quarl.errors import QuarlError, UnsupportedError, note
from quarl.inert.zip import Opened
from quarl.policy.graph import Policy, Provenance
from quarl.policy.operators import OBSERVATION, Slice
from quarl.readers import action_heads
from quarl.readers.script_archive import Archive
from quarl.readers.script_evaluator import Evaluator
from quarl.readers.symbolic import Symbolic, Value

WIDEST = 2**14
"""Width that is tried first: a program that reads the observation only in parts accepts it."""
MAX_TRIES = 32
"""Largest number of widths that are tried: those of the program's tensors."""


def read(file: Opened, head: str = "") -> Policy:
    """Return the policy of a TorchScript file, whose `forward` reads one row of numbers.

    Args:
        file: The archive.
        head: Meaning of the output, as in "clip:-1,1"; "" leaves it to the program.

    Raises:
        UnsupportedError: The program has an operator without a counterpart in the graph, or a state.
        QuarlError: The file is damaged, or reads no observation of any width.
    """
    try:
        width, graph, output = _evaluated(Archive(file))
        network, action, line = action_heads.resolve(graph, output, "actions", head)
        ops = tuple(graph.ops(network))
    except RecursionError:
        raise QuarlError(f"{file.path}: its calls or expressions are nested too deeply for a policy") from None
    note(f"{file.path}: observations have {width} numbers, inferred from the weights; {line}")
    origin = Provenance(origin="torchscript")
    return Policy(observation_shape=(width,), ops=ops, head=action, provenance=origin)


def _evaluated(archive: Archive) -> tuple[int, Symbolic, Value]:
    """Return the smallest width of the observation at which the program computes, its graph and its output."""
    width, tried, furthest, failure = WIDEST, set[int](), -1, ""
    while width and len(tried) < MAX_TRIES:
        tried.add(width)
        graph, used = Symbolic(), 0
        evaluator = Evaluator(archive, graph)
        try:
            output = evaluator.run(graph.source(OBSERVATION, (1, width)))
            if not isinstance(output, Value):
                raise UnsupportedError(f"{archive.where}: forward returns a constant or several values, not one row")
            # A program that reads only slices of the observation accepts any width from their end on.
            reading = [op for op in graph.operators.values() if OBSERVATION in op.inputs]
            ends = [op.start + math.prod(op.part) for op in reading if isinstance(op, Slice)]
            used = max(ends) if ends and len(ends) == len(reading) else width
            if used == width < WIDEST:
                return width, graph, output
        except UnsupportedError as error:
            # The error of the width that came furthest describes the program, the others a wrong width.
            if evaluator.steps > furthest:
                furthest, failure = evaluator.steps, str(error)
        sizes = [used] if 0 < used < width else [array.shape[-1] for array in archive.arrays.values() if array.ndim]
        width = min(set(sizes) - tried - {0}, key=lambda n: (n == 1, n), default=0)
    raise UnsupportedError(failure or f"{archive.where}: its weights do not show the width of the observation")
