"""The JSON contract: what it accepts, what it refuses, what it writes."""

from __future__ import annotations

import json

import numpy as np
import pytest

import contracts
from quarl.post_training.measure import PtqRow
from quarl.report import schema

pytestmark = pytest.mark.slow


def test_a_document_of_sound_rows_passes_and_survives_json(rows):
    document = schema.document(PtqRow, rows, model="a.zip", algo="dqn", env_id="CartPole-v1", seed=3)
    text = schema.to_text(document)
    assert json.loads(text) == document
    contracts.check(json.loads(text))
    assert len(text.splitlines()) == len(rows) + 15  # one line a row


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"measured": 1}, "row 1: measured is 1, expected boolean"),
        ({"bytes": True}, "row 1: bytes is True, expected integer"),
        ({"precision": None}, "row 1: precision is None, expected string"),
        ({"mean": "3"}, "row 1: mean is '3', expected number"),
        ({"extra": 3}, "row 1 has keys"),
    ],
)
def test_check_names_the_first_key_that_breaks_the_contract(rows, change, said):
    rows[1] |= change
    with pytest.raises(ValueError, match=said):
        contracts.check(schema.document(PtqRow, rows))


def test_numbers_that_json_cannot_write_become_null_and_numpy_becomes_plain(rows):
    rows[0] |= {"error_pct": float("nan"), "mean": np.float64(1.5)}
    found = schema.document(PtqRow, rows)["rows"][0]
    assert found["error_pct"] is None
    assert type(found["mean"]) is float
