"""The page of `quarl train`: all of a run, whatever became of it, and never the run's loss."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from training_runs import train, words

from quarl.cli import main
from quarl.commands import training_page
from quarl.report.figures import learning

pytestmark = pytest.mark.slow

MORE = ["--eval-freq", "100", "--eval-episodes", "3", "--save-freq", "100"]


@pytest.fixture
def drawn(monkeypatch):
    """Points and training episodes of every figure that is drawn."""
    figures = []

    def recorded(points, episodes, against, title):
        figures.append((points, episodes))
        return learning(points, episodes, against, title)

    monkeypatch.setattr(training_page, "learning", recorded)
    return figures


def test_a_run_that_went_on_has_one_page_of_all_of_it_though_a_line_was_torn(tmp_path, drawn):
    train(tmp_path, "dqn", "CartPole-v1", 300, *MORE, evaluations=True)
    run = tmp_path / "logs/dqn/CartPole-v1_1"
    first = run / "report.html"
    assert first.is_file()
    first.unlink()
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"timesteps": 4')
    assert main(["train", "--resume", "--algo", "dqn", "--env", "CartPole-v1", "-n", "500"]) == 0
    assert first.is_file()
    points, episodes = drawn[-1]
    running = [point for point in points if point["label"] == "float32"]
    with np.load(run / "evaluations.npz") as kept:
        assert [point["timesteps"] for point in running] == kept["timesteps"].tolist()
        assert [point["mean"] for point in running] == kept["results"].mean(axis=1).tolist()
    clock = {row["timesteps"]: row["clock_s"] for row in episodes}
    assert [point["clock_s"] for point in running] == [clock[point["timesteps"]] for point in running]
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert rows == episodes
    for name in ("timesteps", "updates", "clock_s", "update_s"):  # nothing begins again where it goes on
        assert [row[name] for row in rows] == sorted(row[name] for row in rows)
    assert rows[0]["timesteps"] < 32
    assert rows[-1]["timesteps"] == 512
    assert all(row["update_s"] <= row["clock_s"] for row in rows)
    assert 5 < rows[-1]["return_mean"] < 100


def test_evaluations_after_quantisation_began_are_of_that_precision(tmp_path, drawn):
    qat = ("--qat", "w4a8", "--quant-delay", "250")
    row = train(tmp_path, "a2c", "CartPole-v1", 512, *MORE, *qat, evaluations=True)
    points, _ = drawn[-1]
    steps = {
        label: [point["timesteps"] for point in points if point["label"] == label] for label in ("float32", "w4a8e8")
    }
    assert max(steps["float32"]) < row["switched_at"] <= min(steps["w4a8e8"])
    marks = {point["label"]: point for point in points if point["label"] not in steps}
    assert marks["quantization starts"]["timesteps"] == row["switched_at"]
    assert (marks["best"]["timesteps"], marks["best"]["mean"]) == (row["best_timesteps"], row["best_mean"])
    assert (marks["w4a8e8, last"]["mean"], marks["w4a8e8, last"]["ci_low"]) == (
        row["mean_quantised"],
        row["ci_low_quantised"],
    )
    assert marks["float32, last"]["mean"] == row["mean"]


def test_without_evaluations_there_is_a_page_without_a_curve_which_says_so(tmp_path, capsys):
    run = tmp_path / "logs/a2c/CartPole-v1_1"
    train(tmp_path, "a2c", "CartPole-v1", 256)
    assert f"report: {run}/report.html" in capsys.readouterr().out
    assert "No evaluation was finished, so there is no curve." in (run / "report.html").read_text()
    assert not (run / "curve.png").exists()


def test_a_page_that_cannot_be_drawn_costs_the_page_and_not_the_run(tmp_path, capsys, monkeypatch):
    def broken(**_):
        raise ValueError("no such font")

    monkeypatch.setattr("quarl.report.page.render", broken)
    assert main(words("a2c", "CartPole-v1", 256)) == 0
    captured = capsys.readouterr()
    assert captured.err.endswith("quarl: no report was written (ValueError: no such font); the run is complete\n")
    assert "report:" not in captured.out
    assert (tmp_path / "logs/a2c/CartPole-v1_1/CartPole-v1.zip").is_file()
    assert not list(tmp_path.rglob("report.html"))


def test_no_training_waits_for_what_draws():
    code = "import sys, quarl.commands.train, quarl.commands.actorq; print({'matplotlib', 'jinja2'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
