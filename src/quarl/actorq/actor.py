"""An actor process: environments, one engine on one thread, exploration, and a ring to the learner."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from quarl import engines
from quarl.actorq import wire
from quarl.actorq.channel import LocalChannel
from quarl.actorq.exploration import Explorer
from quarl.actorq.ledger import CLASSES, Actor, Control, Learner, Ledger
from quarl.actorq.memory import Block, Memory
from quarl.actorq.process import Worker
from quarl.envs import make
from quarl.envs.seeds import episode_seed
from quarl.policy.graph import QuantizedPolicy

Array = NDArray[Any]
NAP_S = 0.0005
"""Between two looks at a number that another process will change."""
AT_ONCE = 64
"""Steps between two looks at the limiter, at most."""
MADE_BITS = 12
"""Environments that one incarnation of an actor can make before seeds come again."""
GAP = 2
"""What a sequence number jumps by after an environment was lost: replay then knows that no step leads across."""


@dataclass(frozen=True, kw_only=True)
class ActorSpec:
    """What an actor is told when it is started."""

    index: int
    num_actors: int
    incarnation: int
    memory: Path
    blocks: Mapping[str, Block]
    env_id: str
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    num_envs: int = 1
    engine: str = "litert"
    update_interval: int = 100
    max_staleness: int = 1000
    rung: float = 0.0
    seed: int = 0
    cpu: int | None = None


class ActorLoop(Worker):
    """Acts until it is told to stop; every environment step is one segment."""

    def __init__(self, spec: ActorSpec) -> None:
        super().__init__(spec.cpu)
        self.spec = spec
        memory = Memory(spec.memory, spec.blocks)
        self.ledger = Ledger(memory)
        self.channel = LocalChannel(memory, spec.num_actors, spec.index)
        self.cells = self.ledger.actors[spec.index]
        self.sent = self.ledger.actors[:, Actor.STEPS]
        self.steps = int(self.cells[Actor.STEPS])
        self.rng = np.random.default_rng((spec.seed, spec.index, spec.incarnation))
        self.envs = [self._make(k) for k in range(spec.num_envs)]
        self.sequence = [0] * spec.num_envs
        self.episode = [(0, 0.0)] * spec.num_envs  # (length, return)
        self.made = 0
        self.observations = np.stack([self._first(k) for k in range(spec.num_envs)])
        self.version = self.step_of_version = 0
        self.engine: engines.Engine
        self.explorer: Explorer
        self.pulled_at = self.steps - spec.update_interval
        self.acting_since: int | None = None
        self.cells[Actor.INCARNATION] = spec.incarnation
        self.cells[Actor.SIGMA] = spec.rung
        rows = self.channel.ring.rows
        self.columns = {name: rows[name] for name in rows.dtype.names or ()}

    def run(self) -> None:
        """The loop."""
        while not self._pull():
            if self._stopped():
                return
            time.sleep(NAP_S)
        clock = Clock(self.cells)
        while not self._stopped():
            due = self.steps - self.pulled_at >= self.spec.update_interval
            if due:
                self._pull()
            allowed = self._allowed(clock)
            if allowed:
                random = self.sent.sum() < self.ledger.learner[Learner.RANDOM_UNTIL]
                self._act(allowed, clock, random=bool(random))
            clock.book()

    def _allowed(self, clock: Clock) -> int:
        """Steps of all environments that may be made before the next look; 0 after a nap."""
        learner, num = self.ledger.learner, self.spec.num_envs
        self.beat()
        if learner[Learner.UPDATES] - self.step_of_version >= self.spec.max_staleness and not self._pull():
            clock.nap(Actor.STALE_S)
            return 0
        ahead = learner[Learner.INSERT_LIMIT] - self.sent.sum()
        room = min(ahead, self.channel.ring.free())
        if room < num or learner[Learner.PAUSED]:
            if not learner[Learner.PAUSED]:
                clock.nap(Actor.WAIT_S)
            else:
                clock.pause()
            return 0
        # What is left is shared: an actor that took all of it would let the others wait.
        shared = max(int(room) // (num * self.spec.num_actors), 1)
        return min(shared, AT_ONCE, -(-self.spec.update_interval // num))

    def _act(self, num: int, clock: Clock, *, random: bool) -> None:
        """`num` steps of every environment."""
        now, ring, columns = time.perf_counter, self.channel.ring, self.columns
        version = -1 if random else self.version
        epsilon = float(self.ledger.learner[Learner.EXPLORATION])
        for _ in range(num):
            before = now()
            if random:
                actions, stored = self.explorer.random(self.spec.num_envs)
                acted = before
            else:
                outputs = self.engine.run(self.observations)
                acted = now()
                actions, stored = self.explorer.act(outputs, epsilon)
            for k in range(self.spec.num_envs):
                started = now()
                try:
                    observation, reward, terminated, truncated, _ = self.envs[k].step(actions[k])
                except Exception:  # whatever a simulator raises: it is made anew
                    self._replace(k)
                    continue
                stepped = now()
                length, total = self.episode[k]
                length, total = length + 1, total + float(reward)
                done = terminated or truncated
                i = ring.index(0)
                columns["sequence"][i] = self.sequence[k]
                columns["version"][i] = version
                columns["actor"][i] = self.spec.index
                columns["incarnation"][i] = self.spec.incarnation
                columns["environment"][i] = k
                columns["episode_length"][i] = length if done else 0
                columns["episode_return"][i] = total if done else 0.0
                columns["reward"][i] = reward
                columns["terminated"][i] = terminated
                columns["truncated"][i] = truncated
                columns["action"][i] = stored[k]
                columns["observation"][i] = self.observations[k]
                columns["next_observation"][i] = observation
                ring.commit(1)
                self.steps += 1
                self.cells[Actor.STEPS] = self.steps
                self.sequence[k] += 1
                self.episode[k] = (0, 0.0) if done else (length, total)
                clock.environment_s += stepped - started
                clock.insert_s += now() - stepped
                if done:
                    started = now()
                    self.observations[k] = self.envs[k].reset()[0]
                    clock.environment_s += now() - started
                else:
                    self.observations[k] = observation
            clock.inference_s += acted - before
            self.beat()
            if self.acting_since is not None and not random:
                self._first_action()

    def _pull(self) -> bool:
        """Takes the newest weights; False where there are none that are newer."""
        self.pulled_at = self.steps
        start = time.perf_counter()
        snapshot = self.channel.pull(self.version)
        copied = time.perf_counter()
        self.cells[Actor.PULL_S] += copied - start
        if snapshot is None:
            self.cells[Actor.SKIPPED] += 1
            return False
        policy = wire.unpack(snapshot.data)
        unpacked = time.perf_counter()
        engine = engines.load(policy, self.spec.engine, batch=self.spec.num_envs)
        engine.run(self.observations)
        loaded = time.perf_counter()
        if self.version == 0:
            self.explorer = self._explorer(policy)
        self.engine, self.version, self.step_of_version = engine, snapshot.version, snapshot.step
        self.acting_since = snapshot.stamp_ns
        cells = self.cells
        cells[Actor.DESERIALIZE_S] += unpacked - copied
        cells[Actor.LOAD_S] += loaded - unpacked
        cells[Actor.PULLS] += 1
        cells[Actor.VERSION], cells[Actor.STEP] = snapshot.version, snapshot.step
        blocked = min(int(1e4 * (loaded - start)), CLASSES - 1)
        self.ledger.blocked_ms[self.spec.index, blocked] += 1
        return True

    def _first_action(self) -> None:
        """Books how long the newest weights took from the learner's step to this actor's first action on them."""
        assert self.acting_since is not None
        seconds = (time.monotonic_ns() - self.acting_since) * 1e-9
        self.cells[Actor.LATENCY_S] += seconds
        self.ledger.latency_ms[self.spec.index, min(int(1e3 * seconds), CLASSES - 1)] += 1
        self.acting_since = None

    def _explorer(self, policy: QuantizedPolicy) -> Explorer:
        return Explorer(policy.head, self.envs[0].action_space, self.spec.rung, self.rng)

    def _make(self, k: int) -> gymnasium.Env[Any, Any]:
        return make(self.spec.env_id, env_kwargs=self.spec.env_kwargs)

    def _first(self, k: int) -> Array:
        """The first observation of a new environment; later episodes go on with the environment's own generator."""
        place = self.spec.incarnation * self.spec.num_actors + self.spec.index
        self.made += 1
        seed = episode_seed("training", self.spec.seed, place << MADE_BITS | self.made % 2**MADE_BITS)
        observation: Array = self.envs[k].reset(seed=seed)[0]
        return observation

    def _replace(self, k: int) -> None:
        """A new environment in place of one that raised; its unfinished episode has no end in replay."""
        self.cells[Actor.ERRORS] += 1
        self.cells[Actor.DROPPED] += self.episode[k][0]
        self.envs[k].close()
        self.envs[k] = self._make(k)
        self.observations[k] = self._first(k)
        self.sequence[k] += GAP
        self.episode[k] = (0, 0.0)

    def _stopped(self) -> bool:
        return bool(self.ledger.control[Control.STOP]) or self.orphaned()

    def beat(self) -> None:
        self.cells[Actor.HEARTBEAT_S] = time.monotonic()


class Clock:
    """Where an actor's time goes, added up locally and booked between steps."""

    def __init__(self, cells: Array) -> None:
        self.cells = cells
        self.inference_s = self.environment_s = self.insert_s = 0.0
        self._last = time.perf_counter()
        self._idle = 0.0

    def nap(self, column: Actor) -> None:
        """Waits a moment and books it in `column`."""
        start = time.perf_counter()
        time.sleep(NAP_S)
        self.cells[column] += time.perf_counter() - start

    def pause(self) -> None:
        """Waits a moment that belongs to no one: an evaluation is not on the clock."""
        start = time.perf_counter()
        time.sleep(NAP_S)
        self._idle += time.perf_counter() - start

    def book(self) -> None:
        """Writes what has added up since the last time."""
        now = time.perf_counter()
        self.cells[Actor.INFERENCE_S] += self.inference_s
        self.cells[Actor.ENVIRONMENT_S] += self.environment_s
        self.cells[Actor.INSERT_S] += self.insert_s
        self.cells[Actor.LOOP_S] += now - self._last - self._idle
        self._last, self._idle = now, 0.0
        self.inference_s = self.environment_s = self.insert_s = 0.0


def main(spec: ActorSpec) -> None:
    """The process."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    ActorLoop(spec).run()
