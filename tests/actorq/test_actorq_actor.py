"""The actor's loop in this process, beside a learner and a publisher of this process too."""

from __future__ import annotations

from dataclasses import replace

import gymnasium
import numpy as np
import pytest

from quarl.actorq import actor
from quarl.actorq.actor import ActorLoop, ActorSpec
from quarl.actorq.counters import Actor, Learner
from quarl.envs import Environment
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


class Moody(gymnasium.Wrapper):
    """Raises in the step of a number that differs with every environment made, and shows one buffer again and again."""

    made = 0

    def __init__(self, env):
        super().__init__(env)
        Moody.made += 1
        self.number, self.steps, self.buffer = Moody.made, 0, np.zeros(4, np.float32)

    def reset(self, **options):
        self.buffer[:], info = self.env.reset(**options)
        return self.buffer, info

    def step(self, action):
        self.steps += 1
        if self.steps == 50 + 97 * self.number % 400:
            raise RuntimeError("a simulator's mood")
        self.buffer[:], *rest = self.env.step(action)
        return self.buffer, *rest


def rows_of(acting, monkeypatch, num_envs, row_wise, num_rows):
    """Segments of an actor that acts at random and by its policy in turn, and its row of the counters."""
    rig, first = acting
    monkeypatch.setattr(actor, "ROW_WISE", row_wise)
    monkeypatch.setattr(Environment, "make", lambda *args, **kwargs: Moody(gymnasium.make("CartPole-v1")))
    monkeypatch.setattr(actor, "BLOCK_S", 60.0)
    Moody.made = 0
    loop = ActorLoop(replace(first.spec, config=replace(first.spec.config, envs_per_actor=num_envs)))
    begun_at = loop.steps
    assert loop.pull()
    rig.counters.learner[Learner.EXPLORATION] = 0.2
    before, segments = loop.cells.copy(), []
    while sum(map(len, segments)) < num_rows:
        loop._act(256 // num_envs // 2, random=len(segments) % 2 == 0)
        rows = np.zeros(256, rig.channel.dtype)
        segments.append(rows[: rig.channel.drain(rows)])
        assert loop.steps - begun_at == sum(map(len, segments)) == loop.cells[Actor.STEPS] - begun_at
    return np.concatenate(segments), (loop.cells - before)[[Actor.STEPS, Actor.ERRORS, Actor.DROPPED]]


@pytest.mark.parametrize("num_envs", [1, 5, 16])
def test_a_block_of_all_environments_has_the_rows_of_the_loop_that_sends_each(acting, monkeypatch, num_envs):
    """Over 5,000 steps: episodes end at different times, environments raise, and observations lie in one buffer."""
    row_wise, counted = rows_of(acting, monkeypatch, num_envs, 1000, 5000)
    block, counted_too = rows_of(acting, monkeypatch, num_envs, 0, 5000)
    assert counted.tolist() == counted_too.tolist()
    assert counted[1] > 10
    assert (block["episode_length"] > 0).sum() > 50
    for name in block.dtype.names:
        np.testing.assert_array_equal(block[name], row_wise[name], err_msg=name)


def test_no_row_of_a_block_is_sent_unless_all_environments_have_stepped(acting, monkeypatch):
    """Who dies within a step leaves nothing of it: rows and counter are those of whole steps."""
    rig, first = acting
    loop = ActorLoop(replace(first.spec, config=replace(first.spec.config, envs_per_actor=8)))
    assert loop.pull()
    loop._act(3, random=True)
    sent = rig.channel.num_waiting()
    assert sent == loop.cells[Actor.STEPS] == 24

    class Killed(BaseException):
        pass

    def step(action):
        raise Killed

    monkeypatch.setattr(loop.environments.envs[5], "step", step)
    with pytest.raises(Killed):
        loop._act(1, random=True)
    assert rig.channel.num_waiting() == loop.cells[Actor.STEPS] == 24


def test_every_environment_s_step_of_a_block_is_a_sign_of_life(acting, monkeypatch):
    """Sixteen slow environments together may take longer than --env-timeout."""
    _, first = acting
    loop = ActorLoop(replace(first.spec, config=replace(first.spec.config, envs_per_actor=6)))
    assert loop.pull()
    heard = []
    for env in loop.environments.envs:
        plain = env.step
        step = lambda action, plain=plain: (heard.append(float(loop.cells[Actor.HEARTBEAT_S])), plain(action))[1]  # noqa: E731
        monkeypatch.setattr(env, "step", step)
    loop._act(1, random=True)
    assert len(set(heard)) == 6
