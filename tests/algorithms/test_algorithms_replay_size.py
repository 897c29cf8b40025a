"""A replay that does not fit is refused before anything is trained, with the size of one that does."""

from __future__ import annotations

import re

import pytest

from quarl.algorithms import learners
from quarl.cli import main

pytestmark = pytest.mark.usefixtures("elsewhere")

IMAGES = "difficult_environments:Images-v0"
ROW = 2 * 4 * 84 * 84 + 8 + 16
"""Bytes: two observations, the action, and reward, end and time limit."""


@pytest.mark.parametrize("words", [["train", "--params"], ["actorq", "--params", "learning_starts:100"]])
def test_a_replay_that_does_not_fit_is_refused_with_a_number_that_fits(words, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(learners, "free_bytes", lambda: 3_000_000_000)
    words = [words[0], "--algo", "dqn", "--env", IMAGES, "-n", "200000", *words[1:]]
    assert main([*words, "buffer_size:100000"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == (
        f"quarl: a replay of 100,000 steps takes {100_000 * ROW / 1e9:.3g} GB, and 3 GB of memory are free: use "
        "--params buffer_size:42000"
    )
    assert list(tmp_path.iterdir()) == []
    offered = int(re.search(r"buffer_size:(\d+)", said)[1])
    assert 0.75 * 3e9 < offered * ROW <= 0.8 * 3e9


@pytest.mark.slow
def test_a_run_that_ends_before_the_replay_is_full_takes_less(tmp_path, monkeypatch):
    needed = 20 * ROW
    words = ["train", "--algo", "dqn", "--env", IMAGES, "-n", "20", "--eval-episodes", "0", "--params"]
    words += ["buffer_size:10000", "learning_starts:19", "batch_size:4"]
    monkeypatch.setattr(learners, "free_bytes", lambda: 1.2 * needed)
    assert main(words) == 2
    monkeypatch.setattr(learners, "free_bytes", lambda: 1.3 * needed)
    assert main(words) == 0
    monkeypatch.setattr(learners, "free_bytes", lambda: None)  # where the system does not say it
    assert main(words) == 0
