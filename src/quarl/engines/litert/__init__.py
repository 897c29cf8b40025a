"""LiteRT: the policy on XNNPACK's kernels, from a .tflite file that QuaRL writes itself."""

from __future__ import annotations

import contextlib
import functools
import threading

import numpy as np
from ai_edge_litert.interpreter import Interpreter

from quarl.arrays import Array
from quarl.engines.litert.flatbuffer import Model, Operator
from quarl.engines.litert.subgraph import Lowering, write
from quarl.errors import QuarlError
from quarl.policy.graph import QuantizedPolicy
from quarl.processes.muted import muted

__all__ = ["LiteRT", "load", "write"]

FIRST = threading.Lock()


class LiteRT:
    """A .tflite file ready to run on one thread."""

    name = "litert"

    def __init__(self, content: bytes, batch: int, *, measured: bool) -> None:
        with FIRST:
            _first_interpreter()
        self.measured = measured
        self.batch = batch
        self.file_bytes = len(content)
        # The interpreter reads the weights in place: it keeps `content` alive, and this object keeps the interpreter.
        self.interpreter = Interpreter(model_content=content, num_threads=1)
        source = self.interpreter.get_input_details()[0]
        output = self.interpreter.get_output_details()[0]["index"]
        self._source = source["index"]
        self._shape = (batch, *source["shape"][1:].tolist())
        self._dtype = np.dtype(source["dtype"])
        if batch != 1:
            self.interpreter.resize_tensor_input(self._source, self._shape)
        self.interpreter.allocate_tensors()
        # The public methods cost as much again as a small network. Views are safe to keep: nothing is resized again.
        native = self.interpreter._interpreter
        self._set = native.SetTensor
        self._invoke = native.Invoke
        self._output: Array = native.tensor(native, output)

    def run(self, observations: Array) -> Array:
        """Return float32 outputs [batch, n] of observations [batch, *shape]; the caller owns the result."""
        try:
            self._set(self._source, observations)
        except (ValueError, TypeError):
            array = np.asarray(observations)
            if array.shape != self._shape:
                raise QuarlError(f"this engine takes observations of shape {self._shape}, got {array.shape}") from None
            self._set(self._source, np.ascontiguousarray(array, self._dtype))
        self._invoke()
        return self._output.copy()


def load(policy: QuantizedPolicy, batch: int) -> LiteRT:
    """Return the policy ready to run `batch` rows a call."""
    lowering = Lowering(policy)
    content = lowering.to_bytes()
    integers = policy.spec.activation_bits is not None and lowering.model.multiplies_integers()
    return LiteRT(content, batch, measured=integers or policy.spec.float_type in ("fp32", "fp16"))


@functools.cache
def _first_interpreter() -> None:
    """Create the first interpreter of a process with stderr muted: the runtime prints a line that is not an error."""
    model = Model()
    source = model.value((1, 1))
    content = model.to_bytes([source], [model.add(Operator.RELU, [source], model.value((1, 1)))])
    with contextlib.suppress(OSError), muted((2,)):
        Interpreter(model_content=content, num_threads=1).allocate_tensors()
