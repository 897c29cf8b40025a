"""A run's reports to its user: faults, lines without a terminal, metrics of bounded size, an agent at any time."""

from __future__ import annotations

import json
import os
import signal
import time
from types import SimpleNamespace

import numpy as np
import pytest
from stable_baselines3 import DQN

from quarl.actorq import faults, metrics
from quarl.actorq.counters import Learner
from quarl.actorq.faults import Fault, Faults
from quarl.cli import parse
from quarl.commands.actorq import Lines
from quarl.errors import LOUDNESS
from stress.chaos import poison
from stress.chaos.run import Run


def test_repeats_of_a_fault_are_counted_and_kept_over_starts(tmp_path, monkeypatch):
    said, cells, clock = [], np.zeros(len(Learner)), SimpleNamespace(now=100.0, strftime=time.strftime)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(faults, "time", clock)
    told = Faults(tmp_path, said.append, cells)
    for second in (100, 110, 159, 160, 200, 280, 520, 600):
        clock.now = float(second)
        told.look()
        if second not in (160, 280, 520):
            told.tell(Fault(who="actor 0", event="died", reason=f"exit code {second}", then="restarted"))
    told.tell(Fault(who="actor 1", event="died", reason="SIGKILL", then="parked", count=2))
    cells[Learner.ROLLBACKS] = 2
    told.look(last=True)
    assert said == [
        "actor 0 died (exit code 100): restarted",
        "actor 0 died 2 more times in 60 s (exit code 159)",
        "actor 0 died 1 more time in 120 s (exit code 200)",
        "actor 0 died (exit code 600): restarted",
        "actor 1 died 2 times (SIGKILL): parked",
    ]
    again = Faults(tmp_path, said.append, np.zeros(len(Learner)))
    assert [row["count"] for row in again.rows] == [1, 2, 1, 1, 2, 2]
    assert [again.total(*kind) for kind in (("actor ", "died"), ("actor 0", "died"), ("learner", "div"))] == [7, 5, 2]


def test_lines_without_a_terminal_tell_progress_and_evaluations(capsys, monkeypatch):
    lines, config = Lines(), parse(["actorq", "--algo", "dqn", "-n", "5000"])
    row = {"wall_s": 0.5, "timesteps": 0, "updates": 0, "return_mean": None}
    played = {"return": 17.9, "return_low": 16.2, "return_high": 19.7, "timesteps": 1000}
    after = row | {"wall_s": 60.5, "timesteps": 1200, "updates": 300, "return_mean": 21.25}
    for shown in ((row, []), (row | {"wall_s": 59.0}, [played]), (after, [played]), (after, [played])):
        lines(config, *shown)
    lines(config, after, [played, played | {"last": True, "episodes": 20}])
    monkeypatch.setenv(LOUDNESS, "quiet")
    lines(config, after | {"wall_s": 200.0}, [played, played])
    assert capsys.readouterr().err.splitlines() == [
        "quarl: evaluation at step 1,000: fp32 17.9 [16.2, 19.7]",
        "quarl: 1,200 of 5,000 steps, 300 updates, 20.0 steps/s, return 21.2, 0:03:10 left",
        "quarl: last evaluation, 20 fresh episodes at step 1,000: fp32 17.9 [16.2, 19.7]",
    ]


def test_metrics_are_thinned_by_age_and_keep_both_ends_of_a_start():
    rows = [{"clock_s": second * 1.01, "wall_s": second % 30_000} for second in range(90_000)]
    kept = metrics.thin(rows)
    assert (kept, kept[-1000:]) == (metrics.thin(kept), rows[-1000:])
    assert (len(kept) < 6000, max(np.diff([row["clock_s"] for row in kept])) < 130) == (True, True)
    assert [row for row in kept if row["wall_s"] in (0, 29_999)] == [
        rows[k + e] for k in (0, 30_000, 60_000) for e in (0, 29_999)
    ]


def test_checkpoints_have_an_agent_from_the_first_one(tmp_path):
    with poison.rig(tmp_path) as rig:
        assert DQN.load(tmp_path / "model.zip").num_timesteps == 0
        rig.train(3)
        rig.learner._save()
        assert DQN.load(tmp_path / "model.zip").num_timesteps == rig.learner.model.num_timesteps > 0


@pytest.mark.slow
def test_counts_equal_the_injected_faults_after_two_resumes(tmp_path):
    """Killed, raised and hung; the learner is killed in two starts, and Ctrl-C ends the third."""
    words, raised = ("--actors", "2", "--save-freq", "500", "--env-timeout", "5", "-n", "100000"), 0
    for start in range(3):
        chaos = {"step_s": 0.002, "raise_p": 0.01, "hangs": {"actor 1": 100}}
        with Run(tmp_path, *words, *(("--resume",) if start else ()), chaos=chaos) as run:
            run.ready().until(lambda: "actor 1 died (no step for 5 s): restarted; see " in run.text())
            for name in ("actor-0", "publisher"):
                run.send(name, signal.SIGKILL)
                died = (
                    f"quarl: {name.replace('-', ' ')} died (killed by SIGKILL): restarted; see {run.output / name}.log"
                )
                run.until(lambda died=died: died in run.text().splitlines())
            if start < 2:
                run.send("learner", signal.SIGKILL)
            else:
                os.kill(run.process.pid, signal.SIGINT)
            assert run.finish() == (1 if start < 2 else 130)
            raised += len(list(run.counts.glob("raised*")))
            assert [run.faults(who) for who in ("actor ", "publisher")] == [2 * (start + 1), start + 1]
            assert (run.faults("learner"), run.faults("environment", "raised")) == (min(start + 1, 2), raised)
            assert run.told("environment of actor 0", "raised", "RuntimeError: the simulation broke down")
            assert run.told("actor 1", "died", "no step for 5 s")
            assert run.told("publisher", "died", "killed by SIGKILL")
    assert run.rows()[-1]["learner"]["duplicates"] == 0
    (summary,) = json.loads((run.output / "summary.json").read_text())["rows"]
    page = (run.output / "report.html").read_text()
    assert (summary["actor_deaths"], page.count(">learner</td>")) == (6, 2)
    assert f"6 deaths of actors, 3 of the publisher; {raised} environments raised" in page


@pytest.mark.slow
def test_a_run_whose_environments_always_raise_ends_with_code_4(tmp_path):
    with Run(tmp_path, "--actors", "2", "-n", "100000", chaos={"raise_p": 0.7}) as run:
        assert run.finish() == 4
        why = "no actor completed an episode or 1,000 steps in its last ten replacements (RuntimeError: the simulation"
        assert f"quarl: {why} broke down); resume with --resume -o {run.output}" in run.text()
