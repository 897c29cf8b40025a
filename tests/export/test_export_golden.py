"""Golden vectors: what they hold, and where a runtime leaves them."""

from __future__ import annotations

import numpy as np
import pytest
from test_export import agent

import networks
from quarl import engines
from quarl.errors import QuarlError
from quarl.export import golden


@pytest.mark.parametrize("network", ["relu", "tanh-normalized", "squashed", "convolutional", "dueling", "sliced"])
def test_golden_vectors_are_the_references_and_hold_a_code_for_every_value_on_a_grid(network):
    policy, x = agent(policy=networks.EVERY[network]())
    vectors = golden.record(policy, x)
    np.testing.assert_array_equal(vectors.observations[:40], x)
    engine = engines.load(policy, "reference", batch=len(vectors.observations))
    np.testing.assert_array_equal(vectors.outputs, engine.run(vectors.observations))
    np.testing.assert_array_equal(vectors.given[:40], golden.given(policy, vectors.outputs[:40]))
    assert set(vectors.codes) == set(policy.grids)
    for name, codes in vectors.codes.items():
        assert codes.dtype == (np.int8 if policy.grids[name].bits == 8 else np.int16)


def test_codes_of_a_layer_stand_for_the_value_that_it_makes():
    policy, x = agent(policy=networks.EVERY["relu"]())
    vectors = golden.record(policy, x)
    hidden, grid = policy.ops[0].name, policy.grids[policy.ops[0].name]
    values = engines.load(policy, "reference", batch=40).trace(x)[hidden]
    np.testing.assert_array_equal(
        (vectors.codes[hidden][:40].astype(np.float32) - grid.zero_point) * np.float32(grid.scale), values
    )


@pytest.mark.parametrize("network", ["relu", "tanh-normalized"])
def test_two_observations_lie_on_either_side_of_a_tie_in_every_number(network):
    policy, x = agent(policy=networks.EVERY[network]())
    below, above = golden.record(policy, x).observations[-2:]
    first = policy.linear[0].inputs[0]
    codes = golden.record(policy, x).codes[first]
    np.testing.assert_array_equal(np.nextafter(below, above), above)
    np.testing.assert_array_equal(codes[-1] - codes[-2], 1)


def test_edges_are_counted_apart():
    policy, x = agent(policy=networks.EVERY["relu"]())
    vectors = golden.record(policy, x)
    assert len(vectors.observations) == 40 + vectors.edges == 49
    assert golden.read(vectors.to_bytes(), "golden.npz").edges == 9


def test_edges_are_the_ends_of_what_was_met_and_beyond():
    policy, x = agent(policy=networks.EVERY["convolutional"]())
    extra = golden.record(policy, x).observations[40:]
    np.testing.assert_array_equal(extra[0], x.min(axis=0))
    np.testing.assert_array_equal(extra[1], x.max(axis=0))
    assert (extra[2] == 0).all()
    assert (extra[3] == 255).all()


def test_dynamic_policies_have_no_codes():
    assert golden.record(*agent(mode="dynamic")).codes == {}


def test_the_file_gives_the_vectors_back_and_is_the_same_for_the_same():
    policy, x = agent(policy=networks.EVERY["dueling"]())
    vectors = golden.record(policy, x)
    data = vectors.to_bytes()
    assert data == golden.record(policy, x).to_bytes()
    again = golden.read(data, "golden.npz")
    for name in ("observations", "outputs", "given"):
        np.testing.assert_array_equal(getattr(again, name), getattr(vectors, name))
    assert {name: codes.tolist() for name, codes in again.codes.items()} == {
        name: codes.tolist() for name, codes in vectors.codes.items()
    }


def test_files_that_are_no_golden_vectors_are_refused_in_a_line(tmp_path):
    path = tmp_path / "other.npz"
    np.savez(path, observations=np.zeros((2, 3)))
    with pytest.raises(QuarlError, match=r"^other\.npz holds no golden vectors"):
        golden.read(path.read_bytes(), "other.npz")
    np.savez(path, observations=np.zeros((2, 3)), outputs=np.zeros((1, 3)), given=np.zeros((2, 3)), edges=0, off_path=0)
    with pytest.raises(QuarlError, match="golden vectors of different lengths"):
        golden.read(path.read_bytes(), "other.npz")


def test_the_first_observation_and_number_that_differ_are_named():
    expected = np.zeros((4, 3), np.float32)
    got = expected.copy()
    got[2, 1], got[3, 0] = 0.5, -2.0
    difference = golden.first_difference(expected, got, 0.25)
    assert (difference.observation, difference.number, difference.given, difference.rows) == (2, 1, 0.5, 2)
    assert difference.largest == 2.0
    assert golden.first_difference(expected, got, 2.0) is None


def test_nan_differs_whatever_the_tolerance():
    got = np.float32([[0.0, np.nan]])
    assert golden.first_difference(np.zeros((1, 2), np.float32), got, 1e9).number == 1
