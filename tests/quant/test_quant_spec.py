"""Names of precisions."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from quarl.errors import QuarlError
from quarl.quant.spec import SCHEMES, QuantSpec, integer_range


@pytest.mark.parametrize(
    ("text", "weights", "activations", "precision"),
    [
        ("8", 8, 8, "int8"),
        ("int4", 4, 8, "int4"),
        (2, 2, 8, "int2e8"),
        ("4", 4, 8, "int4e8"),
        ("w4a8", 4, 8, "int4"),
        ("w8a6", 8, 6, "w8a6"),
        ("w8", 8, None, "w8"),
        ("32", 32, 8, "int32"),
        ("int4e4", 4, 8, "int4"),
        ("w4a8e8", 4, 8, "int4e8"),
        ("2e8", 2, 8, "int2e8"),
        ("w4a6e8", 4, 6, "w4a6e8"),
    ],
)
def test_integers_are_parsed(text, weights, activations, precision):
    spec = QuantSpec.parse(text)
    assert (spec.weight_bits, spec.activation_bits, spec.precision) == (weights, activations, precision)


@pytest.mark.parametrize("text", ["w8", "8", "fp16"])
def test_activations_that_stay_float_have_one_mode(text):
    scheme = "quarl-2020" if text == "8" else "default"
    assert QuantSpec.parse(text, scheme=scheme, mode="static") == QuantSpec.parse(text, scheme=scheme)
    with pytest.raises(QuarlError, match="mode must be dynamic or static"):
        QuantSpec.parse(text, scheme=scheme, mode="other")


@pytest.mark.parametrize("text", ["fp32", "fp16", "bf16"])
def test_floats_are_parsed(text):
    assert QuantSpec.parse(text).precision == text


@pytest.mark.parametrize(
    "text", ["1", "33", "int1", "w4a1", "w4a17", "fp8", "", "-4", "8.5", "int4e1", "int4e", "fp16e8"]
)
def test_what_no_engine_could_run_is_refused_in_one_line(text):
    with pytest.raises(QuarlError):
        QuantSpec.parse(text)


def test_edges_have_a_width_of_their_own_and_the_rest_theirs():
    spec = QuantSpec.parse("int2e8")
    first, hidden = spec.of_layer("net.0", edge=True), spec.of_layer("net.2", edge=False)
    assert [(each.weight_bits, each.mid_rise, each.precision) for each in (first, hidden)] == [
        (8, False, "int8"),
        (2, True, "int2"),
    ]
    assert QuantSpec.from_json(spec.to_json()) == spec
    assert "edge_bits" not in QuantSpec.parse("int2").to_json()


def test_layers_may_have_bits_of_their_own_which_files_without_such_do_not_name():
    spec = replace(QuantSpec.parse("int8e6"), layer_bits=(("net.0", 3), ("net.2", 2)))
    named = [spec.of_layer(name, edge=name != "net.2") for name in ("net.0", "net.2", "net.4")]
    assert [(each.weight_bits, each.mid_rise, each.layer_bits) for each in named] == [
        (3, True, ()),
        (2, True, ()),
        (6, False, ()),
    ]
    assert (spec.precision, spec.in_words) == ("mixed", "mixed dynamic")
    assert QuantSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    assert "layer_bits" not in QuantSpec.parse("int2").to_json()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_json_round_trip(scheme):
    spec = QuantSpec.parse("w4a8", scheme=scheme, mode="static")
    assert QuantSpec.from_json(spec.to_json()) == spec


@pytest.mark.parametrize(
    "damage",
    [
        {"weight_bits": "8"},
        {"weight_bits": 8.0},
        {"activation_bits": 8.5},
        {"scheme": {}},
        {"scheme": {"name": "x", "symmetric": 1}},
        {"scheme": {"name": "x", "observer": "x"}},
        {"float_type": "x"},
        {"layer_bits": {"net.0": "3"}},
        {"layer_bits": {"net.0": True}},
    ],
)
def test_a_malformed_manifest_is_refused_in_one_line(damage):
    with pytest.raises(QuarlError):
        QuantSpec.from_json(QuantSpec.parse("8").to_json() | damage)


def test_symmetric_activations_are_a_part_of_static_specs_alone():
    made = QuantSpec.parse("int8", mode="static", symmetric_activations=True)
    assert (made.in_words, made.precision) == ("int8 static symmetric", "int8")
    assert QuantSpec.from_json(made.to_json()) == made
    assert "symmetric_activations" not in QuantSpec.parse("int8", mode="static").to_json()
    assert QuantSpec.parse("w8", mode="static", symmetric_activations=True) == QuantSpec.parse("w8")
    with pytest.raises(QuarlError, match=r"^symmetric activations require static mode"):
        QuantSpec.parse("int8", symmetric_activations=True)


def test_integer_ranges():
    assert [integer_range(b) for b in (2, 8)] == [(-1, 1), (-127, 127)]
    assert [integer_range(b, symmetric=False) for b in (2, 8)] == [(-2, 1), (-128, 127)]


@pytest.mark.slow
def test_parsing_a_precision_imports_no_numpy():
    code = "import quarl.quant.spec, sys; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_original_s_precisions_have_names_of_their_own():
    words = ("int8", "int4", "w4a4", "w8a8")
    specs = [QuantSpec.parse(word, scheme="quarl-2020") for word in words]
    assert [spec.precision for spec in specs] == list(words)
    assert [QuantSpec.parse(spec.precision, scheme="quarl-2020") for spec in specs] == specs
