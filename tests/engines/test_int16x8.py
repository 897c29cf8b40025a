"""Files of int8 weights and int16 activations, in LiteRT and TFLite Micro, against the reference in that arithmetic."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from math import floor, frexp

import numpy as np
import pytest

import networks
import require
from quarl.calibration import quantize
from quarl.engines import int16x8, reference
from quarl.engines.litert import sixteen
from quarl.engines.litert.flatbuffer import Model
from quarl.engines.lookup_tables import steady_scale
from quarl.errors import UnsupportedError
from quarl.export import export, golden, runtimes
from quarl.export.verification import opened, verify
from quarl.policy.graph import ActivationGrid
from quarl.policy.operators import Activation
from quarl.quant.affine import requantize_narrow
from quarl.quant.spec import QuantSpec

RUNTIMES = ("litert", "tflm")
ALL = np.arange(-(2**15), 2**15).astype(np.int16)
require.module("tflite_micro.python.tflite_micro.runtime")


def static(policy, precision="w8a16"):
    x = networks.observations(policy, 200)
    return quantize(policy, QuantSpec.parse(precision, scheme="per-channel", mode="static"), x), x


def outputs(tmp_path, name, content, rows):
    (tmp_path / "policy.tflite").write_bytes(content)
    runtime = runtimes.load(name, tmp_path / "policy.tflite")
    return np.stack([np.array(runtime.row(row[None])) for row in rows])


@pytest.mark.parametrize("name", RUNTIMES)
@pytest.mark.parametrize(
    ("kind", "precision"),
    [("relu", "int8"), ("tanh", "w8a16"), ("sigmoid", "int4"), ("silu", "w8a16"), ("elu", "w8a16")],
)
def test_int16x8_outputs_are_those_of_the_reference(tmp_path, kind, precision, name):
    policy, x = static(networks.normalized([9, 33, 17, 4], kind), precision)
    engine = reference.load(policy, 1, "int16x8")
    rows = np.concatenate([x[:40], 40 * x[:10]])
    codes = outputs(tmp_path, name, sixteen.write(policy), engine.encoded(rows))
    np.testing.assert_array_equal(engine.decoded(codes), engine.run(rows))


@pytest.mark.parametrize("name", RUNTIMES)
@pytest.mark.parametrize("scale", [1.5, 1.5 * 2**-12, 1.5 * 2**-17])
@pytest.mark.parametrize("kind", ["tanh", "sigmoid", "silu", "elu"])
def test_int16x8_functions_equal_kernels_for_every_code(tmp_path, kind, scale, name):
    model = Model()
    grid = ActivationGrid(scale=scale, zero_point=0, bits=16)
    x = model.scaled((1, len(ALL)), scale)
    y = sixteen.bent(model, kind, x, scale)
    (codes,) = outputs(tmp_path, name, model.to_bytes([x], [y], ("observation", "output")), ALL[None])
    expected = int16x8.activation(kind, ALL.astype(np.int64), grid)
    np.testing.assert_array_equal(codes[0], expected)


def test_no_entry_of_the_elu_table_is_near_the_middle_of_two_codes():
    elu = Activation(name="elu", inputs=("x",), kind="elu")
    assert steady_scale(elu, *int16x8.NARROW) == int16x8.NARROW[0].scale


def test_narrow_requantization_rounds_one_product_with_ties_upward():
    rng = np.random.default_rng(0)
    sums = np.append(rng.integers(-(2**38), 2**38, 500), [-3, 3, -1, 2**40])
    factors = np.append(rng.uniform(0.5, 1, 500) * 2.0 ** rng.integers(-30, -20, 500), [0.5, 0.5, 0.5, 2**-32])
    expected = []
    for total, factor in zip(sums.tolist(), factors.tolist(), strict=True):
        unit = Fraction(2) ** (frexp(factor)[1] - 15)
        reduced = min(floor(Fraction(factor) / unit + Fraction(1, 2)), 2**15 - 1)
        expected.append(floor(total * reduced * unit + Fraction(1, 2)))
    np.testing.assert_array_equal(requantize_narrow(sums, factors), np.clip(expected, -(2**15), 2**15 - 1))


def test_int16x8_actions_are_within_half_a_percent_of_fp32():
    for policy in (
        networks.EVERY["squashed"](),
        *(networks.normalized([9, 64, 4], k) for k in ("relu", "tanh", "silu", "elu")),
    ):
        exact = quantize(policy, QuantSpec.parse("fp32"))
        small, x = static(policy)
        given = [
            golden.given(policy, reference.load(p, 1, a).run(x)) for p, a in ((exact, "f32-rne"), (small, "int16x8"))
        ]
        assert policy.head.distance(*given).mean() < 0.005


def test_the_grid_of_the_output_covers_sums_of_inputs_in_their_ranges():
    policy, _ = static(networks.dense([5, 16, 3], "relu"))
    op, read = policy.linear[-1], policy.grids[policy.linear[-1].inputs[0]]
    low, high = (step * read.scale for step in read.steps)
    assert low == 0  # of relu
    weight = op.weight.codes * op.weight.scale[:, None]
    largest = max(np.abs(op.bias + np.where(sign * weight > 0, high * weight, 0).sum(axis=1)).max() for sign in (1, -1))
    assert 0.5 < largest / (int16x8.grids(policy)[policy.output].scale * 32767) <= 1


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (networks.dense([5, 16, 3], "leaky_relu"), r"no integer kernel for '.*' \(leaky_relu\)"),
        (networks.dueling(), r"no integer kernel for '.*' \(LayerNorm\)"),
        (networks.convolutional(), r"no integer kernel for '.*' \(Conv2d\)"),
    ],
)
def test_int16x8_refuses_operators_without_integer_kernels(policy, said):
    with pytest.raises(UnsupportedError, match=said):
        sixteen.write(static(policy)[0])


@pytest.mark.slow
def test_an_int16x8_folder_is_verified_in_both_runtimes(tmp_path, monkeypatch):
    policy, x = static(networks.normalized([5, 16, 3], "elu"))
    said = export(policy, "tflite-int16x8", tmp_path / "out", observations=x)
    assert {each["runtime"]: (each["arithmetic"], each["result"]) for each in said["verified"]} == dict.fromkeys(
        RUNTIMES, ("int16x8", "equal")
    )
    io = json.loads((tmp_path / "out" / "contract.json").read_text())["io"]
    assert io["output"]["scale"] == int16x8.grids(policy)[policy.output].scale
    assert [each["kind"] for each in io["input"]["before"]] == ["Normalize"]
    (name,) = io["int8_tables"]
    page = (tmp_path / "out" / "README.md").read_text()
    assert f"Negative numbers of {name} (ELU)" in page
    # The page's program computes the network's output.
    engine = reference.load(policy, 1, "int16x8")
    scope = {"x": engine.trace(x[:1])[int16x8.entry(policy)][0]}
    monkeypatch.chdir(tmp_path / "out")
    exec(re.search("```python\n(.*?)```", page, re.S)[1], scope)
    np.testing.assert_array_equal(scope["output"], engine.run(x[:1])[0])
    rows = [
        row for row in verify(tmp_path / "out", RUNTIMES, episodes=0, recorded=lambda _: x) if not isinstance(row, str)
    ]
    assert [row.result for row in rows if row.runtime in RUNTIMES] == ["equal"] * 4
    with pytest.raises(UnsupportedError, match="openvino does not compute in int16"):
        runtimes.coded(runtimes.RowByRow("openvino", "qdq", "", len), policy, "tflite-int16x8")
    for alone in (opened, lambda file: list(verify(file))):
        with pytest.raises(UnsupportedError, match=r"policy\.tflite reads and returns int16 codes, .* policy\.quarl"):
            alone(tmp_path / "out" / "policy.tflite")
