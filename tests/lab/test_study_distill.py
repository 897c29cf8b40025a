"""The method distill: what determines its cells, what they leave, and that they go on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import contracts
from quarl.cli import main
from quarl.errors import QuarlError
from quarl.lab import file
from quarl.lab.plan import plan
from quarl.lab.store import Store
from waiting import PATIENCE_S

pytestmark = pytest.mark.usefixtures("elsewhere")

Write = Callable[..., Path]
DQN = "{algo: dqn, env: CartPole-v1, source: 'zoo:sb3'}"
TRAINED = "{algo: a2c, env: CartPole-v1, source: train, n_timesteps: 64, deterministic: true}"
SHORT = "rounds: 2, updates: 20, states: 100, validation: 10"


def distilled(text: str = f"precision: int2e8, {SHORT}") -> str:
    return f"{{method: fp32}}\n{{method: distill, {text}}}"


def test_every_setting_and_the_margin_determine_a_cell(study_file: Write):
    def keys(text: str, head: str = "") -> list[tuple[str, str]]:
        policy = "{algo: dqn, env: CartPole-v1, source: 'zoo:zoo'}"
        cells = plan(file.read(str(study_file(policy, distilled(text), head))))[1:]
        assert {cell.method for cell in cells} == {"distill"}
        return [(cell.precision, cell.key) for cell in cells]

    plain = keys("precision: [4, 2, int2e6]")
    assert [precision for precision, _ in plain] == ["int4e8", "int2e8", "int2e6"]
    said = keys("precision: [4, 2, int2e6], rounds: 8, updates: 1000, states: 1900, validation: 40")
    assert said == plain  # these are the defaults
    narrow = keys("precision: [4, 2, int2e6], edge_bits: same")
    assert [precision for precision, _ in narrow] == ["int4", "int2", "int2e6"]
    assert narrow[2] == plain[2]
    others = [keys(f"precision: 4, {other}") for other in ("rounds: 7", "updates: 9", "states: 9", "validation: 9")]
    others += [
        keys("precision: 4, mode: static"),
        keys("precision: 4", "margin: 3"),
        keys("precision: 4", "seeds: [1]"),
    ]
    assert len({plain[0], *(key for (key,) in others)}) == 8


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("precision: fp16", "line 9: --bits fp16: distillation is for weights of 2 to 8 bits with integer activations"),
        ("precision: 4, rounds: 0", "line 9: --rounds must be at least 1"),
        ("precision: 4, updates: many", "line 9: --updates is 'many'; use a whole number"),
        ("precision: 4, scheme: naive", "line 9: unknown key 'scheme' of distill"),
    ],
)
def test_what_cannot_be_distilled_names_its_line(text: str, said: str, study_file: Write):
    with pytest.raises(QuarlError, match=said):
        file.read(str(study_file("{algo: dqn, env: CartPole-v1, source: 'zoo:zoo'}", distilled(text))))


@pytest.mark.slow
def test_a_killed_study_distils_again_and_its_rows_say_what_that_took(study_file: Write, agents: Path, tmp_path: Path):
    path = study_file(f"{DQN}\n{TRAINED}", distilled())
    words = ["study", "run", str(path), "--agents", str(agents), "-o", "out", "--json", "rows.json"]
    code = f"import sys; from quarl.cli import main; sys.exit(main({words!r}))"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, start_new_session=True) as started:
        deadline = time.monotonic() + PATIENCE_S
        log = tmp_path / "out" / "study.log"
        while not (log.is_file() and "distill int2e8 seed 0: round 1" in log.read_text()):
            assert time.monotonic() < deadline
            assert started.poll() is None
            time.sleep(0.1)
        os.killpg(started.pid, signal.SIGKILL)
    (round_1,) = [line for line in log.read_text().splitlines() if "round 1" in line]
    with Store(tmp_path / "out") as store:
        exact = store.records()[0]
        assert (exact.state, exact.method) == ("done", "fp32")
    assert main(words) == 0
    rows: list[dict[str, Any]] = contracts.read(tmp_path / "rows.json")["rows"]
    assert [(row["algo"], row["method"], row["state"]) for row in rows] == [
        (algo, method, "done") for algo in ("dqn", "a2c") for method in ("fp32", "distill")
    ]
    baseline, taught, _, kept = rows
    assert baseline["seconds"] == exact.seconds  # it was not played again
    assert log.read_text().count(round_1) == 2  # nor was what the first round did
    assert not list((tmp_path / "out" / "runs").glob("*/distillation"))
    assert (taught["precision"], taught["scheme"], taught["measured"]) == ("int2e8", "default", True)
    assert 2 < taught["bits_mean"] < 3
    assert taught["bytes_packed"] < baseline["bytes_packed"] / 8
    took = taught["distillation"]
    assert took["updates"] == 20 * took["round"]
    assert took["states"] in (0, 4196, 4296)  # of calibration, and what two rounds have met
    assert (took["validation_episodes"], len(taught["returns"])) == (40, 6)
    # a round before the kill counts, too, which the second attempt's seconds do not hold
    assert min(took["distillation_s"], took["validation_s"], taught["seconds"]) > 0
    assert taught["verdict"] == "undecided"  # of six episodes
    # untrained, it falls as soon with 2 bits: snapshot 0 is the answer, or the best of undecided ones
    assert kept["distillation"]["validation_mean"] < 100
    assert baseline["distillation"] is None
    assert main(words) == 0
    assert json.loads((tmp_path / "rows.json").read_text())["rows"] == rows
    assert main(["study", "report", "out"]) == 0
    report = json.loads((tmp_path / "out" / "trained.json").read_text())
    assert [(row["algo"], row["method"], row["precision"]) for row in report["rows"]] == [
        ("dqn", "distill", "int2e8"),
        ("a2c", "distill", "int2e8"),
    ]
    assert (tmp_path / "out" / "bits.png").is_file()
