"""The limiter by hand numbers, by SB3's clock, and by law: somebody can always go on, and the ratio comes out."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from math import gcd

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from quarl.actorq.limiter import RateLimiter, smallest_error_buffer
from quarl.errors import QuarlError

RATIOS = st.floats(0.05, 64) | st.fractions(Fraction(1, 20), 64, max_denominator=300).map(float)


def train(limiter: RateLimiter, batch_size: int) -> int:
    """Does every update that is allowed, one at a time; how many those were."""
    updates = limiter.updates_allowed()
    for remaining in range(updates, 0, -1):
        assert limiter.updates_allowed() == remaining
        limiter.on_sample(batch_size)
    return updates


def test_hand_numbers_one_sample_per_insert():
    limiter = RateLimiter(1.0, batch_size=4, min_size=10, error_buffer=8.0)
    assert (limiter.updates_allowed(), limiter.insert_limit()) == (0, 18)
    limiter.on_insert(10)
    assert (limiter.updates_allowed(), limiter.realised) == (0, 0.0)
    limiter.on_insert(3)
    assert limiter.updates_allowed() == 0
    limiter.on_insert(5)
    assert (limiter.updates_allowed(), limiter.insert_limit()) == (2, 18)
    limiter.on_sample(4)
    assert (limiter.updates_allowed(), limiter.insert_limit(), limiter.realised) == (1, 22, 0.5)


def test_hand_numbers_many_samples_per_insert():
    limiter = RateLimiter(8.0, batch_size=4, min_size=2, error_buffer=16.0)
    limiter.on_insert(3)
    assert (limiter.updates_allowed(), limiter.insert_limit()) == (2, 4)
    limiter.on_sample(4)
    assert (limiter.updates_allowed(), limiter.insert_limit()) == (1, 4)
    limiter.on_sample(4)
    assert (limiter.updates_allowed(), limiter.insert_limit(), limiter.realised) == (0, 5, 8.0)


@pytest.mark.parametrize(
    ("batch_size", "gradient_steps", "train_freq", "learning_starts"),
    [(32, 1, 1, 0), (32, 1, 4, 100), (64, 128, 256, 1024), (100, 3, 7, 21), (1, 1, 49, 49), (256, 5, 1, 10)],
)
@pytest.mark.parametrize("wide", [False, True])
def test_the_clock_is_sb3s_whatever_the_error_buffer(batch_size, gradient_steps, train_freq, learning_starts, wide):
    limiter = RateLimiter(
        batch_size * gradient_steps / train_freq,
        batch_size,
        learning_starts,
        1e6 if wide else None,
        updates_at_once=gradient_steps,
    )
    updates = 0
    for step in range(1, learning_starts + 6 * train_freq + 5):
        limiter.on_insert(1)
        updates += train(limiter, batch_size)
        due = gradient_steps * (step // train_freq - learning_starts // train_freq)
        assert updates == (due if step > learning_starts else 0)


@pytest.mark.parametrize(
    ("gradient_steps", "train_freq", "learning_starts"), [(1, 1, 0), (1, 4, 100), (8, 16, 50), (3, 7, 20), (2, 1, 5)]
)
def test_lockstep_is_sb3s_loop_and_its_actor_waits_for_every_round(gradient_steps, train_freq, learning_starts):
    ratio, first = 32 * gradient_steps / train_freq, learning_starts // train_freq * train_freq
    least = smallest_error_buffer(ratio, 32, gradient_steps)
    limiter = RateLimiter(ratio, 32, first, least, updates_at_once=gradient_steps)
    expected, steps, updates = [], 0, 0
    for _ in range(40):  # SB3: collect train_freq steps, then train if num_timesteps > learning_starts
        steps += train_freq
        if steps > learning_starts:
            updates += gradient_steps
            expected.append((steps, updates))
    happened, updates = [], 0
    while len(happened) < len(expected):
        limiter.on_insert(limiter.insert_limit() - limiter.inserts)  # an actor as far ahead as it may be
        updates += train(limiter, 32)
        happened.append((limiter.inserts, updates))
    assert happened == expected


@pytest.mark.slow
@given(
    ratio=RATIOS,
    batch_size=st.integers(1, 512),
    min_size=st.integers(0, 3000),
    updates_at_once=st.sampled_from([1, 1, 3, 128]),
    inserts_at_once=st.sampled_from([1, 1, 4, 100]),
    spare=st.none() | st.just(0) | st.integers(0, 2000),
    choices=st.lists(st.tuples(st.booleans(), st.integers(1, 3000)), max_size=60),
)
def test_somebody_can_always_go_on_and_the_ratio_stays_in_the_error_buffer(
    ratio, batch_size, min_size, updates_at_once, inserts_at_once, spare, choices
):
    smallest = smallest_error_buffer(ratio, batch_size, updates_at_once, inserts_at_once)
    buffer = None if spare is None else smallest + spare
    at_once = {"updates_at_once": updates_at_once, "inserts_at_once": inserts_at_once}
    limiter = RateLimiter(ratio, batch_size, min_size, buffer, **at_once)
    for actor, amount in choices:
        room, updates = limiter.insert_limit() - limiter.inserts, limiter.updates_allowed()
        assert room >= inserts_at_once or updates > 0
        assert limiter.insert_limit() >= min_size
        if actor:
            limiter.on_insert(max(0, min(amount, room)))
        else:
            limiter.on_sample(min(amount, updates) * batch_size)
        if limiter.inserts > min_size:
            error = (limiter.inserts - min_size) * ratio - limiter.samples
            assert -1e-6 <= error <= limiter.error_buffer + 1e-6
            bound = (limiter.error_buffer + 1e-6) / (limiter.inserts - min_size)
            assert abs(limiter.realised - ratio) <= bound
        else:
            assert limiter.samples == 0
    for _ in range(20):  # whoever may, goes as far as may be, and then the other can go on
        limiter.on_insert(max(0, limiter.insert_limit() - limiter.inserts))
        assert train(limiter, batch_size) > 0
        assert limiter.insert_limit() > limiter.inserts


def test_hand_numbers_of_the_smallest_error_buffer():
    assert smallest_error_buffer(1, 256) == 256
    assert smallest_error_buffer(0.5, 32) == 32
    assert smallest_error_buffer(8, 4) == 11
    assert smallest_error_buffer(32, 64, updates_at_once=128) == 64 * 128 + 31
    assert smallest_error_buffer(8, 32, inserts_at_once=12) == 32 + 12 * 8 - 1


@given(ratio=RATIOS, batch_size=st.integers(1, 512), updates_at_once=st.integers(1, 8))
def test_the_smallest_error_buffer_is_the_smallest(ratio, batch_size, updates_at_once):
    smallest = smallest_error_buffer(ratio, batch_size, updates_at_once)
    RateLimiter(ratio, batch_size, 0, smallest, updates_at_once=updates_at_once)
    exact = Fraction(ratio).limit_denominator(10**6)
    unit = Fraction(1, exact.denominator)
    with pytest.raises(QuarlError):
        RateLimiter(ratio, batch_size, 0, smallest - unit, updates_at_once=updates_at_once)
    # With one unit less both sides wait at this error.
    error = batch_size * updates_at_once - unit
    assert error < batch_size * updates_at_once
    assert error + exact > smallest - unit


@given(
    ratio=st.fractions(Fraction(1, 20), 8, max_denominator=20),
    batch_size=st.integers(1, 16),
    updates_at_once=st.integers(1, 3),
)
def test_with_one_unit_less_both_sides_wait_for_ever(ratio, batch_size, updates_at_once):
    """Where ratio and batch have no common factor, so that every error is met."""
    assume(gcd(ratio.numerator, batch_size * updates_at_once) == 1)
    smallest = smallest_error_buffer(float(ratio), batch_size, updates_at_once)
    for less in (0, 1):
        limiter = RateLimiter(float(ratio), batch_size, 0, smallest, updates_at_once=updates_at_once)
        limiter._ahead -= less  # past the check
        waits = False
        for _ in range(batch_size * updates_at_once * ratio.denominator + 1):  # as many errors as there are
            train(limiter, batch_size)
            if waits := limiter.inserts >= limiter.insert_limit():
                break
            limiter.on_insert(1)
        assert waits == bool(less)


def test_too_small_an_error_buffer_is_refused_with_one_that_works():
    with pytest.raises(QuarlError, match="block each other") as caught:
        RateLimiter(1 / 3, 256, 1000, 10.0)
    found = re.search(r"use at least ([\d.e+-]+)$", str(caught.value))
    assert found is not None
    assert RateLimiter(1 / 3, 256, 1000, float(found[1])).error_buffer >= 256


@pytest.mark.parametrize("ratio", [0.0, -1.0, float("nan"), float("inf"), 1e-9])
def test_a_ratio_that_is_no_positive_number_is_refused(ratio):
    with pytest.raises(QuarlError, match="samples_per_insert must be"):
        RateLimiter(ratio, 32, 100)


def test_a_restored_limiter_goes_on_where_it_was():
    limiter = RateLimiter(0.7, 32, 100)
    limiter.on_insert(321)
    train(limiter, 32)
    other = RateLimiter(0.7, 32, 100)
    other.load_state(json.loads(json.dumps(limiter.state())))
    assert (other.inserts, other.samples, other.realised) == (321, limiter.samples, limiter.realised)
    assert (other.updates_allowed(), other.insert_limit()) == (limiter.updates_allowed(), limiter.insert_limit())


@pytest.mark.parametrize("ratio", [0.1, 16.0])
def test_a_changed_ratio_counts_from_the_restart(ratio):
    limiter = RateLimiter(1.0, 32, 100)
    limiter.on_insert(1_000)
    train(limiter, 32)
    other = RateLimiter(ratio, 32, 100)
    other.load_state(limiter.state())
    assert (other.updates_allowed(), other.realised) == (0, 0.0)
    assert 1_000 < other.insert_limit() <= 1_000 + other.error_buffer / ratio
    again = RateLimiter(ratio, 32, 100)
    other.on_insert(320)
    again.load_state(other.state())
    assert again.updates_allowed() == other.updates_allowed() == ratio * 10


@pytest.mark.parametrize("broken", [{"inserts": -1}, {"samples": 0.5}, {"start_inserts": None}])
def test_a_damaged_state_is_refused(broken):
    limiter = RateLimiter(1.0, 32, 100)
    with pytest.raises(QuarlError, match="the checkpoint is damaged"):
        limiter.load_state({**limiter.state(), **broken})


@given(
    ratio=RATIOS,
    batch_size=st.integers(1, 512),
    min_size=st.integers(0, 300),
    updates_at_once=st.sampled_from([1, 3]),
    done=st.integers(0, 5),
)
def test_inserts_wanted_are_just_enough_for_an_update(ratio, batch_size, min_size, updates_at_once, done):
    limiter = RateLimiter(ratio, batch_size, min_size, updates_at_once=updates_at_once)
    for _ in range(done):
        limiter.on_insert(limiter.inserts_wanted())
        assert limiter.inserts_wanted() == 0
        limiter.on_sample(batch_size)
    needed = limiter.inserts_wanted()
    assert (needed == 0) == (limiter.updates_allowed() > 0)
    if needed:
        limiter.on_insert(needed - 1)
        assert limiter.updates_allowed() == 0
        limiter.on_insert(1)
    assert limiter.updates_allowed() > 0


def test_a_learner_without_its_replay_waits_for_a_new_one():
    limiter = RateLimiter(1.0, 32, 100)
    limiter.on_insert(164)
    limiter.warm_up_again()
    assert (limiter.updates_allowed(), limiter.inserts_wanted()) == (0, 132)
    assert limiter.insert_limit() >= 264
    limiter.on_insert(132)
    assert limiter.updates_allowed() == 1
