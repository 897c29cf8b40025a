"""Frozen TensorFlow graphs are read as data: what TensorFlow would read, or one line."""

from __future__ import annotations

import contextlib
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import require
from quarl.errors import QuarlError
from quarl.readers import weights_only
from quarl.readers.weights_only import frozen
from stress.fuzz.frozen import (
    attribute,
    constant,
    dense,
    field,
    floats,
    listed,
    node,
    shape_of,
    variable,
    varint,
)


def read(tmp_path: Path, data: bytes):
    (tmp_path / "graph.pb").write_bytes(data)
    return weights_only.read_weights(tmp_path / "graph.pb")


def refusal(tmp_path: Path, data: bytes) -> str:
    with pytest.raises(QuarlError) as caught:
        read(tmp_path, data)
    text = str(caught.value)
    assert "\n" not in text
    assert "graph.pb" in text
    return text


RNG = np.random.default_rng(0)


def random(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def test_a_frozen_policy_gives_its_layers_with_outputs_first_and_their_biases(tmp_path: Path):
    first, second, offset = random(4, 16), random(16, 2), random(2)
    data = node("input/Ob", "Placeholder")
    data += dense("model/pi_fc0", first, np.zeros(16, np.float32), "input/Ob", "Add")
    data += node("model/Tanh", "Tanh", "model/pi_fc0/add") + dense("model/pi", second, offset, "model/Tanh", "AddV2")
    layers = read(tmp_path, data)
    assert [(layer.name, layer.operator) for layer in layers] == [("model/pi_fc0/w", "Dense"), ("model/pi/w", "Dense")]
    assert np.array_equal(layers[0].weight, first.T)
    assert np.array_equal(layers[1].weight, second.T)
    assert np.array_equal(layers[1].bias, offset)


def test_a_transposed_product_has_outputs_first_already(tmp_path: Path):
    weight = random(3, 5)
    product = node("p", "MatMul", "x", "w", transpose_b=field(5, 1))
    (layer,) = read(tmp_path, constant("w", weight) + product)
    assert np.array_equal(layer.weight, weight)
    assert layer.bias is None


@pytest.mark.parametrize(
    ("operator", "shape", "axes", "name"),
    [
        ("Conv2D", (8, 8, 3, 32), (3, 2, 0, 1), "Conv2d"),
        ("Conv2DBackpropInput", (2, 2, 6, 4), (2, 3, 0, 1), "ConvTranspose2d"),
        ("Conv3D", (2, 3, 4, 5, 6), (4, 3, 0, 1, 2), "Conv3d"),
    ],
)
def test_convolutions_become_out_in_height_width(tmp_path: Path, operator, shape, axes, name):
    weight = random(*shape)
    (layer,) = read(tmp_path, variable("c1/w", weight) + node("c1/conv", operator, "x", "c1/w/read"))
    assert layer.operator == name
    assert np.array_equal(layer.weight, weight.transpose(axes))


def test_a_depthwise_convolution_has_one_output_for_each_input_and_multiplier(tmp_path: Path):
    weight = random(3, 3, 4, 2)
    (layer,) = read(tmp_path, constant("w", weight) + node("d", "DepthwiseConv2dNative", "x", "w"))
    assert layer.weight.shape == (8, 1, 3, 3)
    assert np.array_equal(layer.weight[2 * 3 + 1, 0], weight[:, :, 3, 1])


def test_constants_that_no_layer_reads_are_left_out(tmp_path: Path):
    data = constant("table", random(9, 9)) + constant("w", random(2, 3)) + node("p", "MatMul", "x", "w")
    assert [layer.name for layer in read(tmp_path, data)] == ["w"]


def test_without_operators_that_are_known_names_tell_what_a_weight_is(tmp_path: Path):
    data = constant("lstm/kernel", random(3, 8)) + constant("lstm/bias", random(8)) + constant("steps", random(2, 2))
    (layer,) = read(tmp_path, data + node("lstm/block", "BlockLSTM", "x", "lstm/kernel"))
    assert (layer.name, layer.operator, layer.weight.shape, layer.bias.shape) == ("lstm/kernel", "LSTM", (8, 3), (8,))


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16])
def test_other_real_numbers_become_float32(tmp_path: Path, dtype):
    weight = random(2, 3).astype(dtype)
    (layer,) = read(tmp_path, constant("w", weight) + node("p", "MatMul", "x", "w"))
    assert layer.weight.dtype == np.float32
    assert np.array_equal(layer.weight, weight.astype(np.float32).T)


@pytest.mark.parametrize("packed", [True, False])
def test_listed_numbers_are_read_and_the_last_one_stands_for_those_left_out(tmp_path: Path, packed: bool):
    if packed:
        proto = listed("float32", (2, 3), 5, floats(1, 2, 3))
    else:  # each number with a tag of its own: field 5, four bytes
        proto = field(1, 1) + shape_of((2, 3)) + b"".join(b"\x2d" + floats(value) for value in (1, 2, 3))
    (layer,) = read(tmp_path, constant("w", proto) + node("p", "MatMul", "x", "w"))
    assert layer.weight.T.tolist() == [[1, 2, 3], [3, 3, 3]]


def test_half_floats_are_listed_as_numbers_of_16_bits(tmp_path: Path):
    codes = np.float16([1.5, -2, 0.25, 3]).view(np.uint16)
    proto = listed("float16", (2, 2), 13, b"".join(varint(int(code)) for code in codes))
    (layer,) = read(tmp_path, constant("w", proto) + node("p", "MatMul", "x", "w"))
    assert layer.weight.T.tolist() == [[1.5, -2], [0.25, 3]]


def test_tensorflow_s_own_messages_are_read(tmp_path: Path):
    graph_pb2 = require.module("tensorboard.compat.proto.graph_pb2")
    weight, offset = random(5, 7), random(7)
    graph = graph_pb2.GraphDef()
    for name, array in (("fc/kernel", weight), ("fc/bias", offset)):
        made = graph.node.add(name=name, op="Const")
        made.attr["dtype"].type = 1
        proto = made.attr["value"].tensor
        proto.dtype = 1
        proto.tensor_content = array.tobytes()
        for size in array.shape:
            proto.tensor_shape.dim.add(size=size)
        graph.node.add(name=f"{name}/read", op="Identity", input=[name])
    product = graph.node.add(name="fc/MatMul", op="MatMul", input=["x:0", "fc/kernel/read"])
    product.attr["transpose_b"].b = False
    graph.node.add(name="fc/BiasAdd", op="BiasAdd", input=["fc/MatMul:0", "fc/bias/read"])
    filled = graph.node.add(name="fill/kernel", op="Const").attr["value"].tensor
    filled.dtype = 1
    filled.float_val.append(0.5)
    filled.tensor_shape.dim.add(size=2)
    filled.tensor_shape.dim.add(size=3)
    graph.node.add(name="fill/MatMul", op="MatMul", input=["y", "fill/kernel"])
    graph.versions.producer = 1
    layers = read(tmp_path, graph.SerializeToString())
    assert np.array_equal(layers[0].weight, weight.T)
    assert np.array_equal(layers[0].bias, offset)
    assert layers[1].weight.tolist() == [[0.5, 0.5]] * 3


WEIGHT = np.ones((2, 3), np.float32)
PRODUCT = node("p", "MatMul", "x", "w")
HOSTILE = {
    "nothing": (b"", "no weights"),
    "saved model": (field(1, 1) + field(2, b""), "freeze it"),
    "text": (b"node { name: 'x' }", "not a frozen"),
    "group": (b"\x0b\x0c", "wire type"),
    "field 0": (b"\x02\x00", "wire type"),
    "cut length": (b"\x0a", "ends within"),
    "cut message": (b"\x0a\x05abc", "longer than"),
    "length of 64 bits": (b"\x0a" + varint(2**64 - 1) + b"abc", "longer than"),
    "endless number": (b"\x0a" + b"\xff" * 11, "64 bits"),
    "lengths in lengths": (b"\x0a\xfe\xff\xff\xff\x0f" * 1000, "longer than"),
    "cut constant": (constant("w", WEIGHT)[:-3] + PRODUCT, "not a frozen"),
    "wrong size": (constant("w", field(1, 1) + shape_of((2, 2)) + field(4, bytes(20))) + PRODUCT, "claims shape"),
    "negative shape": (constant("w", field(1, 1) + shape_of((-1, 2)) + field(4, bytes(8))) + PRODUCT, "shape"),
    "many axes": (constant("w", field(1, 1) + shape_of((1,) * 9) + field(4, bytes(4))) + PRODUCT, "shape"),
    "terabytes": (
        constant("w", listed("float32", (2**20, 2**10), 5, floats(1))) + PRODUCT,
        "bytes to be made of its own",
    ),
    "terabytes together": (
        b"".join(
            constant(f"w{n}", listed("float32", (2**10, 2**10), 5, floats(1))) + node(f"p{n}", "MatMul", "x", f"w{n}")
            for n in range(9)
        ),
        "bytes to be made of its own",
    ),
    "petabytes": (constant("w", listed("float32", (2**40, 2**40), 5, floats(1))) + PRODUCT, "shape"),
    "too many numbers": (constant("w", listed("float32", (1, 2), 5, floats(1, 2, 3))) + PRODUCT, "its shape"),
    "number for a name": (field(1, field(1, 5)), "number in place of bytes"),
    "not finite": (constant("w", np.full((2, 2), np.nan, np.float32)) + PRODUCT, "NaN"),
    "beyond float32": (constant("w", np.full((2, 2), 1e300)) + PRODUCT, "infinity"),
    "a circle": (node("w", "Identity", "w") + PRODUCT, "no weights"),
    "an attribute without a value": (
        field(1, field(1, "w") + field(2, "Const") + field(5, b"")) + PRODUCT,
        "no weights",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_broken_graphs_are_refused_in_one_line(tmp_path: Path, case: str):
    data, said = HOSTILE[case]
    assert said in refusal(tmp_path, data)


def test_more_fields_than_any_graph_has_are_refused(tmp_path: Path):
    assert "200,000 values" in refusal(tmp_path, field(2, 0) * 200_001)


def test_every_truncation_is_read_or_refused(tmp_path: Path):
    data = dense("fc", random(3, 2), random(2), "x")
    for size in range(len(data)):
        with contextlib.suppress(QuarlError):  # some cuts fall between nodes and leave a whole graph
            read(tmp_path, data[:size])


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 2**31, 2**63, 2**64 - 1])
def test_a_varint_is_seven_bits_a_byte_lowest_first(value: int):
    data = varint(value)
    assert frozen.varint(memoryview(data), 0) == (value, len(data))


def test_attributes_are_found_behind_others(tmp_path: Path):
    first = attribute("T", field(6, 1)) + attribute("transpose_a", field(5, 0)) + attribute("transpose_b", field(5, 1))
    product = field(1, field(1, "p") + field(2, "MatMul") + field(3, "x") + field(3, "w") + first)
    (layer,) = read(tmp_path, constant("w", WEIGHT) + product)
    assert layer.weight.shape == (2, 3)
