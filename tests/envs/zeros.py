"""A policy of zeros, for what asks for its shapes alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from quarl.policy.graph import ActionHead, Policy, Provenance
from quarl.policy.operators import Dense, Flatten


def linear(shape: tuple[int, ...], outputs: int = 2, head: ActionHead | None = None, **provenance: Any) -> Policy:
    """Always the first action, or that in the middle of the head's range."""
    size = int(np.prod(shape))
    weight, bias = np.zeros((outputs, size), np.float32), np.zeros(outputs, np.float32)
    flat = (Flatten("flat", ("observation",)),) if len(shape) > 1 else ()
    return Policy(
        observation_shape=shape,
        observation_dtype="uint8" if len(shape) == 3 else "float32",
        ops=(*flat, Dense("out", ("flat" if flat else "observation",), weight, bias)),
        head=head or ActionHead("argmax"),
        provenance=Provenance(**provenance),
    )
