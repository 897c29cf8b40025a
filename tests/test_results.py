"""Measured results: rows of all machines, what they were measured with."""

from __future__ import annotations

import json
import sys

import pages
import pytest
from matplotlib.testing.compare import compare_images

import results
from quarl.lab import file, plan


@pytest.fixture
def measured(monkeypatch):
    """Sets the commit that this machine says it measures."""

    def at(commit):
        found = {"cpu": "AMD EPYC (family 25, model 17)", "cores": 2, "python": "3.11.7", "versions": {"numpy": "2.4"}}
        monkeypatch.setattr(results, "machine", lambda: {**found, "commit": commit, "date": "2026-01-01"})

    return at


def test_rows_take_the_place_of_those_of_their_table_and_name_and_others_keep_their_commit(measured, tmp_path):
    measured("a")
    folder = results.write("s", "make s", root=tmp_path, cells=[{"name": "x", "n": 1}, {"name": "y", "n": 2}])
    measured("b")
    results.write("s", "make s", root=tmp_path, cells=[{"name": "x", "n": 3}], bars=[{"met": True}])
    assert folder == tmp_path / "s" / "amd-epyc-25-17"
    old = {"table": "cells", "name": "y", "n": 2, "about": {"commit": "a"}, "machine": folder.name}
    new = {"table": "cells", "name": "x", "n": 3, "machine": folder.name}
    assert results.read("s", "cells", root=tmp_path) == [old, new]
    assert [row["met"] for row in results.read("s", "bars", root=tmp_path)] == [True]
    about = json.loads((folder / "about.json").read_text())
    assert (about["commit"], about["machine"]["cores"], about["versions"]["numpy"]) == ("b", 2, "2.4")
    measured("c")
    results.write("s", "make s", root=tmp_path, bars=[{"met": False}])
    commits = [row["about"]["commit"] for row in results.read("s", "cells", root=tmp_path)]
    assert commits == ["a", "b"]


def test_what_a_study_left_in_its_folder_is_taken_in_once_it_is_whole(measured, monkeypatch, tmp_path, capsys):
    measured("a")
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "bits.png").write_bytes(b"png")
    (folder / "rows.json").write_text(json.dumps({"rows": [{"state": "todo"}]}))
    monkeypatch.setattr(sys, "argv", ["results.py", str(folder), "--out", str(tmp_path / "kept")])
    with pytest.raises(SystemExit):
        results.main()
    assert "cells that are not measured yet" in capsys.readouterr().err
    (folder / "rows.json").write_text(json.dumps({"rows": [{"state": "done", "mean": 1.0}]}))
    results.main()
    assert results.read("mine", root=tmp_path / "kept")[0]["mean"] == 1.0
    assert (tmp_path / "kept/mine/amd-epyc-25-17/bits.png").read_bytes() == b"png"


def test_every_folder_of_results_says_how_its_rows_were_measured():
    folders = sorted(path.parent for path in results.RESULTS.glob("*/*/rows.jsonl"))
    assert len(folders) > 30
    for folder in folders:
        about = json.loads((folder / "about.json").read_text())
        assert about.keys() >= {"command", "date", "commit", "machine", "versions"}
        assert about["machine"]["cpu"]
        assert all("table" in json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((results.RESULTS.parent / "studies").glob("*.yml")), ids=lambda path: path.stem)
def test_studies_can_be_planned(path, agents):
    assert plan.plan(file.read(str(path), agents), seed=0)
    assert path.stem == file.read(str(path)).name


@pytest.mark.slow
@pytest.mark.parametrize("name", pages.NAMES)
def test_every_page_and_figure_of_results_is_what_its_rows_give_today(name, tmp_path):
    page = pages.Page(name, tmp_path)
    assert page.faults == []
    assert page.text == (pages.PAGES / f"{name}.md").read_text(), "run make pages"
    for drawn in tmp_path.glob("*.png"):
        assert compare_images(str(pages.PAGES / "_figures" / drawn.name), str(drawn), tol=10) is None


def test_a_number_that_differs_from_the_rows_is_reported_with_its_line(monkeypatch, tmp_path):
    checks = ("x := 2.36", "2.31x = x", "2.31x faster than −5 = [2.312, -5.4]", "than −6 = -6")
    (tmp_path / "a.md").write_text("It is 2.31x\nfaster than −5.\n" + "".join(f"<!-- {line} -->\n" for line in checks))
    monkeypatch.setattr(pages, "PAGES", tmp_path)
    differs, missing = pages.Page("a", tmp_path).faults
    assert differs == "docs/results/a.md:1: '2.31x', but the rows say 2.36"
    assert missing == "docs/results/a.md:3: the text above does not say 'than −6'"
