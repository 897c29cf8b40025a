"""Policies in TorchScript archives: their code is read as text and becomes the policy's graph; nothing is run."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

from quarl.errors import QuarlError, UnsupportedError, note
from quarl.inert.zip import Opened
from quarl.policy.graph import Policy, Provenance
from quarl.policy.operators import OBSERVATION, Slice
from quarl.policy.recurrent import SEEN
from quarl.readers import action_heads
from quarl.readers.recurrent_values import remembering
from quarl.readers.script_archive import Archive
from quarl.readers.script_evaluator import Evaluator
from quarl.readers.symbolic import Symbolic, Value

WIDEST = 2**14
"""Width that is tried first: a program that reads the observation only in parts accepts it."""
WIDTHS = re.compile(rb"input_size : Final\[int\] = (\d{1,9})\n")
"""Widths of inputs that the code of recurrent layers declares."""
MAX_TRIES = 32
"""Largest number of widths that are tried: those of the program's tensors."""


def read(file: Opened, head: str = "") -> Policy:
    """Return the policy of a TorchScript file, whose `forward` reads one row of numbers.

    Args:
        file: The archive.
        head: Meaning of the output, as in "clip:-1,1"; "" leaves it to the program.

    Raises:
        UnsupportedError: The program has an operator without a counterpart, or the program writes to more than a state.
        QuarlError: The file is damaged, or reads no observation of any width.
    """
    try:
        observation, graph, output, states = _evaluated(Archive(file))
        network, action, line = action_heads.resolve(graph, output, "actions", head)
        fields: dict[str, Any] = {"observation_shape": (observation.size,)}
        fields |= remembering(graph, observation, network, states) if states else {"ops": tuple(graph.ops(network))}
    except UnsupportedError as error:
        raise error if str(error).startswith(str(file.path)) else UnsupportedError(f"{file.path}: {error}") from None
    except RecursionError:
        raise QuarlError(f"{file.path}: its calls or expressions are nested too deeply for a policy") from None
    line += f"; its state is {', '.join(states)}" if states else ""
    note(f"{file.path}: observations have {observation.size} numbers, inferred from the weights; {line}")
    return Policy(
        **fields,
        head=replace(action, width=network.size if states else 0),
        provenance=Provenance(origin="torchscript"),
    )


def _evaluated(archive: Archive) -> tuple[Value, Symbolic, Value, dict[str, Value]]:
    """Return the narrowest observation for which the program computes, its graph, its output and its next state."""
    width, tried, furthest, failure = WIDEST, set[int](), -1, ""
    while width and len(tried) < MAX_TRIES:
        tried.add(width)
        used = 0
        # A program that writes to its tensors fails without a state.
        for written in dict.fromkeys([frozenset[str](), frozenset(archive.written)]):
            evaluator = Evaluator(archive, graph := Symbolic(), written)
            try:
                output = evaluator.run(observation := graph.source(SEEN if written else OBSERVATION, (1, width)))
                if not isinstance(output, Value) or evaluator.overwritten & {output, *evaluator.states.values()}:
                    raise UnsupportedError(f"{archive.where}: forward returns no row, or a value that it overwrites")
                # A program that reads only slices of the observation accepts any width from their end on.
                reading = [op for op in graph.operators.values() if observation.form in op.inputs]
                ends = [op.start + math.prod(op.part) for op in reading if isinstance(op, Slice)]
                used = max(ends) if ends and len(ends) == len(reading) else width
                if used == width < WIDEST:
                    return observation, graph, output, evaluator.states
            except UnsupportedError as error:
                # The error of the width that came furthest describes the program, the others a wrong width.
                if evaluator.steps + bool(written) > furthest:
                    furthest, failure = evaluator.steps + bool(written), str(error)
        sizes = [
            *map(int, WIDTHS.findall(b"".join(archive.folder("code").values()))),
            *(array.shape[-1] for array in archive.arrays.values() if array.ndim),
        ]
        width = min(set([used] if 0 < used < width else sizes) - tried - {0}, key=lambda n: (n == 1, n), default=0)
    raise UnsupportedError(failure or f"{archive.where}: its weights do not show the width of the observation")
