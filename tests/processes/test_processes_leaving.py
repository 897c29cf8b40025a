"""A process that is done ends, whatever threads are left behind."""

from __future__ import annotations

import subprocess
import sys

import pytest

from waiting import PATIENCE_S

pytestmark = pytest.mark.slow

ENDLESS = "threading.Thread(target=threading.Event().wait, name='bridge').start(); "
BRIEF = "threading.Thread(target=time.sleep, args=(0.2,), name='brief').start(); "
CHILD = "multiprocessing.get_context('fork').Process(target=time.sleep, args=(60,), daemon=True).start(); "
LEAVE = (
    "import multiprocessing, sys, threading, time; from quarl import cli; "
    "cli._run = lambda words: exec(words[0]) or int(words[1]); sys.exit(cli.main())"
)


@pytest.mark.parametrize(
    ("left", "code", "said"),
    [
        (ENDLESS + "print('written')", 0, "quarl: left behind threads that still run: bridge\n"),
        (ENDLESS + CHILD + "print('written')", 130, "quarl: left behind threads that still run: bridge\n"),
        (BRIEF + "print('written')", 4, ""),
    ],
)
def test_the_program_ends_with_its_code_when_all_is_written_and_names_the_threads(left, code, said):
    done = subprocess.run(
        [sys.executable, "-c", LEAVE, left, str(code)], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (done.stdout, done.stderr, done.returncode) == ("written\n", said, code)


def test_a_traceback_is_shown_and_the_program_ends():
    left = ENDLESS + "raise RuntimeError('ours')"
    done = subprocess.run([sys.executable, "-c", LEAVE, left, "0"], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback (most recent call last):")
    assert done.stderr.splitlines()[-2:] == [
        "RuntimeError: ours",
        "quarl: left behind threads that still run: bridge",
    ]
