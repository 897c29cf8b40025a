"""Targets of an export, and the writers of their files."""

from __future__ import annotations

import importlib

from quarl.errors import extras
from quarl.export.golden import Golden
from quarl.policy.graph import QuantizedPolicy

TARGETS = ("tflite", "onnx", "onnx-qdq", "c")
"""All targets of an export."""
STATIC = ("onnx-qdq", "c")
"""Targets whose activations are on grids that are calibrated beforehand."""
FILES = {"tflite": "policy.tflite", "onnx": "policy.onnx", "onnx-qdq": "policy.onnx", "c": "policy.c"}
"""File that runtimes run, by target."""
WRITERS = {"tflite": "quarl.engines.litert", "onnx": "quarl.engines.onnx", "onnx-qdq": "quarl.export.qdq"}
METADATA = "quarl.contract"
"""Key of the contract inside a file that names its texts."""


def write(policy: QuantizedPolicy, target: str, inner: str, vectors: Golden) -> dict[str, bytes]:
    """Return the files of the target by name, with the contract `inner` in them.

    Args:
        policy: The policy.
        target: Runtime or language, one of TARGETS.
        inner: Short form of the contract.
        vectors: Golden vectors, for the self-test of "c".

    Raises:
        UnsupportedError: The target does not support the precision or an operator.
    """
    if target == "c":
        files: dict[str, bytes] = importlib.import_module("quarl.export.c").write(policy, inner, vectors)
        return files
    with extras(f"an export to {target}"):
        writer = importlib.import_module(WRITERS[target])
    return {FILES[target]: writer.write(policy, acts=True, metadata={METADATA: inner})}
