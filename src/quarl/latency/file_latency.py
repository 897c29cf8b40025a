"""Latency and memory of policy files and exported files, in runtimes that take turns, one row per call."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from quarl.arrays import Array
from quarl.calibration import Calibrated, quantize
from quarl.engines import FORMATS
from quarl.evaluation import sample, split_by_time
from quarl.export import verification
from quarl.export.runtimes import RUNTIMES, for_file
from quarl.files import write_bytes
from quarl.latency.memory import File, bytes_added
from quarl.latency.network_latency import LatencyRow, timed_rows
from quarl.latency.networks import Network, build, observations
from quarl.policy.graph import Policy, QuantizedPolicy, is_quantized
from quarl.quant.spec import EXACT, QuantSpec
from quarl.rows import by

TIE = 0.03
"""Share by which a median must be below fp32's to be called faster."""


class Named(NamedTuple):
    """A file to time."""

    network: str
    policy: QuantizedPolicy
    """The policy that the file computes; for an exported file, the one in its contract."""
    file: File


def in_precisions(
    policy: Policy, specs: Sequence[QuantSpec], seed: int = 0, recorded: Array | None = None
) -> Iterator[QuantizedPolicy]:
    """Yield the policy in each precision; yield a quantized policy unchanged.

    Without recorded observations, weights are rounded to nearest, which takes less time and results in the same
    operators.

    Args:
        policy: The policy, in float32 or quantized.
        specs: The precisions.
        seed: Seed of the calibration observations.
        recorded: Observations in the order of time, whose first nine tenths calibrate; None makes some.
    """
    if is_quantized(policy):
        yield policy
        return
    seen = observations(policy, seed=seed) if recorded is None else sample(policy, split_by_time(recorded)[0])
    calibrated = Calibrated(policy, seen)
    for spec in specs:
        yield calibrated.quantize(spec.nearest if recorded is None else spec)


def written(policies: Sequence[QuantizedPolicy], name: str, runtimes: Sequence[str], folder: Path) -> Iterator[Named]:
    """Write a file of each policy for each runtime, and yield them.

    Args:
        policies: the policies to write.
        name: the network's name, with which file names begin.
        runtimes: names of `export.runtimes.RUNTIMES`.
        folder: the folder of the files.

    Raises:
        UnsupportedError: if a runtime has no kernels for a policy.
    """
    for policy in policies:
        for runtime in runtimes:
            suffix = RUNTIMES[runtime].suffixes[0]
            path = folder / f"{name}-{policy.spec.precision}{suffix}"
            write_bytes(importlib.import_module(f"quarl.engines.{FORMATS[suffix]}").write(policy, acts=True), path)
            yield Named(name, policy, File(path, runtime))


def exported(path: Path, runtimes: Sequence[str]) -> list[Named]:
    """Return an exported file in each named runtime that can load it, or in the first such runtime if none is named."""
    policy, fitting = verification.opened(path)[0], for_file(path)
    return [Named(str(path), policy, File(path, each)) for each in fitting if each in runtimes or each == fitting[0]]


def measure(
    files: Sequence[Named],
    folder: Path,
    *,
    seed: int = 0,
    seconds: float = 0.4,
    recorded: Array | None = None,
    progress: Callable[[str], None] = lambda label: None,
) -> list[LatencyRow]:
    """Measure each file; files that read observations of one shape take turns.

    Args:
        files: the files, each with its runtime.
        folder: a folder for a file of one weight, which is loaded first so that the runtime's own memory is excluded.
        seed: seed of the observations that are made without recorded ones.
        seconds: time for each file.
        recorded: observations [N, *shape] for the calls; None makes some.
        progress: called with the name of each file before its memory is measured.

    Returns:
        A row for each file, grouped by the shape of observations.
    """
    tiny = quantize(build(Network(name="", observation_shape=(1,), hidden=(), num_actions=1)), EXACT)
    rows = []
    for group in by(files, lambda named: (named.policy.observation_shape, named.policy.observation_dtype)).values():
        seen, added = observations(group[0].policy, seed=seed) if recorded is None else recorded, []
        for name, policy, file in group:
            progress(f"{name} {policy.spec.precision}")
            added.append(bytes_added(file, next(written([tiny], "tiny", [file.name], folder)).file, seen[:1]))
        timed = timed_rows([(name, policy.spec.precision, file) for name, policy, file in group], seen, seconds)
        rows += [replace(row, bytes_added=more) for row, more in zip(timed, added, strict=True)]
    return rows


def verdicts(rows: Sequence[LatencyRow]) -> list[str]:
    """Return sentences that name the fastest precision on each engine, and those that are not faster than fp32.

    A row is compared with fp32 of its own network, or with the only fp32 row on the engine. Without such a row, its
    sentence recommends nothing.
    """
    sentences = []
    for engine, group in by(rows, lambda row: row.engine).items():
        exact = {row.network: row.us_p50 for row in group if row.precision == "fp32"}
        only = next(iter(exact.values())) if len(exact) == 1 else None
        gains = []
        for row in (row for row in group if row.precision != "fp32"):
            name = f"{row.network} in {row.precision}"
            if (base := exact.get(row.network, only)) is None:
                sentences.append(f"{name} on {engine}: no fp32 beside it, so nothing is recommended.")
            elif row.us_p50 > (1 - TIE) * base:
                sentences.append(f"{name} is not faster than fp32 on {engine}: {row.us_p50} µs, fp32 {base} µs.")
            else:
                gains.append((base / row.us_p50, name))
        if gains:
            factor, name = max(gains)
            sentences.append(f"Fastest against its fp32 on {engine}: {name}, {factor:.2f} times as fast.")
    return sentences
