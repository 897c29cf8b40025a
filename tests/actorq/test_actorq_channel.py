"""What every transport keeps to: shared memory between processes, and one of this process's own objects."""

from __future__ import annotations

import json
import pickle

import gymnasium
import numpy as np
import pytest

from in_memory import InMemoryChannel, Threads
from quarl.actorq.channel import LocalChannel
from quarl.actorq.counters import Actor, Learner
from quarl.actorq.segment import segment_dtype
from quarl.actorq.supervisor import Supervisor, ring_rows
from quarl.algorithms.cpu import threads
from quarl.config import ActorQConfig
from quarl.errors import QuarlError
from quarl.policy import artifact

NUM_FLOATS, ROOM = 8, 16
CARTPOLE = gymnasium.make("CartPole-v1")
DTYPE = segment_dtype(CARTPOLE.observation_space, CARTPOLE.action_space)


@pytest.fixture(params=[LocalChannel.create, InMemoryChannel], ids=["shared memory", "in memory"])
def channel(request):
    channel = request.param(3, NUM_FLOATS, DTYPE, ROOM)
    yield channel
    channel.remove()


def segment(sequence, actor=0, version=1, **ends):
    """Arguments of `send`: a step whose observations are the number of its sequence."""
    head = (sequence, version, actor, 0, 0, 0, 0.0, 0.5, ends.get("terminated", False), False)
    return head, 1, np.full(4, sequence, np.float32), np.full(4, sequence + 1, np.float32)


def test_readers_get_the_newest_weights_whole_and_once(channel):
    assert channel.floats.version == 0
    assert channel.floats.read(0, np.copy) is channel.floats.pull() is None
    for version in (3, 4):
        with channel.floats.slot(4 * NUM_FLOATS, version=version, step=10 * version, stamp_ns=7) as slot:
            slot.view(np.float32)[:] = version
            assert channel.floats.version < version  # not before it is whole
    snapshot, numbers = channel.floats.read(3, lambda data: data.view(np.float32).tolist())
    assert (snapshot.version, snapshot.step, snapshot.stamp_ns, numbers) == (4, 40, 7, [4.0] * NUM_FLOATS)
    assert channel.floats.pull(4) is None
    assert channel.packed.version == 0


def test_a_slot_that_its_writer_left_by_an_error_is_never_seen(channel):
    channel.packed.publish(b"good", version=1, step=1)
    with pytest.raises(ValueError, match="broadcast"), channel.packed.slot(4, version=2, step=2) as slot:
        slot[:] = [0, 0]
    assert channel.packed.pull().data.tobytes() == b"good"
    channel.packed.publish(b"next one", version=3, step=3)
    assert channel.packed.pull(1).data.tobytes() == b"next one"


def drained(channel, most=99):
    """Segments that the learner takes."""
    rows = np.zeros(most, DTYPE)
    return rows[: channel.drain(rows)]


def test_rows_that_are_sent_together_arrive_as_if_one_by_one_wherever_the_queue_begins_anew(channel):
    sender, sequence = channel.of(1), 0
    for num in (5, 7, ROOM, 1, 9, 3, 11):
        rows = np.zeros(num, DTYPE)
        rows["actor"], rows["sequence"] = 1, np.arange(sequence, sequence + num)
        rows["observation"] = rows["sequence"][:, None]
        sender.send_rows(rows)
        assert sender.room() == ROOM - num
        assert np.array_equal(drained(channel), rows)
        sequence += num
        assert sender.num_sent() == sequence


def test_what_an_actor_sends_has_room_for_a_step_of_all_its_environments_or_is_refused():
    assert [ring_rows(100, num_envs) for num_envs in (1, 64, 3000)] == [4096, 4096, 6000]
    frames = 2 * 4 * 84 * 84 + 64
    assert ring_rows(frames, 64) == 2**26 // frames == 1187
    assert ring_rows(2**25, 2) == ring_rows(2**27, 1) == 2
    with pytest.raises(QuarlError, match=r"3: one step of all is 96 MiB, but .* holds 64 MiB: use at most 2"):
        ring_rows(2**25, 3)


def test_pulled_weights_stay_as_they_were(channel):
    channel.packed.publish(b"good", version=1, step=1)
    pulled = channel.packed.pull()
    for version in range(2, 9):
        channel.packed.publish(b"next", version=version, step=version)
    assert pulled.data.tobytes() == b"good"


def test_segments_arrive_as_they_were_sent_and_in_order(channel):
    sender = channel.of(1)
    for sequence in range(5):
        sender.send(*segment(sequence, actor=1, terminated=sequence == 4))
    rows = drained(channel)
    assert rows["sequence"].tolist() == [0, 1, 2, 3, 4]
    assert rows["actor"].tolist() == [1] * 5
    assert (rows["reward"].tolist(), rows["action"].tolist()) == ([0.5] * 5, [1] * 5)
    assert rows["terminated"].tolist() == [False] * 4 + [True]
    assert rows["observation"][:, 3].tolist() == [0, 1, 2, 3, 4]
    assert rows["next_observation"][:, 0].tolist() == [1, 2, 3, 4, 5]
    assert not len(drained(channel))


def test_a_full_queue_has_no_room_until_the_learner_takes_some(channel):
    sender = channel.of(0)
    for sequence in range(ROOM):
        assert sender.room() == ROOM - sequence
        sender.send(*segment(sequence))
    assert sender.room() == 0
    assert channel.of(1).room() == ROOM
    assert len(drained(channel, 3)) == 3
    assert sender.room() == 3
    assert (sender.num_sent(), channel.of(0).num_sent(), channel.of(1).num_sent()) == (ROOM, ROOM, 0)


def test_the_learner_takes_the_oldest_weights_first_and_serves_equals_in_turn(channel):
    for i, versions in enumerate(([5, 5, 9, 9], [7, 7], [5, 5])):
        for sequence, version in enumerate(versions):
            channel.of(i).send(*segment(sequence, i, version))
    taken = [(row["actor"].item(), row["version"].item()) for _ in range(4) for row in drained(channel, 2)]
    assert taken == [(0, 5), (2, 5), (0, 5), (2, 5), (1, 7), (1, 7), (0, 9), (0, 9)]
    for i in range(3):
        for sequence in range(4):
            channel.of(i).send(*segment(sequence, i))
    served = [int(row["actor"]) for _ in range(6) for row in drained(channel, 1)]
    assert served == [1, 2, 0, 1, 2, 0]  # behind the one that was served last


def test_drained_segments_lie_actor_by_actor_wherever_their_queues_begin_anew(channel):
    sent = [0, 0, 0]
    rng = np.random.default_rng(0)
    taken = [[], [], []]
    for _ in range(100):
        for actor in range(3):
            for _ in range(int(rng.integers(channel.of(actor).room() + 1))):
                channel.of(actor).send(*segment(sent[actor], actor, version=sent[actor] // 5))
                sent[actor] += 1
        assert channel.num_waiting() == sum(sent) - sum(map(len, taken))
        rows = drained(channel, int(rng.integers(1, 2 * ROOM)))
        assert (np.diff(rows["actor"]) >= 0).all()
        for actor in range(3):
            mine = rows[rows["actor"] == actor]
            taken[actor] += mine["sequence"].tolist()
            assert (mine["observation"][:, 3] == mine["sequence"]).all()
    for each in taken:
        assert each == list(range(len(each)))
        assert len(each) > 2 * ROOM


def test_the_publisher_sees_recent_observations_of_every_actor(channel):
    assert channel.observations(8, np.random.default_rng(0)) is None
    for i, sequence in ((0, 3), (2, 7)):
        channel.of(i).send(*segment(sequence, i))
    drained(channel)
    recent = channel.observations(64, np.random.default_rng(0))
    assert set(recent[:, 0]) == {3.0, 7.0}


def test_all_see_the_same_numbers(channel):
    channel.of(1).counters.actors[1, Actor.STEPS] = 5
    assert channel.counters.actors[:, Actor.STEPS].tolist() == [0, 5, 0]
    channel.counters.learner[Learner.INSERT_LIMIT] = 2.0**52 + 1
    assert channel.of(0).counters.learner[Learner.INSERT_LIMIT] == 2**52 + 1


def test_a_local_channel_is_the_same_one_where_it_is_unpickled():
    channel = LocalChannel.create(2, NUM_FLOATS, DTYPE, ROOM)
    try:
        elsewhere = pickle.loads(pickle.dumps(channel.of(1)))
        elsewhere.send(*segment(0, actor=1))
        assert drained(channel)["actor"].tolist() == [1]
        channel.packed.publish(b"good", version=1, step=1)
        assert elsewhere.packed.pull().data.tobytes() == b"good"
    finally:
        channel.remove()


@pytest.mark.slow
def test_a_whole_run_goes_through_another_transport_with_the_same_learner_publisher_actors_and_supervisor(tmp_path):
    config = ActorQConfig(
        env="CartPole-v1",
        actors=2,
        n_timesteps=1500,
        eval_freq=700,
        eval_episodes=2,
        params=("learning_starts:200", "batch_size:32", "train_freq:4"),
        preset="none",
        output=tmp_path / "run",
    )
    said: list[str] = []
    config.output.mkdir()
    with threads(1):
        supervisor = Supervisor(config, said.append, InMemoryChannel, Threads)
        rows = list(supervisor.run())
    assert (supervisor.result.exit_code, supervisor.result.message, said) == (0, "", [])
    assert isinstance(supervisor.channel, InMemoryChannel)
    assert supervisor.channel.removed
    last, sent = rows[-1], supervisor.counters.actors[:, Actor.STEPS]
    assert last["timesteps"] == 1500
    assert (sent > 0).all()
    assert last["updates"] == supervisor.result.row["updates"] == (1500 - 200) // 4
    assert last["learner"]["gaps"] == last["learner"]["duplicates"] == 0
    assert all(actor["version"] > 1 for actor in last["actors"])
    evaluations = [json.loads(line) for line in (config.output / "evaluations.jsonl").read_text().splitlines()]
    assert [entry["last"] for entry in evaluations] == [False, False, True]
    assert evaluations[-1]["version"] == evaluations[-1]["version_quantised"]
    assert artifact.read(config.output / "policy-int8.safetensors").spec.precision == "int8"
    assert (config.output / "model.zip").is_file()
