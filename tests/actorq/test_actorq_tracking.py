"""Rows of metrics as TensorBoard's events, which a run can do without."""

from __future__ import annotations

import errno
import sys
import types

import pytest

from quarl.actorq.metrics import scalars
from quarl.actorq.tracking import Tracker

ROW = {"timesteps": 40, "loss": None, "learner": {"wait_s": 0.5}, "actors": [{"steps": 30}, {"steps": 10}]}


class Writer:
    """TensorBoard's, which is not installed everywhere; its disk is full after `room` points."""

    def __init__(self, folder: str) -> None:
        self.folder, self.points, self.closed = folder, [], False
        made.append(self)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        if len(self.points) == room:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.points.append((name, value, step))

    def close(self) -> None:
        self.closed = True


made: list[Writer] = []
room = 100


@pytest.fixture(autouse=True)
def tensorboard(monkeypatch):
    made.clear()
    monkeypatch.setattr(sys.modules[__name__], "room", 100)
    stand_in = types.SimpleNamespace(SummaryWriter=Writer)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", stand_in)


def test_every_number_of_a_row_is_a_point_by_its_path(tmp_path):
    flat = {"timesteps": 40.0, "learner/wait_s": 0.5, "actors0/steps": 30.0, "actors1/steps": 10.0}
    assert scalars(ROW) == flat
    tracker = Tracker(tmp_path, print)
    assert not made  # nothing is written before there is a row
    tracker.write(ROW)
    tracker.close()
    (writer,) = made
    assert writer.folder == str(tmp_path / "tensorboard")
    assert writer.points == [(name, value, 40) for name, value in flat.items()]
    assert writer.closed


def test_a_full_disk_costs_the_events_and_is_said_once(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "room", 2)
    said: list[str] = []
    tracker = Tracker(tmp_path, said.append)
    for _ in range(3):
        tracker.write(ROW)
    tracker.close()
    (line,) = said
    assert line.endswith("tensorboard: No space left on device; training goes on")
    assert len(made[0].points) == 2
    assert made[0].closed
