"""Engines against one another, and rows alone against rows in batches, on observations from each agent's rollouts."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

import agents
from quarl import engines
from quarl.calibration import quantize
from quarl.evaluation import record
from quarl.policy.graph import Policy
from quarl.policy.operators import LayerNorm
from quarl.quant.spec import QuantSpec
from quarl.readers.load import read
from results import RESULTS, write

ENGINES = ("reference", "litert", "onnx")
PRECISIONS = (("int8", "dynamic"), ("int8", "static"), ("int4", "dynamic"), ("int4", "static"))
BATCH = 64


def difference(policy: Policy, one: np.ndarray, other: np.ndarray) -> dict[str, Any]:
    """Return greedy agreement in percent, or the largest difference of continuous actions in percent of their range."""
    a, b = policy.head(one), policy.head(other)
    if policy.head.kind == "argmax":
        agreement = 100 * float(np.mean(a == b))
        return {"agreement_pct": agreement, "met": agreement >= 99.99}
    error = np.abs(a - b) / (policy.head.high - policy.head.low) * 100
    return {
        "max_pct_of_range": float(error.max()),
        "p999_pct_of_range": float(np.quantile(error, 0.999)),
        "met": bool(error.max() <= 0.5),
    }


def compare(agent: agents.Trained, count: int) -> list[dict[str, Any]]:
    """Return the rows of one agent, one for each precision and mode."""
    policy = read(agent.path)
    calibration = record(policy)
    observations = record(policy, "fidelity", num=count)
    rows = []
    for precision, mode in PRECISIONS:
        quantized = quantize(policy, QuantSpec.parse(precision, mode=mode), calibration)
        outputs, invariant = {}, {}
        for name in ENGINES:
            outputs[name] = engines.run_all(engines.load(quantized, name, batch=BATCH), observations)
            alone = engines.run_all(engines.load(quantized, name, batch=1), observations)
            invariant[name] = bool(np.array_equal(outputs[name], alone))
        rows.append(
            {
                "name": agent.name,
                "observations": len(observations),
                "precision": precision,
                "mode": mode,
                "rows_equal_batches": invariant,
                "litert": difference(policy, outputs["reference"], outputs["litert"]),
                "onnx": difference(policy, outputs["reference"], outputs["onnx"]),
                "litert_onnx": difference(policy, outputs["litert"], outputs["onnx"]),
                "litert_bit_exact": bool(np.array_equal(outputs["reference"], outputs["litert"])),
                "layer_norm": any(isinstance(op, LayerNorm) for op in policy.ops),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("agents", type=Path, nargs="?", default=agents.DEFAULT_FOLDER)
    parser.add_argument("--observations", type=int, default=10_000)
    parser.add_argument("--only", nargs="*", default=[], help="agents that are measured; the others keep their rows")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    for agent in agents.find(options.agents):
        if options.only and agent.name not in options.only:
            continue
        rows = compare(agent, options.observations)
        write("parity", "make bench-parity", root=options.out, rows=rows)
        print(*rows, sep="\n", flush=True)


if __name__ == "__main__":
    main()
