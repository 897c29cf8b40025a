"""An actor process: environments, one engine on one thread, exploration, and a ring to the learner."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from quarl import engines
from quarl.actorq import roles, wire
from quarl.actorq.block import Block
from quarl.actorq.board import ORDERED
from quarl.actorq.counters import CLASSES, Actor, Learner
from quarl.actorq.environments import Environments, environment_of
from quarl.actorq.exploration import Explorer
from quarl.arrays import Array
from quarl.config import ActorQConfig
from quarl.errors import RAISED
from quarl.policy.graph import ActionHead
from quarl.processes.inside import give_way, note

AT_ONCE = 64
BLOCK_S = 0.005
"""Steps and seconds between two looks at what the others do, at most."""
NAP_S = 0.0005
"""Between two looks at a number that another process will change."""
ROW_WISE = 4
"""Environments up to which each sends its own row: a block of all costs more than so many."""
NOT_ENDED = (0, 0.0)
"""Length and return of an episode that goes on."""
STEPS, HEARTBEAT_S = int(Actor.STEPS), int(Actor.HEARTBEAT_S)
"""Plain numbers: an enumeration as an index costs more than what it indexes."""


@dataclass(frozen=True, kw_only=True)
class ActorSpec(roles.Start):
    """What an actor is told when it is started."""

    config: ActorQConfig
    index: int
    incarnation: int
    rung: float = 0.0
    """Of the ladder of exploration."""
    log: Path | None = None
    """Where it says what is no reason to end; None: on the terminal."""


class ActorLoop(roles.Actor):
    """An actor with one engine on one thread."""

    def __init__(self, spec: ActorSpec) -> None:
        super().__init__(spec)
        self.spec = spec
        self.config = config = spec.config
        self.num_envs = config.num_envs
        self.cells = self.counters.actors[spec.index]
        self.sent = self.counters.actors[:, Actor.STEPS]
        self.cells[Actor.HEARTBEAT_S] = time.monotonic()  # imports are over
        self.steps = self.channel.num_sent()  # a predecessor may have died before it could count its last one
        self.cells[Actor.STEPS] = self.steps
        self.rng = np.random.default_rng((config.seed, spec.index, spec.incarnation))
        self.num_actors = len(self.counters.actors)
        place = spec.incarnation * self.num_actors + spec.index
        # in replay's dtype whatever the environment returns: a reset may give integers where steps give floats
        stored = self.channel.dtype["observation"]
        seen = np.zeros((self.num_envs, *stored.shape), stored.base)
        say = partial(note, spec.log)
        self.environments = Environments(
            environment_of(config), self.num_envs, config.seed, place, self.cells, seen, say
        )
        self.block: Block | None = None
        if self.num_envs > ROW_WISE:
            self.block = Block(self.environments, self.channel.dtype, spec.index, spec.incarnation, self.cells)
        self.version = self.step_of_version = 0
        self.engine: engines.Engine
        self.explorer: Explorer
        self.pulled_at = self.steps - config.actor_update_interval
        self.meanwhile = 0.0
        """Steps of all actors during one of this actor's, lately at most."""
        self.acting_since: int | None = None
        """Stamp of the newest weights while this actor has not acted on them."""
        self.paused_ns = 0
        """When it last stood still for an evaluation: weights of before or within have waited for that."""
        self.cells[Actor.INCARNATION] = spec.incarnation
        self.cells[Actor.SIGMA] = spec.rung
        self.booked_at = time.perf_counter()
        """Up to when its seconds are in LOOP_S."""

    def allowed(self) -> int:
        learner, num, interval = self.counters.learner, self.num_envs, self.config.actor_update_interval
        self.cells[HEARTBEAT_S] = time.monotonic()
        # newer weights, where it is time to look for some
        if self.steps - self.pulled_at >= interval or not self.version:
            self.pull()
        # a moment's wait while there are none, and for an evaluation
        if learner[Learner.PAUSED]:
            self.paused_ns = time.monotonic_ns()
        if learner[Learner.PAUSED] or not self.version:
            self._nap(None)
            return 0
        # room, by the limiter and in the ring
        sent = self.sent.sum()
        room = min(learner[Learner.INSERT_LIMIT] - sent, self.channel.room())
        if room < num:
            self._nap(Actor.WAIT_S)
            return 0
        # steps until these weights are too old
        fresh = self._fresh_until() - sent
        if fresh < num and self.pull():
            fresh = self._fresh_until() - sent
        if fresh < num:
            self.meanwhile *= 0.999  # one slow step must not keep it waiting for ever
            self._nap(Actor.STALE_S)
            return 0
        if fresh < 2 * AT_ONCE * num * self.num_actors:
            return 1  # so near to the bound every step of the others counts
        # What is left is shared: an actor that took all of it would let the others wait.
        shared = max(int(room) // (num * self.num_actors), 1)
        until_pull = self.pulled_at + interval - self.steps
        return min(shared, AT_ONCE, max(-(-until_pull // num), 1))

    def _fresh_until(self) -> float:
        """Environment steps of all actors up to which no step on these weights is learnt from beyond max_staleness.

        The learner comes to a step when it has made the updates that belong to those before it, and those are also the
        steps that other actors send while this one makes its own.
        """
        per_insert = float(self.counters.learner[Learner.UPDATES_PER_INSERT])
        if not per_insert:
            return math.inf
        oldest = self.step_of_version + self.config.max_staleness
        steps = (oldest - float(self.counters.learner[Learner.UPDATES_OFFSET])) / per_insert
        return steps - max(2 * self.meanwhile, self.num_actors * self.num_envs)

    def act(self, num_steps: int) -> None:
        """So many steps, fewer where they are slow; at random before learning starts."""
        sent, steps = self.sent.sum(), self.steps
        self._act(num_steps, random=bool(sent < self.counters.learner[Learner.RANDOM_UNTIL]))
        meanwhile = (self.sent.sum() - sent) / max(self.steps - steps, 1) * self.num_envs
        self.meanwhile = max(meanwhile, 0.95 * self.meanwhile)
        self._book()

    def _act(self, num_steps: int, *, random: bool) -> None:
        inference_s = environment_s = insert_s = 0.0
        now, send, cells, block = time.monotonic, self.channel.send, self.cells, self.block
        environments = self.environments
        index, incarnation = self.spec.index, self.spec.incarnation
        until = now() + BLOCK_S
        version = -1 if random else self.version
        epsilon = float(self.counters.learner[Learner.EXPLORATION])
        for _ in range(num_steps):
            # choose actions: one call of the engine for all environments
            before = now()
            if random:
                actions, stored = self.explorer.random(self.num_envs)
                acted = before
            else:
                outputs = self.engine.run(environments.observations)
                acted = now()
                actions, stored = self.explorer.act(outputs, epsilon)
            # many environments: all of them step, and their rows are sent at once
            if block is not None:
                stepped_s, sent_s = self._step_block(block, actions, stored, version)
                environment_s += stepped_s
                insert_s += sent_s
            for k in range(self.num_envs if block is None else 0):
                # step the environment; one that raises is made anew, and what it did has no end in replay
                started = now()
                try:
                    observation, reward, terminated, truncated, _ = environments.envs[k].step(actions[k])
                except RAISED as error:  # whatever a simulator raises
                    environments.replace(k, error)
                    continue
                cells[HEARTBEAT_S] = stepped = now()
                # send the segment, and count it when it is whole
                gained = float(reward)
                episode = (environments.length[k] + 1, environments.total[k] + gained)
                done = terminated or truncated
                length, total = episode if done else NOT_ENDED
                place = (environments.sequence[k], version, index, incarnation, k)
                head = (*place, length, total, gained, terminated, truncated)
                send(head, stored[k], environments.observations[k], observation)
                self.steps += 1
                cells[STEPS] = self.steps
                environments.sequence[k] += 1
                environments.length[k], environments.total[k] = NOT_ENDED if done else episode
                environment_s += stepped - started
                insert_s += now() - stepped
                # go on from there, or begin the next episode
                if done:
                    started = now()
                    environments.reset(k)
                    environment_s += now() - started
                else:
                    environments.observations[k] = observation
            # leave after a while: others want to be looked at
            inference_s += acted - before
            if self.acting_since is not None and not random:
                self._first_action()
            cells[HEARTBEAT_S] = over = now()
            if over > until:
                break
        cells[Actor.INFERENCE_S] += inference_s
        cells[Actor.ENVIRONMENT_S] += environment_s
        cells[Actor.INSERT_S] += insert_s

    def _step_block(self, block: Block, actions: Array, stored: Array, version: int) -> tuple[float, float]:
        """Step all environments, send their rows and reset those that ended; return the seconds of both."""
        rows, ended, stepped_s = block.step(actions, stored, version)
        started = time.monotonic()
        self.channel.send_rows(rows)
        self.steps += len(rows)
        self.cells[STEPS] = self.steps
        sent = time.monotonic()
        for k in ended:
            self.environments.reset(k)
        return stepped_s + time.monotonic() - sent, sent - started

    def _nap(self, column: Actor | None) -> None:
        """Waits a moment and books it in `column`.

        None: it belongs to no one. Evaluations and the wait for first weights are not on the clock.
        """
        start = time.perf_counter()
        time.sleep(NAP_S)
        waited_s = time.perf_counter() - start
        if column is None:
            self.booked_at += waited_s
        else:
            self.cells[column] += waited_s
        self._book()

    def _book(self) -> None:
        """Everything since the last time is its loop's."""
        now = time.perf_counter()
        self.cells[Actor.LOOP_S] += now - self.booked_at
        self.booked_at = now

    def pull(self) -> bool:
        """Takes the newest weights; False where there are none that are newer."""
        self.pulled_at = self.steps
        start = time.perf_counter()
        pulled = self.channel.packed.read(self.version, self._load)
        cells, done = self.cells, time.perf_counter()
        if pulled is None:
            cells[Actor.PULL_S] += done - start
            cells[Actor.SKIPPED] += self.version > 0  # before the first weights it waits for them
            return False
        snapshot, (head, engine, unpack_s, load_s) = pulled
        if self.version == 0:
            self.explorer = Explorer(head, self.environments.action_space, self.spec.rung, self.rng)
        self.engine, self.version, self.step_of_version = engine, snapshot.version, snapshot.step
        self.acting_since = snapshot.stamp_ns
        cells[Actor.PULL_S] += done - start - unpack_s - load_s
        cells[Actor.DESERIALIZE_S] += unpack_s
        cells[Actor.LOAD_S] += load_s
        cells[Actor.PULLS] += 1
        cells[Actor.VERSION] = snapshot.version
        blocked = min(int(1e4 * (done - start)), CLASSES - 1)
        self.counters.blocked_ms[self.spec.index, blocked] += 1
        return True

    def _load(self, data: Array) -> tuple[ActionHead, engines.Engine, float, float]:
        """What acts by a published artifact, and the seconds of unpacking it and of loading it."""
        start = time.perf_counter()
        # torch's tensors are views of the bytes, which are others' soon; LiteRT packs weights in its own way. Checksums
        # of 8 MB take as long as all the rest.
        policy = wire.unpack(data.copy() if self.config.engine == "torch" else data, checked=ORDERED)
        between = time.perf_counter()
        engine = engines.load(policy, self.config.engine, batch=self.num_envs)
        engine.run(self.environments.observations)
        return policy.head, engine, between - start, time.perf_counter() - between

    def _first_action(self) -> None:
        """Books how long the newest weights took from the learner's step to this actor's first action on them."""
        assert self.acting_since is not None
        if self.acting_since > self.paused_ns:
            seconds = (time.monotonic_ns() - self.acting_since) * 1e-9
            self.cells[Actor.LATENCY_S] += seconds
            self.counters.latency_ms[self.spec.index, min(int(1e3 * seconds), CLASSES - 1)] += 1
        self.acting_since = None


def main(spec: ActorSpec) -> None:
    give_way()
    loop = ActorLoop(spec)
    try:
        loop.run()
    finally:
        loop.environments.close()
