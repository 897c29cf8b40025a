"""The relay: the process that represents all other machines to the learner, and calls their agents through Ray.

Downward it sends the learner's cells, with limits for each machine, and the newest packed weights, uploaded once for
all. Upward come batches of the actors' segments, which it writes into the learner's rings as local actors would.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from quarl.actorq import roles
from quarl.actorq.channel import LocalChannel
from quarl.actorq.counters import CLASSES, Actor, Learner, Node, Relay
from quarl.actorq.faults import Fault
from quarl.arrays import Array
from quarl.cluster import connection
from quarl.cluster.leases import Leases
from quarl.cluster.node import NodeAgent, Order, Report
from quarl.config import ActorQConfig
from quarl.errors import QuarlError, in_one_line

PIECE_ROWS, PIECE_S = 16_000, 0.1
"""Maximum number of segments in a batch, and maximum seconds of waiting for them."""
TELL_S = 0.5
"""Seconds after which a machine receives the learner's cells again, even if nothing is urgent."""
PEEK_S, PEEKS = 0.005, 4
"""Seconds between two checks of the newest weights' version, and their number before all boards are checked."""
END_S = 3.0
"""Seconds for agents to end."""
AGAIN_S = 0.3
"""Seconds before a lost machine is called again."""
SILENT_S, LOST_S, START_S = 10.0, 25.0, 60.0
"""Seconds without an answer: until a warning, until its actors no longer count, and before its first answer."""
INCARNATIONS = 50
"""Incarnation numbers given to an agent for successive processes of its actors; then another agent's begin."""
VERSIONS_HELD = 2
"""Maximum number of versions that agents are still reading."""
DECAY = 0.9
"""Weight of the past in recent means."""
PRESENT = [Actor.INCARNATION, Actor.STEPS, Actor.VERSION, Actor.SIGMA, Actor.HEARTBEAT_S]
"""Cells of an actor that hold present values, to which its successors do not add."""


@dataclass(frozen=True, kw_only=True)
class RelaySpec(roles.Start):
    """The start arguments of the relay."""

    config: ActorQConfig
    rungs: Sequence[float]
    actor_cores: Mapping[str, Sequence[frozenset[int] | None]]
    """Cores of the actors, as in Order."""
    incarnation: int
    """Above all incarnations that the run ever had."""
    address: str
    token: Path


@dataclass(eq=False)
class _Machine:
    """One place for an agent, and the machine that Ray has found for it."""

    place: int
    agent: Any
    actors: slice
    """Indices of its actors among those of all machines."""
    name: str = ""
    begun: bool = False
    calls: dict[str, Future[Any]] = field(default_factory=dict)
    """Pending answers, by method."""
    sent: dict[str, float] = field(default_factory=dict)
    """Time of these calls, by time.monotonic()."""
    incarnation: int = 0
    """Number for its next agent; 0 if none is reserved."""
    not_before: float = 0.0
    heard: float = field(default_factory=time.monotonic)
    is_silent: bool = False
    told: Array | None = None
    waiting: list[tuple[int, Array]] = field(default_factory=list)
    """Segments by actor for which the learner's rings had no room yet."""
    version: int = 0
    loading: roles.Snapshot | None = None
    """Weights in transit to the machine."""
    before: tuple[Array, ...] | None = None
    """Values of the actors' cells and histograms when the agent began."""
    offset_s: float = 0.0
    """Difference of its clock to this one, from the quickest answer."""
    delay_s: float = np.inf


class RelayLoop(roles.Role):
    """A loop that calls agents and handles their answers a few hundred times a second; no call is for a single step."""

    def __init__(self, spec: RelaySpec, say: Callable[[str | Fault], None]) -> None:
        super().__init__(spec)
        # Connect to the cluster before Ray is imported.
        assert isinstance(self.channel, LocalChannel)
        self.spec, self.say, self.cells = spec, say, self.counters.relay
        self.cells[Relay.HEARTBEAT_S] = time.monotonic()
        connection.connect(spec.address, token=spec.token)
        import ray  # Ray reads the environment that `connect` has set

        self.ray, self.sizes, num = ray, self.channel.sizes, len(self.counters.nodes)
        each = len(self.counters.actors) // num
        self.leases = Leases(num, spec.config.num_envs)
        self.rings = [self.channel.of(i) for i in range(num * each)]
        # Place one agent on each machine.
        group = ray.util.placement_group([{"CPU": 1}] * num, strategy="STRICT_SPREAD")
        remote = ray.remote(max_restarts=-1, max_task_retries=0, max_concurrency=4, num_cpus=1)(NodeAgent)
        self.machines = []
        for place in range(num):
            strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(group, place)
            agent = remote.options(scheduling_strategy=strategy).remote()
            self.machines.append(_Machine(place, agent, slice(place * each, (place + 1) * each)))
        self.heard = threading.Event()
        """Set by Ray's threads if there may be an answer, so that waiting for answers costs nothing."""
        self.version = 0
        self.weights: Any = None
        """Ray's reference to the newest weights, and their snapshot."""
        self.snapshot: roles.Snapshot

    def run(self) -> None:
        """Run until the run stops, then end the agents' work."""
        try:
            self._run()
        finally:
            connection.disconnect()

    def _run(self) -> None:
        while not self.stopped():
            now = self.cells[Relay.HEARTBEAT_S] = time.monotonic()
            total = self.counters.actors[:, Actor.STEPS].sum()
            self.leases.grant(self.counters.learner[Learner.INSERT_LIMIT], total, now)
            self._put_up()
            for machine in self.machines:
                if machine.begun:
                    self._serve(machine, total, now)
                elif "begin" not in machine.calls and now >= machine.not_before:
                    self._begin(machine)
                self._watch(machine, now)
            self._hear()
        if ends := [machine.agent.end.remote() for machine in self.machines if machine.begun]:
            self.ray.wait(ends, num_returns=len(ends), timeout=END_S)

    def _put_up(self) -> None:
        """Upload the newest packed weights once for all machines, but not while older ones are still being read."""
        held = {machine.loading.version for machine in self.machines if machine.loading is not None}
        if len(held) < VERSIONS_HELD and (snapshot := self.channel.packed.pull(self.version)) is not None:
            self.weights, self.snapshot, self.version = self.ray.put(snapshot.data), snapshot, snapshot.version

    def _call(self, machine: _Machine, method: str, *arguments: Any) -> None:
        machine.sent[method] = time.monotonic()
        call = machine.calls[method] = getattr(machine.agent, method).remote(*arguments).future()
        call.add_done_callback(lambda _: self.heard.set())

    def _begin(self, machine: _Machine) -> None:
        """Start an agent that is new, or that Ray has restarted."""
        spec = self.spec
        if not machine.incarnation:  # otherwise the last numbers were never used
            machine.incarnation = spec.incarnation + 1 + int(self.cells[Relay.INCARNATIONS])
            self.cells[Relay.INCARNATIONS] += INCARNATIONS
        self._call(
            machine,
            "begin",
            Order(
                config=spec.config,
                first=machine.actors.start,
                rungs=spec.rungs[machine.actors],
                cores=spec.actor_cores,
                incarnation=machine.incarnation,
                sizes=self.sizes,
            ),
        )

    def _serve(self, machine: _Machine, total: float, now: float) -> None:
        """Make all calls that are due for the machine."""
        calls, leases, place, cells = machine.calls, self.leases, machine.place, self.counters.nodes[machine.place]
        # Send the learner's limits and pauses.
        if "tell" not in calls and (self._presses(machine) or now - machine.sent.get("tell", 0.0) > TELL_S):
            delay_s = cells[Node.PIECE_S] + cells[Node.DELAY_S]
            machine.told = leases.cells(place, self.counters.learner, total, delay_s)
            self._call(machine, "tell", machine.told)
        # Send newer weights.
        if "load" not in calls and machine.version < self.version:
            snapshot = machine.loading = self.snapshot
            about = snapshot.version, snapshot.step, snapshot.stamp_ns + int(1e9 * machine.offset_s)
            self._call(machine, "load", self.weights, *about)
            machine.version = snapshot.version
            cells[Node.WEIGHTS_BYTES] += len(snapshot.data)
        # Collect more segments, once there is room for all that came.
        if machine.waiting:
            machine.waiting = list(self._written(machine.waiting, place))
        if "collect" not in calls and not machine.waiting:
            self._call(machine, "collect", PIECE_ROWS, PIECE_S)

    def _presses(self, machine: _Machine) -> bool:
        """Return True if the actors wait, or will wait soon, for cells that they have not received."""
        if (told := machine.told) is None or told[Learner.PAUSED] != self.counters.learner[Learner.PAUSED]:
            return True
        granted, received = self.leases.granted[machine.place], self.leases.received[machine.place]
        known = told[Learner.INSERT_LIMIT]
        return bool(granted > known and known - received <= 0.75 * (granted - received))

    def _written(self, pieces: Sequence[tuple[int, Array]], place: int) -> Iterator[tuple[int, Array]]:
        """Write segments into the learner's rings and count them; yield those for which there is no room yet."""
        for actor, rows in pieces:
            ring = self.rings[actor]
            num = min(ring.room(), len(rows))
            if num:
                ring.send_rows(rows[:num])
                self.counters.actors[actor, Actor.STEPS] = ring.num_sent()
                self.leases.insert(place, num)
            if num < len(rows):
                yield actor, rows[num:]

    def _hear(self) -> None:
        """Wait briefly for answers, and handle those that have come."""
        any(self.heard.wait(PEEK_S) or self.channel.packed.version > self.version for _ in range(PEEKS))
        self.heard.clear()
        for machine, name, call in [(each, *item) for each in self.machines for item in each.calls.items()]:
            if not call.done() or machine.calls.get(name) is not call:
                continue  # this call was lost with another
            try:
                answer = call.result()
            except self.ray.exceptions.RayTaskError as error:
                # an agent that Ray has restarted, and that has not begun, answers with an error
                if name != "begin" and not isinstance(error.cause, QuarlError):
                    self._lose(machine, in_one_line(error.cause or error))
                    continue
                raise QuarlError(f"{machine.name or 'a machine'}: {in_one_line(error.cause or error)}") from None
            except self.ray.exceptions.RayError as error:
                self._lose(machine, type(error).__name__)
                continue
            del machine.calls[name]
            machine.heard = time.monotonic()
            getattr(self, f"_heard_{name}")(machine, answer)

    def _heard_begin(self, machine: _Machine, name: str) -> None:
        counters, cells = self.counters, self.counters.nodes[machine.place]
        again = f"{name}: the machine is back, and its actors restart"
        self.say(again if cells[Node.BEGUN] else f"machine {machine.place} is {name}")
        machine.name, machine.begun, machine.incarnation, machine.version, machine.told = name, True, 0, 0, None
        kept = counters.actors, counters.latency_ms, counters.blocked_ms
        actors, *_ = machine.before = tuple(each[machine.actors].copy() for each in kept)
        actors[:, PRESENT] = 0
        cells[Node.BEGUN] += 1
        cells[Node.ANSWERS], cells[Node.VERSION] = 1, 0
        self.leases.begin(machine.place)

    def _heard_tell(self, machine: _Machine, there: float) -> None:
        """Estimate the clock difference from the quickest answer; clocks drift, so old estimates slowly expire."""
        before, cells = machine.sent["tell"], self.counters.nodes[machine.place]
        took = machine.heard - before
        machine.delay_s *= 1.001
        if took <= machine.delay_s:
            machine.delay_s, machine.offset_s = took, there - (before + machine.heard) / 2
        cells[Node.DELAY_S] = machine.delay_s

    def _heard_load(self, machine: _Machine, there: float) -> None:
        cells, snapshot = self.counters.nodes[machine.place], machine.loading
        assert snapshot is not None
        machine.loading, cells[Node.VERSION] = None, snapshot.version
        cells[Node.WEIGHTS_S] = there - machine.offset_s - 1e-9 * snapshot.stamp_ns
        self.counters.weights_ms[machine.place, min(max(int(1e3 * cells[Node.WEIGHTS_S]), 0), CLASSES - 1)] += 1

    def _heard_collect(self, machine: _Machine, report: Report) -> None:
        cells, counters = self.counters.nodes[machine.place], self.counters
        # Write the segments, with the learner's actor numbers.
        rows = report.rows.copy()  # a copy: Ray's bytes are read-only, and stay in its memory while they are in use
        starts = np.flatnonzero(np.diff(rows["actor"], prepend=-1))
        rows["actor"] += machine.actors.start
        pieces = [(int(piece["actor"][0]), piece) for piece in np.split(rows, starts[1:]) if len(piece)]
        machine.waiting = list(self._written(pieces, machine.place))
        # Add the actors' cells to those of their predecessors.
        assert machine.before is not None
        actors, latency_ms, blocked_ms = machine.before
        shown = actors + report.cells
        shown[:, Actor.STEPS] = [self.rings[i].num_sent() for i in range(machine.actors.start, machine.actors.stop)]
        shown[:, Actor.HEARTBEAT_S] = machine.heard - report.cells[:, Actor.HEARTBEAT_S]
        counters.actors[machine.actors] = shown
        if report.histograms is not None:
            counters.latency_ms[machine.actors] = latency_ms + report.histograms[0]
            counters.blocked_ms[machine.actors] = blocked_ms + report.histograms[1]
        took = machine.heard - machine.sent["collect"]
        cells[Node.PIECE_S] = DECAY * cells[Node.PIECE_S] + (1 - DECAY) * took
        cells[Node.ROWS] += len(rows)
        cells[Node.ROWS_BYTES] += rows.nbytes
        cells[Node.ACTORS], cells[Node.AT_WORK] = report.alive, report.at_work
        for news in report.said:
            name = machine.name
            self.say(f"{name}: {news}" if isinstance(news, str) else replace(news, who=f"{news.who} of {name}"))
        if report.mistake:
            raise QuarlError(f"{machine.name}: {report.mistake}")

    def _lose(self, machine: _Machine, why: str) -> None:
        """Handle the loss of an agent; Ray starts another one there, or on another machine."""
        if machine.begun:
            then = "the run continues without its actors"
            self.say(Fault(who=f"machine {machine.name}", event="was lost", reason=why, then=then))
        machine.begun, machine.loading, machine.waiting = False, None, []
        machine.calls.clear()
        machine.not_before = time.monotonic() + AGAIN_S
        self.leases.lose(machine.place)
        cells = self.counters.nodes[machine.place]
        cells[Node.ANSWERS] = cells[Node.ACTORS] = 0

    def _watch(self, machine: _Machine, now: float) -> None:
        """Warn if a machine is silent; after LOST_S its actors no longer count."""
        silent_s, cells = now - machine.heard, self.counters.nodes[machine.place]
        bound_s, before = SILENT_S if cells[Node.BEGUN] else START_S, machine.is_silent
        machine.is_silent = silent_s > bound_s
        if machine.is_silent and not before:
            self.say(f"{machine.name or f'machine {machine.place}'}: no answer for {bound_s:g} s")
        if silent_s > LOST_S and cells[Node.BEGUN]:
            cells[Node.AT_WORK] = cells[Node.ACTORS] = 0


def main(spec: RelaySpec, link: Connection) -> None:
    RelayLoop(spec, link.send).run()
