"""The int8 that users of ONNX Runtime have today: what its own tool makes of a float32 file."""

from __future__ import annotations

import tempfile
from pathlib import Path

import onnx
from onnxruntime.quantization import quantize_dynamic

from quarl.engines.onnx import Onnx, write
from quarl.policy.graph import QuantizedPolicy


def load(policy: QuantizedPolicy, batch: int) -> Onnx:
    """A float32 policy after `onnxruntime.quantization.quantize_dynamic`, with its defaults.

    Weights and activations are quantised per tensor: fewer and fused operators, but a row's result depends on the
    rows beside it, and on processors with AVX2 but without VNNI its sums may saturate. For comparisons only.
    """
    model = onnx.load_from_string(write(policy, batch))
    # Shapes are known and nothing is left to fold: the tool need not ask for its preparation step.
    onnx.helper.set_model_props(model, {"onnx.quant.pre_process": "onnxruntime.quant"})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.onnx"
        quantize_dynamic(model, path)
        return Onnx(policy, path.read_bytes(), batch, measured=True)
