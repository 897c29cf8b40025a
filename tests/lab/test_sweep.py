"""A sweep is a study: every cell is measured once, rows are paired with the fp32 agent of their seed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

import contracts
from quarl.cli import main
from quarl.config import SweepConfig
from quarl.lab.commands import sweep
from quarl.lab.store import Store
from refusals import refused

pytestmark = pytest.mark.slow

WORDS = ["sweep", *("--algo", "a2c"), *("--env", "CartPole-v1"), *("-n", "400"), *("--bits", "4")]
WORDS += [*("--seeds", "1"), *("--episodes", "4")]


def test_a_sweep_trains_quantises_and_compares_and_goes_on_where_it_was(tmp_path: Path, capsys: Any):
    words = [*WORDS, "-o", str(tmp_path), "--json", str(tmp_path / "copy.json")]
    assert main(words) == 0
    document = contracts.read(tmp_path / "rows.json")
    contracts.read(tmp_path / "trained.json")
    copy = json.loads((tmp_path / "copy.json").read_text())
    assert (copy["rows"], copy["algo"], copy["env_id"]) == (document["rows"], "a2c", "CartPole-v1")
    found = [(row["method"], row["precision"], row["seed"]) for row in document["rows"]]
    assert found == [("fp32", "fp32", 0), ("ptq", "int4e8", 0), ("qat", "w4a8e8", 0)]
    assert all(row["episodes"] == 4 for row in document["rows"])
    assert (tmp_path / "bits.png").stat().st_size > 10_000
    with Store(tmp_path) as store:
        found = store.records()
        assert [(one.method, one.state) for one in found] == [(m, "done") for m in ("train", "fp32", "ptq", "qat")]
        store.again([found[-1].key])
    for path in (tmp_path / "runs" / found[-1].key).rglob("*.zip"):
        path.unlink()
    log = (tmp_path / "study.log").read_text()
    assert main(words) == 0
    with Store(tmp_path) as store:
        again = store.records()
    # a training of the same seed is the same training
    assert [one.result and one.result.get("returns") for one in again] == [
        one.result and one.result.get("returns") for one in found
    ]
    # what was done was not done again
    assert [one.seconds for one in again[:-1]] == [one.seconds for one in found[:-1]]
    assert again[-1].seconds != found[-1].seconds
    assert (tmp_path / "study.log").read_text() != log


def test_distilled_agents_stand_beside_those_that_are_quantised_alone(tmp_path: Path, capsys: Any):
    assert main([*WORDS, "--bits", "8", "--methods", "distill", "ptq", "-o", str(tmp_path)]) == 0
    assert [(row["method"], row["precision"]) for row in contracts.read(tmp_path / "rows.json")["rows"]] == [
        ("fp32", "fp32"),
        ("ptq", "int8"),
        ("distill", "int8"),
    ]
    (taught,) = json.loads((tmp_path / "trained.json").read_text())["rows"]
    assert (taught["method"], taught["precision"]) == ("distill", "int8")
    assert taught["gain"] == taught["trained"] - taught["ptq"]
    assert "Trained or distilled for the precision" in capsys.readouterr().out


def test_what_a_sweep_writes_is_a_study_with_its_cells(tmp_path: Path, capsys: Any):
    kept = tmp_path / "rows-of-another-run.json"
    kept.write_text('{"rows": ["old"]}')
    assert main([*WORDS, "--minutes", "0", "-o", str(tmp_path), "--json", str(kept)]) == 0
    assert [row["state"] for row in json.loads(kept.read_text())["rows"]] == ["todo"] * 3
    assert "4 cells to go" in capsys.readouterr().err
    assert main(["study", "run", str(tmp_path / "study.yml"), "-o", str(tmp_path), "--dry-run"]) == 0
    assert "a2c on CartPole-v1: 4 to do" in capsys.readouterr().out
    with Store(tmp_path) as store:
        assert len(store.states()) == 4


def test_a_training_that_was_broken_off_is_gone_on_with(tmp_path: Path):
    words = [*WORDS, "--algo", "dqn", "--env", "Acrobot-v1", "-n", "3000", "--methods", "ptq"]
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
    played = []
    for folder in (whole, broken):
        with Store(folder) as store:
            played.append([record.result and record.result.get("returns") for record in store.records()])
    assert played[0] == played[1]
    assert len(played[0][1]) == 4


def test_other_options_are_other_cells(tmp_path: Path):
    keys = []
    for steps in ("400", "500", "400"):
        assert main([*WORDS, "--methods", "ptq", "-o", str(tmp_path), "-n", steps]) == 0
        with Store(tmp_path) as store:
            keys.append({record.key: record.seconds for record in store.records()})
    assert keys[0] == keys[2]  # nothing was measured twice
    assert not set(keys[0]) & set(keys[1])


@pytest.mark.parametrize("method", ["ptq", "qat"])
def test_an_agent_that_was_replaced_since_the_plan_is_no_result(
    method: str, small_agents: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
):
    agent, out = tmp_path / "agent.zip", tmp_path / "out"
    agent.write_bytes((small_agents / "zoo/dqn/CartPole-v1_1/CartPole-v1.zip").read_bytes())
    ask = Store.ask

    def replacing(self: Store, *arguments: Any) -> None:
        ask(self, *arguments)
        agent.write_bytes((small_agents / "zoo/a2c/CartPole-v1_1/CartPole-v1.zip").read_bytes())

    words = ["sweep", "--env", "CartPole-v1", "--bits", "4", "--seeds", "1", "--episodes", "4", "--algo", "dqn"]
    words += ["-n", "500", "--params", "learning_starts:50"] if method == "qat" else []
    with monkeypatch.context() as patched:
        patched.setattr(Store, "ask", replacing)
        assert main([*words, "--methods", method, "-i", str(agent), "-o", str(out)]) == 2
    failures = [line for line in capsys.readouterr().out.splitlines() if line.startswith("failed: ")]
    assert len(failures) == 2
    with Store(out) as store:
        assert all("is another file than when the study was planned" in str(one.error) for one in store.records())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--env", "CartPol-v1"], "did you mean 'CartPole-v1'"),
        (["--algo", "ddpg"], "ddpg needs a continuous action space"),
        (["-i", "none.zip"], "none.zip"),
        (["--methods", "ptq", "--quant-delay", "5"], "--quant-delay requires --methods qat: drop it"),
        (["--methods", "ptq", "-i", "{}"], "--n-timesteps requires a training, and --trained-agent with --methods ptq"),
        (["--algo", "ppo", "-n", "512", "--quant-delay", "500"], "the last rollout of this run starts at"),
        (["--params", "lerning_rate:1e-3"], "did you mean 'learning_rate'"),
        (["-i", "{}", "--algo", "ppo"], "dqn"),
    ],
)
def test_what_every_training_would_fail_by_is_one_line(
    words: list[str], said: str, small_agents: Path, tmp_path: Path, capsys: Any
):
    agent = str(small_agents / "zoo/dqn/CartPole-v1_1/CartPole-v1.zip")
    assert said in refused(capsys, *WORDS, *(word.format(agent) for word in words), "-o", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_delay_is_compared_with_the_tuned_length_where_none_is_given(tmp_path: Path, capsys: Any):
    config = SweepConfig(algo="dqn", quant_delay=20_000, output=tmp_path)
    config.check()
    assert sweep.check(config).n_timesteps == 50_000
    assert main(["sweep", "--algo", "dqn", "--quant-delay", "50000", "-o", str(tmp_path)]) == 2  # the zoo's own length
    assert "--quant-delay 50,000 is beyond the run's 50,000 steps" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_length_of_trainings_may_be_a_hyperparameter(tmp_path: Path):
    config = SweepConfig(algo="dqn", params=("n_timesteps:2000",), output=tmp_path)
    assert sweep.length(config) == 2000
    assert sweep.length(SweepConfig(algo="dqn", n_timesteps=300, params=config.params, output=tmp_path)) == 300


def test_an_agent_is_found_in_its_run_folder(small_agents: Path, tmp_path: Path):
    words = ["sweep", "--algo", "dqn", "--env", "CartPole-v1", "--methods", "ptq", "--bits", "8", "--episodes", "2"]
    folder = small_agents / "zoo/dqn/CartPole-v1_1"
    assert main([*words, "--seeds", "1", "-i", str(folder), "-o", str(tmp_path)]) == 0
    study = yaml.safe_load((tmp_path / "study.yml").read_text())
    assert study["policies"][0]["source"] == f"file:{folder / 'CartPole-v1.zip'}"
    with Store(tmp_path) as store:
        assert [record.state for record in store.records()] == ["done", "done"]


def test_a_training_that_fails_is_said_and_the_others_go_on(tmp_path: Path, capsys: Any):
    # the later option counts
    words = [*WORDS, "--algo", "dqn", "-n", "200", "--seeds", "2", "--methods", "ptq", "-o", str(tmp_path)]
    assert main([*words, "--params", "learning_rate:1e30", "learning_starts:20", "train_freq:4"]) == 2
    said = capsys.readouterr().out
    assert said.count("failed: dqn CartPole-v1 train fp32 default: training diverged") == 2
    with Store(tmp_path) as store:
        assert {record.state for record in store.records()} == {"failed"}


def test_every_training_and_evaluation_plays_what_the_environment_is_told(needs: str, tmp_path: Path):
    words = ["sweep", "--algo", "ppo", "--env", needs, "--env-kwargs", "target:0.25", "--max-episode-steps", "8"]
    words += ["-n", "128", "--bits", "8", "--seeds", "1", "--methods", "ptq", "--episodes", "3"]
    words += ["--params", "n_steps:64"]
    assert main([*words, "--json", "rows.json"]) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert [(row["method"], row["mean"]) for row in rows] == [("fp32", 2.0), ("ptq", 2.0)]
