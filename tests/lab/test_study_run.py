"""Runs of real studies: rows are those of the other verbs, cells are isolated, and everything goes on where it was."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import contracts
from quarl.calibration import quantize
from quarl.cli import main
from quarl.errors import QuarlError
from quarl.evaluation import evaluate, record
from quarl.files import locked
from quarl.lab.cells import Cell, Job
from quarl.lab.play import make_worker, preload
from quarl.lab.source import Agent
from quarl.lab.store import Store
from quarl.processes.child import kill_group
from quarl.processes.pool import Bounds, LocalPool
from quarl.quant.spec import QuantSpec
from quarl.readers.load import read
from refusals import refused
from waiting import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("elsewhere")]

Write = Callable[..., Path]
DQN = "{algo: dqn, env: CartPole-v1, source: 'zoo:zoo'}"
A2C = "{algo: a2c, env: CartPole-v1, source: 'zoo:zoo'}"
FP32 = "{method: fp32}"
PTQ = "{method: ptq, precision: [8, 4]}"


def run(path: Path, *words: object, code: int = 0, folder: str = "out") -> list[dict[str, Any]]:
    """The rows of a run."""
    rows = path.with_suffix(".json")
    assert main(["study", "run", str(path), "-o", folder, "--json", str(rows), *map(str, words)]) == code
    return contracts.read(rows)["rows"]


def without_time(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def test_rows_are_what_evaluation_finds_and_a_second_run_measures_nothing(
    study_file: Write, small_agents: Path, tmp_path: Path, capsys: Any
):
    path = study_file(f"{DQN}\n{A2C}", f"{FP32}\n{PTQ}", "seeds: [3]")
    rows = run(path, "--jobs", 2)
    policy = read(small_agents / "zoo/dqn/CartPole-v1_1")
    observations = record(policy, seed=3)
    for row, precision in zip(rows[:3], ("fp32", "8", "4"), strict=True):
        exact = evaluate(quantize(policy, QuantSpec.parse(precision), observations), episodes=6, seed=3)
        assert (row["algo"], row["seed"], row["state"], row["measured"]) == ("dqn", 3, "done", True)
        assert row["mean"] == exact.returns.mean()
    assert [row["error_pct"] for row in rows if row["method"] == "fp32"] == [0.0, 0.0]
    before = {name: (tmp_path / "out" / name).stat().st_mtime for name in ("study.log",)}
    capsys.readouterr()
    assert run(path) == rows
    assert before == {name: (tmp_path / "out" / name).stat().st_mtime for name in before}
    assert "6 done" in capsys.readouterr().out
    # what is on the disk is enough to make the same rows in another folder, and calibration is not played again
    assert len(list((tmp_path / "out" / "calibration").iterdir())) == 2
    assert without_time(run(path, folder="again")) == without_time(rows)


def test_agents_and_trainings_play_in_environments_made_as_the_study_says(study_file: Write):
    told = "env_kwargs: {sutton_barto_reward: true}, wrapper: ['TimeLimit:max_episode_steps=9'], max_episode_steps: 5"
    train = "{algo: a2c, env: CartPole-v1, source: train, n_timesteps: 200, "
    path = study_file(f"{DQN[:-1]}, {told}}}\n{train}{told}}}", f"{FP32}\n{{method: ptq, precision: 8}}")
    rows = run(path)
    assert [(row["method"], row["state"], row["mean"]) for row in rows if row["method"] != "train"] == [
        (method, "done", 0.0)
        for method in ("fp32", "ptq", "fp32", "ptq")  # nothing but a fall costs
    ]
    assert run(study_file(DQN, FP32, name="plain.yml"))[0]["mean"] > 5  # another cell


def test_added_cells_are_measured_and_dropped_ones_stay(study_file: Write):
    small = study_file(DQN, FP32, name="small.yml")
    large = study_file(f"{DQN}\n{A2C}", f"{FP32}\n{PTQ}", name="large.yml")
    first = run(small)
    everything = run(large, "--only", "dqn/CartPole-v1")
    assert everything[0] == first[0]
    assert len(everything) == 3
    assert len(run(large)) == 6
    assert run(small) == first
    with Store(Path("out")) as store:
        assert len(store.states()) == 1


def test_only_takes_what_all_kinds_of_its_words_name_and_the_trainings_behind_it(study_file: Write):
    trained = "{algo: a2c, env: CartPole-v1, source: train, n_timesteps: 64}"
    path = study_file(f"{DQN}\n{A2C}\n{trained}", f"{FP32}\n{PTQ}")
    assert [(row["algo"], row["precision"]) for row in run(path, "--only", "dqn/CartPole-v1", "int4e8")] == [
        ("dqn", "fp32"),
        ("dqn", "int4e8"),
    ]
    rows = run(path, "--only", "int4e8", "ptq", "train")
    assert [(row["source"], row["precision"]) for row in rows] == [("train", "fp32"), ("train", "int4e8")]
    with Store(Path("out")) as store:
        assert sorted(store.states().values()) == ["done"] * 5 + ["todo"] * 5


def test_a_cell_that_fails_is_recorded_and_skipped_until_it_is_retried(
    study_file: Write, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
):
    broken = tmp_path / "zoo" / "a2c" / "CartPole-v1_1"
    broken.mkdir(parents=True)
    (broken / "CartPole-v1.zip").write_bytes(b"PK no zip")
    path = study_file(f"{DQN}\n{A2C.replace('zoo:zoo', f'zoo:{tmp_path}/zoo')}", f"{FP32}\n{PTQ}")
    rows = run(path, code=2)
    assert [row["state"] for row in rows] == ["done"] * 3 + ["failed"] * 3
    shown = capsys.readouterr().out
    assert shown.count("failed: a2c CartPole-v1") == 3
    assert "is not a whole zip file" in shown
    assert "3 done, 3 failed (again with --retry-failed)" in shown
    finished, write = 0, Store.write

    def count(self: Store, done: Any, started: Any) -> None:
        nonlocal finished
        finished += len(done)
        write(self, done, started)

    monkeypatch.setattr(Store, "write", count)
    log = (tmp_path / "out" / "study.log").stat().st_mtime_ns
    assert run(path, code=2) == rows
    run(path, "--retry-failed", "--only", "dqn/CartPole-v1")
    assert run(path, code=2) == rows  # others were not asked to be done again
    assert (tmp_path / "out" / "study.log").stat().st_mtime_ns == log  # no process was begun
    assert finished == 0
    assert [row["state"] for row in run(path, "--retry-failed", code=2)] == ["done"] * 3 + ["failed"] * 3
    assert finished == 3  # they were tried


def test_a_training_beyond_its_bound_fails_with_all_that_need_it_and_succeeds_within(study_file: Write):
    policy = "{algo: a2c, env: CartPole-v1, source: train, n_timesteps: 600}"
    methods = f"{FP32}\n{{method: qat, precision: w4a8, fine_tune: 0.5}}"
    rows = run(study_file(policy, methods, "limits: {minutes: 0.01}"), code=2)
    assert [row["state"] for row in rows] == ["failed"] * 2
    with Store(Path("out")) as store:
        training, exact, _ = store.records()
    assert training.error == "took longer than the limit of 0.01 minutes"
    assert exact.error == "the training of its agent failed: a2c CartPole-v1 train fp32 seed 0"
    rows = run(study_file(policy, methods), "--retry-failed")
    assert [(row["method"], row["precision"], row["state"]) for row in rows] == [
        ("fp32", "fp32", "done"),
        ("qat", "w4a8e8", "done"),
    ]


def test_an_agent_of_the_hub_is_played_and_trained_as_one_of_a_folder(
    study_file: Write, small_agents: Path, committed: Callable[[str, bytes], None]
):
    committed("0" * 40, (small_agents / "zoo/dqn/CartPole-v1_1/CartPole-v1.zip").read_bytes())
    policy = "{algo: dqn, env: CartPole-v1, source: 'hub:org/dqn-CartPole-v1', n_timesteps: 4000}"
    methods = f"{FP32}\n{{method: qat, precision: w4a8, fine_tune: 0.5}}"
    rows = run(study_file(policy, methods))
    assert [(row["source"], row["method"], row["state"]) for row in rows] == [
        ("hub:org/dqn-CartPole-v1", "fp32", "done"),
        ("hub:org/dqn-CartPole-v1", "qat", "done"),
    ]
    (near,) = run(study_file(DQN, FP32), folder="near")
    assert rows[0]["mean"] == near["mean"]
    run(study_file(policy.replace("algo: dqn", "algo: ppo"), FP32), folder="called-ppo", code=2)
    with Store(Path("called-ppo")) as store:
        (record,) = store.records()
    assert "it is a dqn agent, not ppo" in str(record.error)


def test_memory_beyond_its_bound_ends_a_cell(study_file: Write):
    policy = "{algo: a2c, env: CartPole-v1, source: train, n_timesteps: 100000}"
    run(study_file(policy, FP32, "limits: {memory_gb: 0.05}"), code=2)
    with Store(Path("out")) as store:
        training, _ = store.records()
    assert training.error == "needed more memory than the limit of 0.05 GB"
    assert training.peak_mb is not None
    assert training.peak_mb > 50


def cartpole(agents: Path, folder: Path, **identity: str) -> Any:
    """Makes the worker of an agent."""
    path = agents / "zoo/dqn/CartPole-v1_1/CartPole-v1.zip"
    agent = Agent(source="zoo:zoo", identity=identity, path=path, algo="dqn", n_timesteps=None)
    return partial(make_worker, Job(cell=played(1, agent), study=folder, path=path), calibrate=False)


def played(episodes: int, agent: Agent | None = None) -> Cell:
    about = {"algo": "dqn", "env_id": "CartPole-v1", "source": "zoo:zoo", "method": "fp32", "precision": "fp32"}
    work = {"env_id": "CartPole-v1", "spec": QuantSpec.parse("fp32").to_json(), "seed": 0, "episodes": episodes}
    return Cell(**about, seed=0, episodes=episodes, agent=agent, work=work)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[LocalPool]:
    pool = LocalPool(tmp_path / "log", Bounds(minutes=1, memory_gb=4), 2, partial(preload, ["CartPole-v1"], []))
    yield pool
    pool.close()


@pytest.fixture
def at_home(made: LocalPool, small_agents: Path, tmp_path: Path) -> LocalPool:
    """With a worker that is ready."""
    made.prepare("home", cartpole(small_agents, tmp_path))
    assert until(made).result.error == ""
    return made


def test_a_cell_whose_worker_hangs_ends_at_its_limit(at_home: LocalPool):
    os.kill(at_home._workers["home"].group, signal.SIGSTOP)
    at_home.bounds = Bounds(minutes=0.01, memory_gb=4)
    at_home.submit("home", "one", played(2))
    assert until(at_home).result.error == "took longer than the limit of 0.01 minutes"
    assert at_home.ready("home") is None


def test_a_cell_whose_process_dies_costs_only_itself(at_home: LocalPool):
    at_home.submit("home", "long", played(10**6))
    at_home.submit("home", "short", played(2))
    assert at_home.occupied == 2
    short = until(at_home)
    assert (short.key, len(short.result.value["returns"])) == ("short", 2)
    os.killpg(at_home._tasks["long"].group, signal.SIGSEGV)
    long = until(at_home)
    assert (long.key, long.result.value, long.result.error) == ("long", None, "its process was ended by SIGSEGV")
    at_home.submit("home", "next", played(2))
    assert until(at_home).result.value["returns"] == short.result.value["returns"]


def until(made: LocalPool) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        for event in made.events(0.2):
            return event
    raise AssertionError("nothing came")


def test_groups_that_are_not_known_are_never_killed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "killpg", lambda *_: pytest.fail("killed"))
    kill_group(0)


def test_after_ctrl_c_the_same_command_goes_on(study_file: Write, tmp_path: Path):
    path = study_file(DQN, f"{FP32}\n{PTQ}")
    slow = path.read_text().replace("episodes: 6", "episodes: 20000")
    path.write_text(slow)
    code = f"import sys; from quarl.cli import main; sys.exit(main(['study', 'run', {str(path)!r}, '-o', 'out']))"
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True) as started:
        state = ""
        while state != "running":
            time.sleep(0.1)
            assert started.poll() is None
            with contextlib.suppress(QuarlError), Store(tmp_path / "out") as store:
                state = next(iter(store.states().values()), "")
        os.killpg(started.pid, signal.SIGINT)
        assert started.stderr is not None
        said = started.stderr.read().decode()
        assert started.wait(PATIENCE_S) == 130
    assert said.startswith("quarl: stopped by a signal; resume with quarl study run ")
    assert len(said.splitlines()) == 1
    path.write_text(slow.replace("episodes: 20000", "episodes: 6"))
    assert [row["state"] for row in run(path)] == ["done"] * 3


def test_when_the_time_is_over_nothing_begins(study_file: Write, capsys: Any):
    rows = run(study_file(DQN, FP32), "--minutes", 0)
    assert [row["state"] for row in rows] == ["todo"]
    assert "the time is over with 1 cells to go: repeat the command" in capsys.readouterr().err


def test_a_study_runs_from_a_folder_that_cannot_be_written(study_file: Write, tmp_path: Path, monkeypatch: Any):
    path = study_file("{algo: dqn, env: CartPole-v1, source: train, n_timesteps: 1000}", FP32)
    monkeypatch.chdir("/proc")
    assert main(["study", "run", str(path), "-o", str(tmp_path / "out"), "--dry-run"]) == 0


def test_a_dry_run_writes_nothing_and_counts_what_is_there(study_file: Write, tmp_path: Path, capsys: Any):
    path = study_file(f"{DQN}\n{{algo: ddpg, env: CartPole-v1, source: train}}", f"{FP32}\n{PTQ}")
    assert main(["study", "run", str(path), "-o", "out", "--dry-run"]) == 0
    assert not (tmp_path / "out").exists()
    shown = capsys.readouterr().out
    assert "small: 3 n/a, 3 to do" in shown
    assert "n/a: ddpg needs a continuous action space" in shown
    assert "estimated time with --jobs 1: unknown for 3 cells, none of whose kind is finished in out" in shown
    run(path)
    capsys.readouterr()
    more = study_file(DQN, f"{FP32}\n{PTQ}", "seeds: [0, 1]", name="more.yml")
    assert main(["study", "run", str(more), "-o", "out", "--dry-run", "--json", "more.json"]) == 0
    assert re.search(r"estimated time with --jobs 1: [0-9.]+ minutes\n", capsys.readouterr().out)
    for row in contracts.read(tmp_path / "more.json")["rows"]:  # as long for each cell to do as the finished took
        assert row["done"] == row["todo"]
        assert row["minutes_to_go"] == pytest.approx(row["minutes"])
    assert main(["study", "run", str(path), "-o", "out", "--dry-run", "--json", "dry.json"]) == 0
    assert "small: 3 done, 3 n/a" in capsys.readouterr().out
    contracts.read(tmp_path / "dry.json")


def test_status_reads_while_another_runs(study_file: Write, tmp_path: Path, capsys: Any):
    run(study_file(f"{DQN}\n{A2C}", f"{FP32}\n{PTQ}"))
    capsys.readouterr()
    with locked(tmp_path / "out"):
        assert main(["study", "status", "out", "--json", "status.json"]) == 0
    assert [(row["algo"], row["method"], row["done"]) for row in contracts.read(tmp_path / "status.json")["rows"]] == [
        ("dqn", "fp32", 1),
        ("dqn", "ptq", 2),
        ("a2c", "fp32", 1),
        ("a2c", "ptq", 2),
    ]
    assert "small: 6 done" in capsys.readouterr().out


def test_a_second_run_in_one_folder_is_refused(study_file: Write, tmp_path: Path, capsys: Any):
    path = study_file(DQN, FP32)
    (tmp_path / "out").mkdir()
    with locked(tmp_path / "out"):
        assert "another quarl run is using out" in refused(capsys, "study", "run", path, "-o", "out")


@pytest.mark.parametrize("method", ["ptq", "qat"])
def test_an_environment_of_one_s_own_is_played_where_the_command_names_its_module(
    method: str, needs: str, tmp_path: Path, study_file: Write, capsys: Any
):
    module, _, name = needs.partition(":")
    policy = f"{{algo: ppo, env: {name}, source: train, n_timesteps: 128, params: {{n_steps: 64}}"
    policy += ", env_kwargs: {target: 0.25}, max_episode_steps: 8}"
    share = ", fine_tune: 1" if method == "qat" else ""
    path = study_file(f"{policy}\n{DQN}", f"{FP32}\n{{method: {method}, precision: 8{share}}}")
    assert "line 6: unknown environment 'Needs-v0'" in refused(capsys, "study", "run", path, "-o", "out")
    named = path.read_text().replace(name, f"'{needs}'")
    (tmp_path / "named.yml").write_text(named)
    # a file imports nothing, be the module named on the command line or not
    assert "only a typed id may name a module" in refused(capsys, "study", "run", "named.yml", "--env-module", module)
    rows = run(path, "--env-module", module, "--only", f"ppo/{name}")
    assert [(row["method"], row["env_id"], row["state"], row["mean"]) for row in rows] == [
        ("fp32", name, "done", 2.0),
        (method, name, "done", 2.0),
    ]
