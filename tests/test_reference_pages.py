"""The reference of rows is made of the classes, and every document that is committed keeps to them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import reference_pages as reference

import contracts
from networks import dense
from quarl.calibration import quantize
from quarl.policy import artifact, container
from quarl.policy.operators import OPERATORS
from quarl.quant.packing import pack
from quarl.quant.spec import QuantSpec
from quarl.rows import columns

ROOT = Path(__file__).parents[1]


KINDS = contracts.kinds()
STUDY = {name: f"study {name.replace('-', ' ')}" for name in ("excluded", "sweet-spots")}
COMMANDS = {
    **{f"actorq-{what}": {"rows": f"study {what}"} for what in ("breakdown", "throughput")},
    "actorq-time-to-reward": {"rows": "study time-to-reward", "speedups": "study speed-up"},
    "mixed-precision-updates": {"rows": "study updates"},
    "qat-bits": {"rows": "study"},
    "paper-ptq": {"rows": "study", **STUDY},
    "spread": {"rows": "study", **STUDY},
}
"""By folder of results and table; the committed errors are of schema 2, with a column for each of two precisions."""
REMOVED = ("joules", "joules_by")
"""Keys of the first schema, which the second does not have; null in all results."""


@pytest.mark.parametrize("study", sorted(COMMANDS))
def test_committed_results_keep_to_their_rows(study):
    (files := sorted((ROOT / "results" / study).glob("*/rows.jsonl"))) or pytest.fail("nothing was measured")
    for path in files:
        for row in map(json.loads, path.read_text().splitlines()):
            command = COMMANDS[study].get(row.pop("table"))
            fields = {key: value for key, value in row.items() if key not in ("name", "about", *REMOVED)}
            assert [row[key] for key in REMOVED if row.get(key) is not None] == []
            if command is not None and (study != "qat-bits" or "name" in row):  # others are of the whole benchmark
                contracts.check_row(command, fields)


@pytest.mark.slow
@pytest.mark.parametrize("page", reference.PAGES)
def test_the_committed_pages_are_made_of_the_code(page):
    _, made, _ = (ROOT / page).read_text().split(reference.MARK)
    assert made == f"\n{reference.PAGES[page]()}\n", "make reference writes it anew"


@pytest.mark.parametrize("command", sorted(KINDS))
def test_columns_show_fields_that_the_row_has(command):
    keys = reference.schema(KINDS[command])["properties"]
    for column in columns(KINDS[command]):
        assert set(column.of) <= set(keys)
        assert not column.before or column.before in keys


def test_the_page_of_artefacts_names_all_that_one_holds():
    page = (ROOT / "docs/reference/artefact.md").read_text()
    tensors, metadata = container.parse(
        artifact.to_bytes(quantize(dense([4, 8, 2]), QuantSpec.parse("int4", scheme="per-channel")))
    )
    manifest = json.loads(metadata["manifest"])
    (first, *_) = [op for op in manifest["ops"] if "codes" in op]
    keys = {*metadata, *manifest, *manifest["observation"], *manifest["head"], *manifest["provenance"]}
    named = {*keys, *first, *first["codes"], *container.DTYPES, *OPERATORS} - {"wrappers"}
    assert [key for key in sorted(named) if f"`{key}`" not in page] == []
    assert {name.partition("/")[2] for name in tensors} == {"weight", "weight.scale", "bias"}
    codes = np.array([[1, -2], [3, 4]], np.int8)
    # as the page says: at 4 bits the first code is the low half of the first byte
    assert pack(codes, 4) == bytes([0x1 | 0xE << 4, 0x3 | 0x4 << 4])


@pytest.mark.parametrize("run", ["train", "actorq", "study"])
def test_the_page_of_folders_names_every_file_of_a_run(run):
    page = (ROOT / "docs/reference/run-folder.md").read_text()
    for path in (ROOT / "tests" / "golden" / run).rglob("*"):
        if path.is_dir() or "cells" in path.parts:  # of an older QuaRL
            continue
        name = re.sub(r"checkpoint-\d+", "checkpoint-N", path.name.replace("CartPole-v1", "ENV"))
        assert re.search(rf"`(?:ENV/)?{re.escape(name)}`", page) or path.suffix == ".npz", name
