"""The artefact keeps every number, is as small as its bits, and notices every change."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import safetensors.numpy

import networks
from quarl.calibration import quantize
from quarl.errors import QuarlError
from quarl.policy import artifact
from quarl.policy.graph import Policy, Provenance, QuantizedPolicy
from quarl.policy.operators import QuantizedTensor
from quarl.quant.spec import QuantSpec

PRECISIONS = [
    ("fp32", "default", "dynamic"),
    ("fp16", "default", "dynamic"),
    ("bf16", "default", "dynamic"),
    ("int8", "default", "static"),
    ("int4", "default", "dynamic"),
    ("int3", "naive", "dynamic"),
    ("int2", "default", "static"),
    ("int3", "mid-tread", "dynamic"),
    ("int4e8", "default", "static"),
    ("int2e6", "per-channel", "dynamic"),
    ("int12", "affine", "dynamic"),
    ("int32", "per-channel", "dynamic"),
    ("int5", "quarl-2020", "dynamic"),
]


def same(one, other) -> bool:
    """Equal graphs: every field of every operator, arrays bit for bit."""
    if dataclasses.is_dataclass(one):
        return type(one) is type(other) and all(
            same(getattr(one, f.name), getattr(other, f.name)) for f in dataclasses.fields(one)
        )
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    return one == other


@pytest.mark.parametrize(("precision", "scheme", "mode"), PRECISIONS)
@pytest.mark.parametrize("name", networks.EVERY)
def test_a_quantized_policy_comes_back_whole(tmp_path, name, precision, scheme, mode):
    policy = networks.EVERY[name]()
    spec = QuantSpec.parse(precision, scheme=scheme, mode=mode)
    quantized = quantize(policy, spec, networks.observations(policy, 64))
    artifact.write(quantized, tmp_path / "p.quarl")
    assert same(artifact.read(tmp_path / "p.quarl"), quantized)


def test_a_float_policy_and_its_provenance_come_back(tmp_path):
    provenance = Provenance(
        algo="ppo", env_id="X-v0", env_kwargs={"g": 1.5}, wrappers=(("W", {"k": 2}),), stochastic=True, origin="sb3-zip"
    )
    policy = dataclasses.replace(networks.normalized([9, 8, 2]), provenance=provenance)
    artifact.write(policy, tmp_path / "p.quarl")
    back = artifact.read(tmp_path / "p.quarl")
    assert type(back) is Policy
    assert same(back, policy)


def test_numbers_of_numpy_are_saved_as_plain_ones():
    def policy(kwargs, width, start):
        head = dataclasses.replace(networks.action_head("argmax", 2), start=start)
        provenance = Provenance(env_id="X-v0", env_kwargs=kwargs, wrappers=(("W", kwargs),))
        made = networks.dense([4, 8, 2])
        return dataclasses.replace(made, head=head, observation_shape=(width,), provenance=provenance)

    plain = policy({"g": 1.5, "n": 3, "on": True, "box": [0, 1]}, 4, 7)
    numbers = {"g": np.float32(1.5), "n": np.int64(3), "on": np.bool_(True), "box": np.arange(2)}
    assert artifact.to_bytes(policy(numbers, np.int64(4), np.int64(7))) == artifact.to_bytes(plain)
    with pytest.raises(QuarlError, match="cannot save 'range"):
        artifact.to_bytes(policy({"n": range(3)}, 4, 7))


def test_the_file_is_as_small_as_its_bits():
    policy = networks.dense([64, 512, 512, 8])
    size = {
        p: len(artifact.to_bytes(quantize(policy, QuantSpec.parse(p, scheme="per-channel"))))
        for p in ("fp32", "int8", "int4", "int2")
    }
    assert size["int8"] <= 0.27 * size["fp32"]
    assert size["int4"] <= 0.14 * size["fp32"]
    assert size["int2"] <= 0.08 * size["fp32"]


def test_grids_without_a_level_at_0_take_their_bits_and_are_told_to_older_versions():
    policy = networks.dense([64, 512, 512, 8])
    observations = networks.observations(policy, 64)
    files = {}
    for scheme in ("mid-tread", "default"):
        files[scheme] = artifact.to_bytes(quantize(policy, QuantSpec.parse("int2", scheme=scheme), observations))
    assert len(files["default"]) - len(files["mid-tread"]) < 200
    for scheme, version in (("mid-tread", 1), ("default", 2)):
        metadata = json.loads(files[scheme][8 : 8 + int.from_bytes(files[scheme][:8], "little")])
        assert f'"version":{version},' in json.dumps(metadata).replace('\\"', '"').replace(": ", ":")
    again = artifact.from_bytes(files["default"], "file")
    assert all(set(np.unique(op.weight.codes)) <= {-3, -1, 1, 3} for op in again.linear)


def test_every_flipped_bit_and_every_cut_is_noticed():
    policy = quantize(networks.dense([4, 8, 2]), QuantSpec.parse("int8", scheme="per-channel"))
    data = artifact.to_bytes(policy)
    rng = np.random.default_rng(0)
    for position in rng.integers(len(data) * 8, size=400):
        damaged = bytearray(data)
        damaged[position // 8] ^= 1 << (position % 8)
        with pytest.raises(QuarlError):
            artifact.from_bytes(bytes(damaged), "damaged")
    for length in rng.integers(len(data), size=60):
        with pytest.raises(QuarlError):
            artifact.from_bytes(data[:length], "cut")


def resealed(data: bytes, change) -> bytes:
    """The artefact with its manifest changed and the checksums made right again."""
    import hashlib

    length = int.from_bytes(data[:8], "little")
    manifest = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["manifest"])
    change(manifest)
    text = json.dumps(manifest)
    tensors = safetensors.numpy.load(data)
    return safetensors.numpy.save(
        tensors, metadata={"manifest": text, "sha256": hashlib.sha256(text.encode()).hexdigest()}
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(version=6), "format version 6 is newer than version 5"),
        (lambda m: m["ops"][0].update(type="Exec"), "'Exec' is not one of"),
        (lambda m: m["ops"][0]["codes"].update(shape=[8, -4]), "not a size"),
        (lambda m: m["ops"][0]["codes"].update(shape=[10**6, 10**6]), "do not fit"),
        (lambda m: m["ops"][0]["codes"].update(width=200), "do not fit"),
        (lambda m: m["ops"][0].update(inputs=["nowhere"]), "no earlier operator computes"),
        (lambda m: m.pop("head"), "not a valid"),
        (lambda m: m["spec"].update(weight_bits=99), "weight bits"),
        (lambda m: m["spec"].update(mode="static"), "the value 'observation' has no grid, which static mode needs"),
        (lambda m: m["head"].update(kind="shell"), "'shell' is not one of"),
        (lambda m: m["ops"][0].update(inputs=[["observation"]]), "is not a name"),
        (lambda m: m["provenance"].update(algo="\x07"), "is not a name"),
        (lambda m: m["spec"].update(activation_bits=8.5), "activation_bits cannot be '8.5'"),
        (lambda m: m["spec"]["scheme"].update(equalize="x"), "equalize cannot be 'x'"),
        (lambda m: m.update(grids={"observation": [1e-60, 0, 8]}), "no valid scale, zero point and bits"),
        (lambda m: m.update(grids={"observation": [0.1, 128, 8]}), "no valid scale, zero point and bits"),
        (lambda m: m.update(grids={"observation": ["x", 0, 8]}), "'x' is not a number"),
    ],
)
def test_a_sound_container_with_a_wrong_manifest_is_refused_in_one_line(change, message):
    data = artifact.to_bytes(quantize(networks.dense([4, 8, 2]), QuantSpec.parse("int8", scheme="per-channel")))
    with pytest.raises(QuarlError) as caught:
        artifact.from_bytes(resealed(data, change), "file.quarl")
    assert message in str(caught.value)
    assert str(caught.value).startswith("file.quarl")


@pytest.mark.parametrize(
    "box", [(np.ones(4), np.zeros(4)), (np.zeros(3), np.ones(3)), (np.zeros(4), np.full(4, np.inf))]
)
def test_a_box_that_does_not_fit_the_observation_is_refused(box):
    policy = networks.dense([4, 8, 2])
    quantized = quantize(policy, QuantSpec.parse("int8", mode="static"), networks.observations(policy, 64))
    ends = tuple(end.astype(np.float32) for end in box)
    with pytest.raises(QuarlError, match="ends of the calibration observations do not fit"):
        artifact.from_bytes(artifact.to_bytes(dataclasses.replace(quantized, box=ends)), "file.quarl")


def test_zero_points_of_a_policy_with_symmetric_activations_are_0():
    policy = networks.dense([5, 16, 3])
    given = QuantSpec.parse("int8", mode="static")
    made = quantize(policy, given, networks.observations(policy, 64))
    wrong = dataclasses.replace(made, spec=dataclasses.replace(given, symmetric_activations=True))
    with pytest.raises(QuarlError, match="a grid has a zero point other than 0, but the spec has symmetric"):
        artifact.from_bytes(artifact.to_bytes(wrong), "policy.quarl")


def test_writing_into_a_missing_folder_says_so_and_leaves_nothing(tmp_path):
    with pytest.raises(QuarlError, match="cannot write"):
        artifact.write(networks.dense([4, 8, 2]), tmp_path / "nowhere" / "p.quarl")
    assert list(tmp_path.iterdir()) == []


def test_codes_of_the_original_formula_take_the_bits_they_need():
    policy = quantize(networks.dense([4, 64, 2]), QuantSpec.parse("int2", scheme="quarl-2020"))
    back = artifact.from_bytes(artifact.to_bytes(policy), "memory")
    assert isinstance(back, QuantizedPolicy)
    assert isinstance(back.linear[0].weight, QuantizedTensor)
    assert back.linear[0].weight.bits == 2
    assert np.array_equal(back.linear[0].weight.codes, policy.linear[0].weight.codes)


@pytest.mark.parametrize("scale", [1e-45, 0.0, -1.0, 3e38, float("inf"), float("nan")])
def test_scales_that_float32_cannot_work_with_are_refused(scale: float):
    policy = quantize(networks.dense([4, 8, 2]), QuantSpec.parse("int8", scheme="per-channel"))
    first = policy.ops[0]
    weight = dataclasses.replace(first.weight, scale=np.full(8, scale, np.float32))
    broken = object.__new__(type(policy))  # which no sound policy is
    for field in dataclasses.fields(policy):
        object.__setattr__(broken, field.name, getattr(policy, field.name))
    object.__setattr__(broken, "ops", (dataclasses.replace(first, weight=weight), *policy.ops[1:]))
    with pytest.raises(QuarlError, match=r"does not fit its 8 channels|holds NaN or infinity"):
        artifact.from_bytes(artifact.to_bytes(broken), "p.quarl")
