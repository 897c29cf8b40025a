"""Mixed precision: turns of timed updates, medians by hand, and whole small trainings on pixels."""

from __future__ import annotations

import json
import sys

import gymnasium
import pytest

import contracts
import require
from quarl.cli import main
from quarl.errors import QuarlError
from quarl.lab import file, summaries
from quarl.lab.cell_groups import grouped
from quarl.lab.methods import updates as timed
from quarl.lab.methods.updates import Updates, take_turns
from quarl.lab.plan import plan
from quarl.lab.store import Record

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


# updates


KWARGS = (
    "dict(features_extractor_class=WideCNN, features_extractor_kwargs=dict(filters=4, features_dim=8), net_arch=[])"
)


def updates(folder, seconds, dtypes):
    """Return the rows of a study of updates, and its page."""
    params = {"batch_size": 8, "policy_kwargs": KWARGS}
    policy = {"name": "A", "algo": "dqn", "env": "PongNoFrameskip-v4", "source": "train", "n_timesteps": 1000}
    method = {"method": "updates", "dtypes": dtypes, "seconds": seconds}
    study = {"policies": [policy | {"params": params, "train": {"threads": 1}}], "methods": [method]}
    (folder / "study.yml").write_text(json.dumps(study))
    assert main(["study", "run", "study.yml", "-o", "out"]) == 0
    assert main(["study", "report", "out"]) == 0
    return contracts.read(folder / "out" / "updates.json")["rows"], (folder / "out" / "report.html").read_text()


@pytest.mark.slow
def test_updates_of_every_number_type_are_compared_with_float32(tmp_path):
    (fp32, bf16), _ = updates(tmp_path, 1.0, ["fp32", "bf16"])
    # 4*4*64 + 4*4*16 + 4*4*9 weights and 3*4 biases; 4*7*7 inputs of the dense layer; 6 actions
    assert fp32["parameters"] == 1024 + 256 + 144 + 12 + (196 * 8 + 8) + (8 * 6 + 6)
    about = [fp32[name] for name in ("policy", "filters", "width", "batch", "device", "threads")]
    assert about == ["A", 4, 8, 8, "cpu", 1]
    assert (fp32["native"], fp32["speedup"], fp32["speedup_low"]) == (True, 1.0, None)
    assert all(row["updates"] >= 3 and row["ci_low"] <= row["ms_per_update"] <= row["ci_high"] for row in (fp32, bf16))
    assert bf16["speedup"] == pytest.approx(fp32["ms_per_update"] / bf16["ms_per_update"])
    assert bf16["speedup_low"] <= bf16["speedup"] <= bf16["speedup_high"]


@pytest.mark.slow
def test_updates_without_time_are_extrapolated(tmp_path):
    rows, page = updates(tmp_path, 1e-6, ["fp32"])
    (row,) = rows
    assert (row["updates"], row["ci_low"], row["speedup_low"]) == (0, None, None)
    assert row["ms_per_update"] > 0
    assert "extrapolated from batches of 2 and 4" in page


def test_updates_are_timed_of_trainings_of_dqn(tmp_path):
    policies = [{"algo": "a2c", "env": "CartPole-v1", "source": "train", "n_timesteps": 100}]
    for methods, said in (("fp32", ""), ("fp64", "dtypes are fp32, bf16 and fp16, got 'fp64'")):
        method = {"method": "updates", "dtypes": methods}
        (tmp_path / "study.yml").write_text(json.dumps({"policies": policies, "methods": [method]}))
        if said:
            with pytest.raises(QuarlError, match=said):
                file.read("study.yml")
        else:
            (cell,) = plan(file.read("study.yml"))
            assert cell.na == "updates are timed of DQN alone"


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
    monkeypatch.setattr(timed.time, "perf_counter", lambda: Clocked.now)
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
    params = {"batch_size": 8, "learning_starts": 40, "buffer_size": 500, "train_freq": 4, "policy_kwargs": KWARGS}
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
