"""ONNX Runtime: the policy as an .onnx file in memory, run by its CPU kernels on one thread."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime

from quarl.arrays import Array
from quarl.engines.onnx.translation import write
from quarl.errors import QuarlError
from quarl.policy.graph import QuantizedPolicy, shapes
from quarl.policy.operators import OBSERVATION

__all__ = ["Onnx", "load", "write"]
ERRORS_ONLY = 3


class Onnx:
    """A session whose input and output arrays stay in place.

    This saves a quarter of the time of a small policy's call.
    """

    name = "onnx"

    def __init__(self, policy: QuantizedPolicy, data: bytes, batch: int, *, measured: bool) -> None:
        """Load `data`, an .onnx file of `policy` with this batch or an open one."""
        self.measured = measured
        self.batch = batch
        self.file_bytes = len(data)
        self._session = onnxruntime.InferenceSession(data, on_one_thread(), providers=["CPUExecutionProvider"])
        shape_of = shapes(policy)
        self._observation = np.zeros((batch, *policy.observation_shape), policy.observation_dtype)
        self._output = np.zeros((batch, *shape_of[policy.output]), np.float32)
        self._binding = self._session.io_binding()
        self._binding.bind_input(OBSERVATION, "cpu", 0, *_place(self._observation))
        self._binding.bind_output("output", "cpu", 0, *_place(self._output))

    def run(self, observations: Array) -> Array:
        """Return float32 outputs [batch, n] of observations [batch, *shape]."""
        if observations.shape != self._observation.shape:
            raise QuarlError(f"observations are {observations.shape}, this engine runs {self._observation.shape}")
        np.copyto(self._observation, observations)
        self._session.run_with_iobinding(self._binding)
        return self._output.copy()


def load(policy: QuantizedPolicy, batch: int) -> Onnx:
    """Return the policy ready to run.

    Half floats, and integer weights without integer activations, compute in float32.
    """
    spec = policy.spec
    measured = spec.float_type == "fp32" or (spec.float_type is None and spec.activation_bits is not None)
    return Onnx(policy, write(policy, batch), batch, measured=measured)


def on_one_thread() -> Any:
    """Return options of a session that computes exactly the file's operators, and logs only errors."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = ERRORS_ONLY
    # Fusions around quantized nodes would replace the arithmetic that the file spells out.
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    return options


def _place(array: Array) -> tuple[Any, tuple[int, ...], int]:
    return array.dtype.type, array.shape, array.ctypes.data
