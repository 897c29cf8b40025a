"""How machines share the learner's insert limit, on random courses of events."""

from __future__ import annotations

import numpy as np
import pytest

from quarl.actorq.counters import Learner
from quarl.cluster.leases import AHEAD, Leases


def learner(**values: float):
    cells = np.zeros(len(Learner))
    for name, value in values.items():
        cells[Learner[name]] = value
    return cells


def alive(num_nodes: int, num_envs: int = 1) -> Leases:
    leases = Leases(num_nodes, num_envs)
    for node in range(num_nodes):
        leases.begin(node)
    return leases


@pytest.mark.parametrize("num_envs", [1, 4])
def test_no_more_is_ever_under_way_than_the_limit_leaves_room_for(num_envs):
    rng = np.random.default_rng(0)
    leases, limit, total, now = alive(3, num_envs), 0.0, 0, 0.0
    for _ in range(5000):
        now += rng.exponential(0.01)
        limit += rng.integers(0, 5)
        leases.grant(limit, total, now)
        under_way = (leases.granted - leases.received).sum()
        assert total + under_way <= limit
        assert not ((leases.granted - leases.received)[leases.alive] % num_envs).any()
        node = rng.integers(3)
        if rng.random() < 0.02:
            leases.lose(node)
        elif not leases.alive[node]:
            leases.begin(node)
        else:
            count = int(rng.integers(0, leases.granted[node] - leases.received[node] + 1)) // num_envs * num_envs
            leases.insert(node, count)
            total += count


def test_where_one_step_at_a_time_is_allowed_every_machine_makes_some():
    leases, total = alive(3, 4), 0
    for tick in range(300):
        leases.grant(total + 4, total, tick * 0.01)
        (node,) = np.flatnonzero(leases.granted > leases.received)
        leases.insert(node, 4)
        total += 4
    assert (leases.received == 400).all()


def test_what_a_lost_machine_had_under_way_goes_to_the_others():
    leases = alive(2)
    leases.grant(100, 0, 0.0)
    assert leases.granted.tolist() == [50, 50]
    leases.insert(0, 50)
    leases.lose(1)
    leases.grant(100, 50, 0.1)
    assert leases.granted[0] == 100


def test_a_machine_that_is_back_begins_at_none_of_its_steps():
    leases = alive(2)
    leases.grant(100, 0, 0.0)
    leases.insert(1, 30)
    leases.lose(1)
    leases.begin(1)
    assert leases.received[1] == leases.granted[1] == 0
    leases.grant(100, 30, 0.1)
    assert 0 < leases.granted[1] <= 20


def test_the_faster_machine_may_go_further_and_the_slower_is_never_without():
    leases, total = alive(2), 0
    for tick in range(1000):
        leases.grant(total + 100, total, tick * 0.01)
        for node, speed in ((0, 9), (1, 1)):
            count = int(min(speed, leases.granted[node] - leases.received[node]))
            leases.insert(node, count)
            total += count
    assert leases.received[0] > 8.9 * leases.received[1]
    assert leases.granted[1] > leases.received[1]


def test_a_machine_that_does_nothing_holds_only_so_much_of_a_long_run():
    leases = alive(2)
    leases.grant(10**9, 0, 0.0)
    assert leases.granted.tolist() == [AHEAD, AHEAD]


def test_one_machine_alone_that_is_not_behind_reads_what_the_learner_wrote():
    leases = alive(1)
    leases.insert(0, 40)
    leases.grant(100, 40, 0.0)
    cells = learner(INSERT_LIMIT=100, RANDOM_UNTIL=70, UPDATES_PER_INSERT=0.25, UPDATES_OFFSET=-5, EXPLORATION=0.3)
    told = leases.cells(0, cells, 40, 0.0)
    assert told.tolist() == cells.tolist()


def test_a_step_is_never_thought_to_be_learnt_from_earlier_than_it_is():
    """Two machines of different speed: what the actor's line says of its next step, and what becomes of it."""
    leases, total, delay_s, per_insert = alive(2), 0, 0.05, 0.5
    for tick in range(2000):
        leases.grant(total + 1000, total, tick * 0.01)
        for node, speed in ((0, 6), (1, 2)):
            leases.insert(node, speed)
            total += speed
    told = leases.cells(1, learner(UPDATES_PER_INSERT=per_insert), total, delay_s)
    made = leases.received[1] + 20  # its next 20 steps, each some time later
    thought = told[Learner.UPDATES_OFFSET] + told[Learner.UPDATES_PER_INSERT] * made
    # in the 10 ticks that these take, and the delay, the other makes 6 a tick
    inserts = total + 10 * (6 + 2) + delay_s / 0.01 * (6 + 2)
    assert thought >= per_insert * inserts * 0.99
