"""Work in processes of its own: what it returns, how it fails, and that nothing of it is left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

import pytest

from quarl.experiments import nursery
from quarl.experiments.alone import Alone
from quarl.experiments.processes import memory_mb


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., Alone]]:
    """Begins work that ends with the test."""
    life, held = Pipe(duplex=False)
    begun: list[Alone] = []

    def start(work: Callable[[], Any]) -> Alone:
        begun.append(Alone("test", work, life, tmp_path / "log"))
        return begun[-1]

    yield start
    held.close()
    for one in begun:
        one.end()


def test_what_work_returns_comes_back_and_what_it_prints_goes_to_the_log(begin: Callable[..., Alone], tmp_path: Path):
    assert begin(partial(pow, 7, 2)).hear().found == 49
    assert begin(partial(os.write, 1, b"said\n")).hear().found == 5
    assert (tmp_path / "log").read_text() == "said\n"


def test_work_that_fails_says_how(begin: Callable[..., Alone], tmp_path: Path):
    assert begin(partial(int, "x")).hear().error.startswith("ValueError: invalid literal")
    assert begin(partial(os._exit, 3)).hear().error == "its process ended with exit code 3"
    assert begin(partial(os.kill, 0, 9)).hear().error == "its process was ended by SIGKILL"  # its own group
    assert "Traceback" in (tmp_path / "log").read_text()


def test_work_that_is_ended_says_so(begin: Callable[..., Alone]):
    work = begin(partial(time.sleep, 600))
    work.end()
    assert work.hear().error == "its process was ended by SIGKILL"


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
