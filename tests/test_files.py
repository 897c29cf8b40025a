"""Files that are written whole or not at all."""

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
