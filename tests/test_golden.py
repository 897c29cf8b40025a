"""Folders and files that an earlier version left (tests/golden) are read, gone on with, or answered with one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import quarl
from quarl.cli import main

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(autouse=True)
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy that may be gone on with, as the working directory."""
    shutil.copytree(GOLDEN, tmp_path / "golden")
    monkeypatch.chdir(tmp_path / "golden")
    return tmp_path / "golden"


@pytest.mark.parametrize(
    ("file", "actions"),
    [
        ("train/dqn/CartPole-v1_1/CartPole-v1.quarl", "0000000000100000000000000000000000000000"),
        ("train/dqn/CartPole-v1_1/CartPole-v1.zip", "0000000000100000000000000000000000000000"),
        ("actorq/policy-int8.safetensors", "1100100011110001101101110001110001010100"),
        ("actorq/policy-fp32.safetensors", "1100100011110001101101110001110001010100"),
    ],
)
def test_a_policy_acts_as_it_did(file: str, actions: str) -> None:
    agent = quarl.load(file)
    observations = np.random.default_rng(0).normal(0, 1, (40, 4)).astype(np.float32)
    assert "".join(str(int(agent.predict(observation)[0])) for observation in observations) == actions


@pytest.mark.slow
def test_a_run_that_trains_for_a_precision_goes_on(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--algo", "dqn", "--env", "CartPole-v1", "-f", "train", "-n", "1200", "--resume", "--json", "rows.json"]
    assert main(["train", *words]) == 0
    [row] = json.loads((copy / "rows.json").read_text())["rows"]
    assert row["timesteps"] >= 1200
    assert row["precision"] == "w4a8"
    assert row["switched_at"] < 600  # quantisation began before the checkpoint, and is not begun anew


@pytest.mark.slow
def test_a_run_of_actorq_goes_on(copy: Path) -> None:
    before = last_step(copy)
    assert main(["actorq", "-o", "actorq", "-n", "900", "--resume", "--json", "rows.json"]) == 0
    [row] = json.loads((copy / "rows.json").read_text())["rows"]
    assert (row["algo"], row["env_id"], row["timesteps"]) == ("dqn", "CartPole-v1", 900)
    assert row["updates"] > 138  # those of the checkpoint
    assert last_step(copy) > before


def last_step(folder: Path) -> int:
    """Updates of the newest checkpoint."""
    return max(int(path.stem.rpartition("-")[2]) for path in (folder / "actorq").glob("checkpoint-*.safetensors"))


def test_a_study_has_nothing_left_to_do(copy: Path) -> None:
    then = json.loads((copy / "rows.json").read_text())["rows"]
    assert main(["study", "run", "small.yml", "-o", "study", "--json", "now.json"]) == 0
    now = json.loads((copy / "now.json").read_text())["rows"]
    # seconds too: nothing was measured anew
    assert [{key: row[key] for key in old} for old, row in zip(then, now, strict=True)] == then
