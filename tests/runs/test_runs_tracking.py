"""Trackers: the same tags from train and actorq, and a run can do without them."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from training_runs import train, words

import require
from quarl.actorq.actors_evaluator import ActorsEvaluator
from quarl.actorq.metrics import scalars
from quarl.cli import main
from quarl.config import ActorQConfig
from quarl.runs.tracking import make_logger
from stress.chaos import poison

ROW = {"timesteps": 40, "loss": None, "learner": {"wait_s": 0.5}, "actors": [{"steps": 30}, {"steps": 10}]}


class Writer:
    """TensorBoard's, which is not installed everywhere; its disk is full after `room` points."""

    def __init__(self, log_dir: str) -> None:
        self.folder, self.points, self.closed = log_dir, [], False
        made.append(self)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        if len(self.points) == room:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.points.append((name, value, step))

    def flush(self) -> None: ...

    def close(self) -> None:
        self.closed = True


made: list[Writer] = []
room = 10_000


@pytest.fixture(autouse=True)
def tensorboard(monkeypatch):
    made.clear()
    monkeypatch.setattr(sys.modules[__name__], "room", 10_000)
    monkeypatch.setattr("stable_baselines3.common.logger.SummaryWriter", Writer)
    monkeypatch.setattr("quarl.runs.train.check_tracking", lambda track: None)


def tags() -> set[str]:
    found = {name for writer in made for name, _, _ in writer.points}
    made.clear()
    return found


def logger(tmp_path, say):
    return make_logger(ActorQConfig(track="tensorboard"), lambda: tmp_path, say)


def log(tracked, row):
    for name, value in scalars(row).items():
        tracked.record(name, value)
    tracked.dump(row["timesteps"])


@pytest.mark.slow
def test_train_and_actorq_write_the_same_tags_which_are_stable_baselines3s(tmp_path):
    more = ("--track", "tensorboard", "--eval-freq", "200", "--eval-episodes", "2")
    train(tmp_path, "dqn", "CartPole-v1", 1000, *more, evaluations=True)
    of_train = tags()
    rollouts = {"rollout/ep_rew_mean", "rollout/ep_len_mean", "rollout/exploration_rate"}
    updates = {"time/fps", "train/loss", "train/learning_rate"}
    assert of_train == rollouts | updates | {"eval/mean_reward", "eval/mean_ep_length"}
    with poison.rig(tmp_path, track="tensorboard", eval_episodes=2) as rig:
        rig.train(5)
        rig.learner.model.dump_logs()
        rig.learner._push()
        rig.publish()
        evaluator = ActorsEvaluator(rig.learner.config, rig.learner.template, rig.channel, print)
        evaluator.evaluate(last=False)
    assert tags() == of_train | {"eval/mean_reward_quantised", "eval/mean_ep_length_quantised"}


def test_nothing_is_written_before_there_is_something_and_nowhere_without_being_asked(tmp_path):
    flat = {"timesteps": 40.0, "learner/wait_s": 0.5, "actors0/steps": 30.0, "actors1/steps": 10.0}
    assert scalars(ROW) == flat
    log(make_logger(ActorQConfig(), lambda: tmp_path, print), ROW)
    tracked = logger(tmp_path, print)
    assert not made
    log(tracked, ROW)
    tracked.close()
    (writer,) = made
    assert writer.folder == str(tmp_path / "tensorboard")
    assert writer.points == [(name, value, 40) for name, value in sorted(flat.items())]
    assert writer.closed


def test_a_full_disk_costs_the_events_and_is_said_once(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "room", 2)
    said: list[str] = []
    tracked = logger(tmp_path, said.append)
    for _ in range(3):
        log(tracked, ROW)
    tracked.close()
    (line,) = said
    assert line.endswith("tensorboard: No space left on device; training continues")
    assert len(made[0].points) == 2


class Run:
    """What wandb.init returns, as far as it is used; its service is gone after `room` points."""

    def __init__(self, **told) -> None:
        self.told, self.points, self.finished = told, [], False

    def log(self, points, step=None) -> None:
        if len(self.points) == room:
            raise ConnectionError("no such host")
        self.points.append((points, step))

    def finish(self) -> None:
        self.finished = True


@pytest.fixture
def service(monkeypatch):
    """The runs that a module in place of wandb has begun."""
    runs = []

    def init(**told):
        print("Welcome!")
        runs.append(Run(**told))
        return runs[-1]

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return runs


@pytest.mark.slow
def test_a_service_gets_the_tags_of_tensorboard_the_hyper_parameters_and_the_name_of_the_folder(
    service, tmp_path, capsys
):
    more = ("--track", "wandb", "--eval-freq", "200", "--eval-episodes", "2")
    train(tmp_path, "dqn", "CartPole-v1", 1000, *more, evaluations=True)
    assert "Welcome!" not in capsys.readouterr().out  # which may be rows of JSON
    (run,) = service
    folder = tmp_path / "logs/dqn/CartPole-v1_1"
    assert (run.told["project"], run.told["name"]) == ("quarl", "CartPole-v1_1")
    assert run.told["dir"] == str(folder)
    assert (run.told["config"]["algo"], run.told["config"]["batch_size"]) == ("dqn", 16)
    json.dumps(run.told["config"])
    assert run.finished
    steps = [step for _, step in run.points]
    assert steps == sorted(steps)  # what is out of order, wandb leaves out
    of_service = {tag for points, _ in run.points for tag in points}
    train(tmp_path, "dqn", "CartPole-v1", 1000, *more, "--track", "tensorboard", evaluations=True)
    assert of_service == tags()


def test_where_one_process_may_write_it_is_the_supervisor(service, tmp_path):
    config = ActorQConfig(track="wandb")
    assert not make_logger(config, lambda: tmp_path, print, beside=True).output_formats
    log(tracked := make_logger(config, lambda: tmp_path, print), ROW | {"loss": None})
    tracked.close()
    (run,) = service
    assert run.points == [(scalars(ROW), 40)]


def test_an_outage_costs_the_points_and_is_said_once(service, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "room", 1)
    said: list[str] = []
    tracked = make_logger(ActorQConfig(track="wandb"), lambda: tmp_path, said.append)
    for _ in range(3):
        log(tracked, ROW)
    tracked.close()
    assert said == ["metrics are no longer written to wandb: ConnectionError: no such host; training continues"]
    assert not service[0].finished  # what is lost is not waited for


def test_a_service_that_is_not_installed_is_one_line_before_training(tmp_path, monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.undo()
    monkeypatch.setattr("importlib.util.find_spec", lambda wanted: None if wanted == "wandb" else find(wanted))
    assert main([*words("a2c", "CartPole-v1", 64, folder=tmp_path / "logs"), "--track", "wandb"]) == 2
    assert capsys.readouterr().err == "quarl: --track wandb needs an extra: pip install 'quarl[wandb]'\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_weights_and_biases_itself_takes_a_run_without_a_network(tmp_path):
    require.module("wandb")
    command = [sys.executable, "-m", "quarl", *words("ppo", "CartPole-v1", 1024), "--track", "wandb"]
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "WANDB_MODE": "offline"}
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "metrics are no longer" not in done.stderr
    (kept,) = tmp_path.glob("logs/ppo/CartPole-v1_1/wandb/offline-run-*/run-*.wandb")
    assert b"rollout/ep_rew_mean" in kept.read_bytes()
