"""Folders of results: whole or not at all."""

from __future__ import annotations

import pytest

from quarl.errors import QuarlError
from quarl.files import staged


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_new_folder_appears_with_all_its_files(tmp_path):
    with staged(tmp_path / "a" / "b") as folder:
        (folder / "one").write_text("1")
        assert names(tmp_path / "a") == [folder.name]
    assert names(tmp_path / "a") == ["b"]
    assert names(tmp_path / "a" / "b") == ["one"]


def test_files_of_an_existing_folder_are_replaced_and_others_kept(tmp_path):
    (tmp_path / "one").write_text("old")
    (tmp_path / "two").write_text("old")
    with staged(tmp_path) as folder:
        (folder / "one").write_text("new")
    assert names(tmp_path) == ["one", "two"]
    assert (tmp_path / "one").read_text() == "new"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_after_an_error_nothing_has_changed(tmp_path, error):
    def fill(folder):
        (folder / "one").write_text("new")
        raise error

    (tmp_path / "one").write_text("old")
    with pytest.raises(error), staged(tmp_path) as folder:
        fill(folder)
    assert names(tmp_path) == ["one"]
    assert (tmp_path / "one").read_text() == "old"


def test_a_target_that_cannot_be_a_folder_is_refused_before_the_work(tmp_path):
    (tmp_path / "file").write_text("")
    for target in (tmp_path / "file", tmp_path / "file" / "inside"):
        with pytest.raises(QuarlError, match=r"cannot write into .*-o"), staged(target):
            raise AssertionError


def test_a_link_to_nothing_is_refused_before_the_work(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "unmounted")
    with pytest.raises(QuarlError, match=r"link: it is a link to nothing"), staged(tmp_path / "link"):
        raise AssertionError


def test_results_that_cannot_be_moved_are_kept_and_named(tmp_path):
    def fill(folder):
        (folder / "one").write_text("hours of work")
        (tmp_path / "out").write_text("came while measuring")

    with (
        pytest.raises(QuarlError, match=r"out: .*; the results are in ") as refused,
        staged(tmp_path / "out") as folder,
    ):
        fill(folder)
    assert str(refused.value).endswith(str(folder))
    assert (folder / "one").read_text() == "hours of work"
