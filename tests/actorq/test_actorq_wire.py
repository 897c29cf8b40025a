"""What arrives is what was packed, as small as its bits, or is refused; the quick scheme keeps what rounding loses."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import zstandard

import networks
from quarl import engines
from quarl.actorq import wire
from quarl.actorq.wire import COMPRESSED, SCHEME, Packer, Quantizer, unpack, wire_spec
from quarl.calibration import quantize
from quarl.config import ActorQConfig
from quarl.config.words import parse
from quarl.engines.numpy_operators import as_float
from quarl.errors import QuarlError, UnsupportedError
from quarl.evaluation import evaluate, record
from quarl.policy.graph import QuantizedPolicy
from quarl.policy.operators import QuantizedTensor, as_float32
from quarl.quant.spec import SCHEMES, QuantSpec, Scheme
from quarl.readers.load import read

INTEGERS = [f"int{bits}" for bits in range(2, 9)]
BITS = [None, 2, 3, 4, 5, 6, 7, 8, 11, 16, 20, 24, 32]


def sent(precision: str, comm_bits: int | None = None, name: str = "relu", compress: str = "none") -> QuantizedPolicy:
    policy = networks.EVERY[name]()
    return unpack(Packer(precision, comm_bits, compress).pack(policy, networks.observations(policy, 64)))


@pytest.mark.parametrize("comm_bits", BITS)
@pytest.mark.parametrize("precision", INTEGERS)
def test_integer_actors_run_the_codes_that_arrive(precision: str, comm_bits: int | None):
    policy = networks.EVERY["relu"]()
    observations = networks.observations(policy, 64)
    bits = min(comm_bits or 8, int(precision[3:]))
    arrived = unpack(Packer(precision, comm_bits).pack(policy, observations))
    local = Quantizer(wire_spec(precision, comm_bits))(policy, observations)
    assert arrived.spec == local.spec
    assert (arrived.spec.weight_bits, arrived.spec.activation_bits) == (bits, 8)
    for a, b in zip(arrived.linear, local.linear, strict=True):
        assert isinstance(a.weight, QuantizedTensor)
        assert isinstance(b.weight, QuantizedTensor)
        np.testing.assert_array_equal(a.weight.codes, b.weight.codes)
        np.testing.assert_array_equal(a.weight.scale, b.weight.scale)
        np.testing.assert_array_equal(a.bias, b.bias)
        assert a.weight.codes.min() >= -(2 ** (bits - 1)) + 1
        assert a.weight.codes.max() == 2 ** (bits - 1) - 1
    engine = engines.load(arrived, "litert")
    assert engine.measured
    reference = engines.load(arrived, "reference")
    row = observations[:1]
    np.testing.assert_allclose(engine.run(row), reference.run(row), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("comm_bits", "widths", "precision"),
    [(None, [8, 4, 4, 8], "int4e8"), (6, [6, 4, 4, 6], "int4e6"), (3, [3, 3, 3, 3], "int3")],
)
def test_edges_of_actors_have_bits_of_their_own_but_no_more_than_the_wire(comm_bits, widths, precision):
    policy = networks.dense([6, 32, 16, 16, 3])
    observations = networks.observations(policy, 64)
    arrived = unpack(Packer("int4e8", comm_bits).pack(policy, observations))
    assert arrived.spec.precision == precision
    assert list(arrived.bits_of_layers.values()) == widths
    engine, reference = (engines.load(arrived, name) for name in ("litert", "reference"))
    assert engine.measured
    np.testing.assert_allclose(engine.run(observations[:1]), reference.run(observations[:1]), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("words", "precision"),
    [
        ("", "int8"),
        ("--actor-precision int4", "int4e8"),
        ("--actor-precision int4 --edge-bits same", "int4"),
        ("--actor-precision int3e5", "int3e5"),
        ("--actor-precision 2 --edge-bits 4", "int2e4"),
    ],
)
def test_the_command_line_gives_actors_edges_of_8_bits_unless_told_otherwise(words, precision):
    assert parse(["actorq", *words.split()]).actor_precision == precision


@pytest.mark.parametrize("comm_bits", BITS)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_float_actors_get_real_numbers_within_half_a_step(precision: str, comm_bits: int | None):
    bits = min(comm_bits or 32, 32 if precision == "fp32" else 16)
    policy = networks.EVERY["relu"]()
    # The rewrites of the scheme move weights between layers: without them each can be compared.
    arrived = unpack(Packer(precision, comm_bits, scheme=SCHEMES["per-channel"]).pack(policy))
    assert arrived.spec.float_type == ("fp16" if bits == 16 else "fp32")
    for a, b in zip(arrived.linear, policy.linear, strict=True):
        assert isinstance(a.weight, np.ndarray)
        exact = as_float32(b.weight)
        if bits == 32:
            tolerance = 0.0
        elif bits == 16:
            assert a.weight.dtype == np.float16
            tolerance = np.abs(exact).max() * 2.0**-11
        else:
            tolerance = np.abs(exact).max() / (2 ** (bits - 1) - 1) / 2 * 1.001 + 1e-7
        np.testing.assert_allclose(as_float32(a.weight), exact, rtol=0, atol=tolerance)
        np.testing.assert_array_equal(a.bias, b.bias)
    assert engines.load(arrived, "litert").measured


@pytest.mark.parametrize("name", networks.EVERY)
@pytest.mark.parametrize("compress", ["none", "zstd"])
def test_every_network_arrives_and_still_acts_as_before(name: str, compress: str):
    policy = networks.EVERY[name]()
    observations = networks.observations(policy, 64)
    arrived = sent("int8", None, name, compress)
    exact = as_float(policy, observations)[policy.output]
    if policy.head.kind == "argmax":  # the mean of scores is taken out
        exact = exact - exact.mean(axis=1, keepdims=True) if type(policy.ops[-1]).__name__ == "Dense" else exact
    output = engines.run_all(engines.load(arrived, "litert", batch=16), observations)
    assert np.abs(output - exact).max() < 0.1 * np.abs(exact).max()


@pytest.mark.parametrize(
    ("precision", "comm_bits", "share"),
    [("int8", None, 0.27), ("int4", None, 0.14), ("int8", 6, 0.20), ("fp32", 8, 0.27), ("fp32", 16, 0.51)],
)
@pytest.mark.parametrize("compress", ["none", "zstd"])
def test_bytes_on_the_wire(precision: str, comm_bits: int | None, share: float, compress: str):
    policy = networks.dense([64, 512, 512, 8])
    full = len(Packer("fp32").pack(policy))
    assert len(Packer(precision, comm_bits, compress).pack(policy)) <= share * full


@pytest.mark.parametrize("compress", ["none", "zstd"])
def test_every_cut_and_every_flipped_bit_is_refused_in_one_line(compress: str):
    policy = networks.dense([4, 16, 2])
    data = Packer("int8", 6, compress).pack(policy)
    whole = unpack(data)
    rng = np.random.default_rng(0)
    damaged = [data[:length] for length in rng.integers(len(data), size=50)]
    for position in rng.integers(len(data) * 8, size=300):
        flipped = bytearray(data)
        flipped[position // 8] ^= 1 << (position % 8)
        damaged.append(bytes(flipped))
    for bad in [*damaged, b"", data + b"x"]:
        survivor, said = None, ""
        try:
            survivor = unpack(bad)
        except QuarlError as error:
            said = str(error)
        if survivor is None:
            assert "\n" not in said
            assert "published policy" in said
            continue
        # Zstandard has bits of no meaning; what they leave as it was is no damage.
        assert compress == "zstd"
        for a, b in zip(survivor.linear, whole.linear, strict=True):
            np.testing.assert_array_equal(as_float32(a.weight), as_float32(b.weight))
            np.testing.assert_array_equal(a.bias, b.bias)


def test_a_bomb_is_refused_before_it_is_unpacked():
    zeros = zstandard.ZstdCompressor().compress(bytes(2**24))
    assert zeros.startswith(COMPRESSED)
    with pytest.raises(QuarlError, match="16,777,216 bytes, more than 1,048,576"):
        unpack(zeros, limit_bytes=2**20)
    claim = COMPRESSED + bytes([0b11100000]) + struct.pack("<Q", 2**50) + b"\x01\x00\x00"
    with pytest.raises(QuarlError, match="more than 1,073,741,824"):
        unpack(claim)
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(2**24))
    with pytest.raises(QuarlError, match="damaged"):
        unpack(unsized)
    lying = COMPRESSED + bytes([0b11100000]) + struct.pack("<Q", 2**10) + zeros[9:]
    with pytest.raises(QuarlError, match="is not a valid Zstandard frame"):
        unpack(lying)


def test_what_no_actor_can_run_is_refused_in_one_line():
    for precision in ("int9", "bf16", "w4a6", "w8"):
        with pytest.raises(UnsupportedError):
            ActorQConfig(actor_precision=precision).check()
    for wrong in ({"comm_bits": 1}, {"comm_bits": 33}, {"actor_precision": "half"}, {"actor_precision": "int1"}):
        with pytest.raises(QuarlError):
            ActorQConfig(**wrong).check()
    with pytest.raises(QuarlError, match="none or zstd"):
        ActorQConfig(weight_compress="gzip").check()


@pytest.mark.parametrize("name", networks.EVERY)
@pytest.mark.parametrize("bits", [3, 8, 12, 20])
def test_plain_rounding_is_that_of_post_training_quantisation(name: str, bits: int):
    policy = networks.EVERY[name]()
    spec = QuantSpec(weight_bits=bits, activation_bits=8, scheme=SCHEMES["per-channel"])
    for a, b in zip(Quantizer(spec)(policy).linear, quantize(policy, spec).linear, strict=True):
        assert isinstance(a.weight, QuantizedTensor)
        assert isinstance(b.weight, QuantizedTensor)
        np.testing.assert_array_equal(a.weight.codes, b.weight.codes)
        np.testing.assert_array_equal(a.weight.scale, b.weight.scale)
        np.testing.assert_array_equal(a.bias, b.bias)


@pytest.mark.parametrize("name", ["relu", "convolutional", "padded", "dueling", "tanh-normalized"])
def test_balancing_in_passing_is_the_rewrite_of_post_training_quantisation(name: str):
    policy = networks.EVERY[name]()
    observations = networks.observations(policy, 64)
    scheme = Scheme(name="balanced", equalize=0.5, center_scores=True)
    mine = Quantizer(QuantSpec(weight_bits=16, activation_bits=16, scheme=scheme))(policy, observations)
    theirs = quantize(policy, QuantSpec(weight_bits=16, activation_bits=None, scheme=scheme), observations)
    assert [(type(op), op.name, op.inputs) for op in mine.ops] == [(type(op), op.name, op.inputs) for op in theirs.ops]
    for a, b in zip(mine.linear, theirs.linear, strict=True):
        exact = as_float32(b.weight)
        np.testing.assert_allclose(as_float32(a.weight), exact, rtol=1e-4, atol=np.abs(exact).max() * 1e-4)
    exact = as_float(policy, observations)[policy.output]
    output = engines.load(mine, "reference").run(observations)
    if name in ("relu", "convolutional", "padded"):
        exact = exact - exact.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(output, exact, rtol=0, atol=1e-3)


def test_the_bias_takes_the_mean_error_of_a_layer():
    policy = networks.dense([6, 5], head="clip")
    observations = 1 + networks.observations(policy, 200)
    scheme = Scheme(name="bias", bias_correction=True)
    coded = Quantizer(QuantSpec(weight_bits=3, activation_bits=None, scheme=scheme))(policy, observations)
    exact = as_float(policy, observations)[policy.output].mean(axis=0)
    uncorrected = quantize(policy, QuantSpec.parse("w3", scheme="per-channel"))
    assert np.abs(as_float(uncorrected, observations)[policy.output].mean(axis=0) - exact).max() > 0.01
    np.testing.assert_allclose(as_float(coded, observations)[policy.output].mean(axis=0), exact, rtol=0, atol=1e-5)


def test_observations_are_looked_at_now_and_then_and_remembered(monkeypatch):
    monkeypatch.setattr(wire, "REFRESH_INTERVAL", 3)
    policy = networks.EVERY["relu"]()
    first, second = (networks.observations(policy, 64, seed) * scale for seed, scale in ((1, 1.0), (2, 5.0)))
    packer = Packer("int8")
    plain = packer.pack(policy)
    assert packer.quantize.wants_observations  # there have been none yet
    balanced = packer.pack(policy, first)
    assert balanced != plain
    for _ in range(2):
        assert not packer.quantize.wants_observations
        assert packer.pack(policy, second) == balanced
    assert packer.quantize.wants_observations
    assert packer.pack(policy) == balanced
    assert packer.quantize.wants_observations
    assert packer.pack(policy, second) != balanced
    assert not Packer("fp32").quantize.wants_observations
    assert not Packer("int8", scheme=SCHEMES["per-channel"]).quantize.wants_observations


def test_factors_of_one_moment_keep_the_actions_of_later_weights():
    spec = QuantSpec(weight_bits=16, activation_bits=16, scheme=Scheme(name="balanced", equalize=0.5))
    remembering = Quantizer(spec)
    early, late = (
        networks.dense([5, 16, 16, 3], seed=0, head="tanh"),
        networks.dense([5, 16, 16, 3], seed=1, head="tanh"),
    )
    observations = networks.observations(early, 64)
    remembering(early, observations)
    output = engines.load(remembering(late), "reference").run(observations)
    np.testing.assert_allclose(output, as_float(late, observations)[late.output], rtol=0, atol=1e-3)


def test_the_quick_scheme_brings_back_what_plain_rounding_loses(agents: Path):
    policy = read(agents / "sb3/dqn/CartPole-v1_1")
    exact = quantize(policy, QuantSpec.parse("fp32"))
    observations = record(exact, engine=engines.load(exact), num=256, min_episodes=1)
    played = {
        scheme.name: evaluate(
            unpack(Packer("int8", scheme=scheme).pack(policy, observations)), episodes=4, stream="development"
        ).returns.mean()
        for scheme in (SCHEME, SCHEMES["per-channel"])
    }
    assert played["actorq"] == 500
    assert played["per-channel"] < 250


def test_a_flipped_code_is_caught_by_its_sha256_unless_it_is_known_that_nothing_was_lost() -> None:
    policy = networks.dense([8, 16, 4])
    data = bytearray(Packer("int8").pack(policy))
    data[-1] ^= 1
    with pytest.raises(QuarlError, match="does not match its sha256"):
        unpack(bytes(data))
    assert len(unpack(bytes(data), checked=True).ops) == len(policy.ops)
