"""Files and folders of results that are written whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from quarl import files
from quarl.errors import QuarlError
from quarl.files import staged


def test_files_and_folders_have_the_permissions_of_the_umask(tmp_path: Path):
    before = os.umask(0o027)
    try:
        files.write_bytes(b"new", tmp_path / "one")
        with staged(tmp_path / "results") as results:
            (results / "two").touch()
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("one", "results", "results/two")]
    assert modes == [0o640, 0o750, 0o640]


def test_a_name_as_long_as_can_be_is_written(tmp_path: Path):
    for name in ("n" * 255, "ü" * 127):
        files.write_bytes(b"new", tmp_path / name)
        assert (tmp_path / name).read_bytes() == b"new"


@pytest.mark.parametrize(
    ("raised", "comes"), [(KeyboardInterrupt(), KeyboardInterrupt), (OSError(errno.ENOSPC, "full"), QuarlError)]
)
def test_a_write_that_is_broken_off_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: BaseException, comes: type[BaseException]
):
    path = tmp_path / "kept"
    files.write_bytes(b"old", path)

    def fsync(descriptor: int) -> None:
        raise raised

    with monkeypatch.context() as patched:
        patched.setattr(files.os, "fsync", fsync)
        with pytest.raises(comes):
            files.write_bytes(b"new", path)
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == b"old"


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
    (tmp_path / "link").symlink_to(tmp_path / "unmounted")
    into = r"cannot write into .*-o"
    for target, said in (("file", into), ("file/inside", into), ("link", r"link: it is a link to nothing")):
        with pytest.raises(QuarlError, match=said), staged(tmp_path / target):
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


def test_locked_neither_waits_for_a_pipe_nor_takes_a_folder(tmp_path):
    os.mkfifo(tmp_path / "quarl.lock")
    with (
        files.locked(tmp_path),
        pytest.raises(QuarlError, match="another quarl run is using"),
        files.locked(tmp_path),
    ):
        pass
    (tmp_path / "other" / "quarl.lock").mkdir(parents=True)
    with pytest.raises(QuarlError, match="Is a directory; choose a folder"), files.locked(tmp_path / "other"):
        pass
