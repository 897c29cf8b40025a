"""Mixed precision: turns of timed updates, medians by hand, and whole small trainings on pixels."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import gymnasium
import pytest

import contracts
import require
from quarl.cli import main, parse
from quarl.config import MixedPrecisionConfig
from quarl.config.base import hyperparameters
from quarl.config.mixed_precision import sizes
from quarl.errors import QuarlError
from quarl.lab import summaries
from quarl.lab.cell_groups import grouped
from quarl.lab.methods import mixed_precision
from quarl.lab.methods.cells import Cells
from quarl.lab.methods.mixed_precision import Updates, take_turns, updates
from quarl.lab.store import Record
from quarl.report import schema

SHORT = """\
import gymnasium
import numpy as np


class Lights(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 5
        return self._observe(), {}

    def step(self, action):
        reward, self.left = float(action == self.lit), self.left - 1
        return self._observe(), reward, self.left == 0, False, {}

    def _observe(self):
        self.lit = int(self.np_random.integers(3))
        frames = np.zeros((4, 84, 84), np.uint8)
        frames[:, :, 28 * self.lit : 28 * self.lit + 28] = 255
        return frames


gymnasium.register("Lights-v0", entry_point=Lights)
"""
"""Five steps an episode, because a game of Pong for every evaluation takes minutes."""


@pytest.fixture(autouse=True)
def lights(monkeypatch, tmp_path):
    """The environment by its module, and a folder of the test's own."""
    require.module("ale_py")
    (tmp_path / "lights.py").write_text(SHORT)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield
    gymnasium.registry.pop("Lights-v0", None)
    sys.modules.pop("lights", None)


def config(folder, **changed):
    chosen = {"policies": ("4,8",), "batch_size": 8, "threads": 1, "seconds": 1.0}
    found = MixedPrecisionConfig(**chosen | {"output": folder} | changed)
    found.check()
    return found


def cells(folder, minutes=10.0):
    return Cells(folder, minutes, lambda line: None)


# updates


@pytest.mark.slow
def test_every_precision_of_a_policy_is_timed_and_compared_with_float32(tmp_path):
    asked = config(tmp_path)
    rows = updates(asked, cells(tmp_path))
    contracts.check(schema.document(mixed_precision.UpdatesRow, rows))
    assert [row.dtype for row in rows] == ["fp32", "bf16", "fp16"]
    fp32, bf16, _ = rows
    # 4*4*64 + 4*4*16 + 4*4*9 weights and 3*4 biases; 4*7*7 inputs of the dense layer; 6 actions
    assert fp32.parameters == 1024 + 256 + 144 + 12 + (196 * 8 + 8) + (8 * 6 + 6)
    assert (fp32.filters, fp32.width, fp32.batch, fp32.device, fp32.threads) == (4, 8, 8, "cpu", 1)
    assert (fp32.native, fp32.speedup, fp32.speedup_low) == (True, 1.0, None)
    assert all(row.updates >= 3 and row.ci_low <= row.ms_per_update <= row.ci_high for row in rows)
    assert bf16.speedup == pytest.approx(fp32.ms_per_update / bf16.ms_per_update)
    assert bf16.speedup_low <= bf16.speedup <= bf16.speedup_high
    assert updates(asked, cells(tmp_path, minutes=-1.0)) == rows  # from its cell
    other = dataclasses.replace(asked, params=("policy_kwargs:dict(optimizer_kwargs=dict(eps=1e-5))",))
    assert updates(other, cells(tmp_path, minutes=-1.0)) == []  # another cell


@pytest.mark.slow
def test_what_does_not_fit_into_the_time_is_extrapolated_and_said(tmp_path, capsys):
    words = "bench mixed-precision --policies 4,8 --batch-size 8 --seconds 1e-6 --threads 1 --dtypes fp32 fp16 -o out"
    assert main(words.split()) == 0
    for row in contracts.read(tmp_path / "out" / "updates.json")["rows"]:
        assert (row["updates"], row["ci_low"], row["speedup_low"]) == (0, None, None)
        assert row["ms_per_update"] > 0
    shown = capsys.readouterr().out
    assert "≈" in shown
    assert "extrapolated from batches of 2 and 4" in shown


class Clocked(Updates):
    """Updates that take what they are told to, on a clock that only they move."""

    now = 0.0

    def __init__(self, seconds, log, name):
        self.batch_size, self.seconds, self.took = 32, [], seconds
        self.log, self.name = log, name

    def update(self, batch_size):
        self.log.append(self.name)
        Clocked.now += self.took
        return self.took


def test_precisions_take_turns_until_each_has_had_its_time(monkeypatch):
    monkeypatch.setattr(mixed_precision.time, "perf_counter", lambda: Clocked.now)
    log = []
    fast, slow = Clocked(1.0, log, "fast"), Clocked(8.0, log, "slow")
    take_turns([fast, slow], seconds=20.0)
    assert log[:2] == ["fast", "slow"]  # not counted
    assert log[2:8] == ["fast", "fast", "slow", "slow", "fast", "fast"]  # blocks of 2 s, who begins changes
    assert (sum(fast.seconds), sum(slow.seconds)) == (20.0, 24.0)


def test_an_estimate_is_what_is_fixed_and_what_each_row_adds(monkeypatch):
    timer = Clocked(0.0, [], "")
    monkeypatch.setattr(timer, "update", lambda rows: 1.0 + 0.5 * rows)
    timer.probe()
    assert timer.estimated_s == pytest.approx(1.0 + 0.5 * 32)
    assert timer.fits(51.0)
    assert not timer.fits(50.9)


# learning


@pytest.mark.slow
def test_learners_of_several_dtypes_are_compared_by_a_study(tmp_path):
    kwargs = (
        "dict(features_extractor_class=WideCNN, features_extractor_kwargs=dict(filters=4, features_dim=8), net_arch=[])"
    )
    params = {"batch_size": 8, "learning_starts": 40, "buffer_size": 500, "train_freq": 4, "policy_kwargs": kwargs}
    shared = {"algo": "dqn", "env": "Lights-v0", "source": "train", "n_timesteps": 120, "params": params}
    policies = [
        {"name": name, "train": {"learner_dtype": name, "eval_freq": 60}, **shared} for name in ("fp32", "fp16")
    ]
    study = {"episodes": 2, "policies": policies, "methods": [{"method": "untrained"}, {"method": "fp32"}]}
    (tmp_path / "study.yml").write_text(json.dumps(study))
    assert main(["study", "run", "study.yml", "--env-module", "lights", "-o", "out"]) == 0
    assert main(["study", "report", "out"]) == 0
    fp32, fp16 = contracts.read(tmp_path / "out" / "learning.json")["rows"]
    assert (fp32["env_steps"], fp32["updates"], fp32["seeds"], fp32["episodes"]) == (120, 20, 1, 2)
    assert fp32["difference"] is fp32["equal"] is None
    assert fp16["difference"] == pytest.approx(fp16["mean"] - fp32["mean"])
    assert fp16["equal"] == (fp16["difference_low"] <= 0 <= fp16["difference_high"])
    assert 0 <= fp32["before"] <= 5


def test_differences_are_paired_by_seed():
    def cells(source, seed, *returns):
        trained = {"trained_steps": 1, "updates": 1, "minutes": 1.0}
        facts = {"fp32": {"returns": returns}, "untrained": {"returns": [0.0, 0.0]}, "train": trained}
        for method, fact in facts.items():
            about = {"algo": "dqn", "env_id": "Pong", "source": source, "seed": seed, "precision": "fp32"}
            done = {"state": "done", "error": None, "seconds": 1.0, "peak_mb": 1.0, "episodes": 2}
            yield Record(**about, **done, method=method, key=f"{source} {seed} {method}", result=fact)

    found = [*cells("A fp32", 0, 1.0, 2.0), *cells("A fp32", 1, 5.0, 6.0)]
    found += [*cells("A bf16", 0, 1.5, 2.5), *cells("A bf16", 1, 5.5, 6.5)]
    _, row = summaries.learning(grouped(found), found)
    assert (row.difference, row.difference_low, row.difference_high, row.equal) == (0.5, 0.5, 0.5, False)
    assert row.mean == 4.0
    alone = [record for record in found if record.source == "A fp32" and record.method != "untrained"]
    assert summaries.learning(grouped(alone), alone) == []


# options


def test_policies_are_those_of_the_experiment_or_any_widths():
    assert [sizes(name) for name in ("A", "B", "C", "64,256")] == [(128, 128), (512, 512), (1024, 2048), (64, 256)]
    assert MixedPrecisionConfig().chosen() == ("A", "B", "C")
    with pytest.raises(QuarlError, match="unknown --policies 'D'"):
        sizes("D")


def test_policy_kwargs_are_those_given_and_the_policy_s():
    given = "policy_kwargs:dict(optimizer_kwargs=dict(eps=0.00015), activation_fn=nn.ReLU)"
    training = MixedPrecisionConfig(params=("gamma:0.9", given)).training("A", "bf16", 0, Path("out"))
    assert hyperparameters(training.params, str) == {
        "gamma": "0.9",
        "batch_size": "32",
        "policy_kwargs": "dict(optimizer_kwargs=dict(eps=0.00015), activation_fn=nn.ReLU, "
        "features_extractor_class=WideCNN, features_extractor_kwargs=dict(filters=128, features_dim=128), net_arch=[])",
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--policies D", "unknown --policies 'D'; use A (128,128)"),
        ("--batch-size 0", "--batch-size must be at least 1"),
        ("--seconds 0", "--seconds and --minutes must be above 0"),
        ("--params policy_kwargs:dict(net_arch=[8])", "net_arch is set by --policies"),
        ("--params policy_kwargs:[8]", "policy_kwargs:[8] is not a dict(...)"),
        ("--params policy_kwargs:dict(open('x'))", "is not a dict(...)"),
        ("--params batch_size:64", "--params batch_size duplicates --batch-size: drop it"),
        ("--params buffer_size:5", "--params buffer_size is fixed in this benchmark: drop it"),
        ("--what learning", "has no option --what; use quarl study run studies/mixed-precision-learning.yml"),
        ("--env CartPole-v1 --policies 4,8", "WideCNN requires images"),
    ],
)
def test_mistakes_are_one_line(words, said, capsys):
    assert main(["bench", "mixed-precision", *words.split()]) == 2
    err = capsys.readouterr().err.splitlines()
    assert said in err[-1]
    assert "Traceback" not in "".join(err)


def test_the_command_line_repeats_the_run():
    found = parse(["bench", "mixed-precision", "--dtypes", "fp32", "bf16", "--energy"])
    assert isinstance(found, MixedPrecisionConfig)
    assert parse(found.command_line().split()[1:]) == found
