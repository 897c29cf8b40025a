"""Small models in ONNX, built from text and written to files."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

RNG = np.random.default_rng(0)


def random(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def nodes(text: str) -> list[onnx.NodeProto]:
    """Nodes as in "Slice x from to > y; Elu y > z | alpha=0.5"; a name after @ is the node's, - is a missing input."""
    made = []
    for line in text.split(";"):
        words, _, options = line.partition("|")
        inputs, _, outputs = words.partition(">")
        kind, *names = inputs.split()
        kind, _, name = kind.partition("@")
        read = {key: ast.literal_eval(value) for key, value in (option.split("=", 1) for option in options.split())}
        made.append(helper.make_node(kind, [each.strip("-") for each in names], outputs.split(), name=name, **read))
    return made


def model(text: str, arrays, inputs=None, outputs=None, opsets=(), **options) -> onnx.ModelProto:
    """A model of nodes, constants by name, and inputs and outputs by name with their shapes."""
    ends = inputs or {"obs": [None, 4]}, outputs or {"actions": None}
    sources, results = ([helper.make_tensor_value_info(n, 1, shape) for n, shape in each.items()] for each in ends)
    constants = [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes(text), "g", sources, results, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20), *opsets], ir_version=9, **options)


def put(folder: Path, made: onnx.ModelProto) -> Path:
    (folder / "m.onnx").write_bytes(made.SerializeToString())
    return folder / "m.onnx"
