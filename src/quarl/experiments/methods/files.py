"""Latency and memory of a policy's files and of files that were exported: runtimes side by side, a row at a time."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from quarl.api import WRITERS
from quarl.arrays import Array
from quarl.calibration import Calibrated, quantize
from quarl.errors import UnsupportedError
from quarl.experiments.methods.latency import LatencyRow, time_engines
from quarl.experiments.methods.memory import File, blank, bytes_added
from quarl.experiments.methods.networks import Network, build, record
from quarl.export.runtimes import RUNTIMES, for_file
from quarl.files import write_bytes
from quarl.policy.graph import Policy, QuantizedPolicy, is_quantized
from quarl.quant.spec import EXACT, QuantSpec
from quarl.rows import by

AS_IT_IS = "as it is"
"""The precision of a file, as far as is known here."""
TIE = 0.03
"""Share by which a median must be below fp32's to be called faster."""
Named = tuple[str, str, File]
"""(network, precision, file)."""


def observations(shape: Sequence[int], dtype: Any, seed: int) -> Array:
    """Recorded numbers [N, *shape] of that type: how long a call takes does not depend on the values."""
    seen, _ = record(Network(name="", observation_shape=tuple(shape), hidden=(), num_actions=1), seed=seed)
    return seen.astype(dtype)


def in_precisions(policy: Policy, specs: Sequence[QuantSpec], seed: int = 0) -> Iterator[QuantizedPolicy]:
    """The policy in each precision, rounded to nearest, which gives the same operators in less time; a quantised one as
    it is."""
    if is_quantized(policy):
        yield policy
        return
    calibrated = Calibrated(policy, observations(policy.observation_shape, policy.observation_dtype, seed))
    for spec in specs:
        yield calibrated.quantize(replace(spec, scheme=replace(spec.scheme, rounding="nearest")))


def written(policies: Sequence[QuantizedPolicy], name: str, runtimes: Sequence[str], folder: Path) -> Iterator[Named]:
    """Files of the policies, in a precision each, for every runtime; UnsupportedError where one has no kernels."""
    for policy in policies:
        for runtime in runtimes:
            suffix = RUNTIMES[runtime].suffixes[0]
            if suffix not in WRITERS:
                raise UnsupportedError(f"{runtime} runs exported files: quarl export first, and give the file")
            path = folder / f"{name}-{policy.spec.precision}{suffix}"
            content = importlib.import_module(f"quarl.engines.{WRITERS[suffix]}").write(policy, acts=True)
            write_bytes(content, path)
            yield name, policy.spec.precision, File(path, runtime)


def as_they_are(path: Path, runtimes: Sequence[str]) -> list[Named]:
    """An exported file in those of the runtimes that are for its kind, or in the first that is."""
    fitting = for_file(path)
    return [(path.name, AS_IT_IS, File(path, each)) for each in fitting if each in runtimes or each == fitting[0]]


def measure(
    files: Sequence[Named],
    folder: Path,
    *,
    seed: int = 0,
    seconds: float = 0.4,
    progress: Callable[[str], None] = lambda label: None,
) -> list[LatencyRow]:
    """A row of each (network, precision, file), in order; those that read equal observations take turns.

    folder: for a file of one weight, before which its runtime's own memory is not counted. progress: called with the
    name of each file before its memory is measured.
    """
    tiny = quantize(build(Network(name="", observation_shape=(1,), hidden=(), num_actions=1)), EXACT)
    blanks = {file: blank(file.path) for _, _, file in files}
    rows: dict[File, LatencyRow] = {}
    for (shape, dtype), group in by(files, lambda named: (blanks[named[2]].shape, blanks[named[2]].dtype)).items():
        added = []
        for network, precision, file in group:
            progress(f"{network} {precision}")
            ((_, _, warm),) = written([tiny], "tiny", [file.name], folder)
            added.append(bytes_added(file, warm.path, blanks[file]))
        timings = time_engines([file for _, _, file in group], observations(shape[1:], dtype, seed), seconds=seconds)
        for (network, precision, file), timing, more in zip(group, timings, added, strict=True):
            rows[file] = LatencyRow(
                network=network,
                batch=1,
                engine=file.name,
                precision=precision,
                **asdict(timing),
                bytes=file.file_bytes,
                bytes_added=more,
            )
    return [rows[file] for _, _, file in files]


def verdicts(rows: Sequence[LatencyRow]) -> list[str]:
    """Which precision is fastest on each engine, and which are not faster than fp32, in sentences.

    A row is compared with the fp32 of its network, or with the only one that there is; without one nothing is said for
    any.
    """
    sentences = []
    for engine, group in by(rows, lambda row: row.engine).items():
        exact = {row.network: row.us_p50 for row in group if row.precision == "fp32"}
        only = next(iter(exact.values())) if len(exact) == 1 else None
        gains = []
        for row in (row for row in group if row.precision != "fp32"):
            if (base := exact.get(row.network, only)) is None:
                sentences.append(f"{_name(row)} on {engine}: no fp32 beside it, so nothing is recommended.")
            elif row.us_p50 > (1 - TIE) * base:
                sentences.append(f"{_name(row)} is not faster than fp32 on {engine}: {row.us_p50} µs, fp32 {base} µs.")
            else:
                gains.append((base / row.us_p50, _name(row)))
        if gains:
            factor, name = max(gains)
            sentences.append(f"Fastest against its fp32 on {engine}: {name}, {factor:.2f} times as fast.")
    return sentences


def _name(row: LatencyRow) -> str:
    return row.network if row.precision == AS_IT_IS else f"{row.network} in {row.precision}"
