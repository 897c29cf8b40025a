"""Whole runs of `quarl actorq --cluster local`: two raylets on this machine, and everything that they leave behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import require
from quarl.cli import main

pytestmark = pytest.mark.slow

require.module("ray")
SMALL = "batch_size:32 learning_starts:200 buffer_size:5000 train_freq:4 target_update_interval:100"


def run(folder: Path, *words: str) -> int:
    """Two actors: both here, or one on each machine of a cluster."""
    common = ("--eval-freq", "0", "--eval-episodes", "2")
    begun = () if "--resume" in words else ("--preset", "none", "--net-arch", "64,64", "--params", *SMALL.split())
    return main(["actorq", "--algo", "dqn", "--env", "CartPole-v1", *common, *begun, *words, "-o", str(folder)])


def metrics(folder: Path):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def keys(value):
    """The names in a row, and in what it holds."""
    if isinstance(value, dict):
        return {name: keys(held) for name, held in value.items() if name != "machines"}
    return [keys(held) for held in value] if isinstance(value, list) else None


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cluster") / "out"
    assert run(folder, "-n", "2000", "--cluster", "local", "--actors-per-node", "1") == 0
    return folder


def test_it_makes_all_steps_with_actors_of_two_machines_and_none_is_lost_or_twice_there(finished):
    last = metrics(finished)[-1]
    assert last["timesteps"] == 2000
    assert last["updates"] == (2000 - 200) // 4
    assert last["learner"]["duplicates"] == last["learner"]["gaps"] == 0
    assert len(last["actors"]) == len(last["machines"]) == 2
    assert all(actor["steps"] > 100 for actor in last["actors"])
    assert sum(machine["rows"] for machine in last["machines"]) == sum(actor["steps"] for actor in last["actors"])
    assert last["actors"][0]["incarnation"] != last["actors"][1]["incarnation"]
    assert all(machine["answers"] and machine["begun"] == 1 for machine in last["machines"])
    assert 0 < max(machine["weights_s"] for machine in last["machines"]) < 10
    assert [actor["sigma"] for actor in last["actors"]] == [1.0, 8.0]  # one ladder over all machines


def test_it_leaves_the_files_and_columns_of_a_run_on_one_machine(finished, tmp_path):
    assert run(tmp_path / "local", "-n", "2000", "--actors", "2") == 0
    here, there = (
        {path.name for path in folder.iterdir() if path.suffix != ".log"} for folder in (tmp_path / "local", finished)
    )
    assert here == there
    assert keys(metrics(finished)[-1]) == keys(metrics(tmp_path / "local")[-1])


def test_a_run_goes_on_where_it_ended_on_its_cluster(finished, capsys):
    assert run(finished, "-n", "3000", "--resume") == 0
    last = metrics(finished)[-1]
    assert last["timesteps"] == 3000
    assert len(last["machines"]) == 2
    assert last["learner"]["duplicates"] == 0
