"""The pieces of an .onnx file: nodes and constants, appended one by one and serialized once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper

from quarl.arrays import Array
from quarl.quant.packing import pack

OLDEST_OPSET = 13
"""Opset of all operators used here (the axis of QuantizeLinear and the axes of Unsqueeze came last), except the ones
below.

A file is written in the lowest opset that it needs, because runtimes refuse opsets that they do not know.
"""
TYPES_SINCE: dict[int, int] = {onnx.TensorProto.UINT4: 21}
"""First opset of a constant's type, if it is later."""
AXES_AS_INPUT_SINCE = {"ReduceMax": 18, "ReduceMean": 18, "ReduceMin": 18, "ReduceSum": 13}
"""Opset in which the axes of an operator became an input instead of an attribute."""


class File:
    """A graph under construction; every tensor is known by its name."""

    def __init__(self, metadata: Mapping[str, str] | None = None) -> None:
        """Start a file with texts by name."""
        self._metadata = metadata or {}
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, onnx.TensorProto] = {}

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Append a node and return its output; an input that is left out is ""."""
        output = f"{kind}:{len(self._nodes)}:0"
        self._nodes.append(helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def reduced(self, kind: str, x: str, axes: list[int], *, keepdims: bool) -> str:
        """Append x reduced along axes."""
        return self.node(kind, x, keepdims=int(keepdims), axes=axes)

    def constant(self, value: Any, name: str = "") -> str:
        """Add an array or numpy scalar; equal ones without a name of their own are shared."""
        array = np.asarray(value)
        dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
        if name:
            return self._add(name, dtype, array.shape, array.tobytes())
        name = f"{array.dtype}:{array.tolist()}"
        return name if name in self._constants else self._add(name, dtype, array.shape, array.tobytes())

    def nibbles(self, codes: Array, name: str) -> str:
        """Add a constant of integers 0..15, two to a byte."""
        return self._add(name, onnx.TensorProto.UINT4, codes.shape, pack(codes, 4))

    def _add(self, name: str, dtype: int, shape: tuple[int, ...], data: bytes) -> str:
        assert name not in self._constants, f"two constants are called {name}"
        self._constants[name] = helper.make_tensor(name, dtype, shape, data, raw=True)
        return name

    def number(self, value: float) -> str:
        """Add a float32 scalar."""
        return self.constant(np.float32(value))

    def cast(self, tensor: str, dtype: Any) -> str:
        """Append the tensor's numbers in another numpy type."""
        return self.node("Cast", tensor, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def scaled(self, tensor: str, factor: str, offset: str) -> str:
        """Append tensor * factor + offset; the product is rounded before the sum."""
        return self.node("Add", self.node("Mul", tensor, factor), offset)

    def round(self, steps: str, zero_point: int) -> str:
        """Append uint8 codes of a float32 tensor that counts steps: ties to even, shifted, saturated."""
        return self.node("QuantizeLinear", steps, self.number(1), self.constant(np.uint8(zero_point)))

    def serialize(
        self, inputs: Mapping[str, tuple[Any, list[Any]]], outputs: Mapping[str, tuple[str, list[Any]]]
    ) -> bytes:
        """Return the file.

        Args:
            inputs: numpy type and shape of each input by name; a text in a shape is an open axis.
            outputs: Tensor, float32, and shape of each output by name.
        """
        self._nodes += [helper.make_node("Identity", [tensor], [name]) for name, (tensor, _) in outputs.items()]
        value, kind_of = helper.make_tensor_value_info, helper.np_dtype_to_tensor_dtype
        types = (constant.data_type for constant in self._constants.values())
        opset = max((OLDEST_OPSET, *(TYPES_SINCE.get(kind, 0) for kind in types)))
        self._place_axes(opset)
        model = helper.make_model(
            helper.make_graph(
                self._nodes,
                "policy",
                [value(name, kind_of(np.dtype(kind)), shape) for name, (kind, shape) in inputs.items()],
                [value(name, onnx.TensorProto.FLOAT, shape) for name, (_, shape) in outputs.items()],
                list(self._constants.values()),
            ),
            opset_imports=[helper.make_opsetid("", opset)],
            ir_version=helper.find_min_ir_version_for([helper.make_opsetid("", opset)]),
            producer_name="quarl",
        )
        helper.set_model_props(model, dict(self._metadata))
        return bytes(model.SerializeToString())

    def _place_axes(self, opset: int) -> None:
        """Turn the axes of reductions into an input if the opset requires it."""
        for node in self._nodes:
            if AXES_AS_INPUT_SINCE.get(node.op_type, opset + 1) <= opset:
                (place,) = (index for index, attribute in enumerate(node.attribute) if attribute.name == "axes")
                node.input.append(self.constant(np.array(node.attribute.pop(place).ints)))
