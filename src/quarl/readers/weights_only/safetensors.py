"""Layers of a .safetensors file that is not a policy of QuaRL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import deserialize

from quarl.arrays import Array
from quarl.errors import UnsupportedError
from quarl.policy.container import TYPES
from quarl.policy.layers import LayerWeights
from quarl.readers.weights_only import named_tensors

FLOATS = {
    **{kind: TYPES[kind] for kind in ("F64", "F32", "F16", "BF16")},
    **{"F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn), "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2)},
}
"""numpy types by the format's names. Tensors of integers are counters and indices, not weights."""


def layers(data: bytes, folder: Path) -> list[LayerWeights]:
    """Return the layers by tensor name; the library checks the header and every offset before it returns data."""
    entries: list[tuple[str, dict[str, Any]]] = deserialize(data)  # type: ignore[no-untyped-call]
    tensors: dict[str, Array] = {}
    for name, entry in sorted(entries, key=lambda item: item[0]):
        kind, shape = str(entry["dtype"]), tuple(entry["shape"])
        if kind in FLOATS and entry["data"]:
            tensors[name] = np.frombuffer(entry["data"], FLOATS[kind]).reshape(shape)
        elif kind.startswith("F") and kind not in FLOATS:
            raise UnsupportedError(f"tensor {name[:80]!r} has {kind[:20]} numbers; save them as F32, F16 or BF16")
    return named_tensors.layers(tensors)
