"""The scripts of examples/, each started in an empty folder as a reader would: `make docs-test`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
MAX_LINES = 40
TIMEOUT_S = 600
RUNS = {
    "a_study": ("--n 2000 --episodes 3", ("mine.yml", "study/study.sqlite", "study/report.html")),
    "actorq_on_your_environment": ("--n 2000", ("run/model.zip", "run/policy-int8.safetensors", "run/metrics.jsonl")),
    "qat_in_your_script": ("--n 4000 --episodes 3", ("cartpole.zip", "cartpole-w4a8.quarl")),
    "save_for_a_device": ("--n 2000", ("policy.tflite", "policy.onnx")),
    "your_module": ("", ("pendulum-int8.quarl", "pendulum-int4.quarl")),
    "your_zip": ("--n 3000 --episodes 3", ("model.zip", "policy.quarl")),
}
"""Example: arguments that shorten it, and what it leaves behind."""
SAID = {"save_for_a_device": "100% of 200 actions agree"}


def test_there_are_six_of_forty_lines_at_most_that_say_what_they_do():
    assert [path.stem for path in EXAMPLES] == sorted(RUNS)
    for path in EXAMPLES:
        lines = path.read_text().splitlines()
        assert len(lines) <= MAX_LINES
        assert f"python {path.name}" in lines[0]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_in_an_empty_folder_and_leaves_its_files(path, tmp_path):
    arguments, files = RUNS[path.stem]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, path, *arguments.split()]
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert SAID.get(path.stem, "") in done.stdout
    for name in files:
        assert (tmp_path / name).stat().st_size > 0
