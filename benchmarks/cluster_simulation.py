"""How far one learner goes, simulated from parts that benchmarks/cluster.py measured: make bench-cluster-simulation

Events on one clock: the learner with its limiter, the publisher, the relay with its leases, and machines whose actors
make rows evenly. Not in it: processes that share a core. A part is seconds of a call and of each unit more.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from quarl.actorq.learner import AT_ONCE, GATHER_S, LONGEST_NAP_S, NAP_S
from quarl.actorq.limiter import RateLimiter
from quarl.actorq.roles import LOOK_S
from quarl.actorq.supervisor import RING_ROWS
from quarl.cluster import relay
from quarl.cluster.leases import Leases
from results import Row, here, read, write

MACHINES, ACTORS, SECONDS, WARM_UP_S, WITHIN = (1, 10, 100, 1000), 16, 20.0, 10.0, 0.25
NETWORK = {"latency_s": 0.0002, "bandwidth": 1.25e9}
"""Assumed round-trip time in seconds, and bytes/s out of the learner's machine; the parts contain those of loopback."""
STEPS_S, AHEAD_S = (0.001, 0.01), 0.5
"""Assumed steps of an actor, and the time that actors on a network can continue before the limiter stops them."""
BETWEEN = ("put_s", "transfer_s", "call_s", "turn_s", "take_s", "look_s", "drain_s")
"""Parts between learner and machines."""
Process = Iterator[float]
"""A process that yields, repeatedly, the seconds for which it is busy."""
Weights = tuple[int, float]
"""A version, and the time at which the learner pushed it."""


@dataclass
class Machine:
    """A machine whose actors make rows evenly up to a limit, with the newest weights it knows of and has."""

    rate: float
    room: int
    """Capacity of its actors' rings."""
    limit: float = 0.0
    made: float = 0.0
    sent: int = 0
    at: float = 0.0
    told_at: float = 0.0
    told: Weights = (0, 0.0)
    has: Weights = (0, 0.0)
    asked: bool = False

    def ready(self, now: float) -> int:
        """Return the rows that are made and not sent."""
        most = min(self.limit, self.sent + self.room)
        self.made = max(min(self.made + self.rate * max(now - self.at, 0.0), most), self.made)
        self.at = max(now, self.at)
        return int(self.made) - self.sent


class Simulation:
    """A run of machines with a number of actors each, which make a row in step_s if they need not wait."""

    def __init__(
        self, parts: Row, machines: int, actors: int, step_s: float, latency_s: float = 0.0, bandwidth: float = np.inf
    ) -> None:
        self.parts, self.now, self.there_s, self.bandwidth = parts, 0.0, latency_s / 2, bandwidth
        self.limiter = RateLimiter(parts["samples_per_insert"], parts["batch_size"], 0, parts["error_buffer"])
        self.machines = [Machine(actors / step_s, actors * RING_ROWS) for _ in range(machines)]
        self.leases, self.num_rings = Leases(machines, 1), actors * machines
        self.inbox: deque[tuple[int, int]] = deque()
        self.floats, self.packed, self.ages_s = (0, 0.0), (0, 0.0), [np.nan]
        self.waiting = self.relayed = self.updates = self.delivered = 0
        self.link_free, self.busy = 0.0, dict.fromkeys(("learner", "relay", "link"), 0.0)
        self._events: list[tuple[float, int, Process]] = []
        self._count = itertools.count()

    def start(self, process: Process, after: float = 0.0) -> None:
        """Continue with the process after that many seconds."""
        heapq.heappush(self._events, (self.now + after, next(self._count), process))

    def run(self) -> Row:
        """Return the rates after the warm-up."""
        for process in (self.learner(), self.publisher(), self.relay()):
            self.start(process)
        before = None
        while self._events[0][0] < WARM_UP_S + SECONDS:
            self.now, _, process = heapq.heappop(self._events)
            if before is None and self.now >= WARM_UP_S:
                before, self.ages_s = self._seen(), [np.nan]
            if (seconds := next(process, None)) is not None:
                self.start(process, seconds)
        rows, updates, delivered, *busy = ((self._seen() - before) / SECONDS).round(3).tolist()
        return {
            **{"machines": len(self.machines), "actors": self.num_rings, "rows_per_s": rows, "updates_per_s": updates},
            "versions_per_s": round(delivered / len(self.machines), 3),
            "bytes_in_per_s": round(rows * self.parts["row_bytes"]),
            "bytes_out_per_s": round(delivered * self.parts["version_bytes"]),
            "age_ms_p95": round(1e3 * float(np.nanpercentile(self.ages_s, 95)), 2) if delivered else None,
            "actors_share": round(rows / sum(machine.rate for machine in self.machines), 4),
            **{f"{name}_share": share for name, share in zip(self.busy, busy, strict=True)},
        }

    def _seen(self) -> Any:
        return np.array([self.limiter.inserts, self.updates, self.delivered, *self.busy.values()])

    def _works(self, who: str, part: str, units: float = 0) -> float:
        of_call, of_unit = self.parts[part]
        self.busy[who] += (seconds := of_call + of_unit * units)
        return seconds

    def learner(self) -> Process:
        """Run the learner as LearnerLoop.step does."""
        limiter = self.limiter
        while True:
            if limiter.updates_allowed():
                yield self._works("learner", "update_s")
                limiter.on_sample(limiter.batch_size)
                self.updates += 1
                if self.updates % self.parts["publish_interval"] == 0:
                    self.floats = (self.floats[0] + 1, self.now)
                    yield self._works("learner", "push_s")
                continue
            wanted, nap, until = min(limiter.inserts_wanted(), AT_ONCE), NAP_S, self.now + GATHER_S
            while self.now < until and self.waiting < wanted:
                yield nap + self._works("learner", "look_s", self.num_rings)
                nap = min(2 * nap, LONGEST_NAP_S)
            if taken := min(self.waiting, wanted):
                yield self._works("learner", "drain_s", self.num_rings) + self._works("learner", "insert_s", taken)
                self.waiting -= taken
                limiter.on_insert(taken)

    def publisher(self) -> Process:
        """Run the publisher, which packs the newest weights and never queues."""
        while True:
            if self.floats > self.packed:
                newest = self.floats
                yield self.parts["pack_s"][0]
                self.packed = newest
            yield LOOK_S

    def relay(self) -> Process:
        """Run the relay as RelayLoop does: one thing after the other."""
        newest, leases = self.packed, self.leases
        for place in range(len(self.machines)):
            leases.begin(place)
        while True:
            yield self._works("relay", "turn_s", len(self.machines))
            leases.grant(self.limiter.insert_limit(), self.relayed, self.now)
            held = {machine.told for machine in self.machines if machine.told > machine.has}
            if self.packed > newest and len(held) < relay.VERSIONS_HELD:
                newest = self.packed
                yield self._works("relay", "put_s", self.parts["version_bytes"])
            for place, machine in enumerate(self.machines):
                granted = float(leases.granted[place])
                presses = granted > machine.limit and machine.limit - machine.sent <= 0.75 * (granted - machine.sent)
                if presses or self.now - machine.told_at > relay.TELL_S:
                    yield self._works("relay", "call_s")
                    machine.ready(self.now)
                    machine.limit, machine.told_at = max(granted, machine.limit), self.now
                if machine.told == machine.has < newest:
                    yield self._works("relay", "call_s")
                    machine.told = newest
                    self.start(self.load(machine), self.there_s)
                if not machine.asked:
                    machine.asked = True
                    self.start(self.collect(place), self.there_s)
            until, waits = self.now + relay.PEEKS * relay.PEEK_S, len(held) == relay.VERSIONS_HELD
            while not self.inbox and (waits or self.packed <= newest) and self.now < until:
                yield relay.PEEK_S / 8
            while self.inbox:
                place, num = self.inbox.popleft()
                yield self._works("relay", "take_s", num)
                leases.insert(place, num)
                self.waiting, self.relayed, self.machines[place].asked = self.waiting + num, self.relayed + num, False

    def collect(self, place: int) -> Process:
        """Send a piece of the machine's rows to the relay."""
        machine, until = self.machines[place], self.now + relay.PIECE_S
        most = min(relay.PIECE_ROWS, machine.room // 2)
        while (ready := machine.ready(self.now)) < most and self.now < until:
            if ready and machine.limit - machine.made < 1:
                break
            left = min(machine.limit, machine.sent + most) - machine.made
            yield min(max(left / machine.rate, 0.001), max(until - self.now, 0.001))
        machine.sent += ready
        of_call, of_row = self.parts["collect_s"]
        yield of_call + ready * (of_row + self.parts["row_bytes"] / self.bandwidth) + self.there_s
        self.inbox.append((place, ready))

    def load(self, machine: Machine) -> Process:
        """Send weights over the one link out of the learner's machine."""
        of_call, of_byte = self.parts["transfer_s"]
        self.busy["link"] += (seconds := self.parts["version_bytes"] * max(of_byte, 1 / self.bandwidth))
        self.link_free = max(self.link_free, self.now) + seconds
        yield self.link_free - self.now + of_call + self.there_s
        machine.ready(self.now)
        machine.has, machine.at = machine.told, self.now + self.parts["load_s"][0]
        self.ages_s.append(self.now - machine.has[1])
        self.delivered += 1


def on_a_network(parts: Row, machines: int, step_s: float) -> Row:
    """Simulate a run on that many machines, whose limiter leaves room for rows on their way.

    The row also has the rate at which the learner could take in rows without anything between it and the machines,
    which further relays approach.
    """
    learnt = parts["batch_size"] / parts["samples_per_insert"] / parts["update_s"][0]
    rows = max(AHEAD_S * min(machines * ACTORS / step_s, learnt), machines * ACTORS)
    buffer = parts["samples_per_insert"] * rows + 2 * parts["batch_size"]
    parts = {**parts, "error_buffer": buffer}
    ideal = Simulation({**parts, **dict.fromkeys(BETWEEN, (0, 0))}, 1, machines * ACTORS, step_s).run()
    row = Simulation(parts, machines, ACTORS, step_s, **NETWORK).run()
    return {**row, **{f"ideal_{name}": ideal[name] for name in ("rows_per_s", "age_ms_p95")}}


def main() -> None:
    """Return rows of two raylets on this machine, measured and simulated, and of many machines."""
    found, compared = [], []
    runs, measured = ([row for row in read("cluster", of) if row["machine"] == here()] for of in ("runs", "parts"))
    parts_of = {parts["name"]: parts for parts in measured if parts["name"] != "busy"}
    for name, parts in parts_of.items():
        simulated = Simulation(parts, 2, parts["actors"], parts["step_s"]).run()
        for what in ("rows_per_s", "age_ms_p95"):
            there = float(np.mean([row[what] for row in runs if (row["name"], row["channel"]) == (name, "cluster")]))
            row = {"name": name, "what": what, "measured": there, "simulated": simulated[what]}
            compared.append(
                {**row, "ratio": (ratio := round(simulated[what] / there, 3)), "within": abs(ratio - 1) <= WITHIN}
            )
            print(compared[-1])
        for step_s, machines in itertools.product(STEPS_S, MACHINES):
            found.append({"name": name, "step_ms": 1e3 * step_s, **on_a_network(parts, machines, step_s)})
            print(found[-1], flush=True)
    write("cluster-simulation", "make bench-cluster-simulation", simulated=found, compared=compared)


if __name__ == "__main__":
    main()
