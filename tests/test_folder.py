"""Files that are written whole or not at all."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from quarl import folder
from quarl.errors import QuarlError


@pytest.mark.parametrize(
    ("raised", "comes"), [(KeyboardInterrupt(), KeyboardInterrupt), (OSError(errno.ENOSPC, "full"), QuarlError)]
)
def test_a_write_that_is_broken_off_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: BaseException, comes: type[BaseException]
):
    path = tmp_path / "kept"
    folder.write_bytes(b"old", path)

    def fsync(descriptor: int) -> None:
        raise raised

    with monkeypatch.context() as patched:
        patched.setattr(folder.os, "fsync", fsync)
        with pytest.raises(comes):
            folder.write_bytes(b"new", path)
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == b"old"
