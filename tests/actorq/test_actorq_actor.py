"""The actor's loop in this process, beside a learner and a publisher of this process too."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quarl.actorq.actor import ActorLoop, ActorSpec
from quarl.actorq.counters import Actor, Learner
from stress.chaos import poison

INTERVAL = 100


@pytest.fixture
def acting(tmp_path):
    """(rig, the loop of an actor that has the first weights)"""
    with poison.rig(tmp_path) as rig:
        rig.publish()
        config = replace(rig.learner.config, actor_update_interval=INTERVAL, max_staleness=10**9)
        spec = ActorSpec(config=config, channel=rig.channel, index=0, incarnation=0)
        loop = ActorLoop(spec)
        assert loop.pull()
        rig.counters.learner[Learner.INSERT_LIMIT], rig.counters.learner[Learner.RANDOM_UNTIL] = 10**6, 0
        yield rig, loop


def test_weights_are_looked_for_when_the_interval_is_over_and_not_a_block_later(acting):
    _, loop = acting
    loop.steps = loop.pulled_at + INTERVAL - 30
    assert loop.allowed() == 30
    loop.steps = loop.pulled_at
    assert loop.allowed() > 30


def test_weights_that_an_evaluation_held_up_say_nothing_of_the_latency(acting):
    rig, loop = acting
    learner, counted = rig.counters.learner, rig.counters.latency_ms[0]

    def new_weights():
        rig.learner._push()
        rig.publish()

    loop.act(1)
    assert counted.sum() == 1
    before = loop.cells[Actor.LATENCY_S]
    learner[Learner.PAUSED] = 1
    new_weights()
    assert loop.allowed() == 0
    learner[Learner.PAUSED] = 0
    assert loop.pull()
    loop.act(1)
    assert counted.sum() == 1
    assert loop.cells[Actor.LATENCY_S] == before
    new_weights()
    assert loop.pull()
    loop.act(1)
    assert counted.sum() == 2
    assert loop.cells[Actor.LATENCY_S] > before
