"""A flatbuffer that is patched is the one that would have been built."""

from __future__ import annotations

import numpy as np
import pytest

import networks
from quarl import engines
from quarl.calibration import quantize
from quarl.engines.litert import flatbuffer, write
from quarl.quant.spec import QuantSpec

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
