"""Work in processes of its own: what it returns, how it fails, and that nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from functools import partial
from multiprocessing.connection import Connection
from operator import call
from pathlib import Path
from typing import Any

import pytest

from quarl.errors import QuarlError
from quarl.processes.child import DEATHS, ONE_THREAD, Child, Children
from quarl.processes.inside import Result, attempt
from quarl.processes.pool import memory_mb
from waiting import until

pytestmark = pytest.mark.slow


def threads_by_variable() -> dict[str, str]:
    return {name: os.environ[name] for name in ONE_THREAD if name in os.environ}


def result(log: Path, work: Any, **options: Any) -> Result:
    child = Child("worker", call, work, log, apart=True, **options)
    child.start()
    return child.result


def test_what_work_returns_comes_back_and_what_it_prints_goes_to_the_log(tmp_path: Path):
    log = tmp_path / "log"
    assert result(log, partial(pow, 7, 2)).value == 49
    assert result(log, partial(os.write, 1, b"said\n")).value == 5
    assert log.read_text() == "said\n"


def test_work_computes_on_one_thread_and_its_parent_on_as_many_as_before(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setenv("MKL_NUM_THREADS", "2")
    assert result(tmp_path / "log", threads_by_variable).value == dict.fromkeys(ONE_THREAD, "1")
    assert threads_by_variable() == {"OPENBLAS_NUM_THREADS": "3", "MKL_NUM_THREADS": "2"}


def test_work_that_fails_says_how(tmp_path: Path):
    log = tmp_path / "log"
    assert result(log, partial(int, "x")).error.startswith("ValueError: invalid literal")
    assert "Traceback" in log.read_text()
    exited = result(log, partial(os._exit, 3))
    assert (exited.error, exited.cause) == ("its process ended with exit code 3", "exit code 3")
    killed = result(log, partial(os.kill, 0, signal.SIGKILL))  # its own group
    assert (killed.error, killed.cause) == ("its process was ended by SIGKILL", "killed by SIGKILL")


def test_a_mistake_is_told_from_a_fault_and_never_silent(tmp_path: Path):
    def raises(error: Exception) -> None:
        raise error

    mistake = attempt(partial(raises, QuarlError("no such file")), tmp_path / "log")
    assert (mistake.error, mistake.mistake, mistake.cause) == ("no such file", QuarlError, "")
    assert (tmp_path / "log").read_text() == "no such file\n"
    for silent in (QuarlError(), ValueError()):
        said = attempt(partial(raises, silent), tmp_path / "log")
        assert (said.error, said.mistake is not None) == (type(silent).__name__, isinstance(silent, QuarlError))
    assert attempt(partial(raises, ValueError("first\nsecond")), tmp_path / "log").error == "ValueError: first"


def echo(word: str, link: Connection) -> str:
    link.send(link.recv() + word)
    return "over"


def test_a_child_that_is_linked_is_spoken_with_before_its_result(tmp_path: Path):
    child = Child("worker", echo, "!", tmp_path / "log", linked=True)
    child.start()
    child.link.send("hello")
    assert child.hear() == "hello!"
    assert child.hear().value == "over"


def leave_one_behind(seconds: int) -> None:
    if not os.fork():
        time.sleep(seconds)
    os._exit(7)


def test_a_child_is_over_when_it_is_dead_whoever_holds_its_pipe(tmp_path: Path):
    child = Child("worker", leave_one_behind, 600, tmp_path / "log", apart=True)
    child.start()
    assert child.result.cause == "exit code 7"
    until(lambda: not memory_mb({child.group})[child.group])  # what it left ended with its group


def test_a_child_that_dies_is_started_again_until_it_has_died_too_often(tmp_path: Path):
    happened = []
    with closing(Children()) as children:
        child = Child("worker 0", int, "x", tmp_path / "log")
        children.start(child)
        while not child.parked:
            until(lambda: not child.alive())
            happened.append(children.revive(child))
    assert [event for event in happened if event] == (DEATHS - 1) * ["died"] + ["died 5 times in 60 s of work"]
    assert child.reason() == "ValueError: invalid literal for int() with base 10: 'x'"
    assert (tmp_path / "log").read_text().count("Traceback") == DEATHS


def test_no_child_is_left_when_its_supervisor_closes(tmp_path: Path):
    children = Children()
    members = [
        Child(f"worker {i}", time.sleep, 600, tmp_path / "log", apart=apart) for i, apart in enumerate((False, True))
    ]
    for child in members:
        children.start(child)
    assert children.alive() == members
    children.close()
    assert not children.alive()
    assert {child.result.cause for child in members} == {"killed by SIGKILL"}


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
