"""How observations of other spaces become rows."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from gymnasium import spaces

import networks
from quarl.errors import QuarlError
from quarl.policy import artifact
from quarl.policy.inputs import Input, flatten, places

INPUTS = (
    Input("goal", "Box", (2,)),
    Input("level", "Discrete", (), (3,)),
    Input("switches", "MultiBinary", (2, 2)),
    Input("tools", "MultiDiscrete", (2,), (2, 4)),
)
SPACE = spaces.Dict(
    {
        "goal": spaces.Box(-1, 1, (2,)),
        "level": spaces.Discrete(3),
        "switches": spaces.MultiBinary((2, 2)),
        "tools": spaces.MultiDiscrete([2, 4]),
    }
)


def test_a_row_is_what_gymnasium_flattens():
    SPACE.seed(3)
    samples = [SPACE.sample() for _ in range(50)]
    expected = np.stack([spaces.utils.flatten(SPACE, sample) for sample in samples])
    batch = {key: np.stack([sample[key] for sample in samples]) for key in SPACE}
    rows, single = flatten(INPUTS, batch)
    np.testing.assert_array_equal(rows, expected)
    assert (rows.dtype, single) == (np.float32, False)
    for sample, row in zip(samples, expected, strict=True):
        alone, single = flatten(INPUTS, sample)
        np.testing.assert_array_equal(alone, row[None])
        assert single


def test_discrete_numbers_are_one_hot_by_hand():
    observation = {"goal": np.float64([0.5, -2]), "level": 2, "switches": [[1, 0], [0, 1]], "tools": [1, 0]}
    row = flatten(INPUTS, {key: np.asarray(value) for key, value in observation.items()})[0]
    assert row.tolist() == [[0.5, -2, 0, 0, 1, 1, 0, 0, 1, 0, 1, 1, 0, 0, 0]]
    assert places(INPUTS) == {"goal": 0, "level": 2, "switches": 5, "tools": 9}


def test_an_image_has_its_channels_first():
    image = np.arange(24).reshape(2, 4, 3)
    row = flatten([Input("", "Box", (3, 2, 4))], image)[0]
    assert row[0, :8].tolist() == [0, 3, 6, 9, 12, 15, 18, 21]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"goal": None}, "has no 'goal'; the policy expects goal (Box (2,)), level (Discrete () of 3 values)"),
        ({"goal": np.zeros(3)}, "of goal (Box (2,)) is (3,)"),
        ({"goal": np.zeros((1, 2))}, "parts differ in number"),
        ({"level": np.array(3)}, "of level (Discrete () of 3 values) holds [3]"),
        ({"level": np.array(-1)}, "holds [-1]"),
        ({"level": np.array(0.5)}, "holds [0.5]"),
        ({"level": np.array(np.nan)}, "holds [nan]"),
        ({"switches": np.full((2, 2), 2)}, "holds [2 2 2 2]"),
        ({"tools": np.array([0, 4])}, "holds [0 4]"),
    ],
)
def test_what_the_space_has_not_is_refused_by_its_key(change, said):
    whole = {"goal": np.zeros(2), "level": np.array(0), "switches": np.zeros((2, 2), int), "tools": np.zeros(2, int)}
    given = {key: value for key, value in (whole | change).items() if value is not None}
    with pytest.raises(QuarlError, match=re.escape(said)):
        flatten(INPUTS, given)


def test_one_array_needs_no_key():
    assert flatten([Input("", "Discrete", (), (3,))], np.array([2, 0]))[0].tolist() == [[0, 0, 1], [1, 0, 0]]
    with pytest.raises(QuarlError, match="the observation has no 'goal'"):
        flatten(INPUTS, np.zeros((2, 15)))
    with pytest.raises(QuarlError, match="the observation is a dict"):
        flatten([Input("", "Box", (2,))], {"goal": np.zeros(2)})


def test_inputs_come_back_from_the_artefact():
    policy = networks.sliced()
    assert artifact.from_bytes(artifact.to_bytes(policy), "x").inputs == policy.inputs


@pytest.mark.parametrize(
    "inputs",
    [
        [["a", "Box", [2, 8, 8], []]],
        [["a", "Box", [68], []], ["a", "Box", [68], []]],
        [["", "Box", [68], []], ["a", "Box", [68], []]],
        [["a", "Tuple", [136], []]],
        [["a", "Box", [-136], []]],
        [["a", "Discrete", [], [137]]],
        [["a", "Discrete", [], []]],
        [["a", "MultiDiscrete", [2], [136]]],
        [["a", "Box", [2**31, 2**31], []]],
        [["a\n", "Box", [136], []]],
        [["a"]],
        "Box",
        7,
    ],
)
def test_inputs_that_are_not_the_row_are_refused(inputs):
    tensors, metadata = artifact._contents(networks.sliced())
    manifest = json.loads(metadata["manifest"])
    manifest["observation"]["inputs"] = inputs
    sealed = artifact.sealed(json.dumps(manifest))
    with pytest.raises(QuarlError):
        artifact.from_bytes(b"".join(artifact.pieces(tensors, sealed)), "x")


def test_a_graph_cannot_slice_beyond_the_row():
    policy = networks.sliced()
    beyond = [replace(op, start=op.start + 1) if op.name == "other" else op for op in policy.ops]
    with pytest.raises(QuarlError, match="operator 'other' \\(Slice\\) expects input a row of 137 numbers or more"):
        replace(policy, ops=tuple(beyond))
