"""A tenth of stress.kills.study: kills inside cells, and rows that do not show them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from results import read
from waiting import PATIENCE_S

pytestmark = pytest.mark.slow


def test_a_study_that_is_killed_inside_its_cells_ends_in_the_rows_of_one_that_is_not(tmp_path: Path):
    words = ["--kills", "2", "--episodes", "100", "--n-timesteps", "5000", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "stress.kills.study", *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    (found,) = read("study-kills", "summary", root=tmp_path)
    assert (found["kills"], found["resumed"], found["rows_equal"], found["returns_equal"]) == (2, 2, True, True)
    assert (found["finished_cells_lost"], found["processes_left"]) == (0, 0)
    assert found["slowest_end_s"] < 2
