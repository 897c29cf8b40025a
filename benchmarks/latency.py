"""Latency of one call, and how fast an artifact is written and loaded.

    python benchmarks/latency.py [--out results]

Every network is measured at batch 1 and 16 in one process, on one thread, numpy in to numpy out, on random
observations. ONNX Runtime appears twice in 8 bits: "int8" quantizes each row on its own, as every engine here does,
and "int8-per-tensor" is what its own tool makes of the float32 file, which is faster and ties a row to its batch.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from quarl import engines
from quarl.calibration import quantize
from quarl.latency.network_latency import EDGED, LatencyRow, measure
from quarl.latency.networks import STANDARD, Network, build, observations
from quarl.policy import artifact
from quarl.quant.spec import QuantSpec
from results import RESULTS, verdict, write

WIDEST = "2048-2048-2048"
MAX_WRITE_MS, MAX_LOAD_MS = 30.0, 20.0
"""Limits in ms for the widest network's int8 artifact."""
MAX_SIZES = {"int8": 0.27, "int4": 0.14}
"""Limit as a share of the fp32 file, for networks of LARGE weights and more."""
LARGE = 100_000
BARS = (
    *((network.name, "int8", "litert", 0.95) for network in STANDARD),
    (WIDEST, "int8", "litert", 5),
    (WIDEST, "int4", "litert", 10),
    (WIDEST, "int8", "torch", 12),
    (WIDEST, "int4", "torch", 25),
    ("64-64", "int8", "torch", 8),
    ("nature-cnn", "int8", "litert", 2.2),
)
"""Required speed-up of LiteRT's precision over an engine's fp32 at batch 1."""
MAX_EDGED = 1.1
"""Limit as a multiple of the time of int4 in all layers, from 256-256 on."""


def judge(rows: list[LatencyRow], artifacts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Print each requirement, its measured value, and the verdict."""
    at_one = {(row.network, row.engine, row.precision): row for row in rows if row.batch == 1}
    verdicts = []
    for name, precision, engine, factor in BARS:
        ratio = at_one[name, engine, "fp32"].us_p50 / at_one[name, "litert", precision].us_p50
        what = f"{name}: litert {precision} over {engine} fp32, times"
        verdicts.append(verdict(what, ratio, factor, at_least=True))
    uniform = {(row.network, row.batch): row.us_p50 for row in rows if row.precision == "int4"}
    for row in (row for row in rows if row.precision in EDGED and row.network != STANDARD[0].name):
        what = f"{row.network}: litert {row.precision} over int4 at batch {row.batch}, times"
        verdicts.append(verdict(what, row.us_p50 / uniform[row.network, row.batch], MAX_EDGED))
    for network in STANDARD:
        if build(network).num_weights < LARGE:
            continue
        for precision, share in MAX_SIZES.items():
            sizes = [artifact_bytes(network, p) for p in (precision, "fp32")]
            name = f"{network.name}: {precision} artefact, share of fp32's"
            verdicts.append(verdict(name, sizes[0] / sizes[1], share))
    int8 = next(row for row in artifacts if row["precision"] == "int8")
    verdicts.append(verdict(f"{WIDEST}: int8 artefact written, ms", int8["write_ms"], MAX_WRITE_MS))
    verdicts.append(verdict(f"{WIDEST}: int8 artefact loaded, ms", int8["load_ms"], MAX_LOAD_MS))
    return verdicts


def artifact_bytes(network: Network, precision: str) -> int:
    """Return the size of the file that an actor loads."""
    return len(artifact.to_bytes(quantize(build(network), QuantSpec.parse(precision, scheme="per-channel"))))


def time_artifacts(network: Network, folder: Path, repeats: int = 11) -> list[dict[str, Any]]:
    """Return the median ms from float32 tensors to the file, and from the file to the first output; precisions take
    turns."""
    policy = build(network)
    observation = observations(policy, num=1)
    specs = [QuantSpec.parse(text, scheme="per-channel") for text in ("fp32", *MAX_SIZES)]
    took: dict[str, list[tuple[float, float, int]]] = {spec.precision: [] for spec in specs}
    for _ in range(repeats + 1):  # the first one warms up
        for spec in specs:
            path, start = folder / f"{spec.precision}.quarl", time.perf_counter()
            artifact.write(quantize(policy, spec), path)
            middle = time.perf_counter()
            engines.load(artifact.read(path), "litert", batch=1).run(observation)
            took[spec.precision].append((middle - start, time.perf_counter() - middle, path.stat().st_size))
    rows = []
    for name, all_of_it in took.items():
        write_s, load_s, size = map(statistics.median, zip(*all_of_it[1:], strict=True))
        about = {"precision": name, "scheme": "per-channel", "engine": "litert", "bytes": int(size)}
        rows.append(about | {"write_ms": round(1e3 * write_s, 2), "load_ms": round(1e3 * load_s, 2)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Latency of engines side by side, and of artefacts.")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--seconds", type=float, default=1.0, help="time given to each row")
    options = parser.parse_args()
    rows = measure(seconds=options.seconds, progress=lambda name: print(name, flush=True))
    widest = next(network for network in STANDARD if network.name == WIDEST)
    with tempfile.TemporaryDirectory() as folder:
        artifacts = time_artifacts(widest, Path(folder))
    verdicts = judge(rows, artifacts)
    narrow = [(network, precision) for network in STANDARD for precision in ("int8", "int4", *EDGED)]
    write(
        "latency",
        "make bench-latency",
        root=options.out,
        summary=[{"observations": dict.fromkeys((network.name for network in STANDARD), "random numbers")}],
        rows=[asdict(row) for row in rows],
        artifacts=artifacts,
        sizes=[{"network": n.name, "precision": p, "bytes_packed": artifact_bytes(n, p)} for n, p in narrow],
        bars=verdicts,
    )
    for row in rows:
        print(f"{row.network:16}{row.batch:4} {row.engine:8}{row.precision:17}{row.us_p50:10.1f}{row.us_p99:10.1f}")
    for row_or_bar in (*artifacts, *verdicts):
        print(row_or_bar)


if __name__ == "__main__":
    main()
