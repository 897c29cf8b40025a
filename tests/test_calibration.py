"""Quantisation of whole policies: what is refused, what the default scheme buys, what static grids promise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import networks
from quarl import calibration, engines
from quarl.calibration import Calibrated, quantize
from quarl.engines.numpy_operators import as_float
from quarl.errors import QuarlError
from quarl.policy import artifact, fit
from quarl.policy.grids import EXACT, fixed_grid, grid_rules, pixel_grid, trained_rules
from quarl.policy.operators import QuantizedTensor
from quarl.quant.affine import quarl_2020
from quarl.quant.spec import SCHEMES, QuantSpec


def spec(precision, **options):
    return QuantSpec.parse(precision, **options)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", networks.EVERY)
def test_every_scheme_quantises_every_weight(name, scheme):
    policy = networks.EVERY[name]()
    quantized = quantize(policy, spec("int6", scheme=scheme), networks.observations(policy, 64))
    assert quantized.coverage == 1
    limit = 2**6 if scheme == "quarl-2020" else 2**5 - 1 + (not SCHEMES[scheme].symmetric)
    assert all(
        isinstance(op.weight, QuantizedTensor) and np.abs(op.weight.codes).max() <= limit for op in quantized.linear
    )


@pytest.mark.parametrize("mode", ["dynamic", "static"])
def test_each_layer_has_the_bits_that_it_was_given_in_the_file_as_well(mode):
    policy = networks.dense([5, 16, 16, 3])
    own = (("net.0", 4), ("net.1", 2))
    given = replace(spec("int8", mode=mode), layer_bits=own)
    quantized = quantize(policy, given, networks.observations(policy, 64))
    assert quantized.bits_of_layers == {"net.0": 4, "net.1": 2, "net.2": 8}
    assert quantized.mean_bits == (4 * 80 + 2 * 256 + 8 * 48) / 384
    loaded = artifact.from_bytes(artifact.to_bytes(quantized), "memory")
    assert (loaded.spec, loaded.bits_of_layers) == (given, quantized.bits_of_layers)
    x = networks.observations(policy, 32)
    exact = engines.run_all(engines.load(quantized, "reference", batch=32), x)
    assert np.array_equal(engines.run_all(engines.load(loaded, "litert", batch=32), x), exact)


@pytest.mark.parametrize("name", ["relu", "sigmoid", "tanh-normalized", "residual", "convolutional", "dueling"])
def test_symmetric_activations_have_zero_point_0_in_every_engine(name):
    policy = networks.EVERY[name]()
    x = networks.observations(policy, 64)
    made = quantize(policy, spec("int8", scheme="per-channel", mode="static", symmetric_activations=True), x)
    usual = quantize(policy, spec("int8", scheme="per-channel", mode="static"), x)
    assert {grid.zero_point for grid in made.grids.values()} == {0}
    assert {grid.zero_point for grid in usual.grids.values()} != {0}
    exact = engines.run_all(engines.load(made, "reference", batch=64), x)
    for engine in ("litert", "onnx"):
        np.testing.assert_array_equal(engines.run_all(engines.load(made, engine, batch=64), x), exact)
    again = artifact.from_bytes(artifact.to_bytes(made), "memory")
    assert (again.spec, again.grids) == (made.spec, made.grids)


def test_symmetric_grids_reach_the_largest_number_at_code_127():
    policy = networks.dense([5, 16, 3])
    x = networks.observations(policy, 64)
    made = quantize(policy, spec("int8", scheme="per-channel", mode="static", symmetric_activations=True), x)
    largest = as_float(made, x)["net.0.relu"].max()
    assert made.grids["net.0"].scale * 127 == pytest.approx(largest, rel=0.02)  # of the layer behind rounded inputs
    assert pixel_grid(1 / 255, symmetric=True).scale == np.float32(1 / 127)
    assert fixed_grid("sigmoid", symmetric=True).scale == np.float32(1 / 127)
    assert fixed_grid("tanh", symmetric=True) == fixed_grid("tanh")


def test_fp16_rounds_weights_and_nothing_else():
    policy = networks.dense([5, 16, 3])
    quantized = quantize(policy, spec("fp16"))
    for before, after in zip(policy.linear, quantized.linear, strict=True):
        assert np.array_equal(after.weight, before.weight.astype(np.float16))
        assert np.array_equal(after.bias, before.bias)


def test_bf16_has_eight_bits_of_mantissa():
    policy = networks.dense([5, 64, 3])
    weight = quantize(policy, spec("bf16")).linear[0].weight.astype(np.float32)
    assert (weight.view(np.uint32) & 0xFFFF == 0).all()
    assert np.abs(weight / policy.linear[0].weight - 1).max() <= 2**-8


def test_a_weight_too_large_for_fp16_is_refused():
    policy = networks.dense([5, 16, 3])
    policy.linear[0].weight[0, 0] = 1e6
    with pytest.raises(QuarlError, match=r"'net\.0' is too large for fp16"):
        quantize(policy, spec("fp16"))


def test_calibration_is_asked_for_where_it_is_needed():
    policy = networks.dense([5, 16, 3])
    with pytest.raises(QuarlError, match="needs calibration observations"):
        quantize(policy, spec("int8"))
    with pytest.raises(QuarlError, match="needs calibration observations"):
        quantize(policy, spec("int8", scheme="naive", mode="static"))
    with pytest.raises(QuarlError, match=r"are \(4,\) each, the policy expects \(5,\)"):
        quantize(policy, spec("int8"), np.zeros((8, 4), np.float32))
    with pytest.raises(QuarlError, match="NaN or infinity"):
        quantize(policy, spec("int8"), np.full((8, 5), np.nan, np.float32))


def test_the_2020_scheme_reproduces_the_original_weights_bit_for_bit():
    policy = networks.dense([5, 16, 3])
    quantized = quantize(policy, spec("int5", scheme="quarl-2020"))
    for before, after in zip(policy.linear, quantized.linear, strict=True):
        codes, step = quarl_2020(before.weight, 5)
        assert np.array_equal(after.weight.dequantize(), codes.astype(np.float32) * step)
        assert np.array_equal(after.bias, before.bias)
    assert quantized.spec.activation_bits is None


def test_the_2020_scheme_treats_convolutions_per_output_channel():
    policy = networks.convolutional()
    tensor = quantize(policy, spec("int5", scheme="quarl-2020")).linear[0].weight
    assert len(np.unique(tensor.scale)) == len(tensor.scale)


@pytest.mark.parametrize("mode", ["dynamic", "static"])
def test_the_default_scheme_decides_better_than_the_naive_one(mode):
    policy = networks.dense([6, 64, 64, 4], seed=3)
    # Features of unlike size and scores with a large common part: what trained value networks look like.
    scales = np.float32(np.geomspace(0.02, 5, 6))
    policy.linear[0].weight[:] /= scales
    policy.linear[2].bias[:] += 50
    policy.linear[2].weight[:] += 2
    calibration, test = (networks.observations(policy, 2048, seed=s) * scales for s in (1, 2))
    exact = as_float(policy, test)[policy.output].argmax(axis=1)

    def agreement(scheme):
        quantized = quantize(policy, spec("int6", scheme=scheme, mode=mode), calibration)
        return (engines.load(quantized, "reference", batch=2048).run(test).argmax(axis=1) == exact).mean()

    assert agreement("default") > agreement("naive") + 0.1
    assert agreement("default") > 0.9


def test_bias_correction_takes_the_mean_error_out_of_every_output():
    policy = networks.dense([6, 32, 3], seed=1)
    x = networks.observations(policy, 1024)
    exact = as_float(policy, x)[policy.output]

    def mean_error(scheme):
        quantized = quantize(policy, spec("int3", scheme=scheme), x)
        return np.abs((engines.load(quantized, "reference", batch=1024).run(x) - exact).mean(axis=0)).max()

    assert mean_error("bias-corrected") < 1e-4 < mean_error("per-channel")


def test_wide_observation_grids_keep_float32_sums_exact():
    for name in ("relu", "odd", "tanh-normalized", "leaky_relu"):
        policy = networks.EVERY[name]()
        x = networks.observations(policy, 256)
        for precision in ("int8", "int4", "int2"):
            quantized = quantize(policy, spec(precision, mode="static"), x)
            first = quantized.linear[0]
            grid = quantized.grids[first.inputs[0]]
            assert grid.bits > 8
            assert np.log2(grid.scale) == round(np.log2(grid.scale))
            sums = np.abs(first.weight.codes.astype(np.int64)).sum(axis=1) * 2 ** (grid.bits - 1)
            bias = np.abs(first.bias / (grid.scale * first.weight.scale))
            assert (sums + bias < EXACT).all()


@pytest.mark.parametrize(("inputs", "precision"), [(70_000, "int8"), (8, "int21"), (8, "int22")])
def test_an_observation_that_sums_leave_no_bits_for_has_8(inputs, precision):
    policy = networks.dense([inputs, 2], seed=0)
    x = networks.observations(policy, 64)
    quantized = quantize(policy, spec(precision, mode="static", scheme="per-channel"), x)
    assert quantized.grids[quantized.linear[0].inputs[0]].bits == 8
    exact, found = as_float(policy, x)[policy.output], engines.load(quantized, "reference", batch=64).run(x)
    assert (found.argmax(1) == exact.argmax(1)).mean() > 0.9


def test_a_layer_that_is_read_around_its_activation_keeps_what_this_drops():
    policy = networks.residual()
    for rules in (grid_rules(policy), trained_rules(policy, lambda name: False)):
        assert [rules[name].function for name in ("net.0", "net.1")] == ["", "relu"]
    x = networks.observations(policy, 512)
    exact = as_float(policy, x)[policy.output]

    def error(mode):
        made = quantize(policy, spec(8, mode=mode, scheme="per-channel"), x)
        return np.abs(engines.load(made, "reference", batch=512).run(x) - exact).mean()

    assert error("static") < 3 * error("dynamic")


@pytest.mark.parametrize("factor", [0, 1e-12, 1e-6, 1e-4, 1e-2])
@pytest.mark.parametrize("extent", [0.01, 1, 1000])
@pytest.mark.parametrize("scheme", ["default", "per-channel", "naive"])
def test_static_rows_that_hardly_read_anything_keep_their_bias_and_cost_others_no_bits(scheme, extent, factor):
    policy = networks.dense([8, 16, 16, 3], "tanh", head="clip")
    for op in policy.linear:
        op.weight[::2] *= factor
        op.bias[:] *= 10
    policy.linear[0].weight[:] /= extent
    x = networks.observations(policy, 256) * np.float32(extent)
    exact = as_float(policy, x)[policy.output]
    static, dynamic = (quantize(policy, spec(8, mode=mode, scheme=scheme), x) for mode in ("static", "dynamic"))
    assert static.grids[static.linear[0].inputs[0]].bits > 8

    def error(made, engine):
        return np.sqrt(np.square(engines.load(made, engine, batch=256).run(x) - exact).mean())

    assert error(static, "reference") < 3 * error(dynamic, "reference")
    for engine in ("litert", "onnx"):
        assert np.array_equal(*(engines.load(static, name, batch=256).run(x) for name in (engine, "reference")))


@pytest.mark.parametrize("name", ["relu", "squashed", "convolutional"])
def test_what_several_precisions_share_changes_none_of_them(name, monkeypatch):
    policy = networks.EVERY[name]()
    observations = networks.observations(policy, 64)
    asked = [spec(8), spec(4), spec("fp16"), spec(8, mode="static"), spec(4, scheme="gptq"), spec("w6"), spec(2)]
    alone = [artifact.to_bytes(quantize(policy, one, observations)) for one in asked]
    calibrated = Calibrated(policy, observations)
    assert [artifact.to_bytes(calibrated.quantize(one)) for one in asked] == alone
    monkeypatch.setattr(calibration, "as_float", lambda *_: pytest.fail("the float passes were run again"))
    for bits in (8, 6, 4):
        calibrated.quantize(spec(bits))


@pytest.mark.parametrize(("mode", "bits"), [("dynamic", 8), ("static", 8), ("dynamic", 4)])
def test_fit_rounds_a_very_wide_layer_to_nearest_and_says_so(mode: str, bits: int, monkeypatch: pytest.MonkeyPatch):
    said: list[str] = []
    monkeypatch.setattr(fit, "note_once", said.append)
    policy = networks.dense([8_200, 3, 2])
    calibrated = Calibrated(policy, networks.observations(policy, 32))
    got = calibrated.quantize(spec(bits, mode=mode))
    wide, weight = got.linear[0].weight, calibrated.rewrite(got.spec)[0].linear[0].weight
    steps = np.abs(wide.codes.reshape(3, -1) * wide.scale[:, None] - weight) / wide.scale[:, None]
    assert steps.max() < 0.5001 * (2 if wide.mid_rise else 1)
    assert got.spec.scheme.name == "default"
    assert len(said) == 1
    assert "'net.0' has 8,200 inputs" in said[0]
    assert "--" not in said[0]
