"""The publisher process: converts the learner's newest tensors to the packed policy of the actors.

It quantizes off the learner's path and never queues: if it is slower than the learner, it skips versions.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

import numpy as np

from quarl.actorq import roles
from quarl.actorq.counters import Publisher
from quarl.actorq.weights import Template
from quarl.actorq.wire import Packer
from quarl.arrays import Array
from quarl.errors import QuarlError

SAMPLE = 256
"""Number of recent observations on which the weight rewrites are balanced."""


@dataclass(frozen=True, kw_only=True)
class PublisherSpec(roles.Start):
    """The start arguments of the publisher process."""

    template: Template
    """Meaning of the float tensors."""
    packer: tuple[str, int | None, Literal["none", "zstd"]]
    """Arguments of Packer; the whole configuration would cost an import when a publisher has to restart quickly."""


class PublisherLoop(roles.Publisher):
    """A publisher that quantizes off the learner's path."""

    def __init__(self, spec: PublisherSpec) -> None:
        super().__init__(spec)
        self.template, self.packer = spec.template, Packer(*spec.packer)
        self.cells = self.counters.publisher
        self.rng = np.random.default_rng(0)
        self.cpu_before = float(self.cells[Publisher.CPU_S])
        # After a restart: published weights need not be packed again.
        self.version = self.channel.packed.version

    def publish(self) -> bool:
        """Pack the newest weights, in place if the learner leaves time, else from a copy; refuse NaN and infinity."""
        start, cells = time.perf_counter(), self.cells
        cells[Publisher.HEARTBEAT_S] = time.monotonic()
        cells[Publisher.CPU_S] = self.cpu_before + time.process_time()
        packed = self.channel.floats.read(self.version, self._pack)
        if packed is None:
            return False
        snapshot, (data, quantize_s, pack_s) = packed
        done = time.perf_counter()
        self.version = snapshot.version
        cells[Publisher.PULL_S] += done - start - pack_s
        if data is None:  # the learner sees this number and returns to finite weights
            cells[Publisher.REFUSED] += 1
            cells[Publisher.REFUSED_VERSION] = snapshot.version
            return True
        self.channel.packed.publish(data, version=snapshot.version, step=snapshot.step, stamp_ns=snapshot.stamp_ns)
        cells[Publisher.QUANTIZE_S] += quantize_s
        cells[Publisher.PACK_S] += pack_s
        cells[Publisher.PUBLISH_S] += time.perf_counter() - done
        cells[Publisher.PUBLISHED] += 1
        cells[Publisher.BYTES] += len(data)
        cells[Publisher.FLOAT_BYTES] += snapshot.data.nbytes
        cells[Publisher.VERSION] = snapshot.version
        return True

    def _pack(self, floats: Array) -> tuple[bytes | None, float, float]:
        """Return the packed bytes (None if a weight is not finite), seconds of quantizing, and seconds in all."""
        start, flat = time.perf_counter(), floats.view(np.float32)
        try:
            policy = self.template.policy(flat)
        except QuarlError:
            return None, 0.0, time.perf_counter() - start
        # Use the trained grids if quantization is active in training.
        grids, trained = self.template.grids(flat), self.template.trained
        if trained is not None and grids is not None:
            quantized = self.packer.quantize_trained(policy, trained, grids)
        else:
            recent = self.channel.observations(SAMPLE, self.rng) if self.packer.quantize.wants_observations else None
            quantized = self.packer.quantize(policy, recent)
        quantize_s = time.perf_counter() - start
        return self.packer.to_bytes(quantized), quantize_s, time.perf_counter() - start


def main(spec: PublisherSpec) -> None:
    PublisherLoop(spec).run()
