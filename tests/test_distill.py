"""quarl distill: what it leaves, what it says, and what it refuses."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import networks
import quarl
from documents import ROOT, blocks
from quarl import cli, evaluation
from quarl.commands import distill
from quarl.distillation import rounds
from quarl.envs import Environment
from quarl.files import locked
from quarl.policy import artifact
from quarl.quant.spec import QuantSpec

pytestmark = pytest.mark.slow

QUICK = ["--rounds", "1", "--updates", "20", "--states", "100", "--validation", "10", "--episodes", "10"]


def test_a_folder_holds_the_policy_its_row_and_how_it_came_about(agents, tmp_path, capsys):
    folder = tmp_path / "small"
    words = ["distill", "dqn", "CartPole-v1", "-f", str(agents / "sb3"), "--bits", "2", "8", *QUICK, "-o", str(folder)]
    assert cli.main(words) == 0
    out = capsys.readouterr()
    rows = json.loads((folder / "rows.json").read_text())["rows"]
    assert [row["precision"] for row in rows] == ["int2e8", "int8"]
    policies = {"int2e8.safetensors", "int8.safetensors"}
    tables = {"returns.csv", "rows.csv", "rows.json", "tables.tex"}
    assert {path.name for path in folder.iterdir()} == {"curve.png", "quarl.lock", "report.html", *policies, *tables}
    policy = quarl.load(folder / "int2e8.safetensors").policy
    assert policy.spec == QuantSpec.parse("int2e8")
    first, hidden, last = policy.linear
    assert (first.weight.bits, hidden.weight.bits, last.weight.bits) == (8, 2, 8)
    assert set(np.unique(hidden.weight.codes)) == {-3, -1, 1, 3}
    two, eight = rows
    assert two["bits_mean"] == pytest.approx(2 + 6 * (first.weight.size + last.weight.size) / policy.num_weights)
    assert two["bits_of_layers"] == dict(zip([op.name for op in policy.linear], (8, 2, 8), strict=True))
    # 8 bits are good enough as calibration leaves them, and nothing was trained for them
    assert (eight["round"], eight["updates"], eight["states"], eight["verdict"]) == (0, 0, 0, "non-inferior")
    assert eight["mean"] == eight["mean_calibrated"] == eight["mean_fp32"] == 500
    assert "int8, calibrated: return 500.0, non-inferior" in out.err
    assert "int8: calibration's codes are kept; validation required no training." in out.out


KILLED = """
import os, signal, sys
from quarl import cli, evaluation
from quarl import checkpoint_file
write, written = checkpoint_file.write, []
def then_killed(*arguments):
    write(*arguments)
    written.append(arguments)
    if len(written) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
checkpoint_file.write = then_killed
cli.main(sys.argv[1:])
"""
"""It dies once the first precision's first round is kept."""


def test_a_run_that_was_killed_goes_on_from_its_last_round_to_the_bits_of_one_that_was_not(agents, tmp_path, capsys):
    model = ["distill", "dqn", "MountainCar-v0", "-f", str(agents / "sb3"), "--bits", "2", "3"]
    words = [*model, *QUICK, "--rounds", "2", "--validation", "5"]  # of five episodes there is no verdict
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert cli.main([*words, "-o", str(whole)]) == 0
    killed = subprocess.run([sys.executable, "-c", KILLED, *words, "-o", str(cut)], capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    assert [path.name for path in cut.iterdir() if path.suffix == ".safetensors"] == ["checkpoint-int2e8.safetensors"]
    capsys.readouterr()
    assert cli.main([*words, "-o", str(cut)]) == 2
    assert "holds a run (checkpoint-int2e8.safetensors): continue with --resume" in capsys.readouterr().err
    assert cli.main([*words, "--seed", "1", "-o", str(cut), "--resume"]) == 2
    assert "is from a run whose seed is 0, not 1: resume with its options" in capsys.readouterr().err
    assert cli.main([*words, "-o", str(cut), "--resume"]) == 0
    assert "--resume" not in capsys.readouterr().out  # in the command that repeats it
    assert sorted(path.name for path in cut.iterdir()) == sorted(path.name for path in whole.iterdir())
    for name in ("int2e8.safetensors", "int3e8.safetensors"):
        assert (cut / name).read_bytes() == (whole / name).read_bytes()
    ours, theirs = (json.loads((folder / "rows.json").read_text())["rows"] for folder in (cut, whole))
    timed = ("distillation_s", "validation_s")
    assert [{**row, **dict.fromkeys(timed)} for row in ours] == [{**row, **dict.fromkeys(timed)} for row in theirs]


def test_bits_of_layers_are_chosen_by_what_distillation_makes_of_them_and_a_killed_search_goes_on(
    agents, tmp_path, capsys
):
    words = ["distill", "dqn", "CartPole-v1", "-f", str(agents / "sb3"), "--auto", "--rounds", "2", "--updates", "300"]
    words += ["--validation", "10", "--episodes", "20"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert cli.main([*words, "-o", str(whole)]) == 0
    out = capsys.readouterr()
    (row,) = json.loads((whole / "rows.json").read_text())["rows"]
    tried = json.loads((whole / "assignments.json").read_text())["rows"]
    assert (row["precision"], row["verdict"], row["margin_pct"]) == ("mixed", "non-inferior", 2.0)
    assert quarl.load(whole / "mixed.safetensors").policy.bits_of_layers == row["bits_of_layers"]
    assert tried[-1]["bits_of_layers"] == row["bits_of_layers"]
    # what is calibrated is only taught where validation does not accept it
    looks = [(tuple(each["bits_of_layers"].values()), each["method"], each["accepted"]) for each in tried[:-1]]
    rejected = [bits for bits, method, accepted in looks if method == "ptq" and not accepted]
    assert rejected
    assert rejected == [bits for bits, method, _ in looks if method == "distill"]
    assert f"mixed-{'-'.join(map(str, rejected[0]))}, round 1: return " in out.err
    assert "assignments: in attempt " in out.out
    assert "were tried" in (whole / "report.html").read_text()
    killed = subprocess.run([sys.executable, "-c", KILLED, *words, "-o", str(cut)], capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    assert cli.main([*words, "-o", str(cut), "--resume"]) == 0
    assert (cut / "mixed.safetensors").read_bytes() == (whole / "mixed.safetensors").read_bytes()
    assert not [*cut.glob("checkpoint-*")]


def test_recorded_observations_stand_in_place_of_an_environment(tmp_path, capsys, monkeypatch):
    policy = networks.dense([4, 32, 32, 3], head="argmax")
    artifact.write(policy, tmp_path / "policy.quarl")
    observations = networks.observations(policy, 400)
    np.savez(tmp_path / "observations.npz", observations.astype(np.float64))
    monkeypatch.setattr(Environment, "playing", None)  # no environment is made
    words = ["distill", str(tmp_path / "policy.quarl"), "--bits", "2", "--edge-bits", "same"]
    words += ["--rounds", "2", "--updates", "40"]
    said = ["--observations", str(tmp_path / "observations.npz"), "-o", str(tmp_path / "out")]
    assert cli.main([*words, *said]) == 0
    out = capsys.readouterr()
    assert "observations.npz, and no return is measured" in out.err
    assert "int2: fidelity, no return; play the policy before you use it." in out.out
    (row,) = json.loads((tmp_path / "out" / "rows.json").read_text())["rows"]
    assert (row["mean"], row["verdict"], row["returns"], row["episodes"]) == (None, None, None, 0)
    assert row["states"] in (0, 360)  # the last tenth is held out
    distilled = quarl.load(tmp_path / "out" / "int2.safetensors")
    exact, held_out = quarl.Agent(policy), observations[360:]
    differ = distilled.predict(held_out)[0] != exact.predict(held_out)[0]
    assert row["error"] == pytest.approx(differ.mean())
    assert row["error"] <= row["error_calibrated"]
    assert not (tmp_path / "out" / "curve.png").exists()


def test_the_float_policy_plays_validation_once_for_all_precisions(agents, tmp_path, monkeypatch):
    played = []
    play = rounds.Validation.play

    def playing(self, policy, **fresh):
        played.extend([] if fresh else [policy.spec.precision])
        return play(self, policy, **fresh)

    monkeypatch.setattr(rounds.Validation, "play", playing)
    words = ["distill", "dqn", "CartPole-v1", "-f", str(agents / "sb3"), "--bits", "8", "7", *QUICK]
    assert cli.main([*words, "-o", str(tmp_path / "out")]) == 0
    assert played == ["fp32", "int8", "int7e8"]


def test_fresh_episodes_are_played_until_a_verdict(agents, tmp_path):
    words = ["distill", "dqn", "CartPole-v1", "-f", str(agents / "sb3"), "--bits", "8", "2", "--edge-bits", "same"]
    auto = ["--episodes", "auto", "--max-episodes", "40", "--margin", "10", "-o", str(tmp_path / "out")]
    assert cli.main([*words, *QUICK[:-2], *auto]) == 0
    eight, two = json.loads((tmp_path / "out" / "rows.json").read_text())["rows"]
    assert (eight["episodes"], eight["max_episodes"], eight["verdict"]) == (30, 40, "non-inferior")
    assert two["episodes"] == len(two["returns"])
    assert two["episodes"] == 40 or (two["episodes"] == 30 and two["verdict"] != "undecided")
    assert two["mean"] < two["mean_fp32"]


def test_a_budget_of_updates_holds_so_many_whole_rounds_and_one_of_minutes_ends_between_rounds(
    agents, tmp_path, capsys
):
    model = ["distill", "dqn", "MountainCar-v0", "-f", str(agents / "sb3"), "--bits", "2", *QUICK, "--validation", "5"]
    assert cli.main([*model, "--rounds", "9", "--budget", "59", "-o", str(tmp_path / "updates")]) == 0
    said = capsys.readouterr().err
    assert ("round 2: return" in said, "round 3: return" in said) == (True, False)


def test_python_gets_the_agent_of_the_best_snapshot_and_what_was_seen(agents):
    agent = quarl.load(agents / "sb3" / "dqn" / "MountainCar-v0_1")
    distilled = agent.distill(2, rounds=1, updates=20, states=100, validation=5)
    assert [(each.round, each.updates, len(each.returns)) for each in distilled.snapshots] == [(0, 0, 5), (1, 20, 5)]
    best = max(distilled.snapshots, key=lambda snapshot: snapshot.mean)
    assert distilled.agent.policy is best.policy
    assert distilled.agent.policy.spec.precision == "int2e8"
    observations = evaluation.record(agent.policy, num=200, seed=5)
    offline = quarl.distill(agent, "int3", observations=observations, rounds=1, updates=20)
    assert [each.returns.size for each in offline.snapshots] == [0, 0]


def test_the_guide_s_python_runs(agents, tmp_path, monkeypatch, capsys):
    page = ROOT / "docs" / "guide" / "distill.md"
    (code,) = (block.text for block in blocks(page) if block.language == "python")
    monkeypatch.chdir(tmp_path)
    Path("logs").symlink_to(agents / "sb3")
    exec(compile(code.replace("rounds=2", "rounds=1, updates=20, states=100, validation=5"), "page", "exec"), {})
    assert re.match(r"calibrated: return \d+\.\d \(\d+ s\)\nround 1: return ", capsys.readouterr().out)
    assert quarl.load("int2.quarl").policy.spec.precision == "int2e8"


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"precision": "fp16"}, "precision fp16: distillation is for weights of 2 to 8 bits"),
        ({"env": "CartPole-v1"}, "env is a str, not a gymnasium.Env; an id is given as env_id"),
        ({"updates": "5"}, "updates is '5'; use a whole number"),
        ({"budget": 5}, "budget is '5'; use a round of 1,000 updates or more"),
        ({}, "name one with --env, or give recorded --observations"),
    ],
)
def test_a_careless_call_is_told_the_right_keyword(options, line):
    with pytest.raises(quarl.QuarlError, match=line):
        quarl.Agent(networks.dense([4, 2])).distill(**options)


def test_distill_mixes_no_two_agents_and_no_two_runs(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        artifact.write(networks.dense([4, 8, 2]), f"{name}.safetensors")
    words = ["distill", "one.safetensors", "--env", "CartPole-v1", "--bits", "8", *QUICK, "-o", "out"]

    def refused():
        before = {path.name: path.read_bytes() for path in Path("out").iterdir()}
        assert cli.main(words) == 2
        assert {path.name: path.read_bytes() for path in Path("out").iterdir()} == before
        return capsys.readouterr().err

    with locked(Path("out")):
        assert "another quarl run is using out: wait for it, or choose another folder with -o" in refused()
    assert cli.main(words) == 0
    assert cli.main(words) == 0
    assert "replaced in out: " in capsys.readouterr().out
    words[1] = "two.safetensors"
    assert "out holds results of one.safetensors: choose another -o, or remove them" in refused()


@pytest.mark.parametrize(
    ("updates", "row", "said"),
    [
        ([0], {}, "int4: calibration's codes are kept; validation required no training."),
        ([0, 20, 40], {}, "int4: calibration's codes are kept; none of 40 updates did better in validation."),
        ([0, 20], {"round": 1}, "int4: 80.0 calibrated, 95.0 distilled, of 100.0 in fp32."),
        (
            [0],
            {"verdict": "undecided"},
            "int4 has no verdict after 100 episodes; it takes some 400: raise --episodes, and ",
        ),
        (
            [0],
            {"verdict": "undecided", "max_episodes": 100},
            "it takes some 400: raise --max-episodes, and --validation",
        ),
        (
            [0],
            {"verdict": "undecided", "episodes": 9},
            "int4 has no verdict after 9 episodes; it takes 10 or more: raise",
        ),
        ([0], {"verdict": "inferior"}, "int4 is inferior: raise --rounds or --updates, or use more bits."),
    ],
)
def test_what_came_of_a_precision_names_the_next_step(updates, row, said):
    about = dict.fromkeys(field.name for field in fields(distill.DistillRow)) | {"precision": "int4"}
    about |= {"mean": 95.0, "mean_calibrated": 80.0, "mean_fp32": 100.0, "margin_pct": 5.0, "episodes": 100, "round": 0}
    about |= {"difference": -10.0, "difference_low": -20.0, "difference_high": 0.0, "verdict": "non-inferior"}
    snapshots = [SimpleNamespace(updates=number) for number in updates]
    sentence = distill._sentence(distill.DistillRow(**about | row), snapshots)
    assert said in sentence
    assert (sentence == said) == said.startswith("int4:")
