"""The payload of a policy: the bytes of its numbers, counted by hand and against its file."""

from __future__ import annotations

import numpy as np
import pytest

import networks
from quarl.calibration import quantize
from quarl.inspection import inspect, whole
from quarl.policy import artifact, container
from quarl.policy.layers import of_policy
from quarl.policy.operators import QuantizedTensor
from quarl.quant.spec import QuantSpec


@pytest.mark.parametrize(("bits", "codes"), [(2, 12), (3, 18), (4, 24), (8, 48)])
def test_a_payload_is_codes_at_their_bits_scales_and_biases(bits: int, codes: int) -> None:
    spec = QuantSpec.parse(str(bits), scheme="per-channel", edges="same")
    policy = quantize(networks.dense([4, 8, 2]), spec)  # 32 and 16 weights
    assert policy.payload == codes + 4 * (8 + 2) + 4 * (8 + 2)
    assert len(artifact.to_bytes(policy)) > 10 * policy.payload  # the header


def test_one_scale_for_a_whole_tensor_counts_once() -> None:
    codes, same = np.zeros((8, 4), np.int8), np.full(8, 0.5, np.float32)
    zeros = np.zeros(8, np.int32)
    assert QuantizedTensor(codes, same, zeros, 4).nbytes == 16 + 4
    assert QuantizedTensor(codes, same, zeros + 3, 4).nbytes == 16 + 4 + 4
    assert QuantizedTensor(codes, same, np.arange(8, dtype=np.int32), 4).nbytes == 16 + 4 + 32


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8", "int4", "int2"])
@pytest.mark.parametrize("name", ["relu", "convolutional"])
def test_a_payload_is_the_tensors_of_the_file_without_calibration(name: str, precision: str) -> None:
    spec = QuantSpec.parse(precision, scheme="per-channel", mode="static" if precision == "int8" else "dynamic")
    float_policy = networks.EVERY[name]()
    seen = np.random.default_rng(0).integers(0, 2, (64, *float_policy.observation_shape))
    policy = quantize(float_policy, spec, seen.astype(float_policy.observation_dtype))
    tensors, _ = container.parse(artifact.to_bytes(policy))
    stored = {key: len(numbers) for key, (_, _, numbers) in tensors.items()}
    assert policy.payload == sum(size for key, size in stored.items() if not key.startswith(("box/", "head/")))
    if (precision, name) == ("int8", "relu"):
        assert any(key.startswith("box/") for key in stored)
    layers = [layer.row.payload for layer in inspect(of_policy(float_policy), of_policy(policy), spec)]
    assert whole("m", of_policy(float_policy), of_policy(policy), spec).payload == sum(layers)
