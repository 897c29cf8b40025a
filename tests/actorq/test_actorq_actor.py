"""The actor's loop in this process, beside a learner and a publisher of this process too."""

from __future__ import annotations

import pytest

from quarl.actorq.actor import ActorLoop, ActorSpec
from quarl.actorq.clock import Clock
from quarl.actorq.ledger import Actor, Learner
from stress.chaos import poison

INTERVAL = 100


@pytest.fixture
def acting(tmp_path):
    """(rig, the loop of an actor that has the first weights, its clock)"""
    with poison.rig(tmp_path) as rig:
        rig.publish()
        options = {"update_interval": INTERVAL, "max_staleness": 10**9}
        spec = ActorSpec(index=0, num_actors=1, incarnation=0, env_id="CartPole-v1", **options, **rig.shared)
        loop = ActorLoop(spec)
        assert loop._pull()
        rig.ledger.learner[Learner.INSERT_LIMIT] = 10**6
        yield rig, loop, Clock(loop.cells)


def test_weights_are_looked_for_when_the_interval_is_over_and_not_a_block_later(acting):
    _, loop, clock = acting
    loop.steps = loop.pulled_at + INTERVAL - 30
    assert loop._allowed(clock) == 30
    loop.steps = loop.pulled_at
    assert loop._allowed(clock) > 30


def test_weights_that_an_evaluation_held_up_say_nothing_of_the_latency(acting):
    rig, loop, clock = acting
    learner, counted = rig.ledger.learner, rig.ledger.latency_ms[0]

    def new_weights():
        rig.learner._push()
        rig.publish()

    loop._act(1, clock, random=False)
    assert counted.sum() == 1
    before = loop.cells[Actor.LATENCY_S]
    learner[Learner.PAUSED] = 1
    new_weights()
    assert loop._allowed(clock) == 0
    learner[Learner.PAUSED] = 0
    assert loop._pull()
    loop._act(1, clock, random=False)
    assert counted.sum() == 1
    assert loop.cells[Actor.LATENCY_S] == before
    new_weights()
    assert loop._pull()
    loop._act(1, clock, random=False)
    assert counted.sum() == 2
    assert loop.cells[Actor.LATENCY_S] > before
