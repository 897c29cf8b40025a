"""The reference of rows is made of the classes, and every document that is committed keeps to them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import reference_pages as reference

import contracts
from quarl.energy import Energy
from quarl.inspection import LayerRow
from quarl.rows import columns

ROOT = Path(__file__).parents[1]


KINDS = contracts.kinds()
SWEEP = {"rows": "sweep", "summary": "sweep summary"}
STUDY = {name: f"study {name.replace('-', ' ')}" for name in ("errors", "excluded", "spread", "sweet-spots")}
COMMANDS = {
    **{f"actorq-{what}": {"rows": f"bench actorq {what}"} for what in ("breakdown", "staleness", "throughput")},
    "actorq-final-return": {"rows": "bench actorq staleness"},
    "actorq-time-to-reward": {"rows": "bench actorq time-to-reward", "speedups": "bench actorq speed-up"},
    **{f"mixed-precision-{what}": {"rows": f"bench mixed-precision {what}"} for what in ("learning", "updates")},
    "qat-bits": SWEEP,
    "paper-ptq": {"rows": "study", **STUDY},
    "spread": {"rows": "study", **STUDY},
}
"""By folder of results and table."""


@pytest.mark.parametrize("study", sorted(COMMANDS))
def test_committed_results_keep_to_their_rows(study):
    (files := sorted((ROOT / "results" / study).glob("*/rows.jsonl"))) or pytest.fail("nothing was measured")
    for path in files:
        for row in map(json.loads, path.read_text().splitlines()):
            command = COMMANDS[study].get(row.pop("table"))
            fields = {key: value for key, value in row.items() if key not in ("name", "about")}
            if command is not None and (study != "qat-bits" or "name" in row):  # others are of the whole benchmark
                contracts.check_row(command, fields)


@pytest.mark.parametrize("page", reference.PAGES)
def test_the_committed_pages_are_made_of_the_classes(page):
    _, made, _ = (ROOT / f"docs/reference/{page}.md").read_text().split(reference.MARK)
    assert made == f"\n{reference.PAGES[page]()}\n", "make reference writes it anew"


@pytest.mark.parametrize("command", sorted(KINDS))
def test_columns_show_fields_that_the_row_has(command):
    keys = reference.schema(KINDS[command])["properties"]
    for column in columns(KINDS[command]):
        assert set(column.of) <= set(keys)
        assert not column.before or column.before in keys


def test_a_schema_has_types_and_meanings_of_fields_and_of_shared_ones():
    schema = reference.schema(LayerRow)
    assert schema["properties"]["shape"] == {
        "type": ["array"],
        "description": "[out, in] or [out, in, kh, kw].",
    }
    assert schema["properties"]["sqnr_db"]["type"] == ["number", "null"]
    assert schema["properties"]["sqnr_db"]["description"].startswith("Signal to quantisation noise")
    assert reference.schema(Energy)["properties"]["watts"]["type"] == ["number", "null"]
    assert "command" not in schema["properties"]
