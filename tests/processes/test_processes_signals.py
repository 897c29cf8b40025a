"""Signals that a run is asked to end by."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from quarl.processes import signals
from waiting import PATIENCE_S

CODE = """
import os, signal, sys
from quarl.processes import signals
now = 0.0
signals.time.monotonic = lambda: now
if sys.argv[1] == "nohup":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
with signals.Interrupts(lambda: print("killed", flush=True), "stopping\\n") as interrupts:
    for word in sys.argv[2:]:
        name, _, after = word.partition("@")
        now += float(after or 0)
        os.kill(os.getpid(), getattr(signal, name))
        print(interrupts.number, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "sent", "said", "code"),
    [
        ("shell", ["SIGHUP"], ["1"], 0),
        ("nohup", ["SIGHUP", "SIGTERM"], ["None", "15"], 0),
        ("shell", ["SIGINT", "SIGTERM@3"], ["2", "killed"], 128 + 15),
        ("shell", ["SIGINT", "SIGINT@0.02"], ["2", "2"], 0),
        ("shell", ["SIGTERM", "SIGHUP@0.02", "SIGTERM@2.9"], ["15"] * 3, 0),
        ("shell", ["SIGTERM", "SIGHUP@0.02", "SIGTERM@3"], ["15", "15", "killed"], 128 + 15),
    ],
)
def test_what_comes_with_the_first_signal_is_the_same_wish_and_a_later_one_ends_the_run(start, sent, said, code):
    done = subprocess.run(
        [sys.executable, "-c", CODE, start, *sent], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (done.stdout.split(), done.returncode) == (said, code)
    assert done.stderr == "stopping\n"


@pytest.fixture
def clock(monkeypatch):
    """[seconds], which tests move."""
    now = [0.0]
    monkeypatch.setattr(signals.time, "monotonic", lambda: now[0])
    return now


def test_what_comes_with_the_first_ctrl_c_does_not_break_the_tidying_off(clock):
    tidied = []

    def verb():
        try:
            os.kill(os.getpid(), signal.SIGINT)
        finally:
            clock[0] = 0.02
            os.kill(os.getpid(), signal.SIGINT)
            tidied.append(True)
            clock[0] = signals.AGAIN_S
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt), signals.ctrl_c():
        verb()
    assert tidied


def test_a_signal_that_comes_when_the_run_has_just_ended_is_still_the_first_ones(clock):
    before = signal.getsignal(signal.SIGINT)
    with signals.ctrl_c():
        with signals.Interrupts(lambda: None) as interrupts:
            os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.number == signal.SIGINT
        os.kill(os.getpid(), signal.SIGINT)
        clock[0] = signals.AGAIN_S
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
