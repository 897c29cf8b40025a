"""LiteRT against hand numbers, the integer reference and its own laws."""

from __future__ import annotations

import dataclasses
import gc
import subprocess
import sys

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from hypothesis import given, settings
from hypothesis import strategies as st

import networks
from quarl import engines
from quarl.calibration import quantize
from quarl.engines.litert import LiteRT, flatbuffer, subgraph, write
from quarl.errors import QuarlError, UnsupportedError
from quarl.policy import formulas
from quarl.policy.graph import ActionHead, ActivationGrid, Policy, QuantizedPolicy, final_linear
from quarl.policy.operators import (
    Activation,
    Add,
    Concat,
    Conv2d,
    Dense,
    Flatten,
    L2Norm,
    LayerNorm,
    Normalize,
    QuantizedTensor,
    Scale,
    Softmax,
    mlp,
)
from quarl.quant.affine import quantize_rows
from quarl.quant.spec import QuantSpec

MODES = [
    ("fp32", "dynamic"),
    ("fp16", "dynamic"),
    ("int8", "dynamic"),
    ("int4", "dynamic"),
    ("int8", "static"),
    ("int4", "static"),
]
FLOAT_MEAN = [
    name
    for name, make in networks.EVERY.items()
    if any(isinstance(op, LayerNorm | L2Norm | Softmax) for op in make().ops)
]
"""Networks with a norm or a softmax, whose sums runtimes take in another order."""
EXACT = [
    name
    for name, make in networks.EVERY.items()
    if name not in FLOAT_MEAN
    and "average" not in name
    and all(op.kind in ("relu", "leaky_relu", *formulas.EXACT) for op in make().ops if isinstance(op, Activation))
]
"""Networks without a function that runtimes round differently, or floats that they sum in another order."""


def quantized(policy, precision="int8", scheme="per-channel", mode="dynamic"):
    spec = QuantSpec.parse(precision, scheme=scheme, mode=mode)
    return quantize(policy, spec, networks.observations(policy, 32, seed=5))


def outputs(policy, x, engine="litert", batch=None):
    return engines.run_all(engines.load(policy, engine, batch=batch or len(x)), x)


def one_layer(codes, scale, bias, bits=8, **changes):
    """A quantised policy of one dense layer [out, K], written by hand."""
    weight = QuantizedTensor(np.int8(codes), np.float32(scale), np.zeros(len(codes), np.int32), bits)
    layer = Dense("layer", ("observation",), weight, np.float32(bias))
    fields = {
        "observation_shape": weight.shape[1:],
        "ops": (layer,),
        "head": ActionHead("argmax"),
        "spec": QuantSpec.parse(bits, scheme="per-channel"),
    }
    return QuantizedPolicy(**(fields | changes))


def fused_multiply_add(a, b, c):
    """a * b + c rounded once: float64 holds the product of two float32 numbers exactly."""
    return np.float32(np.float64(a) * np.float64(b) + np.float64(c))


def of_rows(weight, bias, x):
    """The definition of a dynamic dense layer, as XNNPACK rounds it."""
    codes, q = quantize_rows(x)
    sums = (codes - q.zero_point).astype(np.int64) @ weight.codes.T.astype(np.int64)
    return fused_multiply_add(sums.astype(np.float32) * q.scale, weight.scale, bias)


def operators(content):
    """Names of the operators of a .tflite file, in order."""
    model = schema.ModelT.InitFromPackedBuf(content)
    names = {value: name for name, value in vars(schema.BuiltinOperator).items() if not name.startswith("_")}
    return [names[model.operatorCodes[op.opcodeIndex].builtinCode] for op in model.subgraphs[0].operators]


def delegated(engine):
    """True where XNNPACK took every operator but the margins of padded maxima, which it has none of."""
    names = [details["op_name"] for details in engine.interpreter._get_ops_details()]
    return names.count("DELEGATE") == 1 + names.count("PADV2")


def test_a_float_network_by_hand():
    ops = (
        Dense("a", ("observation",), np.float32([[1, 2], [3, -4]]), np.float32([0.5, 0])),
        Activation("b", ("a",), "relu"),
        Dense("c", ("b",), np.float32([[2, 10]]), np.float32([-1])),
    )
    policy = quantize(Policy(observation_shape=(2,), ops=ops, head=ActionHead("argmax")), QuantSpec.parse("fp32"))
    # relu([1 + 4 + 0.5, 3 - 8]) = [5.5, 0]; relu([1 - 2 + 0.5, 3 + 4]) = [0, 7]
    assert outputs(policy, np.float32([[1, 2], [1, -1]])).tolist() == [[10], [69]]


@pytest.mark.parametrize("bits", [8, 4])
def test_a_dynamic_layer_by_hand(bits):
    policy = one_layer([[3, 2, -7, 1]], [0.5], [0.25], bits)
    # Range [-128, 127]: step 1, zero point 0; 100 * 3 - 128 * 2 - 127 * 7 + 1.6 -> 2
    assert outputs(policy, np.float32([[100, -128, 127, 1.6]])).tolist() == [[(300 - 256 - 889 + 2) * 0.5 + 0.25]]


def test_a_static_network_by_hand():
    first = QuantizedTensor(np.int8([[10, 20], [-30, 0]]), np.float32([0.5, 0.5]), np.zeros(2, np.int32), 8)
    second = QuantizedTensor(np.int8([[3, 5]]), np.float32([0.25]), np.zeros(1, np.int32), 8)
    ops = (
        Dense("a", ("observation",), first, np.float32([4, 0])),
        Activation("b", ("a",), "relu"),
        Dense("c", ("b",), second, np.float32([1])),
    )
    grid = ActivationGrid(scale=2.0, zero_point=-128)
    policy = QuantizedPolicy(
        observation_shape=(2,),
        ops=ops,
        head=ActionHead("argmax"),
        spec=QuantSpec.parse("int8", scheme="per-channel", mode="static"),
        grids={"observation": ActivationGrid(scale=0.25, zero_point=3), "a": grid, "b": grid},
    )
    # Codes [4, 2] above the zero point; sums 40 + 40 + bias 32, and -120; times 0.25 * 0.5 / 2: 7 and below zero.
    # The output: 3 * 7 steps of 2 * 0.25, plus 1.
    assert outputs(policy, np.float32([[1, 0.5]])).tolist() == [[11.5]]


@given(st.data())
@settings(max_examples=60)
def test_a_dynamic_layer_is_its_definition_bit_for_bit(data):
    width, count = data.draw(st.integers(1, 70)), data.draw(st.integers(1, 40))
    batch, bits = data.draw(st.sampled_from([1, 2, 3, 5, 16])), data.draw(st.sampled_from([8, 4]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    top = 2 ** (bits - 1) - 1
    codes = rng.choice([-top, 0, top, 1, -1, top // 2], (count, width))
    x = (rng.normal(size=(batch, width)) * 10.0 ** rng.integers(-9, 9, (batch, 1))).astype(np.float32)
    x[0] = data.draw(st.sampled_from([np.float32(0), x[0], np.abs(x[0]), -np.abs(x[0])]))
    policy = one_layer(codes, rng.uniform(1e-3, 1, count), rng.normal(size=count), bits)
    layer = policy.ops[0]
    np.testing.assert_array_equal(outputs(policy, x), of_rows(layer.weight, layer.bias, x))


@pytest.mark.parametrize("precision", ["int8", "int6", "int4", "int3", "int2"])
@pytest.mark.parametrize("name", EXACT)
def test_dynamic_networks_without_transcendentals_are_the_references_bit_for_bit(name, precision):
    policy = networks.EVERY[name]()
    x = networks.observations(policy, 64)
    made = quantized(policy, precision)
    np.testing.assert_array_equal(outputs(made, x), outputs(made, x, "reference"))


@pytest.mark.parametrize("precision", ["int8", "int5", "int4", "int2", "int3e8"])
@pytest.mark.parametrize("scheme", ["default", "per-channel", "mid-tread"])
@pytest.mark.parametrize("name", [name for name in networks.EVERY if name not in FLOAT_MEAN])
def test_static_networks_are_the_references_bit_for_bit(name, scheme, precision):
    policy = networks.EVERY[name]()
    x = (
        networks.observations(policy, 64)
        if policy.observation_dtype == "uint8"
        else 2 * networks.observations(policy, 64)
    )
    made = quantized(policy, precision, scheme, "static")
    np.testing.assert_array_equal(outputs(made, x), outputs(made, x, "reference"))


@pytest.mark.parametrize(
    ("engine", "precision", "mode"),
    [
        *(("litert", *each) for each in [*MODES, ("bf16", "dynamic"), ("w8", "dynamic"), ("w12", "dynamic")]),
        *(("onnx", *each) for each in [*MODES, ("bf16", "dynamic"), ("w8", "dynamic")]),
        *(("torch", *each) for each in [*MODES[:3], ("int8", "static"), ("int12", "dynamic")]),
    ],
)
@pytest.mark.parametrize("name", list(networks.EVERY))
def test_every_operator_is_the_references(name, engine, precision, mode):
    policy = networks.EVERY[name]()
    x = networks.observations(policy, 16)
    made = quantized(policy, precision, mode=mode)
    # A last digit of tanh or exp, or sums in another order, may put one code on the other side of a rounding boundary.
    tolerance = 0.02 if made.spec.activation_bits == 8 else 1e-5
    np.testing.assert_allclose(outputs(made, x, engine), outputs(made, x, "reference"), atol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["litert", "onnx"])
@pytest.mark.parametrize(("precision", "mode"), MODES)
@pytest.mark.parametrize("name", list(networks.EVERY))
def test_rows_do_not_depend_on_the_batch(name, precision, mode, engine):
    policy = networks.EVERY[name]()
    x = networks.observations(policy, 64)
    x[3] = 0
    made = quantized(policy, precision, mode=mode)
    together = outputs(made, x, engine)
    for batch in (1, 3, 16):
        np.testing.assert_array_equal(together, outputs(made, x, engine, batch=batch))


@pytest.mark.parametrize(("precision", "mode"), MODES)
@pytest.mark.parametrize("name", list(networks.EVERY))
def test_xnnpack_takes_every_operator(name, precision, mode):
    assert delegated(engines.load(quantized(networks.EVERY[name](), precision, mode=mode), batch=2))


@pytest.mark.parametrize("engine", ["litert", "onnx"])
@pytest.mark.parametrize("width", [28, 51, 300, 1000])
def test_layer_norms_of_codes_are_the_references_bit_for_bit(width, engine):
    (name, weight, _), last = networks.layers(np.random.default_rng(0), [6, width, 3])
    ops = [*mlp([(name, weight, np.zeros(width, np.float32))], "elu"), Activation("bend", (name,), "elu")]
    ops.append(LayerNorm("norm", ("bend",), np.ones(width, np.float32), np.zeros(width, np.float32), 1e-5))
    policy = Policy(observation_shape=(6,), ops=(*ops, *mlp([last], "elu", "norm")), head=ActionHead("argmax"))
    x = 30 * networks.observations(policy, 64)
    x[3] = 0  # all codes of the row are equal
    made = quantize(policy, QuantSpec.parse("int8", scheme="per-channel", mode="static"), x)
    y = outputs(made, x, engine)
    np.testing.assert_array_equal(y, outputs(made, x, "reference"))
    np.testing.assert_allclose(y[3], last[2], rtol=1e-6)


@pytest.mark.parametrize("engine", ["litert", "onnx"])
@pytest.mark.parametrize("kind", ["relu", "leaky_relu"])
@pytest.mark.parametrize("first", [True, False])
def test_functions_of_an_observation_that_layers_read_as_well_are_the_references(first, kind, engine):
    one, two, last = (networks.layers(np.random.default_rng(i), [6, 6], f"layer.{i}") for i in range(3))
    bent = [Activation("bend", ("observation",), kind), *mlp(two, kind, "bend")]
    ops = [*bent, *mlp(one, kind)] if first else [*mlp(one, kind), *bent]
    ops += [Add("layers", ("layer.0.0", "layer.1.0")), Add("sum", ("layers", "bend")), *mlp(last, kind, "sum")]
    policy = Policy(observation_shape=(6,), ops=tuple(ops), head=ActionHead("argmax"))
    x = 2 * networks.observations(policy, 64)
    made = quantized(policy, mode="static")
    assert made.grids["observation"].bits > 8
    np.testing.assert_array_equal(outputs(made, x, engine), outputs(made, x, "reference"))


def images(ops, shape, dtype="uint8"):
    """A policy over images, ending in two scores."""
    rng = np.random.default_rng(0)
    made = Policy(observation_shape=shape, observation_dtype=dtype, ops=ops, head=ActionHead("argmax"))
    flat = outputs(quantize(made, QuantSpec.parse("fp32")), networks.observations(made, 1), "reference").shape[1]
    weight = (rng.normal(size=(2, flat)) / np.sqrt(flat)).astype(np.float32)
    last = Dense("last", (made.output,), weight, np.float32([0.1, -0.2]))
    return dataclasses.replace(made, ops=(*ops, last))


def convolution(name, source, shape, stride, padding=(0, 0)):
    weight = np.random.default_rng(3).normal(size=shape) / np.sqrt(np.prod(shape[1:]))
    return Conv2d(
        name, (source,), weight.astype(np.float32), np.linspace(-0.1, 0.1, shape[0], dtype=np.float32), stride, padding
    )


@pytest.mark.parametrize("mode", ["dynamic", "static"])
@pytest.mark.parametrize(
    ("shape", "kernel", "stride", "padding"),
    [
        ((4, 12, 12), (8, 8), (4, 4), (0, 0)),  # blocks of 4 x 4 pixels
        ((3, 12, 8), (4, 2), (2, 1), (0, 0)),  # blocks of 2 x 1
        ((4, 13, 12), (8, 8), (4, 4), (0, 0)),  # the stride does not divide the height
        ((4, 12, 12), (6, 8), (4, 4), (0, 0)),  # nor the kernel
        ((8, 12, 12), (4, 4), (2, 2), (0, 0)),  # channels enough
        ((1, 9, 7), (3, 2), (1, 3), (2, 1)),
        ((2, 8, 8), (4, 4), (2, 2), (1, 0)),
    ],
)
def test_convolutions_of_every_geometry_are_the_references(shape, kernel, stride, padding, mode):
    ops = (
        Scale("scaled", ("observation",), np.array(1 / 255, np.float32)),
        convolution("conv", "scaled", (5, shape[0], *kernel), stride, padding),
        Activation("relu", ("conv",), "relu"),
        Flatten("flat", ("relu",)),
    )
    policy = images(ops, shape)
    x = networks.observations(policy, 9)
    exact = quantized(policy, "fp32")
    np.testing.assert_allclose(outputs(exact, x), outputs(exact, x, "reference"), atol=2e-6)
    made = quantized(policy, "int8", mode=mode)
    np.testing.assert_array_equal(outputs(made, x), outputs(made, x, "reference"))
    np.testing.assert_array_equal(outputs(made, x), outputs(made, x, batch=1))


@pytest.mark.parametrize("mode", ["dynamic", "static"])
def test_images_joined_in_every_way_are_the_references(mode):
    """Operators that want the policy's axes, before, between and behind convolutions."""
    rng = np.random.default_rng(1)
    statistics = rng.uniform(90, 160, (2, 6, 6)), rng.uniform(1000, 5000, (2, 6, 6))
    ops = (
        Normalize("norm", ("observation",), *statistics, 1e-8, 1.5),
        convolution("one", "norm", (3, 2, 3, 3), (1, 1), (1, 1)),
        Scale("scaled", ("one",), rng.uniform(0.5, 1.5, (3, 6, 6)).astype(np.float32)),
        Activation("tanh", ("scaled",), "tanh"),
        convolution("two", "tanh", (3, 3, 1, 1), (1, 1)),
        Add("sum", ("one", "two")),
        Concat("wide", ("sum", "tanh")),
        Flatten("flat", ("wide",)),
        Activation("bend", ("flat",), "leaky_relu"),
        Flatten("whole", ("observation",)),
        Scale("small", ("whole",), np.array(0.01, np.float32)),
        Concat("all", ("bend", "small")),
    )
    policy = images(ops, (2, 6, 6))
    x = networks.observations(policy, 9)
    exact, made = quantized(policy, "fp32"), quantized(policy, "int8", mode=mode)
    np.testing.assert_allclose(outputs(exact, x), outputs(exact, x, "reference"), atol=1e-5)
    np.testing.assert_allclose(outputs(made, x), outputs(made, x, "reference"), atol=0.02)


@pytest.mark.parametrize("clip", [1.0, 2.5])
@pytest.mark.parametrize("offset", [0.0, 1.0, 1e6 + 1 / 3])
def test_observations_are_normalized_bit_for_bit(offset, clip):
    rng = np.random.default_rng(0)
    op = Normalize("norm", ("observation",), rng.normal(size=40) + offset, rng.uniform(0.01, 4, 40), 1e-8, clip)
    policy = Policy(observation_shape=(40,), ops=(op,), head=ActionHead("argmax"))
    x = (offset + 3 * rng.normal(size=(50, 40))).astype(np.float32)
    np.testing.assert_array_equal(outputs(quantize(policy, QuantSpec.parse("fp32")), x), op(x))


@pytest.mark.parametrize("zero_point", [-128, 0, 127])
@pytest.mark.parametrize("width", [100, 600, 3000])
def test_the_largest_accumulators_of_a_last_layer_are_exact(width, zero_point):
    codes = np.full((3, width), 127, np.int8)
    codes[1, ::2], codes[2] = -127, np.random.default_rng(0).integers(120, 128, width)
    spec = QuantSpec.parse("int8", scheme="per-channel", mode="static")
    grids = {"observation": ActivationGrid(scale=1.0, zero_point=zero_point)}
    policy = one_layer(codes, [1, 1, 1], [0, 0, 0], spec=spec, grids=grids)
    x = np.full((2, width), 255 if zero_point == -128 else -255, np.float32)
    x[1, ::3] = 0
    np.testing.assert_array_equal(outputs(policy, x), outputs(policy, x, "reference"))


@pytest.mark.parametrize("kind", ["tanh", "sigmoid", "elu", "leaky_relu", "relu"])
def test_activation_tables_hold_whether_computed_or_looked_up(kind, monkeypatch):
    policy = quantized(networks.dense([5, 33, 21, 3], kind), mode="static")
    x = 3 * networks.observations(policy, 64)
    expected = outputs(policy, x, "reference")
    if kind not in ("relu", "leaky_relu"):
        assert "GATHER" not in operators(write(policy))
    np.testing.assert_array_equal(outputs(policy, x), expected)
    monkeypatch.setattr(subgraph, "steady_scale", lambda *_: None)
    assert ("GATHER" in operators(write(policy))) == (kind != "relu")
    np.testing.assert_array_equal(outputs(policy, x), expected)


@given(
    st.sampled_from(["tanh", "sigmoid", "elu", "leaky_relu", "relu"]),
    st.integers(-12, 3),
    st.integers(-128, 127),
    st.floats(1, 2),
)
@settings(max_examples=150)
def test_a_steady_scale_keeps_every_entry_off_rounding_boundaries(kind, exponent, zero_point, mantissa):
    """The runtime's own functions, evaluated at every code of a random grid, give the table's entries."""
    fixed = {"tanh": (1 / 128, 0), "sigmoid": (1 / 256, -128)}
    scale = float(np.float32(mantissa * 2.0**exponent))
    source = ActivationGrid(scale=scale, zero_point=zero_point)
    target = ActivationGrid(scale=fixed.get(kind, (scale, 0))[0], zero_point=fixed.get(kind, (0, zero_point))[1])
    op = Activation("f", ("x",), kind)
    steady = subgraph.steady_scale(op, source, target)
    if steady is None:
        return
    assert abs(steady / np.float32(source.scale) - 1) < 3e-4
    codes = np.arange(-128, 128, dtype=np.float32) - np.float32(zero_point)
    ops = (Activation("f", ("observation",), kind),)
    function = quantize(Policy(observation_shape=(256,), ops=ops, head=ActionHead("argmax")), QuantSpec.parse("fp32"))
    y = outputs(function, (codes * steady)[None])[0]
    made = np.clip(np.rint(y / np.float32(target.scale)) + target.zero_point, -128, 127)
    assert made.tolist() == subgraph.table(op, source, target).tolist()


def test_the_file_is_a_small_head_and_raw_constants():
    policy = quantized(networks.dense([17, 400, 300, 6]))
    content = write(policy)
    assert content[4:8] == b"TFL3"
    model = schema.ModelT.InitFromPackedBuf(content)
    assert [buffer.data for buffer in model.buffers] == [None] * len(model.buffers)
    pieces = {content[b.offset : b.offset + b.size] for b in model.buffers if b.size}
    assert all(op.weight.codes.tobytes() in pieces and op.bias.tobytes() in pieces for op in policy.linear)
    assert all(buffer.offset % 16 == 0 for buffer in model.buffers)
    assert engines.load(policy).file_bytes == len(content)


def places(content):
    """(first byte, size, offset as the schema names it) of every constant of a .tflite file."""
    root = schema.Model.GetRootAs(content)
    for index in range(1, root.BuffersLength()):
        buffer = root.Buffers(index)
        assert buffer.Size() == 0
        start = buffer._tab.Vector(buffer._tab.Offset(flatbuffer.DATA_SLOT))
        yield start, buffer.DataLength(), buffer.Offset()


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "mode"), MODES)
@pytest.mark.parametrize("name", list(networks.EVERY))
def test_a_file_for_any_runtime_holds_and_names_everything_and_runs_as_fast_with_the_same_bits(name, precision, mode):
    policy = networks.EVERY[name]()
    made = quantized(dataclasses.replace(policy, head=ActionHead("argmax")), precision, mode=mode)
    content = write(made, acts=True)
    assert {(start % 16, offset) for start, _, offset in places(content)} == {(0, 0)}
    model = schema.ModelT.InitFromPackedBuf(content)
    pieces = {buffer.data.tobytes() for buffer in model.buffers[1:]}
    assert all(op.bias.tobytes() in pieces for op in made.linear if op.name in final_linear(made) or mode != "static")
    names = [tensor.name.decode() for tensor in model.subgraphs[0].tensors]
    assert len(set(names)) == len(names)
    assert {"observation", "output", *(f"{op.name}.{part}" for op in policy.linear for part in ("weight", "bias"))} <= {
        *names
    }
    bare = {"RELU", "TANH", "LOGISTIC", "ELU", "LOG", "ROUND", "SQRT", "RSQRT"}  # their tables of options do not exist
    for operator, kind in zip(model.subgraphs[0].operators, operators(content), strict=True):
        assert (operator.builtinOptions is None) == (kind in bare)
    x = networks.observations(policy, 16)
    engine = LiteRT(content, 16, measured=True)
    assert delegated(engine)
    np.testing.assert_array_equal(engine.run(x), outputs(made, x))


def test_weights_beyond_a_flatbuffer_s_two_gigabytes_follow_it(monkeypatch):
    policy = quantized(networks.dense([17, 400, 300, 6]))
    inside, said = write(policy, acts=True), []
    monkeypatch.setattr(flatbuffer, "LARGEST_INSIDE", 100_000)
    beyond = write(policy, acts=True, say=said.append)
    assert len(said) == 1
    assert "and weights beyond 2 GB;" in said[0]
    model = schema.ModelT.InitFromPackedBuf(beyond)
    assert all(buffer.data is None and buffer.size and buffer.offset for buffer in model.buffers[1:])
    x = networks.observations(policy, 16)
    runs = [LiteRT(content, 16, measured=True).run(x) for content in (inside, beyond)]
    np.testing.assert_array_equal(*runs)


def test_files_hold_weights_in_their_containers():
    policy = networks.dense([26, 400, 300, 6])
    sizes = {p: len(write(quantized(policy, p))) for p in ("fp32", "fp16", "int8", "int5", "int4", "int2")}
    assert sizes["int5"] == sizes["int8"]
    assert sizes["int2"] == sizes["int4"]
    assert sizes["fp16"] < 0.51 * sizes["fp32"]
    assert sizes["int8"] < 0.275 * sizes["fp32"]
    assert sizes["int4"] < 0.15 * sizes["fp32"]


def test_codes_that_overflow_their_width_get_the_next_container():
    policy = one_layer([[15, -16, 3, 0]], [1], [0], bits=4)  # anchored schemes can have 2**n + 1 levels
    assert outputs(policy, np.float32([[1, 1, 0, 0]]))[0, 0] == pytest.approx(-1, abs=1e-5)


def test_the_same_policy_gives_the_same_bytes():
    policy = quantized(networks.convolutional(), "int4", mode="static")
    assert write(policy) == write(policy)


@pytest.mark.parametrize(
    ("engine", "measured"),
    [
        ("litert", {"fp32", "fp16", "int8", "int2"}),
        ("onnx", {"fp32", "int8", "int2"}),
        ("torch", {"fp32"}),
    ],
)
def test_measured_is_said_of_the_kernels_that_compute_in_the_precision(engine, measured):
    policy = networks.dense([5, 8, 3])
    for precision in ("fp32", "fp16", "bf16", "int8", "int2", "w8"):
        assert engines.load(quantized(policy, precision), engine).measured == (precision in measured)


def test_measured_is_not_said_where_static_layers_multiply_in_float32():
    """The first layer reads more than 8 bits and the last one's sums are exact in float32: some have no others."""
    spec = QuantSpec.parse("int8", mode="static")
    shallow, deep = networks.dense([4, 16, 2]), networks.dense([4, 16, 16, 2])
    static = [quantize(policy, spec, networks.observations(policy, 64)) for policy in (shallow, deep)]
    assert [engines.load(policy).measured for policy in static] == [False, True]


@pytest.mark.parametrize(
    ("precision", "scheme", "reason"),
    [
        ("w4a6", "per-channel", "8-bit activations only, not w4a6"),
        ("int12", "per-channel", "weights of 8 bits or fewer only"),
        ("int8", "affine", "symmetric weights only"),
    ],
)
@pytest.mark.parametrize("engine", ["litert", "onnx"])
def test_what_no_integer_kernel_does_is_refused_in_one_line(engine, precision, scheme, reason):
    with pytest.raises(UnsupportedError, match=reason):
        engines.load(quantized(networks.dense([5, 8, 3]), precision, scheme=scheme), engine)


def with_scale(policy, index, factor):
    """The policy with the weights of operator `index` multiplied, and a bias that is not small beside them."""
    ops = [*policy.ops]
    layer = ops[index]
    weight = dataclasses.replace(layer.weight, scale=layer.weight.scale * np.float32(factor))
    ops[index] = dataclasses.replace(layer, weight=weight, bias=layer.bias + np.float32(1))
    return dataclasses.replace(policy, ops=tuple(ops))


def test_static_layers_beyond_the_kernels_integers_are_refused():
    narrow = quantized(networks.dense([5, 8, 8, 3]), mode="static")
    with pytest.raises(UnsupportedError, match="more than 32 bits"):
        engines.load(with_scale(narrow, 2, 1e-12))
    broad = quantized(networks.dense([5, 5000, 8, 3]), mode="static")
    with pytest.raises(UnsupportedError, match="24 bits"):
        engines.load(with_scale(broad, 2, 1e9))


@pytest.mark.parametrize("engine", ["litert", "onnx"])
@pytest.mark.parametrize(("bits", "code"), [(8, 127), (8, 100), (4, 7)])
def test_dynamic_sums_are_exact_or_refused(bits, code, engine):
    """80,000 products with 255 leave 32 bits if the codes are 127; 16 times those of codes of 7 would."""
    policy = one_layer(np.full((2, 80_000), code), [1, 0.5], [0, 1], bits)
    x = np.float32([np.full(80_000, 255), np.arange(80_000) % 256])
    if code == 127:
        with pytest.raises(UnsupportedError, match="more than 32 bits"):
            engines.load(policy, engine)
    else:
        np.testing.assert_array_equal(outputs(policy, x, engine), outputs(policy, x, "reference"))


@pytest.mark.parametrize("bits", [8, 4])
def test_the_largest_biases_of_static_layers_are_exact(bits):
    """2**29 steps fit in 32 bits, but 16 times as many do not."""
    policy = quantized(networks.dense([5, 8, 8, 3]), f"int{bits}", mode="static")
    layer = policy.ops[2]
    steps = np.linspace(-(2**29), 2**29, 8) * policy.grids[layer.inputs[0]].scale
    weight = dataclasses.replace(layer.weight, scale=layer.weight.scale * np.float32(1e-7))
    changed = dataclasses.replace(layer, weight=weight, bias=(steps * weight.scale).astype(np.float32))
    policy = dataclasses.replace(policy, ops=tuple(changed if op is layer else op for op in policy.ops))
    x = networks.observations(policy, 64)
    np.testing.assert_array_equal(outputs(policy, x), outputs(policy, x, "reference"))


def test_multipliers_above_the_kernels_limit_are_exact_all_the_same():
    policy = with_scale(quantized(networks.dense([5, 8, 8, 3]), mode="static"), 2, 1e4)
    x = networks.observations(policy, 64)
    np.testing.assert_array_equal(outputs(policy, x), outputs(policy, x, "reference"))


@pytest.mark.parametrize("engine", ["litert", "onnx", "torch"])
def test_observations_of_another_shape_are_refused_and_other_types_converted(engine):
    engine = engines.load(quantized(networks.dense([5, 8, 3])), engine, batch=2)
    with pytest.raises(QuarlError, match=r"\(1, 5\)"):
        engine.run(np.zeros((1, 5), np.float32))
    x = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32).T[::2]  # neither axis is contiguous
    assert x.shape == (2, 5)
    np.testing.assert_array_equal(engine.run(x.astype(np.float64)), engine.run(np.ascontiguousarray(x)))
    np.testing.assert_array_equal(engine.run(x), engine.run(np.ascontiguousarray(x)))


@pytest.mark.parametrize("engine", ["litert", "onnx"])
def test_the_caller_owns_the_result_and_the_engine_its_file(engine):
    policy = quantized(networks.dense([5, 64, 64, 3]))
    x = networks.observations(policy, 2)
    engine = engines.load(policy, engine)
    first = engine.run(x[:1])
    kept = first.copy()
    del policy
    gc.collect()
    [np.zeros(2**16) for _ in range(20)]  # memory that would overwrite a freed file
    engine.run(x[1:])
    np.testing.assert_array_equal(first, kept)
    np.testing.assert_array_equal(engine.run(x[:1]), kept)
    first[:] = 7
    del engine
    gc.collect()
    assert (first == 7).all()


def test_one_file_serves_many_engines():
    content = write(quantized(networks.convolutional()))
    x = networks.observations(networks.convolutional(), 4)
    single, four = LiteRT(content, 1, measured=True), LiteRT(content, 4, measured=True)
    np.testing.assert_array_equal(np.concatenate([single.run(x[i : i + 1]) for i in range(4)]), four.run(x))


@pytest.mark.slow
def test_the_runtime_is_quiet():
    program = """
import networks
from quarl import engines
from quarl.calibration import quantize
from quarl.quant.spec import QuantSpec
engines.load(quantize(networks.dense([5, 8, 3]), QuantSpec.parse("fp32")))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(path for path in sys.path if path)},
    )
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize("precision", ["int8", "int4"])
@pytest.mark.parametrize(
    ("channels", "kernel", "stride", "padding"), [(3, 1, 1, 0), (8, 1, 1, 1), (8, 1, 2, 0), (3, 4, 4, 0), (1, 2, 2, 0)]
)
def test_kernels_of_one_pixel_quantise_images_and_not_pixels(channels, kernel, stride, padding, precision):
    """Pixels here are of very different size; a first layer whose kernel is its stride is one of blocks."""
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(5, channels, kernel, kernel)).astype(np.float32)
    conv = Conv2d("c", ("observation",), weight, np.zeros(5, np.float32), (stride, stride), (padding, padding))
    size = 12
    head = ActionHead("argmax")
    policy = Policy(observation_shape=(channels, size, size), ops=(conv, Flatten("f", ("c",))), head=head)
    quantized = quantize(policy, QuantSpec.parse(precision, scheme="per-channel"))
    x = rng.normal(size=(4, channels, size, size)) * np.exp(2 * rng.normal(size=(4, 1, size, size)))
    found, expected = (
        engines.load(quantized, name, batch=4).run(x.astype(np.float32)) for name in ("litert", "reference")
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * np.abs(expected).max())


PRECISIONS = [("fp32", "dynamic"), ("fp16", "dynamic"), ("int8", "dynamic"), ("int4", "dynamic"), ("int8", "static")]


@pytest.mark.parametrize(("precision", "mode"), PRECISIONS)
@pytest.mark.parametrize("name", ["relu", "odd", "squashed", "elu"])
def test_new_weights_of_a_known_network_give_the_same_file_as_from_scratch(name: str, precision: str, mode: str):
    spec = QuantSpec.parse(precision, mode=mode, scheme="per-channel")  # type: ignore[arg-type]
    first = networks.EVERY[name]()
    widths = [first.observation_shape[0], *(len(op.bias) for op in first.linear)]
    activation = first.ops[1].kind  # type: ignore[attr-defined]
    other = networks.dense(widths, activation, seed=5, head=first.head.kind)
    observations = networks.observations(first, 64)
    flatbuffer._head.cache_clear()
    fresh = write(quantize(other, spec, observations))
    flatbuffer._head.cache_clear()
    before = write(quantize(first, spec, observations))
    patched = write(quantize(other, spec, observations))
    assert patched == fresh
    assert patched != before
    assert write(quantize(first, spec, observations)) == before  # the patch went into a copy
    if mode == "dynamic":
        assert flatbuffer._head.cache_info().misses == 1


def test_engines_made_one_after_the_other_do_not_share_weights():
    spec = QuantSpec.parse("int8", scheme="per-channel")
    policies = [quantize(networks.dense([4, 8, 2], seed=seed), spec) for seed in range(3)]
    loaded = [engines.load(policy) for policy in policies]
    rows = networks.observations(policies[0], 1)
    for policy, engine in zip(policies, loaded, strict=True):
        np.testing.assert_array_equal(engine.run(rows), engines.load(policy, "reference").run(rows))
