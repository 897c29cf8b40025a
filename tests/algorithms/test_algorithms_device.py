"""The device that a learner is on is the one that was asked for."""

from __future__ import annotations

import pytest
import torch

from quarl.algorithms.learners import find_device
from quarl.cli import main


@pytest.mark.parametrize(
    "words",
    [["train", "--device", "cuda"], ["actorq", "--device", "cuda:1"]],
)
def test_a_gpu_that_is_not_there_is_refused(words, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(words) == 2
    assert f"--device {words[-1]}: PyTorch finds no GPU here; use auto or cpu" in capsys.readouterr().err
    assert find_device("auto").type == "cpu"
