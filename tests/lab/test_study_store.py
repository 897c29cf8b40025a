"""The store: what was finished stays, whatever a study asks for and whoever is killed."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from quarl.errors import QuarlError
from quarl.files import locked
from quarl.lab import store
from quarl.lab.cells import Cell
from quarl.lab.store import Store
from quarl.processes.inside import Result
from quarl.processes.pool import Ended
from refusals import refused


def cell(precision: str, na: str = "") -> Cell:
    about = {"algo": "dqn", "env_id": "CartPole-v1", "source": "zoo:sb3", "seed": 0, "episodes": 3}
    return Cell(**about, method="ptq", precision=precision, na=na, work={"precision": precision})


EIGHT, FOUR = cell("int8"), cell("int4")
RESULT = {"returns": [1.5, 0.1 + 0.2], "measured": True, "weight_min": -1.0, "weight_max": 1.0, "weight_std": 0.5}


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A study of two cells, one of which is done."""
    with Store(tmp_path, create=True) as opened:
        opened.ask("two", {"name": "two"}, "1", [EIGHT, FOUR])
        opened.write([], [EIGHT.key])
        opened.write([Ended(EIGHT.key, Result(value=RESULT), 2.0)], [FOUR.key])
    return tmp_path


def test_what_a_cell_found_comes_back_to_the_last_bit(filled: Path):
    with Store(filled) as opened:
        eight, four = opened.records()
        assert (eight.state, four.state) == ("done", "running")
        assert eight.result == RESULT
        assert opened.result(EIGHT.key) == RESULT
        assert opened.study() == ("two", {"name": "two"})


def test_what_was_running_when_its_runner_died_is_to_be_done_again(filled: Path):
    with Store(filled, create=True) as opened:
        opened.ask("two", {}, "1", [EIGHT, FOUR])
        assert opened.states() == {EIGHT.key: "done", FOUR.key: "todo"}


def test_cells_that_are_no_longer_asked_for_stay_and_are_not_reported(filled: Path):
    with Store(filled, create=True) as opened:
        opened.ask("one", {}, "1", [FOUR])
        assert [record.key for record in opened.records()] == [FOUR.key]
        opened.ask("two", {}, "1", [FOUR, EIGHT])
        assert [(record.key, record.state) for record in opened.records()] == [(FOUR.key, "todo"), (EIGHT.key, "done")]


def test_a_cell_that_is_not_measured_says_why(tmp_path: Path):
    with Store(tmp_path, create=True) as opened:
        opened.ask("one", {}, "1", [cell("int8", na="budget")])
        (record,) = opened.records()
    assert (record.state, record.error) == ("na", "budget")


def test_failed_cells_are_done_again_only_when_asked_to(filled: Path):
    with Store(filled, create=True) as opened:
        opened.write([Ended(FOUR.key, Result(error="why", peak_mb=80.0), 9.0)], [])
        opened.ask("two", {}, "1", [EIGHT, FOUR])
        assert opened.records()[1].error == "why"
        opened.again([FOUR.key])
        assert opened.states()[FOUR.key] == "todo"
        forgotten = opened.records()[1]
        assert (forgotten.error, forgotten.seconds, forgotten.peak_mb) == (None, None, None)


def test_a_database_of_a_newer_schema_is_refused(filled: Path):
    with sqlite3.connect(filled / store.NAME) as database:
        database.execute(f"PRAGMA user_version = {store.VERSION + 1}")
    database.close()
    with pytest.raises(QuarlError, match=r"of another QuaRL \(schema 2, this one knows 1\): use that version"):
        Store(filled)


def test_what_is_no_study_is_refused(tmp_path: Path):
    with pytest.raises(QuarlError, match="no study in"):
        Store(tmp_path)
    (tmp_path / store.NAME).write_bytes(b"this is no database at all, only some text" * 100)
    with pytest.raises(QuarlError, match="file is not a database; choose another folder with -o"):
        Store(tmp_path, create=True)
    with pytest.raises(QuarlError, match=r"file is not a database$"):
        Store(tmp_path)  # quarl study status and report have no -o
    (tmp_path / store.NAME).unlink()
    with sqlite3.connect(tmp_path / store.NAME) as database:
        database.execute("CREATE TABLE other (x)")
    database.close()
    with pytest.raises(QuarlError, match="a database of something else"):
        Store(tmp_path, create=True)
    (tmp_path / store.NAME).unlink()
    (tmp_path / store.NAME).touch()
    with pytest.raises(QuarlError, match=r"holds no study: quarl study run STUDY -o .* begins one"):
        Store(tmp_path)
    with Store(tmp_path, create=True) as opened, pytest.raises(QuarlError, match="holds no study yet"):
        opened.study()


def test_a_study_without_a_finished_cell_has_no_report(filled: Path, capsys):
    with Store(filled) as opened:
        opened.again([EIGHT.key])
    assert f"no cell of {filled} is done yet; quarl study run" in refused(capsys, "study", "report", filled)


def test_a_full_disk_is_one_line_and_earlier_rows_are_whole(filled: Path):
    with Store(filled, create=True) as opened:
        opened.ask("two", {}, "1", [EIGHT, FOUR])
        # the database's own quota: it raises what a full disk raises
        (pages,) = opened._db.execute("PRAGMA page_count").fetchone()
        opened._db.execute(f"PRAGMA max_page_count = {pages}")
        large = {"returns": [0.123456789] * 20_000}
        with pytest.raises(QuarlError, match=r"full; its rows so far are whole: free some space and repeat"):
            opened.write([Ended(FOUR.key, Result(value=large))], [])
        assert opened.result(EIGHT.key) == RESULT
    with Store(filled) as opened:
        assert opened.states() == {EIGHT.key: "done", FOUR.key: "todo"}


def test_two_runs_in_one_folder_exclude_each_other(tmp_path: Path):
    with locked(tmp_path), pytest.raises(QuarlError, match="another quarl run is using"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


def test_who_reads_does_not_wait_for_who_writes(filled: Path):
    with Store(filled, create=True) as writing, Store(filled) as reading:
        writing._db.execute("BEGIN IMMEDIATE")
        writing._db.execute("UPDATE cells SET state = 'failed'")
        assert reading.states()[EIGHT.key] == "done"
        writing._db.execute("ROLLBACK")


@pytest.mark.parametrize(
    "row",
    [
        "[]",
        "{}",
        "5",
        "null",
        "{",
        '{"returns": []}',
        '{"returns": {}}',
        '{"returns": [1, null]}',
        '{"returns": [1.0, NaN], "weight_min": 0, "weight_max": 1, "weight_std": 1}',
        '{"returns": ["1"]}',
        '{"returns": [true]}',
        '{"returns": [1.0]}',
        '{"returns": [1.0], "weight_min": "0", "weight_max": 1, "weight_std": 1}',
    ],
)
@pytest.mark.parametrize("verb", ["report", "status"])
def test_a_row_that_no_cell_measured_is_one_line_in_every_verb(row: str, verb: str, filled: Path, capsys):
    with sqlite3.connect(filled / store.NAME) as database:
        database.execute("UPDATE cells SET row = ? WHERE state = 'done'", (row,))
    assert refused(capsys, "study", verb, filled).startswith(f"quarl: {filled / store.NAME} is damaged: ")


@pytest.mark.parametrize("document", ["[]", "5", "{"])
def test_a_study_that_is_not_values_by_name_is_one_line(document: str, filled: Path, capsys):
    with sqlite3.connect(filled / store.NAME) as database:
        database.execute("UPDATE study SET file = ?", (document,))
    assert "is damaged: a row " in refused(capsys, "study", "report", filled)


def test_a_pipe_is_not_a_study(tmp_path: Path, capsys):
    os.mkfifo(tmp_path / store.NAME)
    assert "no study in " in refused(capsys, "study", "status", tmp_path)
