"""The actor process: environments, one inference engine on one thread, exploration, and a ring to the learner."""

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
from quarl.processes.inside import give_way, note, queued_s

AT_ONCE = 64
BLOCK_S = 0.005
"""Maximum steps, and maximum seconds, between two checks of the other processes' counters."""
NAP_S = 0.0005
"""Seconds to sleep between two reads of a counter that another process will change."""
ROW_WISE = 4
"""Largest number of environments that send their rows one by one; for more, one block of rows is cheaper."""
NOT_ENDED = (0, 0.0)
"""Episode length and return of a step that does not end its episode."""
STEPS, HEARTBEAT_S = int(Actor.STEPS), int(Actor.HEARTBEAT_S)
"""Columns as plain integers: indexing with an enumeration member costs more than the access itself."""


@dataclass(frozen=True, kw_only=True)
class ActorSpec(roles.Start):
    """The start arguments of an actor process."""

    config: ActorQConfig
    index: int
    incarnation: int
    rung: float = 0.0
    """The actor's rung on the exploration ladder."""
    log: Path | None = None
    """Log file for warnings that do not end the process; None prints them to the terminal."""


class ActorLoop(roles.Actor):
    """An actor that runs one engine on one thread."""

    def __init__(self, spec: ActorSpec) -> None:
        super().__init__(spec)
        self.spec = spec
        self.config = config = spec.config
        self.num_envs = config.num_envs
        self.cells = self.counters.actors[spec.index]
        self.sent = self.counters.actors[:, Actor.STEPS]
        self.cells[Actor.HEARTBEAT_S] = time.monotonic()  # imports are done
        self.steps = self.channel.num_sent()  # a predecessor may have died before it counted its last step
        self.cells[Actor.STEPS] = self.steps
        self.rng = np.random.default_rng((config.seed, spec.index, spec.incarnation))
        self.num_actors = len(self.counters.actors)
        place = spec.incarnation * self.num_actors + spec.index
        # Buffer in the replay's dtype: an environment may return integers from `reset` and floats from `step`.
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
        """Steps of all actors during one step of this actor: the recent maximum."""
        self.acting_since: int | None = None
        """Time stamp of the newest weights until this actor has acted with them; otherwise None."""
        self.paused_ns = 0
        """Time of the last pause for an evaluation, which delayed all weights published before its end."""
        self.cells[Actor.INCARNATION] = spec.incarnation
        self.cells[Actor.SIGMA] = spec.rung
        self.booked_at = time.perf_counter()
        """Time up to which this actor's seconds are booked in LOOP_S."""

    def allowed(self) -> int:
        learner, num, interval = self.counters.learner, self.num_envs, self.config.actor_update_interval
        self.cells[HEARTBEAT_S] = time.monotonic()
        # Pull newer weights if a pull is due.
        if self.steps - self.pulled_at >= interval or not self.version:
            self.pull()
        # Wait a moment until the first weights arrive, and during an evaluation.
        if learner[Learner.PAUSED]:
            self.paused_ns = time.monotonic_ns()
        if learner[Learner.PAUSED] or not self.version:
            self._nap(None)
            return 0
        # Count the free room: by the rate limiter and in the ring.
        sent = self.sent.sum()
        room = min(learner[Learner.INSERT_LIMIT] - sent, self.channel.room())
        if room < num:
            self._nap(Actor.WAIT_S)
            return 0
        # Count the steps until these weights are too old.
        fresh = self._fresh_until() - sent
        if fresh < num and self.pull():
            fresh = self._fresh_until() - sent
        if fresh < num:
            self.meanwhile *= 0.999  # one slow step must not block this actor forever
            self._nap(Actor.STALE_S)
            return 0
        if fresh < 2 * AT_ONCE * num * self.num_actors:
            return 1  # this close to the bound, every step of the other actors counts
        # Share the remaining room: an actor that took all of it would make the others wait.
        shared = max(int(room) // (num * self.num_actors), 1)
        until_pull = self.pulled_at + interval - self.steps
        return min(shared, AT_ONCE, max(-(-until_pull // num), 1))

    def _fresh_until(self) -> float:
        """Return the number of environment steps of all actors up to which these weights stay within max_staleness.

        The learner reaches a step once it has made the updates that belong to the steps before it. These include the
        steps that other actors send while this actor makes its own.
        """
        per_insert = float(self.counters.learner[Learner.UPDATES_PER_INSERT])
        if not per_insert:
            return math.inf
        oldest = self.step_of_version + self.config.max_staleness
        steps = (oldest - float(self.counters.learner[Learner.UPDATES_OFFSET])) / per_insert
        return steps - max(2 * self.meanwhile, self.num_actors * self.num_envs)

    def act(self, num_steps: int) -> None:
        """Make up to `num_steps` steps, fewer if they are slow; actions are random before learning starts."""
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
            # Choose the actions: one engine call for all environments.
            before = now()
            if random:
                actions, stored = self.explorer.random(self.num_envs)
                acted = before
            else:
                outputs = self.engine.run(environments.observations)
                acted = now()
                actions, stored = self.explorer.act(outputs, epsilon)
            # With many environments, step all of them and send their rows in one block.
            if block is not None:
                stepped_s, sent_s = self._step_block(block, actions, stored, version)
                environment_s += stepped_s
                insert_s += sent_s
            for k in range(self.num_envs if block is None else 0):
                # Step the environment. One that raises is replaced, and its unfinished episode has no end in replay.
                started = now()
                try:
                    observation, reward, terminated, truncated, _ = environments.envs[k].step(actions[k])
                except RAISED as error:  # a simulator may raise anything
                    environments.replace(k, error)
                    continue
                cells[HEARTBEAT_S] = stepped = now()
                # Send the segment, and count it once it is complete.
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
                # Continue the episode, or begin the next one.
                if done:
                    cells[Actor.EPISODES] += 1
                    started = now()
                    environments.reset(k)
                    environment_s += now() - started
                else:
                    environments.observations[k] = observation
            # Leave after a while, so that the other processes' counters are checked.
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
        self.cells[Actor.EPISODES] += len(ended)
        sent = time.monotonic()
        for k in ended:
            self.environments.reset(k)
        return stepped_s + time.monotonic() - sent, sent - started

    def _nap(self, column: Actor | None) -> None:
        """Sleep for a moment and book the time in `column`.

        None books it nowhere: evaluations and the wait for the first weights are not on the clock.
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
        """Add all time since the last call to LOOP_S; a plan also needs to know which of it was on a core."""
        if self.config.plan:
            self.cells[Actor.CPU_S], self.cells[Actor.QUEUED_S] = time.thread_time(), queued_s()
        now = time.perf_counter()
        self.cells[Actor.LOOP_S] += now - self.booked_at
        self.booked_at = now

    def pull(self) -> bool:
        """Load the newest weights; return False if there are no newer ones."""
        self.pulled_at = self.steps
        start = time.perf_counter()
        pulled = self.channel.packed.read(self.version, self._load)
        cells, done = self.cells, time.perf_counter()
        if pulled is None:
            cells[Actor.PULL_S] += done - start
            cells[Actor.SKIPPED] += self.version > 0  # before the first weights, a pull without result is a wait
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
        """Return the action head and engine of a published artifact, and the seconds of unpacking and of loading it."""
        start = time.perf_counter()
        # Copy for torch: its tensors are views of bytes that the publisher will overwrite. LiteRT packs weights itself.
        # Checksums of 8 MB take as long as everything else.
        policy = wire.unpack(data.copy() if self.config.engine == "torch" else data, checked=ORDERED)
        between = time.perf_counter()
        engine = engines.load(policy, self.config.engine, batch=self.num_envs)
        engine.run(self.environments.observations)
        return policy.head, engine, between - start, time.perf_counter() - between

    def _first_action(self) -> None:
        """Record the latency from the learner's step to this actor's first action with the newest weights."""
        assert self.acting_since is not None
        if self.acting_since > self.paused_ns:
            seconds = (time.monotonic_ns() - self.acting_since) * 1e-9
            self.cells[Actor.LATENCY_S] += seconds
            self.counters.latency_ms[self.spec.index, min(int(1e3 * seconds), CLASSES - 1)] += 1
        self.acting_since = None


def main(spec: ActorSpec) -> None:
    give_way(spec.config.nice)
    loop = ActorLoop(spec)
    try:
        loop.run()
    finally:
        loop.environments.close()
