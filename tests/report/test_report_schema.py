"""The JSON contract: what it accepts, what it refuses, what it writes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

import contracts
from quarl import doctor
from quarl.actorq import plan
from quarl.experiments import precisions
from quarl.experiments.methods import actorq_reward, actorq_speedup, actorq_staleness, actorq_throughput, latency
from quarl.report import schema
from quarl.runs import outcome


def test_a_document_of_sound_rows_passes_and_survives_json(rows):
    document = schema.document("ptq", rows, model="a.zip", algo="dqn", env_id="CartPole-v1", seed=3)
    text = schema.to_text(document)
    assert json.loads(text) == document
    contracts.check(json.loads(text))
    assert len(text.splitlines()) == len(rows) + 10  # one line a row


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"measured": 1}, "row 1: measured is 1, expected bool"),
        ({"bytes": True}, "row 1: bytes is True, expected int"),
        ({"precision": None}, "row 1: precision is None, expected str"),
        ({"mean": "3"}, "row 1: mean is '3', expected float"),
        ({"extra": 3}, "row 1 has keys"),
    ],
)
def test_check_names_the_first_key_that_breaks_the_contract(rows, change, said):
    rows[1] |= change
    with pytest.raises(ValueError, match=said):
        contracts.check(schema.document("ptq", rows))


def test_the_documented_keys_are_those_of_the_rows():
    lines = (Path(__file__).parents[2] / "docs/json.md").read_text().splitlines()
    table = [line.split("|")[1:3] for line in lines if line.startswith("| `")]
    found = {command.split("`")[1]: keys.strip(" `").split(", ") for command, keys in table}
    assert found == {command: list(keys) for command, keys in contracts.ROWS.items()}


def test_check_refuses_an_unknown_command():
    with pytest.raises(ValueError, match="command is 'frob'"):
        contracts.check(schema.document("frob", []))


def test_numbers_that_json_cannot_write_become_null_and_numpy_becomes_plain(rows):
    rows[0] |= {"error_pct": float("nan"), "mean": np.float64(1.5)}
    found = schema.document("ptq", rows)["rows"][0]
    assert found["error_pct"] is None
    assert type(found["mean"]) is float


@pytest.mark.parametrize(
    ("command", "row"),
    [
        ("ptq", precisions.Row),
        ("train", outcome.Row),
        ("actorq plan", plan.Row),
        ("bench latency", latency.Row),
        ("bench actorq throughput", actorq_throughput.Row),
        ("bench actorq breakdown", actorq_throughput.Breakdown),
        ("bench actorq staleness", actorq_staleness.Row),
        ("bench actorq time-to-reward", actorq_reward.Row),
        ("bench actorq speed-up", actorq_speedup.Speedup),
        ("doctor", doctor.Row),
    ],
)
def test_rows_that_are_measured_have_the_contract_s_keys_in_its_order(command, row):
    assert [field.name for field in dataclasses.fields(row)] == list(contracts.ROWS[command])
