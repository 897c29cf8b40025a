"""A replay of stacked frames is saved with each frame once and comes back bit for bit, whatever is in it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.buffers import ReplayBuffer

from quarl.errors import QuarlError
from quarl.runs import checkpointer
from quarl.runs.checkpointer import StoredReplay, pack, unpack

SIDE = 3


def filled(steps, room, n_envs=2, stack=4, length=7, optimize=False, seed=0):
    """A buffer after so many steps of games that end after `length`; its frames are random."""
    rng = np.random.default_rng(seed)
    space = spaces.Box(0, 255, (stack, SIDE, SIDE), np.uint8)
    buffer = ReplayBuffer(
        room * n_envs,
        space,
        spaces.Discrete(2),
        device="cpu",
        n_envs=n_envs,
        optimize_memory_usage=optimize,
        handle_timeout_termination=not optimize,
    )

    def frame():
        return rng.integers(1, 256, (SIDE, SIDE), dtype=np.uint8)

    shown = np.zeros((n_envs, *space.shape), np.uint8)
    for k in range(n_envs):
        shown[k, -1] = frame()
    for step in range(1, steps + 1):
        following = np.concatenate([shown[:, 1:], np.stack([frame() for _ in range(n_envs)])[:, None]], axis=1)
        dones = np.array([(step + k) % length == 0 for k in range(n_envs)])
        buffer.add(shown, following, np.ones(n_envs), np.ones(n_envs), dones, [{} for _ in range(n_envs)])
        shown = following.copy()
        for k in np.flatnonzero(dones):
            shown[k] = 0
            shown[k, -1] = frame()
    return buffer


def copied(buffer, other):
    """Another buffer's contents, through what a checkpoint holds."""
    state = {name: array.copy() for name, array in StoredReplay(other).state().items()}
    StoredReplay(buffer).load_state(state)
    return state


@pytest.mark.parametrize("optimize", [False, True])
@pytest.mark.parametrize("steps", [1, 5, 29, 30, 31, 75])
def test_a_buffer_comes_back_bit_for_bit(steps, optimize):
    buffer, again = filled(steps, 30, optimize=optimize), filled(0, 30, optimize=optimize)
    state = copied(again, buffer)
    assert "frames" in state or steps == 1
    for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
        if hasattr(buffer, name):
            assert np.array_equal(getattr(again, name), getattr(buffer, name))
    assert (again.pos, again.full) == (buffer.pos, buffer.full)


def test_long_games_take_an_eighth_of_the_bytes():
    buffer = filled(2000, 2000, length=1000)
    state = StoredReplay(buffer).state()
    images = sum(state[name].nbytes for name in ("frames", "stacks", "next_stacks"))
    assert images < (buffer.observations.nbytes + buffer.next_observations.nbytes) / 7


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 12),
    stack=st.integers(2, 4),
    values=st.integers(1, 3),
    seed=st.integers(0, 2**16),
    follows=st.booleans(),
)
def test_whatever_the_numbers_are_they_are_packed_exactly_or_not_at_all(rows, stack, values, seed, follows):
    rng = np.random.default_rng(seed)
    images = rng.integers(0, values, (rows, 2, stack, 1, 2), dtype=np.uint8)
    following = rng.integers(0, values, images.shape, dtype=np.uint8) if follows else None
    packed = pack(images, following)
    if packed is None:
        return
    again, next_again = np.empty_like(images), None if following is None else np.empty_like(images)
    unpack(packed, again, next_again)
    assert np.array_equal(again, images)
    assert following is None or np.array_equal(next_again, following)


def test_comparisons_in_pieces_find_what_one_comparison_finds(monkeypatch):
    buffer = filled(50, 60)
    whole = pack(buffer.observations[:50], buffer.next_observations[:50])
    monkeypatch.setattr(checkpointer, "CHUNK", 7)
    pieces = pack(buffer.observations[:50], buffer.next_observations[:50])
    assert all(np.array_equal(whole[name], pieces[name]) for name in whole)


@pytest.mark.parametrize("shape", [(5, 1, 8), (5, 1, 1, 3, 3), (0, 1, 4, 3, 3)])
def test_what_is_no_stack_is_left_as_it_is(shape):
    assert pack(np.zeros(shape, np.uint8), None) is None
    assert pack(np.zeros((5, 1, 4, 3, 3), np.float32), None) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda state: state.update(frames=state["frames"][:-1]), "frames"),
        (lambda state: state.update(begins=state["begins"].astype(np.uint8)), "begins"),
        (lambda state: state["begins"].__setitem__((slice(2), 0), [False, True]), "begins in the middle of a stack"),
        (lambda state: state.update(stacks=state["stacks"][1:]), "stacks"),
        (lambda state: state["begins"].__setitem__(0, False), "stacks|begins in the middle"),
        (lambda state: state.pop("jumps"), "jumps"),
        (lambda state: state.update(rewards=state["rewards"][:, :1]), "rewards"),
    ],
)
def test_parts_that_do_not_fit_are_refused_in_one_line(change, said):
    state = {name: array.copy() for name, array in StoredReplay(filled(20, 30)).state().items()}
    change(state)
    with pytest.raises(QuarlError, match=said):
        StoredReplay(filled(0, 30)).load_state(state)


def test_a_replay_of_other_games_is_refused():
    state = StoredReplay(filled(20, 30, n_envs=3)).state()
    with pytest.raises(QuarlError, match="--n-envs"):
        StoredReplay(filled(0, 30, n_envs=2)).load_state(state)
    vectors = SimpleNamespace(**vars(filled(0, 30)))
    vectors.observations = np.zeros((30, 2, 4), np.float32)
    vectors.next_observations = vectors.observations.copy()
    with pytest.raises(QuarlError, match="its replay"):
        StoredReplay(vectors).load_state(StoredReplay(filled(20, 30)).state())
