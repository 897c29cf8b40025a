"""`quarl envs`: what is installed, what fits, and one line for every mistake."""

from __future__ import annotations

import json
import re
import shlex

import pytest

import contracts
import require
from quarl.cli import main, parse
from quarl.envs.suites import SUITES

pytestmark = pytest.mark.usefixtures("elsewhere")


def document(*words):
    assert main(["envs", *words, "--json", "envs.json"]) == 0
    with open("envs.json") as file:
        found = json.load(file)
    contracts.check(found)
    return found


def test_every_suite_is_listed_with_its_version_or_the_command_that_installs_it(capsys):
    rows = document()["rows"]
    assert [row["suite"] for row in rows] == ["classic", "toy-text", *(suite.extra for suite in SUITES)]
    for row in rows:
        assert (row["version"] is None) == bool(row["install"])
        assert row["ids"] > 0
        if row["version"] is None:
            assert row["install"] == f"pip install 'quarl[{row['suite']}]'"
            assert row["algorithms"] == []
    by_name = {row["suite"]: row for row in rows}
    assert by_name["classic"]["algorithms"] == ["ppo", "a2c", "dqn"]
    assert by_name["toy-text"]["algorithms"] == []  # nothing is trained on discrete observations
    assert by_name["dm-control"]["ids"] > 40
    assert "learners that fit it" in capsys.readouterr().out


def test_a_suite_that_is_missing_shows_its_pip_command(capsys, monkeypatch):
    monkeypatch.setattr("quarl.commands.envs.version", lambda package: "1.0" if package == "gymnasium" else None)
    rows = document()["rows"]
    assert [row["version"] for row in rows] == ["1.0", "1.0", *[None] * len(SUITES)]
    assert "pip install 'quarl[atari]'" in capsys.readouterr().out


def test_one_suite_lists_its_ids_before_anything_of_it_is_imported(capsys):
    (row,) = document("--suite", "atari")["rows"]
    assert row["example"] == "PongNoFrameskip-v4"
    shown = capsys.readouterr().out
    listed = next(line for line in shown.splitlines() if "BreakoutNoFrameskip-v4" in line).split(", ")
    assert len(listed) == row["ids"]
    assert {"ALE/Breakout-v5", "MontezumaRevengeNoFrameskip-v4"} <= set(listed)


def test_one_environment_says_which_algorithms_fit_and_why_others_do_not(capsys):
    rows = document("Pendulum-v1")["rows"]
    assert [(row["algo"], row["fits"]) for row in rows] == [
        *(("ppo", True), ("a2c", True), ("dqn", False)),
        *(("ddpg", True), ("td3", True), ("sac", True), ("d4pg", True)),
    ]
    assert {row["time_limit"] for row in rows} == {200}
    assert rows[2]["reason"] == "dqn needs a discrete action space"
    shown = capsys.readouterr().out
    assert "time limit 200 steps" in shown
    assert re.search(r"dqn +n/a +dqn needs a discrete action space", shown)


def test_a_retired_id_is_shown_as_the_living_one():
    assert {row["env_id"] for row in document("gym,MountainCar-v0")["rows"]} == {"MountainCar-v0"}
    rows = document("FrozenLake-v1")["rows"]
    assert not any(row["fits"] for row in rows)
    assert "training needs a Box" in rows[0]["reason"]


def test_an_atari_game_says_its_frames(capsys):
    require.module("ale_py")
    rows = document("ALE/Pong-v5")["rows"]
    assert [row["algo"] for row in rows if row["fits"]] == ["ppo", "a2c", "dqn"]
    assert {(row["suite"], row["time_limit"]) for row in rows} == {("atari", 27_000)}
    assert document("PongNoFrameskip-v4")["rows"][0]["time_limit"] == 108_000
    capsys.readouterr()


def test_the_command_that_is_printed_repeats_the_list(capsys):
    for words in (["envs"], ["envs", "CartPole-v1"], ["envs", "--suite", "classic"]):
        assert main(words) == 0
        (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("repeat: ")]
        assert parse(shlex.split(line)[2:]) == parse(words)
