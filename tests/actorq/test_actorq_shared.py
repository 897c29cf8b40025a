"""Shared memory, boards and rings: whole snapshots, whole segments, and nothing that a killed process can block."""

from __future__ import annotations

import fcntl
import multiprocessing
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

from quarl.actorq.board import SLOTS, Board
from quarl.actorq.channel import Ring
from quarl.actorq.counters import percentile
from quarl.actorq.shared_memory import PREFIX, Block, Memory
from quarl.errors import QuarlError
from waiting import PATIENCE_S, until

SPAWN = multiprocessing.get_context("spawn")
SIZE = 200_000


@pytest.fixture
def memory(request):
    made = []

    def create(blocks):
        made.append(Memory.create(blocks))
        return made[-1]

    yield create
    for each in made:
        each.remove()


def test_arrays_of_two_mappings_are_the_same_memory(memory):
    blocks = {"a": Block(np.dtype("f4"), (3,)), "b": Block(np.dtype("i8"), (2, 2))}
    one = memory(blocks)
    two = Memory(one.path, blocks)
    one.array("b")[1, 0] = 7
    assert two.array("b").tolist() == [[0, 0], [7, 0]]
    assert two.array("a").tolist() == [0, 0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("elsewhere", [False, True])
def test_memory_of_a_killed_supervisor_is_removed_by_the_next(memory, monkeypatch, elsewhere):
    code = (
        "import numpy as np, os, signal\n"
        "from quarl.actorq.shared_memory import Block, Memory\n"
        "print(Memory.create({'a': Block(np.dtype('u1'), (64,))}).path, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    left = Path(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip())
    assert left.name.startswith(PREFIX)
    assert left.exists()
    if elsewhere:  # as where it filled all that there was
        monkeypatch.setattr("quarl.actorq.shared_memory._folder", lambda size: Path(tempfile.gettempdir()))
    memory({"a": Block(np.dtype("u1"), (64,))})
    assert not left.exists()


def test_a_run_knows_whether_another_one_is_on_the_machine(memory, monkeypatch, tmp_path):
    monkeypatch.setattr(
        "quarl.actorq.shared_memory.SHARED", tmp_path
    )  # where no other run of this machine has its memory
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = tmp_path / f"{PREFIX}{2**22 + 1}-0"  # no process of this machine: it is another container's
    try:
        with path.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            own = memory({"a": Block(np.dtype("u1"), (64,))})
            assert not own.alone()
            assert path.exists()
        own.remove()
        own = memory({"a": Block(np.dtype("u1"), (64,))})
        assert not path.exists()  # whoever had it is no more
        other = memory({"a": Block(np.dtype("u1"), (64,))})
        assert (own.path.exists(), own.alone(), other.alone()) == (True, False, False)
        other.remove()
        assert own.alone()
    finally:
        path.unlink(missing_ok=True)


def test_a_snapshot_that_is_read_in_place_holds_until_its_slot_is_written_again(memory):
    shared = memory(Board.blocks("x", 4))
    writer, reader = Board(shared, "x"), Board(shared, "x")
    writer.publish(b"good", version=1, step=1)
    found = reader.peek()
    assert found.data.tobytes() == b"good"
    assert np.shares_memory(found.data, reader.peek().data)
    writer.publish(b"next", version=2, step=2)
    writer.publish(b"last", version=3, step=3)
    assert reader.holds(found)
    assert reader.peek(newer_than=3) is None
    writer.begin()
    assert not reader.holds(found)


@pytest.mark.parametrize("raises", [False, True], ids=["made", "raised"])
def test_what_was_made_of_a_snapshot_that_was_written_over_meanwhile_is_made_again(memory, raises):
    shared = memory(Board.blocks("x", 4))
    writer, reader = Board(shared, "x"), Board(shared, "x")
    writer.publish(b"torn", version=1, step=1)

    def make(data):
        if reader.version == 1:
            for version in range(2, 2 + SLOTS):
                writer.publish(b"good", version=version, step=version)
            if raises:
                raise QuarlError("the sha256 is not that of half of each")
        return data.tobytes()

    snapshot, made = reader.read(0, make)
    assert (snapshot.version, made) == (1 + SLOTS, b"good")
    assert reader.read(snapshot.version, make) is None


def test_bytes_that_cannot_be_made_anything_of_are_an_error(memory):
    shared = memory(Board.blocks("x", 4))
    writer, reader = Board(shared, "x"), Board(shared, "x")
    writer.publish(b"junk", version=1, step=1)

    def make(data):
        raise QuarlError("it is damaged")

    with pytest.raises(QuarlError, match="damaged"):
        reader.read(0, make)


def test_a_snapshot_that_was_begun_and_not_finished_is_never_seen(memory):
    shared = memory(Board.blocks("x", 4))
    dead, reader = Board(shared, "x"), Board(shared, "x")
    dead.publish(b"good", version=1, step=1)
    dead.begin()[:] = 0xFF  # and here its process is killed
    assert reader.pull().data.tobytes() == b"good"
    successor = Board(shared, "x")
    successor.publish(b"next", version=2, step=2)
    assert reader.pull(newer_than=1).data.tobytes() == b"next"


def test_a_writer_that_dies_while_it_counts_its_version_has_published(memory):
    shared = memory(Board.blocks("x", 4))
    dead, reader = Board(shared, "x"), Board(shared, "x")
    dead.publish(b"good", version=1, step=1)

    class Dying:
        """Two numbers of which only the first can be written."""

        def __init__(self, cells):
            self.cells, self.left = cells, 1

        def __getitem__(self, place):
            return self.cells[place]

        def __setitem__(self, place, value):
            if not self.left:
                raise SystemExit
            self.left -= 1
            self.cells[place] = value

    dead._newest = Dying(dead._newest)
    with pytest.raises(SystemExit):
        dead.publish(b"next", version=2, step=2)
    assert reader.pull(newer_than=1).data.tobytes() == b"next"
    assert Board(shared, "x").version < 2  # so that its successor does it once more
    Board(shared, "x").publish(b"next", version=2, step=2)
    assert reader.version == 2


def _publish_for_ever(path, blocks):
    board, version = Board(Memory(path, blocks), "x"), 0
    while True:
        version += 1
        board.begin().view(np.int64)[:] = version
        board.commit(SIZE, version=version, step=version)


@pytest.mark.slow
def test_snapshots_are_never_torn_while_a_writer_runs_and_after_it_is_killed(memory):
    blocks = Board.blocks("x", SIZE)
    shared = memory(blocks)
    reader, seen = Board(shared, "x"), 0
    for _ in range(3):
        writer = SPAWN.Process(target=_publish_for_ever, args=(shared.path, blocks), daemon=True)
        writer.start()
        until(lambda: reader.pull() is not None)
        for _ in range(300):
            snapshot = reader.pull()
            numbers = snapshot.data.view(np.int64)
            assert (numbers == snapshot.version).all()
            seen += 1
        writer.kill()
        writer.join()
        snapshot = reader.pull()
        assert (snapshot.data.view(np.int64) == snapshot.version).all()
    assert seen == 900


ROW = np.dtype([("number", "i8"), ("payload", "i8", (32,))])


def _fill(ring, number):
    i = ring.index(0)
    ring.rows["number"][i] = number
    ring.rows["payload"][i] = number
    ring.commit(1)


def _taken(ring, num):
    rows = np.zeros(num, ring.rows.dtype)
    ring.take_into(rows.view(np.uint8).reshape(num, rows.dtype.itemsize))
    return rows


def _write_for_ever(path, blocks, start):
    ring, number = Ring(Memory(path, blocks), "r"), start
    while True:
        if ring.free():
            _fill(ring, number)
            number += 1


@pytest.mark.slow
def test_a_killed_writer_leaves_whole_rows_and_its_successor_goes_on(memory):
    blocks = Ring.blocks("r", ROW, 64)
    shared = memory(blocks)
    reader = Ring(shared, "r")
    for incarnation in range(3):
        start = incarnation * 10**9
        writer = SPAWN.Process(target=_write_for_ever, args=(shared.path, blocks, start), daemon=True)
        writer.start()
        expected, deadline = start, time.monotonic() + PATIENCE_S
        while expected < start + 2000 and time.monotonic() < deadline:
            rows = _taken(reader, min(reader.num_waiting, 16))
            assert rows["number"].tolist() == list(range(expected, expected + len(rows)))
            assert (rows["payload"] == rows["number"][:, None]).all()
            expected += len(rows)
        writer.kill()
        writer.join()
        rows = _taken(reader, reader.num_waiting)
        assert (rows["payload"] == rows["number"][:, None]).all()
        assert expected >= start + 2000


def test_percentile_is_the_class_that_holds_the_share():
    assert percentile(np.array([0, 5, 4, 1]), 0.5) == 1
    assert percentile(np.array([0, 5, 4, 1]), 0.99) == 3
    assert np.isnan(percentile(np.zeros(4, np.int64), 0.5))
