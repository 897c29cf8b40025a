"""`quarl study run smoke`, as a continuous integration runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import contracts
from quarl.cli import main

pytestmark = pytest.mark.slow


def test_smoke_trains_quantises_reports_and_has_nothing_left_to_do(tmp_path: Path, monkeypatch: Any, capsys: Any):
    monkeypatch.chdir(tmp_path)
    words = ["study", "run", "smoke", "-o", "out", "--jobs", "2", "--json", "rows.json"]
    assert main(words) == 0
    document = contracts.read("rows.json")
    states = [(row["algo"], row["state"]) for row in document["rows"]]
    assert states == [("ppo", "done")] * 5 + [("dqn", "done")] * 5 + [("ddpg", "na")] * 5
    assert all(row["measured"] for row in document["rows"][:10])
    capsys.readouterr()
    assert main(words) == 0
    assert json.loads(Path("rows.json").read_text())["rows"] == document["rows"]
    assert main(["study", "report", "out"]) == 0
    assert Path("out/report.html").is_file()
