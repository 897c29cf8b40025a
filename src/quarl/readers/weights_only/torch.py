"""Layers of a PyTorch file: a state dict, alone or in a checkpoint beside other things."""

from __future__ import annotations

from pathlib import Path

from quarl.policy.layers import LayerWeights
from quarl.readers.torch_file import read_nested
from quarl.readers.weights_only import names


def layers(data: bytes, path: Path) -> list[LayerWeights]:
    """Layers by the names of the tensors, those of nested dicts joined with dots; nothing in the file is executed."""
    return names.layers(read_nested(data, str(path)))
