"""Layers of a PyTorch file: a state dict, alone or in a checkpoint beside other things."""

from __future__ import annotations

from pathlib import Path

from quarl.policy.foreign import names
from quarl.policy.layers import LayerWeights
from quarl.policy.weights import read_nested


def layers(data: bytes, path: Path) -> list[LayerWeights]:
    """Layers by the names of the tensors, those of nested dicts joined with dots; nothing in the file is executed."""
    return names.layers(read_nested(data, str(path)))
