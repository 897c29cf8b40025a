"""How fast a policy reaches an actor: from float32 tensors to the file, and from the file to the first output."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from quarl import engines
from quarl.errors import QuarlError
from quarl.policy import artifact
from quarl.policy.graph import Policy, QuantizedPolicy
from quarl.ptq import quantize
from quarl.quant.spec import QuantSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Medians of one policy in one precision."""

    precision: str
    scheme: str
    engine: str
    write_ms: float
    """Quantise, pack, checksum, write, fsync, rename."""
    load_ms: float
    """Read, verify, hand to the engine, first output at batch 1."""
    bytes: int
    """Of the file."""


def measure_artifact(
    policy: Policy,
    folder: Path,
    *,
    precisions: Sequence[str] = ("fp32", "int8", "int4"),
    scheme: str = "per-channel",
    engine: str = "litert",
    repeats: int = 11,
) -> list[Row]:
    """Rows of a float32 policy in each precision; files go to `folder`, which must exist.

    scheme: one that needs no calibration, as a learner that publishes at every update must use. Precisions take turns.
    """
    specs = [QuantSpec.parse(text, scheme=scheme) for text in precisions]
    if any(spec.scheme.needs_observations for spec in specs):
        raise QuarlError(f"scheme {scheme!r} needs calibration observations; time scheme 'per-channel' instead")
    observation = np.zeros((1, *policy.observation_shape), policy.observation_dtype)
    written: dict[str, list[float]] = {spec.precision: [] for spec in specs}
    loaded: dict[str, list[float]] = {spec.precision: [] for spec in specs}
    sizes: dict[str, int] = {}
    for _ in range(repeats + 1):  # the first one warms up
        for spec in specs:
            path = folder / f"{spec.precision}.quarl"
            start = time.perf_counter()
            artifact.write(quantize(policy, spec), path)
            middle = time.perf_counter()
            quantized = artifact.read(path)
            assert isinstance(quantized, QuantizedPolicy)
            engines.load(quantized, engine, batch=1).run(observation)
            end = time.perf_counter()
            written[spec.precision].append(1e3 * (middle - start))
            loaded[spec.precision].append(1e3 * (end - middle))
            sizes[spec.precision] = path.stat().st_size
    return [
        Row(
            precision=spec.precision,
            scheme=spec.scheme.name,
            engine=engine,
            write_ms=round(statistics.median(written[spec.precision][1:]), 2),
            load_ms=round(statistics.median(loaded[spec.precision][1:]), 2),
            bytes=sizes[spec.precision],
        )
        for spec in specs
    ]
