"""TensorBoard's events: the same tags from train and actorq, and a run can do without them."""

from __future__ import annotations

import errno
import sys

import pytest
from training_runs import train

from quarl.actorq.evaluator import ActorsEvaluator
from quarl.actorq.metrics import scalars
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
    assert line.endswith("tensorboard: No space left on device; training goes on")
    assert len(made[0].points) == 2
