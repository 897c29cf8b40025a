"""Studies on several machines: rows are those of one, whatever becomes of a machine or of the runner."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from stable_baselines3 import DQN

import require
from quarl.cli import main
from quarl.cluster.connection import Local
from quarl.errors import QuarlError
from stress.chaos.run import below, living, process
from waiting import until

pytestmark = pytest.mark.slow

require.module("ray")
STUDY = """
name: small
agents: {agents}
episodes: 600
policies:
  - {{algo: dqn, env: CartPole-v1, source: "zoo:zoo"}}
  - {{algo: a2c, env: CartPole-v1, source: train, n_timesteps: 300}}
methods:
  - {{method: fp32}}
  - {{method: ptq, precision: [8, 6, 5, 4, 3, 2]}}
"""
SERVER = "quarl-forkserve"
"""What Linux keeps of the name of the process that workers are forked from."""


class Machine(NamedTuple):
    """A cluster of one."""

    address: str
    token: dict[str, str]
    """As variables of a driver's environment."""
    raylet: int


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of an agent that is there and of one that it trains."""
    folder = tmp_path_factory.mktemp("study")
    model = DQN("MlpPolicy", "CartPole-v1", policy_kwargs={"net_arch": [8]}, buffer_size=1, device="cpu", seed=0)
    agent = folder / "zoo/dqn/CartPole-v1_1/CartPole-v1"
    agent.parent.mkdir(parents=True)
    model.save(agent)
    (folder / "study.yml").write_text(STUDY.format(agents=folder))
    return folder / "study.yml"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    before = below(os.getpid(), "raylet")
    with Local(tmp_path_factory.mktemp("machine"), 1) as cluster:
        (raylet,) = {*below(os.getpid(), "raylet")} - {*before}
        yield Machine(cluster.address, {"RAY_AUTH_TOKEN_PATH": str(cluster.token)}, raylet)


def begun(study: Path, folder: Path, *words: object, **variables: str) -> subprocess.Popen[str]:
    """A run on a cluster."""
    told = ["study", "run", study, "-o", folder, "--json", folder.with_suffix(".json"), "--cluster", *words]
    command = [sys.executable, "-m", "quarl", *map(str, told)]
    environment = {**os.environ, **variables}
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)


def rows(folder: Path) -> list[dict[str, Any]]:
    found = json.loads(folder.with_suffix(".json").read_text())["rows"]
    return [{key: value for key, value in row.items() if key not in ("seconds", "minutes")} for row in found]


def cells(folder: Path, state: str) -> dict[str, float]:
    """When each cell in that state began, by key."""
    if not (folder / "study.sqlite").is_file():
        return {}
    database = sqlite3.connect(f"file:{folder}/study.sqlite?mode=ro", uri=True)
    with contextlib.closing(database), contextlib.suppress(sqlite3.OperationalError):  # it has no tables yet
        return dict(database.execute("SELECT key, started FROM cells WHERE state = ?", (state,)))
    return {}


def played(machine: int) -> list[int]:
    """Processes of cells that are forked from a worker: the third below a fork server's parent."""
    forked = below(machine, SERVER)
    return [pid for pid in forked if process(process(pid).parent).parent in forked]


def holds(pid: int) -> bool:
    """Whether it was there to be stopped, so that its cell does not end."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    until(lambda: process(pid).state in "TZ")
    return process(pid).state == "T"


def has_a_cell(run: subprocess.Popen[str], machine: int) -> bool:
    """Whether a cell is held on that machine."""
    assert run.stderr is not None
    assert run.poll() is None, run.stderr.read()
    return any(map(holds, played(machine)))


def refused(capfd: pytest.CaptureFixture[str], study: Path, folder: Path, *words: object) -> str:
    assert main(["study", "run", str(study), "-o", str(folder), *map(str, words)]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    return str(line)


def test_a_machine_without_the_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from quarl.cluster import cell_pool  # it imports Ray

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cell_pool, "begin_here", lambda: "here")
    pool = object.__new__(cell_pool.NodePool)  # otherwise this process would die with its parent
    pool._pool = None
    with pytest.raises(QuarlError, match=f"^here does not see the runner's {tmp_path / 'elsewhere'}: choose"):
        pool.begin(tmp_path, tmp_path / "elsewhere/.cluster", tmp_path / "log")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing_on_any_machine_and_the_cells_that_are_done(
    study: Path, machine: Machine, tmp_path: Path, number: int
):
    folder = tmp_path / "out"
    with begun(study, folder, machine.address, **machine.token) as run:
        until(lambda: cells(folder, "done") and has_a_cell(run, machine.raylet))
        processes = {*below(run.pid), *below(machine.raylet, SERVER)}
        run.send_signal(number)
        said = run.stderr.read()
    assert run.returncode == 128 + number, said
    until(lambda: not processes & living().keys())
    assert not below(machine.raylet, SERVER)
    assert cells(folder, "done")
    assert not list(folder.glob(".cluster*"))


def test_rows_are_those_of_one_machine_whatever_is_killed(study: Path, machine: Machine, tmp_path: Path):
    assert main(["study", "run", str(study), "-o", str(tmp_path / "one"), "--json", str(tmp_path / "one.json")]) == 0
    folder = tmp_path / "two"
    raylet, token = machine.raylet, machine.token
    with begun(study, folder, machine.address, "--nodes", 2, **token) as run:
        assert "--nodes 2: the cluster has 1 machine" in run.stderr.read()
    assert run.returncode == 2
    with begun(study, folder, machine.address, **token) as run:
        until(lambda: cells(folder, "done") and has_a_cell(run, raylet))
        os.kill(next(iter(below(raylet, "ray::NodePool"))), signal.SIGKILL)
        said = (line for line in run.stderr if line.startswith("quarl: "))
        assert "was lost: 1 cell to be measured again" in next(said)
        assert "measures cells again" in next(said)
        until(lambda: has_a_cell(run, raylet))
        run.kill()
    until(lambda: not below(raylet, SERVER))
    done = cells(folder, "done")
    with begun(study, folder, "local", RAY_health_check_period_ms="500") as run:
        until(lambda: len(below(run.pid, "raylet")) == 2)
        second = below(run.pid, "raylet")[1]
        until(lambda: has_a_cell(run, second))
        before = cells(folder, "running")
        os.kill(second, signal.SIGKILL)
        said = run.stderr.read()
    assert run.returncode == 0, said
    assert said.count("was lost: 1 cell to be measured again") == 1
    assert rows(folder) == rows(tmp_path / "one")
    after = cells(folder, "done")
    assert done.items() <= after.items()
    assert sum(after[key] != start for key, start in before.items()) == 1
    assert not list(folder.glob(".cluster*"))
