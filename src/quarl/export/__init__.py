"""Policies as files for other runtimes and small boards, with what proves that they act alike."""

from __future__ import annotations

TARGETS = ("tflite", "onnx", "onnx-qdq", "c")
"""What a policy can be exported to."""
