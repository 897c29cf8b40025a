"""What a policy can be exported to, and who writes the file of each target."""

from __future__ import annotations

import importlib

from quarl.errors import extras
from quarl.export.golden import Golden
from quarl.policy.graph import QuantizedPolicy

TARGETS = ("tflite", "onnx", "onnx-qdq", "c")
"""What a policy can be exported to."""
STATIC = ("onnx-qdq", "c")
"""Targets whose activations lie on grids that are calibrated beforehand."""
FILES = {"tflite": "policy.tflite", "onnx": "policy.onnx", "onnx-qdq": "policy.onnx", "c": "policy.c"}
"""By target, the file that runtimes run."""
WRITERS = {"tflite": "quarl.engines.litert", "onnx": "quarl.engines.onnx", "onnx-qdq": "quarl.export.qdq"}
METADATA = "quarl.contract"
"""What the contract inside is called, where a file names its texts."""


def write(policy: QuantizedPolicy, target: str, inner: str, vectors: Golden) -> dict[str, bytes]:
    """The files of the target by name, with the contract `inner` in them.

    UnsupportedError for precisions and operators that the target has no form for.
    """
    if target == "c":
        files: dict[str, bytes] = importlib.import_module("quarl.export.c").write(policy, inner, vectors)
        return files
    options = {} if target == "onnx-qdq" else {"acts": True}
    with extras(f"an export to {target}"):
        writer = importlib.import_module(WRITERS[target])
    return {FILES[target]: writer.write(policy, metadata={METADATA: inner}, **options)}
