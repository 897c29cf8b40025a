"""The agent of a machine without Ray: real actors in memory without a name, asked as the relay asks."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace

import numpy as np
import pytest

from quarl.actorq.actor import AT_ONCE
from quarl.actorq.counters import Actor, Learner
from quarl.cluster import connection
from quarl.cluster.node import NodeAgent, Order
from stress.chaos import poison
from waiting import until

pytestmark = pytest.mark.slow

LAST = max(os.sched_getaffinity(0))
"""The core that is given to the actors."""


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """(rig, an agent that has begun with two actors and has the first weights, its order)"""
    main = sys.modules["__main__"]
    if hasattr(main, "__file__"):
        monkeypatch.setattr(main, "__file__", main.__file__)  # the agent takes it away
    monkeypatch.setattr(connection, "own_name", lambda: os.uname().nodename)  # Ray knows it
    with poison.rig(tmp_path) as rig:
        rig.publish()
        config = replace(rig.learner.config, max_staleness=10**9)
        cores = {os.uname().nodename: (*[None] * 4, *[frozenset({LAST})] * 2)}
        of_run = {"first": 4, "rungs": (1.0, 8.0), "cores": cores, "incarnation": 70}
        order = Order(config=config, sizes=rig.channel.sizes, **of_run)
        agent = NodeAgent()
        agent.begin(order)
        try:
            snapshot = rig.channel.packed.pull()
            agent.load(snapshot.data, snapshot.version, snapshot.step, snapshot.stamp_ns)
            yield rig, agent, order
        finally:
            agent.end()


def allow(rig, agent, limit):
    cells = rig.counters.learner.copy()
    cells[Learner.INSERT_LIMIT], cells[Learner.RANDOM_UNTIL] = limit, 0
    agent.tell(cells)


def collected(agent, num):
    """So many segments, in as many reports as they take."""
    pieces = []

    def enough():
        pieces.append(agent.collect(10**6, 0.1).rows)
        return sum(map(len, pieces)) >= num

    until(enough)
    return np.concatenate(pieces)


@pytest.mark.slow
def test_actors_make_the_steps_that_the_machine_is_allowed_and_all_of_them_come_once_and_in_order(asked):
    rig, agent, order = asked
    allow(rig, agent, 500)
    pieces, reports = [collected(agent, 500)], []

    def counted():
        """Whether all is here that the actors have counted, who may be in the middle of a block."""
        reports.append(agent.collect(10**6, 0.0))
        pieces.append(reports[-1].rows)
        return reports[-1].cells[:, Actor.STEPS].sum() == sum(map(len, pieces))

    until(counted)
    report, rows = reports[-1], np.concatenate(pieces)
    # the one may have made the last steps while the other was in the middle of a block
    assert 500 <= len(rows) <= 500 + AT_ONCE
    until(lambda: all(os.sched_getaffinity(child.process.pid) == {LAST} for child in agent._family.children))
    assert set(rows["incarnation"]) == {order.incarnation}
    for actor in (0, 1):
        own = rows[rows["actor"] == actor]
        assert own["sequence"].tolist() == list(range(len(own)))
    assert report.cells[:, Actor.STEPS].sum() == len(rows)
    assert (report.alive, report.at_work, report.said, report.mistake) == (2, 2, [], "")


@pytest.mark.slow
def test_a_piece_comes_at_once_when_no_more_steps_can(asked):
    rig, agent, _ = asked
    allow(rig, agent, 1)
    collected(agent, 1)
    allow(rig, agent, 60)
    rows = agent.collect(10**6, 600.0).rows  # it would wait for ten minutes
    assert 0 < len(rows) <= 60 + AT_ONCE


def test_an_actor_that_is_killed_is_revived_with_an_incarnation_of_its_own(asked):
    rig, agent, order = asked
    allow(rig, agent, 10**6)
    collected(agent, 100)
    (first, _) = agent._family.children
    os.kill(first.process.pid, signal.SIGKILL)
    until(lambda: order.incarnation + 1 in agent.collect(10**6, 0.1).rows["incarnation"])
    assert agent.collect(10**6, 0.0).cells[:, Actor.DEATHS].tolist() == [1, 0]


def test_nothing_of_it_is_left_where_it_ends(asked):
    _, agent, _ = asked
    until(lambda: agent._family.num_alive == 2)
    processes = [child.process for child in agent._family.children]
    folder, memory = agent._family.children[0].log.parent, agent._channel._memory.path
    assert memory.exists()
    agent.end()
    assert not any(process.is_alive() for process in processes)
    assert not folder.exists()
    assert not memory.exists()


def test_a_mistake_of_the_user_is_told_and_not_tried_again(asked):
    _, agent, order = asked
    agent.begin(replace(order, config=replace(order.config, env="nowhere:Nothing-v0"), incarnation=140))
    mistakes = []

    def told():
        mistakes.append(agent.collect(10**6, 0.1).mistake)
        return mistakes[-1]

    until(told)
    assert "nowhere" in mistakes[-1]
