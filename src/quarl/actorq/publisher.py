"""The publisher process: the learner's newest tensors become the packed policy that actors act with.

It quantises off the learner's path and never queues: when it is slower than the learner, versions are left out.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from quarl.actorq.channel import LocalChannel
from quarl.actorq.ledger import Control, Ledger, Publisher
from quarl.actorq.memory import Block, Memory
from quarl.actorq.weights import Template
from quarl.actorq.wire import Packer
from quarl.arrays import Array
from quarl.errors import QuarlError
from quarl.policy.graph import ActivationGrid, Policy, QuantizedPolicy
from quarl.processes.inside import Worker

NAP_S = 0.003
"""A look at the board costs 65 us beside two busy cores; a push comes every second or so where packing takes long."""
SAMPLE = 256
"""Recent observations that rewrites of the weights are balanced on."""


@dataclass(frozen=True, kw_only=True)
class PublisherSpec:
    """What the publisher is told when it is started."""

    num_actors: int
    memory: Path
    blocks: Mapping[str, Block]
    template: bytes
    """`Template.to_bytes`: what the float tensors mean."""
    packer: Mapping[str, Any]
    """Keyword arguments of Packer."""


class PublisherLoop(Worker):
    """Publishes until it is told to stop."""

    def __init__(self, spec: PublisherSpec) -> None:
        super().__init__()
        memory = Memory(spec.memory, spec.blocks)
        self.ledger = Ledger(memory)
        self.channel = LocalChannel(memory, spec.num_actors)
        self.template = Template.from_bytes(spec.template)
        self.packer = Packer(**spec.packer)
        self.cells = self.ledger.publisher
        self.rng = np.random.default_rng(0)
        # After a restart: what is up already need not be packed again.
        self.version = self.channel.packed.version
        self.overtaken = False

    def run(self) -> None:
        cpu_before = float(self.cells[Publisher.CPU_S])
        while not self.ledger.control[Control.STOP] and not self.orphaned():
            self.cells[Publisher.HEARTBEAT_S] = time.monotonic()
            self.cells[Publisher.CPU_S] = cpu_before + time.process_time()
            if not self.publish():
                time.sleep(NAP_S)

    def publish(self) -> bool:
        """Packs the newest weights; False where there are none that are newer than the last."""
        floats = self.channel.floats
        start = time.perf_counter()
        # A copy takes a third as long as packing does. It is made where the learner was so fast that it wrote over the
        # last weights while they were being packed.
        snapshot = floats.pull(self.version) if self.overtaken else floats.peek(self.version)
        if snapshot is None:
            return False
        pulled = time.perf_counter()
        cells = self.cells
        cells[Publisher.PULL_S] += pulled - start
        flat = snapshot.data.view(np.float32)
        try:
            policy = self.template.policy(flat)
        except QuarlError:  # NaN or infinity
            data = None
        else:
            quantized = self._quantize(policy, self.template.grids(flat))
            quantized_at = time.perf_counter()
            data = self.packer.to_bytes(quantized)
        if not self.overtaken and not floats.holds(snapshot):
            self.overtaken = True
            return True
        self.overtaken = False
        self.version = snapshot.version
        if data is None:  # the learner sees this number and goes back to sound weights
            cells[Publisher.REFUSED] += 1
            cells[Publisher.REFUSED_VERSION] = snapshot.version
            return True
        packed = time.perf_counter()
        self.channel.packed.publish(data, version=snapshot.version, step=snapshot.step, stamp_ns=snapshot.stamp_ns)
        cells[Publisher.QUANTIZE_S] += quantized_at - pulled
        cells[Publisher.PACK_S] += packed - pulled
        cells[Publisher.PUBLISH_S] += time.perf_counter() - packed
        cells[Publisher.PUBLISHED] += 1
        cells[Publisher.BYTES] += len(data)
        cells[Publisher.FLOAT_BYTES] += snapshot.data.nbytes
        cells[Publisher.VERSION] = snapshot.version
        return True

    def _quantize(self, policy: Policy, grids: Mapping[str, ActivationGrid] | None) -> QuantizedPolicy:
        """What actors act with; grids: those that training has come to, where it quantises."""
        if grids is None:
            return self.packer.quantize(policy, self.observations() if self.packer.wants_observations else None)
        assert self.template.trained is not None
        return self.packer.quantize_trained(policy, self.template.trained, grids)

    def observations(self) -> Array | None:
        """Recent observations [n, *shape] as they lie in the actors' rings; None before there are any."""
        rings = [ring for ring in self.channel.rings if ring.num_written]
        pieces = []
        for ring in rings:
            whole = min(ring.num_written, ring.capacity)
            chosen = self.rng.integers(whole, size=-(-SAMPLE // len(rings)))
            pieces.append(ring.rows["observation"][chosen])
        return np.concatenate(pieces) if pieces else None


def main(spec: PublisherSpec) -> None:
    PublisherLoop(spec).run()
