"""Environments of which one may live, that break off, or that never end: training and its evaluations."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from training_runs import train, words

import difficult_environments
from quarl.cli import main
from quarl.runs import checkpoint

HERE = "difficult_environments:"
EARLY = {"a2c": [], "ddpg": ["learning_starts:10"]}


@pytest.mark.parametrize(
    ("algo", "name", "said", "saved"),
    [
        ("a2c", "Raising", "Raising-v0 raised ConnectionError: simulator connection lost (difficult", 32),
        ("ddpg", "Raising", "Raising-v0 raised ConnectionError: simulator connection lost (difficult", 40),
        ("a2c", "NanObservation", "NanObservation-v0 gave an observation that is NaN or infinite: fix its step()", 32),
        ("ddpg", "NanObservation", "NanObservation-v0 gave an observation that is NaN or infinite: fix its", 39),
        ("a2c", "InfiniteReward", "InfiniteReward-v0 gave a reward that is NaN or infinite: fix its step()", 32),
        ("a2c", "OldStep", "OldStep-v0: its step() returns 4 values, as in Gym before 0.26", 0),
        ("a2c", "ArrayReward", "ArrayReward-v0: its step() returns a reward of shape (1,)", 0),
        ("a2c", "OldReset", "OldReset-v0: its reset() returns the observation alone", None),
        ("a2c", "Unseeded", "Unseeded-v0: its reset() takes no seed", None),
        ("a2c", "Fractions", "Fractions-v0 gave an observation of float32 with values that the uint8", None),
    ],
)
def test_what_an_environment_did_wrong_is_said_with_how_to_go_on(algo, name, said, saved, tmp_path, capsys):
    assert main(words(algo, f"{HERE}{name}-v0", 64, *EARLY[algo])) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(f"quarl: {said}")
    assert line.endswith(f"resume with quarl train --resume --algo {algo} --env {HERE}{name}-v0 -f logs") == bool(saved)
    runs = list(tmp_path.glob("logs/*/*_1"))
    found = [checkpoint.load_latest(path).facts["counters"]["num_timesteps"] for path in runs]
    assert found == ([] if saved is None else [saved])


def test_a_run_that_an_environment_broke_off_goes_on(tmp_path, monkeypatch):
    assert main(words("a2c", f"{HERE}Raising-v0", 64)) == 2
    monkeypatch.setattr(difficult_environments.Raising, "is_faulty", False)
    assert main(["train", "--resume", "--algo", "a2c", "--env", f"{HERE}Raising-v0", "--json", "row.json"]) == 0
    (row,) = json.loads((tmp_path / "row.json").read_text())["rows"]
    assert row["timesteps"] == 64


def test_where_one_environment_may_live_the_last_evaluation_is_the_same(tmp_path):
    plain = train(tmp_path, "a2c", f"{HERE}Line-v0", 64, "--eval-freq", "0")
    single = train(tmp_path, "a2c", f"{HERE}Single-v0", 64, "--eval-freq", "0")
    names = ("mean", "std", "ci_low", "ci_high")
    assert [single[name] for name in names] == [plain[name] for name in names]
    assert not difficult_environments.Single.lives


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["a2c", "ddpg"])
@pytest.mark.parametrize("name", ["Single", "SingleWorld"])
def test_evaluations_are_played_in_the_learners_environment_which_begins_anew(algo, name, tmp_path, capsys):
    freq = ["--eval-freq", "20", "--eval-episodes", "3"]
    more = [*EARLY[algo], "normalize:True", *freq, "--n-envs", "1"]
    row = train(tmp_path, algo, f"{HERE}{name}-v0", 70, *more, evaluations=True)
    said = capsys.readouterr().err
    assert said.count("no second environment can be made") == 1
    assert "evaluations are played in the learner's, whose episodes they end" in said
    with np.load(f"{row['folder']}/evaluations.npz") as found:
        assert found["results"].shape[1] == 3
        assert (found["ep_lengths"] == difficult_environments.STEPS).all()
        assert len(found["timesteps"]) >= 3
        assert row["best_mean"] == found["results"].mean(axis=1).max()
    if algo == "ddpg":  # the row before each evaluation is the last of its episode: nothing bootstraps across
        saved = checkpoint.load_latest(Path(row["folder"]))
        ends = np.flatnonzero(saved.arrays["replay/timeouts"].ravel())
        assert ends.tolist() == [19, 39, 59]


def test_a_run_that_is_not_evaluated_says_so(tmp_path, capsys):
    more = ["--eval-episodes", "0", "--eval-freq", "16"]
    row = train(tmp_path, "a2c", f"{HERE}Line-v0", 64, *more)
    assert "not evaluated: --eval-episodes is 0" in capsys.readouterr().out
    assert row["episodes"] == 0
    assert [row[name] for name in ("mean", "std", "ci_low", "ci_high", "best_mean")] == [None] * 5
    assert {path.name for path in (tmp_path / "logs/a2c/Line-v0_1").iterdir()} >= {"Line-v0.zip", "command.txt"}
    assert not list(tmp_path.rglob("best_model*"))
    assert not list(tmp_path.rglob("evaluations.npz"))


def test_a_last_evaluation_that_fails_says_where_the_agent_is(tmp_path, capsys):
    assert main(words("a2c", f"{HERE}Raising-v0", 32)) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(
        "quarl: the last evaluation failed (Raising-v0 raised ConnectionError: simulator connection "
    )
    assert line.endswith("; the agent is saved as logs/a2c/Raising-v0_1/Raising-v0.zip")
    assert (tmp_path / "logs/a2c/Raising-v0_1/Raising-v0.zip").is_file()


def test_that_there_is_no_time_limit_is_said_before_training_which_goes_on_without_evaluations(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("quarl.envs.bound.LONGEST", 1000)
    more = ["--eval-freq", "32", "--eval-episodes", "1"]
    assert main(words("a2c", f"{HERE}Unlimited-v0", 64, *more)) == 2
    said = capsys.readouterr().err.splitlines()
    assert "Unlimited-v0 has no time limit" in said[1]
    assert "--max-episode-steps sets a limit" in said[1]
    left_out = [line for line in said if "steps (an episode has not ended after 1,000 steps" in line]
    assert len(left_out) == 2
    assert said[-1].startswith("quarl: the last evaluation failed (an episode has not ended after 1,000 steps: give")
    assert (tmp_path / "logs/a2c/Unlimited-v0_1/Unlimited-v0.zip").is_file()


@pytest.mark.parametrize("env", ["CartPole-v1", f"{HERE}Line-v0"])
def test_of_environments_with_a_limit_nothing_is_said(env, tmp_path, capsys):
    train(tmp_path, "a2c", env, 16)
    assert "no time limit" not in capsys.readouterr().err
