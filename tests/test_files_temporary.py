"""Temporary folders: removed at the end, and by the next run where their owner was killed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import quarl
from quarl import files
from quarl.files import TEMPORARY, temporary_folder

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="folders cannot be locked on Windows")
OLD_S = files.STALE_S + 60
OWNER = (
    "import sys; from quarl.files import temporary_folder\nwith temporary_folder() as f: print(f, flush=True); input()"
)


@pytest.fixture
def temp(tmp_path, monkeypatch):
    """The system's folder for temporary files."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def left(path: Path, age_s: float = OLD_S) -> Path:
    """A folder as a killed run leaves it."""
    path.mkdir()
    (path / "policy.c").write_text("int main;")
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def sweep() -> None:
    with temporary_folder() as folder:
        assert folder.stat().st_mode & 0o077 == 0
        (folder / "inside").mkdir()
    assert not folder.exists()


@pytest.mark.slow
def test_the_folder_of_a_killed_run_goes_and_that_of_a_living_one_stays(temp):
    with subprocess.Popen([sys.executable, "-c", OWNER], stdin=-1, stdout=-1, text=True) as owner:
        folder = Path(owner.stdout.readline().strip())
        os.utime(folder, (time.time() - OLD_S,) * 2)
        sweep()
        assert folder.is_dir()
        owner.kill()
    assert folder.is_dir()
    sweep()
    assert list(temp.iterdir()) == []


def test_a_young_folder_stays_and_an_old_one_goes(temp):
    young, old = left(temp / f"{TEMPORARY}1", files.STALE_S - 60), left(temp / f"{TEMPORARY}2")
    other = left(temp / "quarl-ptq")
    sweep()
    assert sorted(temp.iterdir()) == [other, young]
    assert not old.exists()


def test_the_folder_of_another_user_stays(temp, monkeypatch):
    folder = left(temp / f"{TEMPORARY}1")
    if os.getuid() == 0:
        os.chown(folder, 12345, 12345)
    else:
        monkeypatch.setattr(files.os, "getuid", lambda: os.stat(temp).st_uid + 1)
    sweep()
    assert (folder / "policy.c").is_file()


@pytest.mark.parametrize("kind", ["link to a folder", "link into nothing", "file", "fifo"])
def test_what_is_not_a_folder_is_neither_followed_nor_removed(temp, kind):
    target, path = left(temp / "mine"), temp / f"{TEMPORARY}1"
    if kind == "file":
        path.write_text("")
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to(target if kind == "link to a folder" else "/nowhere")
    os.utime(path, (time.time() - OLD_S,) * 2, follow_symlinks=False)
    sweep()
    assert os.path.lexists(path)
    assert (target / "policy.c").is_file()


def test_links_inside_of_an_old_folder_are_not_followed(temp):
    mine, folder = left(temp / "mine"), left(temp / f"{TEMPORARY}1")
    (folder / "link").symlink_to(mine)
    os.utime(folder, (time.time() - OLD_S,) * 2)
    sweep()
    assert not folder.exists()
    assert (mine / "policy.c").is_file()


def test_every_temporary_folder_is_made_by_the_one_maker():
    sources = Path(quarl.__file__).parent.rglob("*.py")
    made = [path.name for path in sources if re.search(r"mkdtemp|TemporaryDirectory|NamedTemporary", path.read_text())]
    assert made == ["files.py"]
