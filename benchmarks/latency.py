"""Latency of one call, and how fast an artefact is written and loaded.

    python benchmarks/latency.py [--out results]

Every network is measured at batch 1 and 16 in one process, on one thread, numpy in to numpy out, on recorded
observations. ONNX Runtime appears twice in 8 bits: "int8" quantises each row on its own, as every engine here does,
and "int8-per-tensor" is what its own tool makes of the float32 file, which is faster and ties a row to its batch.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from quarl.experiments.methods.artifact_speed import measure_artifact
from quarl.experiments.methods.latency import Row, measure
from quarl.experiments.methods.networks import STANDARD, Network, build, record
from quarl.policy import artifact
from quarl.ptq import quantize
from quarl.quant.spec import QuantSpec
from results import RESULTS, verdict, write

WIDEST = "2048-2048-2048"
MAX_WRITE_MS, MAX_LOAD_MS = 30.0, 20.0
"""Of the widest network's int8 artefact."""
MAX_SIZES = {"int8": 0.27, "int4": 0.14}
"""Share of the fp32 file, for networks of LARGE weights and more."""
LARGE = 100_000


@dataclass(frozen=True, slots=True)
class Bar:
    """LiteRT at batch 1 must be this much faster than another column."""

    network: str
    precision: str
    engine: str
    factor: float


BARS = (
    *(Bar(network.name, "int8", "litert", 0.95) for network in STANDARD),
    Bar(WIDEST, "int8", "litert", 5),
    Bar(WIDEST, "int4", "litert", 10),
    Bar(WIDEST, "int8", "torch", 12),
    Bar(WIDEST, "int4", "torch", 25),
    Bar("64-64", "int8", "torch", 8),
    Bar("nature-cnn", "int8", "litert", 2.2),
)
"""Over the other engine's fp32."""


def judge(rows: list[Row], artifacts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was asked for, what was measured, and whether that is enough."""
    at_one = {(row.network, row.engine, row.precision): row for row in rows if row.batch == 1}
    verdicts = []
    for bar in BARS:
        ours, theirs = (
            at_one[bar.network, engine, precision].us_p50
            for engine, precision in (("litert", bar.precision), (bar.engine, "fp32"))
        )
        name = f"{bar.network}: litert {bar.precision} over {bar.engine} fp32, times"
        verdicts.append(verdict(name, theirs / ours, bar.factor, at_least=True))
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
    """Size of the file that an actor loads."""
    return len(artifact.to_bytes(quantize(build(network), QuantSpec.parse(precision, scheme="per-channel"))))


def main() -> None:
    parser = argparse.ArgumentParser(description="Latency of engines side by side, and of artefacts.")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--seconds", type=float, default=1.0, help="time given to each row")
    options = parser.parse_args()
    rows = measure(seconds=options.seconds, progress=lambda name: print(name, flush=True))
    widest = next(network for network in STANDARD if network.name == WIDEST)
    with tempfile.TemporaryDirectory() as folder:
        artifacts = [asdict(row) for row in measure_artifact(build(widest), Path(folder))]
    verdicts = judge(rows, artifacts)
    write(
        "latency",
        "make bench-latency",
        root=options.out,
        summary=[{"observations": {network.name: record(network)[1] for network in STANDARD}}],
        rows=[asdict(row) for row in rows],
        artifacts=artifacts,
        bars=verdicts,
    )
    for row in rows:
        print(f"{row.network:16}{row.batch:4} {row.engine:8}{row.precision:17}{row.us_p50:10.1f}{row.us_p99:10.1f}")
    for row_or_bar in (*artifacts, *verdicts):
        print(row_or_bar)


if __name__ == "__main__":
    main()
