"""The guard of the default tier, the list of smoke tests, and the parts that continuous integration runs."""

from __future__ import annotations

import multiprocessing
import re
import runpy
import subprocess
from pathlib import Path

import pytest
import torch

import tiers

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_guard_fails_a_test_that_starts_a_process(method):
    with pytest.raises(pytest.fail.Exception, match=r"starts a process \(true\): mark it with pytest.mark.slow"):
        subprocess.run(["true"], check=True)
    with pytest.raises(pytest.fail.Exception, match="starts a process"):
        multiprocessing.get_context(method).Process(target=print).start()


def test_guard_fails_a_test_that_trains_for_long():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    for _ in range(tiers.MAX_OPTIMIZER_STEPS):
        optimizer.step()
    with pytest.raises(pytest.fail.Exception, match=f"more than {tiers.MAX_OPTIMIZER_STEPS} optimizer steps"):
        optimizer.step()


def test_lists_name_tests_that_exist():
    assert 0 < len(set(tiers.SMOKE)) == len(tiers.SMOKE) <= tiers.MAX_SMOKE
    for name in (*tiers.SMOKE, *tiers.SAMPLED):
        file, _, test = name.partition("[")[0].partition("::")
        before, found, _ = (ROOT / "tests" / file).read_text().partition(f"\ndef {test}(")
        assert found, name
        assert (
            name in tiers.SAMPLED
            or "pytest.mark.slow" in before.rpartition("\n\n\n")[2]
            or re.search(r"\npytestmark = \[?pytest\.mark\.slow", before)
        ), name


def test_a_quarter_of_a_sampled_test_is_drawn():
    left_out = [tiers.is_left_out(f"{tiers.SAMPLED[0]}[{case}]") for case in range(400)]
    assert 260 < sum(left_out) < 340  # binomial, 300 of 400, 4.6 standard deviations


@pytest.mark.parametrize(
    ("name", "paths"),
    [
        ("src/quarl/commands/actorq.py", ["tests/actorq", "tests/cluster", "tests/test_*.py"]),
        ("src/quarl/report/tables.py", ["tests/report", "tests/test_*.py"]),
        ("tests/report/conftest.py", ["tests/report"]),
        ("tests/report/test_report_page.py", ["tests/report/test_report_page.py"]),
        ("docs/index.md", ["tests/docs", "tests/test_documents.py", "tests/test_repository.py"]),
    ],
)
def test_a_changed_file_brings_the_slow_tests_of_its_part(name, paths):
    assert runpy.run_path(str(ROOT / ".ci" / "parts.py"))["touched"](name) == paths
