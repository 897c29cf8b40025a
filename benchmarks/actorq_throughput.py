"""Throughput of D4PG on cheetah-run, policy 2048x3, one actor, by precision and samples per insert. Resumable.

    python benchmarks/actorq_throughput.py [--seconds 120] [--rounds 1]

Cells lie in benchmarks/results/actorq-throughput; a cell takes its seconds, the warm-up and about 20 s of starting up.
"""

from __future__ import annotations

import argparse
from typing import Any

from actorq_results import RESULTS, Rows, learner_dtype, measure, verdict, write

ALONE, BALANCED = 0.01, 1.0
"""Samples per insert: a learner that only receives; the ratio that latencies are judged at."""
SPEEDUPS = {
    (ALONE, "int8"): (10.0, None),
    (ALONE, "int4"): (14.0, None),
    (0.5, "int8"): (9.0, 4.5),
    (1.0, "int8"): (5.0, 2.5),
    (4.0, "int8"): (1.0, 1.0),
}
"""By ratio and precision: at least so many times torch fp32, and LiteRT fp32."""
MAX_OVERHEAD_US = 15.0
MAX_LATENCY_MS, MAX_BLOCKED_MS = 80.0, 15.0
MAX_BYTES = {"int8": 0.27, "int4": 0.14}
NOISE = 0.97
"""What "no loss" allows for."""
PREDICTED_WITHIN = 0.25
"""Relative error of a predicted rate that still serves for planning."""


def judge(rows: Rows) -> list[dict[str, Any]]:
    """Every bar with what was measured."""
    found = {(row["samples_per_insert"], row["precision"]): row for row in rows if row["engine"] == "litert"}
    bars = []
    for (ratio, precision), (torch, litert) in SPEEDUPS.items():
        row = found.get((ratio, precision), {})
        for bar, key in ((torch, "speedup_vs_torch_fp32"), (litert, "speedup_vs_litert_fp32")):
            if bar is not None:
                name = f"{ratio:g} samples per insert: {precision}, {key.replace('_', ' ')}"
                bars.append(verdict(name, row.get(key), bar * (NOISE if bar == 1 else 1), at_least=True))
    for precision, share in MAX_BYTES.items():
        alone, balanced = (found.get((ratio, precision), {}) for ratio in (ALONE, BALANCED))
        bars.append(verdict(f"{precision}: overhead of a step, us", alone.get("overhead_us"), MAX_OVERHEAD_US))
        bars.append(
            verdict(f"{precision}: bytes an update, share of fp32's", balanced.get("bytes_share_of_fp32"), share)
        )
    int8 = found.get((BALANCED, "int8"), {})
    bars.append(
        verdict("int8: from a learner's step to acting on it, p50 ms", int8.get("latency_ms_p50"), MAX_LATENCY_MS)
    )
    bars.append(verdict("int8: of it blocked, p50 ms", int8.get("blocked_ms_p50"), MAX_BLOCKED_MS))
    for row in rows:
        arm = f"{row['samples_per_insert']:g} samples per insert: {row['engine']} {row['precision']}"
        error = abs(row["predicted_updates_per_s"] / row["updates_per_s"] - 1) if row["updates_per_s"] else None
        bars.append(verdict(f"{arm}, error of the predicted rate", error, PREDICTED_WITHIN))
        if row["samples_per_insert"] != ALONE:
            bars.append(verdict(f"{arm}, updates a version", row["updates_per_version"], 30.0))
    return bars


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", default="120", help="length of a window")
    parser.add_argument("--rounds", default="1", help="windows of each cell")
    options = parser.parse_args()
    words = ["--what", "throughput", "--seconds", options.seconds, "--rounds", options.rounds]
    words += ["--learner-dtype", learner_dtype(), "--params", "learning_starts:2000", "buffer_size:200000"]
    rows = measure(words, RESULTS / "actorq-throughput")
    write("actorq-throughput", "make bench-actorq-throughput", arguments=words, rows=rows, bars=judge(rows))


if __name__ == "__main__":
    main()
