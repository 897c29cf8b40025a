"""Work in processes of its own: what it returns, how it fails, and that nothing of it is left."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from quarl.experiments import nursery
from quarl.experiments.alone import Errands, Failed
from quarl.experiments.processes import memory_mb
from waiting import PATIENCE_S, until


def test_what_work_returns_comes_back_and_what_it_prints_goes_to_the_log(tmp_path: Path):
    with Errands(tmp_path / "log") as errands:
        assert errands.run("a", partial(pow, 7, 2)) == 49
        assert errands.run("b", partial(os.write, 1, b"said\n")) == 5
    assert (tmp_path / "log").read_text() == "said\n"


def test_work_that_fails_says_how(tmp_path: Path):
    with Errands(tmp_path / "log") as errands:
        with pytest.raises(Failed, match="a: ValueError: invalid literal"):
            errands.run("a", partial(int, "x"))
        with pytest.raises(Failed, match="b: its process ended with exit code 3"):
            errands.run("b", partial(os._exit, 3))
        with pytest.raises(Failed, match="c: its process was ended by SIGKILL"):
            errands.run("c", partial(os.kill, 0, 9))  # its own group
    assert "Traceback" in (tmp_path / "log").read_text()


def test_leaving_the_block_ends_what_runs(tmp_path: Path):
    heard: list[str] = []

    def wait() -> None:
        try:
            errands.run("a", partial(time.sleep, 600))
        except Failed as error:
            heard.append(str(error))

    thread = threading.Thread(target=wait)
    with Errands(tmp_path / "log") as errands:
        thread.start()
        until(lambda: errands._running)
    thread.join(PATIENCE_S)
    assert heard == ["a: its process was ended by SIGKILL"]


def test_a_process_of_any_name_is_counted():
    """The kernel cuts names at 15 bytes, and letters in two."""
    name = "b'\\xd0\\xbf' * 7 + b'\\xd0'"
    code = f"import ctypes, time; ctypes.CDLL(None).prctl(15, {name}); print(1, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, process_group=0) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            assert memory_mb({child.pid})[child.pid] > 1
        finally:
            child.kill()


def test_what_an_environment_raises_when_it_is_closed_is_its_cell_s_matter(monkeypatch):
    class Env:
        def close(self):
            raise OSError("no")

    made = []
    monkeypatch.setattr(nursery, "make", lambda env_id: made.append(env_id) or Env())
    nursery._load(["a", "b"], [])
    assert made == ["a", "b"]
