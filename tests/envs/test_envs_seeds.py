"""Reset seeds: the laws that pairing and the separation of streams rest on."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

import require
from quarl.envs import make
from quarl.envs.reseed import needs_fresh
from quarl.envs.seeds import STREAMS, Stream, action_generator, episode_seed

seeds = st.integers(0, 2**40)
episodes = st.integers(0, 2**28 - 1)
streams = st.sampled_from(STREAMS)


@given(streams, seeds, episodes)
def test_a_reset_seed_is_below_two_to_the_31_and_always_the_same(stream: Stream, seed: int, k: int) -> None:
    assert 0 <= episode_seed(stream, seed, k) < 2**31
    assert episode_seed(stream, seed, k) == episode_seed(stream, seed, k)


@given(streams, streams, seeds, seeds, episodes, episodes)
def test_streams_never_share_a_seed(a: Stream, b: Stream, seed_a: int, seed_b: int, k_a: int, k_b: int) -> None:
    if a != b:
        assert episode_seed(a, seed_a, k_a) != episode_seed(b, seed_b, k_b)


@given(streams, seeds, episodes, episodes)
def test_episodes_of_one_seed_never_share_a_reset_seed(stream: Stream, seed: int, k_a: int, k_b: int) -> None:
    assert (episode_seed(stream, seed, k_a) == episode_seed(stream, seed, k_b)) == (k_a == k_b)


def test_neighbouring_seeds_share_no_episode_in_practice() -> None:
    drawn = [episode_seed("evaluation", seed, k) for seed in range(20) for k in range(100)]
    assert len(set(drawn)) > 1995  # 2,000 draws of 2**28 collide once in 130 such tests


def test_reset_seeds_are_the_ones_that_published_numbers_were_made_with() -> None:
    assert [episode_seed("evaluation", 0, k) for k in range(3)] == [438161608, 886866880, 276393288]


def test_an_impossible_seed_or_episode_is_refused() -> None:
    with pytest.raises(ValueError, match="non-negative integer"):
        episode_seed("evaluation", -1, 0)
    with pytest.raises(ValueError, match="k must be"):
        episode_seed("evaluation", 0, 2**28)


def test_action_generators_differ_by_stream_seed_and_episode() -> None:
    keys: list[tuple[Stream, int, int]] = [("evaluation", 0, 0), ("fidelity", 0, 0), ("evaluation", 1, 0)]
    first = [action_generator(*key).random() for key in [*keys, ("evaluation", 0, 1)]]
    assert len(set(first)) == 4
    assert action_generator(*keys[0]).random() == first[0]


@pytest.mark.parametrize(
    ("env_id", "package", "fresh"),
    [
        ("CartPole-v1", "gymnasium", False),
        ("Acrobot-v1", "gymnasium", False),
        ("LunarLander-v3", "Box2D", False),
        ("BipedalWalker-v3", "Box2D", True),
        ("Hopper-v5", "mujoco", False),
        ("HopperBulletEnv-v0", "pybullet_envs_gymnasium", False),
        ("dm_control/cheetah-run-v0", "dm_control", False),
        ("dm_control/point_mass-hard-v0", "dm_control", False),
    ],
)
def test_only_bipedal_walker_remembers_what_it_played_before(env_id: str, package: str, fresh: bool) -> None:
    require.module(package)
    assert needs_fresh(partial(make, env_id), f"test of {env_id}") is fresh
