"""The sweep of trainings: every cell is trained once, rows are paired with the fp32 agent of their seed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import contracts
from quarl.cli import main
from quarl.config import SweepConfig
from quarl.errors import QuarlError
from quarl.experiments import bits, bits_rows
from quarl.experiments.alone import Errands
from quarl.experiments.bits import Played
from quarl.experiments.methods.cells import Cells
from quarl.folder import locked
from quarl.quant.spec import QuantSpec

WORDS = [
    "sweep",
    "--algo",
    "a2c",
    "--env",
    "CartPole-v1",
    "-n",
    "400",
    "--bits",
    "4",
    "--seeds",
    "1",
    "--episodes",
    "4",
]


def test_a_sweep_trains_quantises_and_compares_and_goes_on_where_it_was(tmp_path: Path, capsys: Any):
    words = [*WORDS, "-o", str(tmp_path), "--json", str(tmp_path / "copy.json")]
    assert main(words) == 0
    document = json.loads((tmp_path / "rows.json").read_text())
    contracts.check(document)
    contracts.check(json.loads((tmp_path / "summary.json").read_text()))
    found = [(row["method"], row["precision"], row["seed"]) for row in document["rows"]]
    assert found == [("fp32", "fp32", 0), ("ptq", "int4", 0), ("qat", "int4", 0)]
    assert all(row["episodes"] == 4 for row in document["rows"])
    assert (tmp_path / "return-against-bits.png").stat().st_size > 10_000
    cells = {path: path.read_bytes() for path in (tmp_path / "cells").iterdir()}
    assert {path.name for path in cells} == {"fp32-0.json", "w4a8-0.json"}
    (tmp_path / "cells" / "w4a8-0.json").unlink()
    capsys.readouterr()
    assert main(words) == 0
    assert "quarl: w4a8-0" in (said := capsys.readouterr().err)
    assert "fp32-0" not in said
    again = json.loads((tmp_path / "rows.json").read_text())["rows"]
    # a training of the same seed is the same training
    assert [row["mean"] for row in again] == [row["mean"] for row in document["rows"]]


def test_a_training_that_was_broken_off_is_gone_on_with(tmp_path: Path):
    words = [*WORDS, "--algo", "dqn", "--env", "Acrobot-v1", "-n", "5000", "--methods", "ptq"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert main([*words, "-o", str(whole)]) == 0

    command = [sys.executable, "-m", "quarl", *words, "-o", str(broken)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not list(broken.glob("runs/*/dqn/*/checkpoint-0000002*")):
        assert process.poll() is None
        time.sleep(0.005)
    process.kill()
    process.wait()
    (begun,) = broken.glob("runs/*/dqn/*")
    (begun / "of-the-first").touch()
    assert main([*words, "-o", str(broken)]) == 0

    assert list(broken.glob("runs/*/dqn/*")) == [begun]
    assert (begun / "of-the-first").exists()  # it was not begun again
    played = [json.loads((folder / "cells/fp32-0.json").read_text())["played"] for folder in (whole, broken)]
    assert played[0] == played[1]


def test_other_options_are_not_taken_for_the_same_cell(tmp_path: Path, capsys: Any):
    assert main([*WORDS, "--methods", "ptq", "-o", str(tmp_path)]) == 0
    assert main([*WORDS, "--methods", "ptq", "-o", str(tmp_path), "-n", "500"]) == 2
    assert "was measured with another" in capsys.readouterr().err


def test_another_agent_in_the_same_file_is_not_taken_for_the_one_that_was_measured(
    small_agents: Path, tmp_path: Path, capsys: Any
):
    agent = tmp_path / "agent.zip"
    agent.write_bytes((small_agents / "zoo/dqn/CartPole-v1_1/CartPole-v1.zip").read_bytes())
    out = tmp_path / "out"
    words = ["sweep", "--env", "CartPole-v1", "--bits", "4", "--seeds", "1", "--episodes", "4", "--algo", "dqn"]
    words += ["--methods", "ptq", "-i", str(agent), "-o", str(out)]
    assert main(words) == 0
    agent.write_bytes((small_agents / "zoo/a2c/CartPole-v1_1/CartPole-v1.zip").read_bytes())
    assert main([*words, "--algo", "a2c"]) == 2
    assert "was measured with another" in capsys.readouterr().err


def test_an_agent_that_is_replaced_while_it_is_measured_is_no_result(
    small_agents: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
):
    agent, out = tmp_path / "agent.zip", tmp_path / "out"
    agent.write_bytes((small_agents / "zoo/dqn/CartPole-v1_1/CartPole-v1.zip").read_bytes())
    run = Errands.run

    def replacing(self: Errands, name: str, work: Any) -> Any:
        found = run(self, name, work)
        agent.write_bytes((small_agents / "zoo/a2c/CartPole-v1_1/CartPole-v1.zip").read_bytes())
        return found

    words = ["sweep", "--env", "CartPole-v1", "--bits", "4", "--seeds", "1", "--episodes", "4", "--algo", "dqn"]
    with monkeypatch.context() as patched:
        patched.setattr(Errands, "run", replacing)
        assert main([*words, "--methods", "ptq", "-i", str(agent), "-o", str(out)]) == 2
    assert "was replaced while it was measured" in capsys.readouterr().err
    assert not list(out.glob("cells/*.json"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--env", "CartPol-v1"], "did you mean 'CartPole-v1'"),
        (["--algo", "ddpg"], "ddpg needs a continuous action space"),
        (["-i", "none.zip"], "none.zip"),
        (["--methods", "ptq", "--qat-ranges", "lsq"], "--qat-ranges belongs to --methods qat: drop it"),
        (["--methods", "ptq", "--quant-delay", "5"], "--quant-delay belongs to --methods qat: drop it"),
        (["--methods", "ptq", "-i", "{}"], "--n-timesteps is of trainings, and with --trained-agent and --methods ptq"),
        (["--algo", "ppo", "-n", "512", "--quant-delay", "500"], "the last rollout of this run starts at"),
        (["--params", "lerning_rate:1e-3"], "did you mean 'learning_rate'"),
        (["-i", "{}", "--algo", "ppo"], "dqn"),
    ],
)
def test_what_every_training_would_fail_by_is_one_line(
    words: list[str], said: str, small_agents: Path, tmp_path: Path, capsys: Any
):
    agent = str(small_agents / "zoo/dqn/CartPole-v1_1/CartPole-v1.zip")
    assert main([*WORDS, *(word.format(agent) for word in words), "-o", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert not (tmp_path / "out").exists()


def test_a_delay_is_compared_with_the_tuned_length_where_none_is_given(tmp_path: Path, capsys: Any):
    config = SweepConfig(algo="dqn", quant_delay=20_000, output=tmp_path)
    config.check()
    bits.check(config)
    assert main(["sweep", "--algo", "dqn", "--quant-delay", "50000", "-o", str(tmp_path)]) == 2  # the zoo's own length
    assert "--quant-delay 50,000 is not within the run of 50,000 steps" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_length_of_trainings_may_be_a_hyperparameter(tmp_path: Path):
    config = SweepConfig(algo="dqn", params=("n_timesteps:2000",), output=tmp_path)
    assert bits._steps(config) == 2000
    assert bits._steps(SweepConfig(algo="dqn", n_timesteps=300, params=config.params, output=tmp_path)) == 300


def test_an_agent_is_found_in_its_run_folder(small_agents: Path, tmp_path: Path):
    words = ["sweep", "--algo", "dqn", "--env", "CartPole-v1", "--methods", "ptq", "--bits", "8", "--episodes", "2"]
    folder = small_agents / "zoo/dqn/CartPole-v1_1"
    assert main([*words, "--seeds", "1", "-i", str(folder), "-o", str(tmp_path)]) == 0
    (cell,) = (tmp_path / "cells").iterdir()
    named = json.loads(cell.read_text())["settings"]["trained_agent"]
    assert named == bits.digest(folder / "CartPole-v1.zip")


def test_when_the_time_is_over_nothing_begins(tmp_path: Path, capsys: Any):
    rows = tmp_path / "rows-of-another-run.json"
    rows.write_text('{"rows": ["old"]}')
    assert main([*WORDS, "--minutes", "0", "-o", str(tmp_path / "out"), "--json", str(rows)]) == 0
    assert json.loads(rows.read_text())["rows"] == []
    assert "2 trainings to go" in capsys.readouterr().out


def test_two_sweeps_in_one_folder_exclude_each_other(tmp_path: Path, capsys: Any):
    with locked(tmp_path):
        assert main([*WORDS, "-o", str(tmp_path)]) == 2
    assert f"another quarl run is at work in {tmp_path}" in capsys.readouterr().err
    assert list((tmp_path / "cells").iterdir()) == []


def test_a_training_that_fails_is_said_and_the_others_go_on(tmp_path: Path, capsys: Any):
    # the later option counts
    words = [*WORDS, "--algo", "dqn", "-n", "200", "--seeds", "2", "--methods", "ptq", "-o", str(tmp_path)]
    assert main([*words, "--params", "learning_rate:1e30", "learning_starts:20", "train_freq:4"]) == 2
    said = capsys.readouterr().err
    for name in ("fp32-0", "fp32-1"):
        assert f"failed: {name}: training diverged" in said
    assert "trainings failed: fp32-0, fp32-1" in said
    assert not list((tmp_path / "cells").iterdir())


def played(method: str, precision: str, seed: int, returns: list[float]) -> Played:
    return Played(method, QuantSpec.parse(precision), seed, np.array(returns), True, 100, 1.0)


def test_summaries_pair_each_seed_with_its_own_fp32_agent():
    config = SweepConfig(bits=("4",), seeds=2)
    found = [
        played("fp32", "fp32", 0, [100.0] * 5),
        played("fp32", "fp32", 1, [200.0] * 5),
        played("ptq", "4", 0, [50.0] * 5),
        played("ptq", "4", 1, [100.0] * 5),
        played("qat", "4", 0, [99.0] * 5),
        played("qat", "4", 1, [199.0] * 5),
    ]
    exact, ptq, qat = bits_rows.summaries(config, found)
    assert (exact.mean, exact.error_pct, exact.gain) == (150.0, 0.0, None)
    assert (ptq.mean, ptq.error_pct, ptq.error_low, ptq.error_high) == (75.0, 50.0, 50.0, 50.0)
    assert not ptq.noninferior
    assert qat.noninferior
    assert qat.gain == 74.0
    half = 12.7062 * 25  # Student's t of 1 degree of freedom, and the standard error of 49 and 99
    assert (qat.gain_low, qat.gain_high) == pytest.approx((74 - half, 74 + half), rel=1e-4)
    assert [row.error_pct for row in bits_rows.rows(config, found)] == [0.0, 0.0, 50.0, 50.0, 1.0, 0.5]


def test_seeds_whose_fp32_agent_is_missing_have_no_rows(tmp_path: Path):
    config = SweepConfig(bits=("4",))
    assert bits_rows.rows(config, [played("qat", "4", 0, [1.0])]) == []
    assert bits_rows.summaries(config, [played("qat", "4", 0, [1.0])]) == []
    assert bits.num_cells(config) == 6
    assert Cells(tmp_path, 1, print).missing == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": ("1",)}, "2..16"),
        ({"bits": ()}, "at least one"),
        ({"methods": ("awq",)}, "unknown method 'awq'"),
        ({"algo": "ppq"}, "did you mean 'ppo'"),
        ({"n_timesteps": 100, "quant_delay": 100}, "not within the run"),
        ({"margin": 0.0}, "--margin"),
        ({"seeds": 0}, "--seeds"),
        ({"bits": ("8", "4", "int8")}, "--bits 8 and int8 are the same precision: name it once"),
        ({"bits": ("8", "8")}, "--bits 8 and 8 are the same precision: name it once"),
        ({"minutes": -1.0}, "--minutes must not be negative, got -1"),
        ({"minutes": float("nan")}, "--minutes must not be negative, got nan"),
    ],
)
def test_what_cannot_be_swept_is_refused_before_anything_is_trained(options: Any, message: str, tmp_path: Path):
    with pytest.raises(QuarlError, match=message):
        SweepConfig(**options, output=tmp_path).check()


def test_every_training_and_evaluation_plays_what_the_environment_is_told(needs: str, tmp_path: Path):
    words = ["sweep", "--algo", "ppo", "--env", needs, "--env-kwargs", "target:0.25", "--max-episode-steps", "8"]
    words += [
        "-n",
        "128",
        "--bits",
        "8",
        "--seeds",
        "1",
        "--methods",
        "ptq",
        "--episodes",
        "3",
        "--params",
        "n_steps:64",
    ]
    assert main([*words, "--json", "rows.json"]) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert [(row["method"], row["mean"]) for row in rows] == [("fp32", 2.0), ("ptq", 2.0)]
