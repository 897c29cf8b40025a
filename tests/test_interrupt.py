"""Signals that a run is asked to end by."""

from __future__ import annotations

import subprocess
import sys

import pytest

from waiting import PATIENCE_S

CODE = """
import os, signal, sys
from quarl.interrupt import Interrupts
if sys.argv[1] == "nohup":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
with Interrupts(lambda: print("killed", flush=True)) as interrupts:
    for name in sys.argv[2:]:
        os.kill(os.getpid(), getattr(signal, name))
        print(interrupts.number, flush=True)
"""


@pytest.mark.parametrize(
    ("start", "signals", "said", "code"),
    [
        ("shell", ["SIGHUP"], ["1"], 0),
        ("nohup", ["SIGHUP", "SIGTERM"], ["None", "15"], 0),
        ("shell", ["SIGINT", "SIGTERM"], ["2", "killed"], 128 + 15),
    ],
)
def test_the_first_signal_is_remembered_the_second_ends_the_run_and_nohup_is_respected(start, signals, said, code):
    done = subprocess.run(
        [sys.executable, "-c", CODE, start, *signals], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (done.stdout.split(), done.returncode) == (said, code)
