"""Replay by hand numbers, against SB3's buffers, and against a plain list of rows."""

from __future__ import annotations

import pickle
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3 import DDPG, DQN, SAC, TD3
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from quarl.actorq import replay as replays
from quarl.actorq.replay import SegmentReplay
from quarl.errors import QuarlError
from stepwise import Stepwise

BOX = spaces.Box(-10.0, 10.0, (3,), np.float32)
ACTIONS = spaces.Box(-2.0, 2.0, (2,), np.float32)
DISCRETE = spaces.Discrete(4)


def replay(size: int = 100, action_space: Any = ACTIONS, **options: Any) -> Stepwise:
    return Stepwise(size, BOX, action_space, device="cpu", **options)


def segments(buffer: SegmentReplay, rows: list[dict[str, Any]]) -> np.ndarray:
    """Rows with given fields; observations tell the row: all of its numbers are its place in the list."""
    made = np.zeros(len(rows), buffer.segment_dtype)
    for place, row in enumerate(rows):
        made[place]["observation"] = place
        made[place]["next_observation"] = place + 0.5
        for name, value in row.items():
            made[place][name] = value
    return made


def step(actor: int, sequence: int, reward: float = 0.0, **more: Any) -> dict[str, Any]:
    return {"actor": actor, "sequence": sequence, "reward": reward, **more}


def returns(buffer: SegmentReplay) -> list[float]:
    """The n-step return from every row, oldest index first."""
    return buffer._get_samples(np.arange(buffer.size())).rewards[:, 0].tolist()


def draws(buffer: SegmentReplay, batches: int = 5) -> list[list[torch.Tensor]]:
    return [list(buffer.sample(16)) for _ in range(batches)]


def equal(first: Any, second: Any) -> bool:
    return all(torch.equal(a, b) for x, y in zip(first, second, strict=True) for a, b in zip(x, y, strict=True))


def both_ways(rows: list[dict[str, Any]], **options: Any) -> SegmentReplay:
    """A buffer filled in one block, after a check that row by row gives the same."""
    blocks, single = replay(**options), replay(**options)
    made = segments(blocks, rows)
    assert blocks.insert(made) == sum(single.insert(made[i : i + 1]) for i in range(len(made)))
    assert np.array_equal(blocks.successor, single.successor)
    return blocks


def test_three_step_returns_of_two_interleaved_actors_are_3_and_300_never_mixtures():
    rows = [step(actor, t, 1.0 if actor == 0 else 100.0) for t in range(6) for actor in (0, 1)]
    buffer = both_ways(rows, n_steps=3, gamma=1.0)
    assert returns(buffer) == [3, 300] * 4 + [2, 200, 1, 100]
    samples = buffer._get_samples(np.array([0, 1, 10]))
    assert samples.next_observations[:, 0].tolist() == [4.5, 5.5, 10.5]


def test_a_new_incarnation_starts_a_new_stream():
    rows = [step(0, t, 1.0) for t in range(3)] + [step(0, t, 10.0, incarnation=1) for t in range(4)]
    buffer = both_ways(rows, n_steps=3, gamma=1.0)
    assert returns(buffer) == [3, 2, 1, 30, 30, 20, 10]
    assert (buffer.num_gaps, buffer.num_duplicates) == (0, 0)


def test_a_lost_sequence_cuts_the_return_and_is_counted():
    buffer = both_ways([step(0, t, 1.0) for t in (0, 1, 2, 4, 5, 6, 7)], n_steps=3, gamma=1.0)
    assert returns(buffer) == [3, 2, 1, 3, 3, 2, 1]
    assert buffer.num_gaps == 1


def test_truncation_cuts_the_return_and_bootstraps_and_termination_does_not_bootstrap():
    rows = [step(0, t, 1.0, truncated=t == 2, terminated=t == 5) for t in range(8)]
    samples = both_ways(rows, n_steps=3, gamma=0.5)._get_samples(np.arange(8))
    assert samples.rewards[:, 0].tolist() == [1.75, 1.5, 1, 1.75, 1.5, 1, 1.5, 1]
    assert samples.discounts is not None
    assert samples.discounts[:, 0].tolist() == [0.125, 0.25, 0.5, 0.125, 0.25, 0.5, 0.25, 0.5]
    assert samples.dones[:, 0].tolist() == [0, 0, 0, 1, 1, 1, 0, 0]
    assert samples.next_observations[:, 0].tolist() == [2.5, 2.5, 2.5, 5.5, 5.5, 5.5, 7.5, 7.5]


def test_duplicates_are_refused_and_counted_wherever_they_stand_in_a_block():
    rows = [step(0, t, 1.0) for t in (0, 1, 1, 0, 2, 3, 2, 4)] + [step(1, 0, 7.0), step(0, 5, 1.0)]
    buffer = both_ways(rows, n_steps=10, gamma=1.0)
    assert (buffer.num_duplicates, buffer.num_gaps, buffer.size()) == (3, 0, 7)
    assert returns(buffer) == [6, 5, 4, 3, 2, 7, 1]
    assert buffer.insert(segments(buffer, rows)) == 0
    assert (buffer.num_duplicates, buffer.size()) == (13, 7)


def test_a_stream_that_outlives_its_stored_rows_links_to_none_of_them():
    buffer = replay(4, n_steps=3, gamma=1.0)
    buffer.insert(segments(buffer, [step(0, 0, 1.0)]))
    buffer.insert(segments(buffer, [step(1, t, 5.0) for t in range(4)]))
    buffer.insert(segments(buffer, [step(0, 1, 1.0)]))
    assert (buffer.pos, buffer.full, buffer.size()) == (2, True, 4)
    assert returns(buffer) == [5, 1, 15, 10]  # indices hold: actor 1's last, actor 0's second, actor 1's middle two


class PlainReplay:
    """What SegmentReplay should hold, as a list searched from end to end."""

    def __init__(self, size: int) -> None:
        self.size, self.rows, self.gaps, self.duplicates = size, [], 0, 0

    def insert(self, row: Any) -> None:
        stream = tuple(int(row[name]) for name in ("actor", "incarnation", "environment"))
        last = max((r[1] for r in self.rows if r[0] == stream), default=-1)
        if row["sequence"] <= last:
            self.duplicates += 1
            return
        self.gaps += row["sequence"] > last + 1
        ended = bool(row["terminated"] or row["truncated"])
        self.rows.append((stream, int(row["sequence"]), float(row["reward"]), ended))

    def path(self, number: int, n_steps: int) -> list[int]:
        """Numbers of the rows of the n-step sample that begins at row `number`."""
        path = [number]
        while len(path) < n_steps:
            stream, sequence, _, ended = self.rows[path[-1]]
            following = [n for n, r in enumerate(self.rows) if r[:2] == (stream, sequence + 1)]
            if ended or not following:
                break
            path += following
        return path


ROWS = st.tuples(
    st.integers(0, 1),
    st.integers(0, 1),
    st.integers(0, 2),
    st.sampled_from([1, 1, 1, 1, 1, 1, 2, 0]),
    st.integers(0, 9),
)


@pytest.mark.slow
@settings(max_examples=150)
@given(
    size=st.integers(1, 40),
    n_steps=st.integers(1, 5),
    blocks=st.lists(st.tuples(st.booleans(), st.lists(ROWS, max_size=50)), max_size=6),
)
def test_any_mix_of_streams_is_stored_as_the_plain_list_says_and_links_stay_sound(size, n_steps, blocks):
    buffer = replay(size, n_steps=n_steps, gamma=1.0)
    plain = PlainReplay(size)
    sequences: Counter[tuple[int, int, int]] = Counter()
    for duplicates, block in blocks:
        rows = []
        for actor, incarnation, environment, moves, ending in block:
            stream = (actor, incarnation, environment)
            advance = moves if duplicates else max(moves, 1)
            rows.append(
                {
                    "actor": actor,
                    "incarnation": incarnation,
                    "environment": environment,
                    "sequence": sequences[stream] - 1 + advance,
                    "reward": float(2 ** (len(plain.rows) % 7)),
                    "terminated": ending == 0,
                    "truncated": ending == 1,
                }
            )
            sequences[stream] += advance
            plain.insert(rows[-1])
        buffer.insert(segments(buffer, rows))

        total, held = len(plain.rows), buffer.size()
        assert (buffer.num_gaps, buffer.num_duplicates) == (plain.gaps, plain.duplicates)
        assert (held, buffer.pos, buffer.full) == (min(total, size), total % size, total >= size)
        alive = np.arange(total - held, total)
        indices = alive % size
        assert buffer.columns["reward"][indices].tolist() == [plain.rows[n][2] for n in alive]

        # A living row's successor is younger than it and alive; only the newest `size` rows are.
        number_at = dict(zip(indices.tolist(), alive.tolist(), strict=True))
        for index, number in number_at.items():
            successor = int(buffer.successor[index])
            assert successor == -1 or number_at[successor] > number
        paths, used = buffer.paths(indices)
        for row, number in enumerate(alive):
            expected = plain.path(int(number), n_steps)
            assert [number_at[i] for i in paths[row, : used[row, 0]].tolist()] == expected


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("n_steps", [1, 3])
@pytest.mark.parametrize("steps", [40, 130])
def test_samples_equal_those_of_sb3s_buffers(n_steps, steps, normalize):
    gamma = 0.97
    ours = replay(64, n_steps=n_steps, gamma=gamma)
    theirs: ReplayBuffer = (
        ReplayBuffer(64, BOX, ACTIONS, device="cpu")
        if n_steps == 1
        else NStepReplayBuffer(64, BOX, ACTIONS, device="cpu", n_steps=n_steps, gamma=gamma)
    )
    rng = np.random.default_rng(0)
    for _ in range(steps):
        observation, following = rng.normal(size=(2, 1, 3)).astype(np.float32)
        action = rng.uniform(-1, 1, (1, 2)).astype(np.float32)
        done = rng.random(1) < 0.2
        infos = [{"TimeLimit.truncated": bool(done[0] and rng.random() < 0.5)}]
        reward = rng.normal(size=1)
        for buffer in (ours, theirs):
            buffer.add(observation, following, action, reward, done, infos)
    assert (ours.size(), ours.pos, ours.full) == (theirs.size(), theirs.pos, theirs.full)
    env = None
    if normalize:
        env = VecNormalize(make_vec_env("Pendulum-v1"))
        env.obs_rms.mean, env.obs_rms.var, env.ret_rms.var = rng.normal(size=3), np.array([2.0, 0.5, 1.0]), 0.3
        env.clip_reward = 1.5  # one by one, then summed: it shows
    indices = rng.integers(0, ours.size(), 200)
    mine, reference = ours._get_samples(indices, env), theirs._get_samples(indices, env)
    for name in ("observations", "actions", "next_observations", "dones", "rewards"):
        first, second = getattr(mine, name), getattr(reference, name)
        assert first.dtype == second.dtype
        assert torch.equal(first, second), name
    assert mine.discounts is not None
    expected = torch.full((200, 1), gamma) if n_steps == 1 else reference.discounts
    assert torch.equal(mine.discounts, expected)


class SB3Draws(Stepwise):
    """Draws the indices that SB3's buffers draw."""

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> Any:
        indices = np.random.randint(0, self.size(), size=batch_size)
        np.random.randint(0, 1, size=batch_size)  # theirs chooses an environment, too
        return self._get_samples(indices, env)


@pytest.mark.slow
@pytest.mark.parametrize("n_steps", [1, 3])
def test_plain_dqn_learns_the_same_network_with_it_as_with_sb3s_own_buffer(n_steps):
    def learn(**options: Any) -> dict[str, torch.Tensor]:
        model = DQN(
            "MlpPolicy",
            "CartPole-v1",
            learning_starts=50,
            train_freq=2,
            target_update_interval=40,
            buffer_size=200,
            policy_kwargs={"net_arch": [16]},
            device="cpu",
            seed=3,
            **options,
        )
        # SB3's constructor draws nothing from numpy; ours draws one number, for its generator.
        np.random.seed(3)
        return model.learn(400).policy.state_dict()

    ours = learn(replay_buffer_class=SB3Draws, replay_buffer_kwargs={"n_steps": n_steps, "gamma": 0.99})
    theirs = learn(n_steps=n_steps)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("algorithm", [DDPG, TD3, SAC])
def test_other_algorithms_fill_it_from_several_environments_each_its_own_stream(algorithm):
    env = make_vec_env("Pendulum-v1", 2, seed=0)
    model = algorithm(
        "MlpPolicy",
        env,
        learning_starts=20,
        train_freq=30,
        gradient_steps=2,
        buffer_size=1_000,
        policy_kwargs={"net_arch": [8]},
        replay_buffer_class=Stepwise,
        replay_buffer_kwargs={"n_steps": 2, "gamma": 0.99},
        device="cpu",
        seed=0,
    )
    model.learn(420)
    buffer = model.replay_buffer
    assert isinstance(buffer, SegmentReplay)
    assert (buffer.size(), buffer.num_gaps, buffer.num_duplicates) == (420, 0, 0)
    # An episode has 200 steps, always truncated; environments alternate, so a row's successor is two further on.
    successor = np.arange(420) + 2
    successor[[398, 399, 418, 419]] = -1
    assert buffer.successor[:420].tolist() == successor.tolist()
    columns = buffer.columns
    linked = successor >= 0
    assert np.array_equal(columns["next_observation"][:420][linked], columns["observation"][successor[linked]])
    assert np.abs(columns["action"]).max() <= 1


def test_the_models_seed_decides_the_samples():
    def model(seed: int) -> Any:
        made = DQN("MlpPolicy", "CartPole-v1", replay_buffer_class=Stepwise, buffer_size=500, seed=seed)
        made.learn(60)
        return draws(made.replay_buffer)

    assert equal(model(1), model(1))
    assert not equal(model(1), model(2))


@pytest.mark.parametrize("count", [30, 230])
def test_a_restored_replay_gives_the_same_samples_and_goes_on_alike(count):
    rng = np.random.default_rng(1)
    buffer = replay(100, n_steps=3)
    made = segments(buffer, [step(t % 2, t // 2, rng.normal(), terminated=t % 31 == 0) for t in range(count + 20)])
    buffer.insert(made[:count])
    draws(buffer, 2)
    state = {name: array.copy() for name, array in buffer.state().items()}
    assert len(state["observation"]) == min(count, 100)
    other = replay(100, n_steps=3)
    other.load_state(state)
    for after in (buffer, other):
        after.insert(made[count - 5 :])  # the first five are duplicates
        assert (after.num_duplicates, after.num_gaps) == (5, 0)
    assert np.array_equal(other.successor, buffer.successor)
    assert equal(draws(buffer, 2), draws(other, 2))
    assert (other.pos, other.full) == (buffer.pos, buffer.full)
    assert equal(draws(buffer, 1), draws(pickle.loads(pickle.dumps(other)), 1))


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        (replay(50), "room for 50 rows"),
        (replay(action_space=DISCRETE), "action has another dtype or shape"),
        (SimpleNamespace(state=lambda: {}), "the saved replay differs in 'action': the checkpoint is damaged"),
    ],
)
def test_a_replay_of_another_kind_is_refused(saved, message):
    with pytest.raises(QuarlError, match=message):
        replay().load_state(saved.state())


@pytest.mark.parametrize("broken", [{"successor": np.full(5, 5)}, {"reward": np.zeros(4, np.float32)}])
def test_a_damaged_state_is_refused(broken):
    buffer = replay()
    buffer.insert(segments(buffer, [step(0, t) for t in range(5)]))
    with pytest.raises(QuarlError, match="the checkpoint is damaged"):
        replay().load_state({**buffer.state(), **broken})


def test_without_a_limit_samples_are_uniform_over_the_rows_held():
    buffer = replay(20)
    buffer.set_seed(0)
    buffer.insert(segments(buffer, [step(0, t) for t in range(50)]))
    seen = Counter(buffer.sample(20_000).observations[:, 0].tolist())
    assert sorted(seen) == [float(t) for t in range(30, 50)]
    assert all(abs(times - 1000) < 130 for times in seen.values())


def test_images_stay_bytes_and_discrete_actions_integers():
    buffer = SegmentReplay(4, spaces.Box(0, 255, (2, 5, 5), np.uint8), DISCRETE, device="cpu")
    assert buffer.columns["observation"].dtype == np.uint8
    made = np.zeros(2, buffer.segment_dtype)
    made["sequence"], made["action"], made["observation"] = [0, 1], [3, 1], 255
    buffer.insert(made)
    samples = buffer._get_samples(np.array([0, 1]))
    assert (samples.observations.dtype, samples.actions.dtype) == (torch.uint8, torch.int64)
    assert samples.actions.tolist() == [[3], [1]]
    assert samples.observations.shape == (2, 2, 5, 5)


def test_reset_empties_the_store_and_streams_go_on():
    buffer = replay()
    buffer.insert(segments(buffer, [step(0, t) for t in range(5)]))
    buffer.reset()
    assert buffer.size() == 0
    with pytest.raises(QuarlError, match="no row to sample"):
        buffer.sample(1)
    buffer.insert(segments(buffer, [step(0, t) for t in range(4, 7)]))
    assert (buffer.size(), buffer.num_gaps, buffer.num_duplicates) == (2, 0, 1)
    assert buffer.successor[:3].tolist() == [1, -1, -1]


def test_options_that_cannot_be_are_refused():
    for options in ({"optimize_memory_usage": True}, {"n_steps": 0}):
        with pytest.raises(QuarlError):
            replay(**options)
    with pytest.raises(QuarlError, match="flatten them"):
        SegmentReplay(10, spaces.Dict({"a": BOX}), ACTIONS)


@pytest.mark.slow
def test_streams_side_by_side_link_as_row_by_row_does_in_ten_thousand_batches(monkeypatch):
    """Four actors of three environments, with gaps, duplicates, restarts and a buffer that begins anew."""
    monkeypatch.setattr(replays, "FEW", 0)
    rng = np.random.default_rng(0)
    at_once, single = (SegmentReplay(499, BOX, ACTIONS, device="cpu", n_steps=3) for _ in range(2))
    monkeypatch.setattr(single, "_following", lambda rows: None)
    sequences, incarnations = np.zeros((4, 3), np.int64), np.zeros(4, np.int64)
    for _ in range(10_000):
        rows = np.zeros(int(rng.integers(1, 40)), at_once.segment_dtype)
        rows["actor"], rows["environment"] = np.sort(rng.integers(4, size=len(rows))), rng.integers(3, size=len(rows))
        if rng.random() < 0.02:
            restarted = rng.integers(4)
            incarnations[restarted] += 1
            sequences[restarted] = 0
        rows["incarnation"] = incarnations[rows["actor"]]
        for row in rows:
            stream = row["actor"], row["environment"]
            sequences[stream] += 2 * (rng.random() < 0.003)
            row["sequence"] = sequences[stream] - (rng.random() < 0.001)
            sequences[stream] += 1
        rows["observation"] = rng.standard_normal(rows["observation"].shape)
        rows["terminated"], rows["truncated"] = rng.random((2, len(rows))) < 0.01
        assert at_once.insert(rows) == single.insert(rows)
        assert np.array_equal(at_once.successor, single.successor)
    assert at_once.num_gaps > 100
    assert at_once.num_duplicates > 10
    assert at_once.num_rows > 100 * at_once.buffer_size
    assert at_once._streams == single._streams
    assert all(np.array_equal(column, single.columns[name]) for name, column in at_once.columns.items())
