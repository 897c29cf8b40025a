"""Rewrites change numbers, never actions."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import networks
from quarl import engines
from quarl.calibration import quantize
from quarl.engines.numpy_operators import as_float
from quarl.policy.graph import ActionHead, Policy
from quarl.policy.operators import Add, Scale, as_float32, mlp
from quarl.policy.rewrite import center_scores, equalize, pin_saturated, readings
from quarl.quant.spec import QuantSpec


@pytest.mark.parametrize("name", networks.EVERY)
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_an_equalized_policy_computes_the_same(name, alpha):
    policy = networks.EVERY[name]()
    x = networks.observations(policy, 64)
    before = as_float(policy, x)[policy.output]
    rewritten = equalize(policy, as_float(policy, x), alpha)
    assert np.allclose(as_float(rewritten, x)[policy.output], before, atol=2e-5)


def test_equalizing_levels_the_observation_and_hidden_channels():
    policy = networks.dense([4, 32, 32, 2])
    units = np.float32([1, 100, 0.01, 1])
    policy.linear[0].weight[:] /= units
    x = networks.observations(policy, 256) * units
    rewritten = equalize(policy, as_float(policy, x), 1.0)
    values = as_float(rewritten, x)
    extent = np.abs(values["observation.equalized"]).max(axis=0)
    assert extent.max() / extent.min() == pytest.approx(1, rel=1e-4)
    hidden = np.abs(values["net.0.relu"]).max(axis=0)
    assert hidden.max() / hidden[hidden > 0].min() == pytest.approx(1, rel=1e-4)


@pytest.mark.parametrize("share", [0.0, 1e-12, 1e-6, 5e-4])
@pytest.mark.parametrize("mode", ["dynamic", "static"])
def test_an_observation_that_hardly_moved_in_calibration_may_move_later(share, mode):
    policy = networks.dense([8, 64, 64, 2], "tanh", head="clip")
    x, seen = networks.observations(policy, 256), networks.observations(policy, 512, seed=1)
    spec = QuantSpec.parse(8, mode=mode)
    usual, quiet = (
        engines.load(quantize(policy, spec, calibration), "reference", batch=256).run(x)
        for calibration in (seen, seen * np.float32([1, 1, 1, share, 1, 1, 1, 1]))
    )
    exact = engines.load(quantize(policy, QuantSpec.parse("fp32")), "reference", batch=256).run(x)
    assert np.abs(quiet - exact).mean() < 2 * np.abs(usual - exact).mean()


def test_images_are_not_rescaled_but_convolutions_are_equalized():
    policy = networks.convolutional()
    x = networks.observations(policy, 8)
    rewritten = equalize(policy, as_float(policy, x), 0.5)
    assert sum(isinstance(op, Scale) for op in rewritten.ops) == 1
    assert not np.allclose(as_float32(rewritten.linear[1].weight), as_float32(policy.linear[1].weight))


def test_both_streams_of_a_dueling_network_read_one_scaled_observation():
    policy = networks.dueling()
    x = networks.observations(policy, 64) * np.float32(np.geomspace(0.01, 100, 6))
    rewritten = equalize(policy, as_float(policy, x), 0.5)
    assert rewritten.ops[0].name == "observation.equalized"
    assert {op.inputs for op in rewritten.linear if op.name.endswith(".0")} == {("observation.equalized",)}


def test_numbers_that_a_network_joins_have_steps_of_their_own():
    policy = networks.EVERY["l2-norm"]()
    x = networks.observations(policy, 64) * np.float32(np.geomspace(0.1, 30, 6))
    values = as_float(equalize(policy, as_float(policy, x), 1.0), x)
    extents = [np.abs(values[f"{name}.equalized"]).max(axis=0) for name in ("observation", "joined")]
    assert [extent.max() / extent.min() for extent in extents] == pytest.approx([1, 1], rel=1e-4)


def test_a_value_that_is_reached_in_many_ways_is_looked_at_once():
    names = ["observation", *(f"twice.{i}" for i in range(60))]
    ops = [Add(name, (source, source)) for source, name in pairwise(names)]
    last = networks.layers(np.random.default_rng(0), [4, 2])
    policy = Policy(observation_shape=(4,), ops=(*ops, *mlp(last, "relu", names[-1])), head=ActionHead("argmax"))
    assert [source for source, _, _ in readings(policy)] == names[-1:]


def test_centred_scores_differ_by_a_common_number():
    policy = networks.dense([5, 16, 4])
    x = networks.observations(policy, 64)
    before, after = (as_float(p, x)[policy.output] for p in (policy, center_scores(policy)))
    assert np.ptp(before - after, axis=1).max() < 1e-5
    assert np.abs(after.mean(axis=1)).max() < 1e-5
    assert np.array_equal(before.argmax(axis=1), after.argmax(axis=1))


def test_continuous_actions_are_not_centred():
    policy = networks.dense([5, 16, 4], head="clip")
    assert center_scores(policy) is policy


def test_only_what_saturates_at_both_ends_is_pinned_and_hardly_moves():
    policy = networks.normalized([9, 32, 32, 4])
    x = networks.observations(policy, 256)
    assert len(pin_saturated(policy, as_float(policy, x)).ops) == len(policy.ops)
    policy.linear[1].weight[:] *= 40
    rewritten = pin_saturated(policy, as_float(policy, x))
    assert [op.name for op in rewritten.ops if op.name.endswith(".pinned")] == ["net.1.tanh.pinned"]
    before, after = as_float(policy, x), as_float(rewritten, x)
    assert np.abs(after["net.1.tanh.pinned"] - before["net.1.tanh"]).max() < 2.0**-13
    assert {-1.0, 1.0} <= set(np.unique(after["net.1.tanh.pinned"]))
