"""Every agent at every precision: one JSON per agent, then the table of all. Resumable: finished agents are kept.

python benchmarks/ptq.py AGENTS
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import agents
from quarl import engines, stats
from quarl.experiments import precisions
from quarl.experiments.methods.latency import time_engines
from quarl.experiments.precisions import Cell, Settings, record
from quarl.machine import machine
from quarl.ptq import quantize
from quarl.quant.spec import QuantSpec
from quarl.readers.load import read

BITS = (8, 7, 6, 5, 4, 3, 2)
SLOW = ("Bullet", "BipedalWalker")
"""Environments whose naive columns get fewer episodes."""
SEEDS_FIGURE = {"a2c": 2.31, "dqn": 8.60, "ppo": 0.54, "ddpg": 4.93}
"""Mean E at int8 of the original study's tables, percent."""


def measure(agent: agents.Trained, episodes: int, workers: int, seed: int) -> dict[str, Any]:
    """All rows of one agent with their returns."""
    policy = read(agent.path)
    default = [QuantSpec.parse("fp16")]
    default += [QuantSpec.parse(bits) for bits in BITS]
    default.append(QuantSpec.parse(8, mode="static"))
    naive = [QuantSpec.parse(bits, scheme="naive") for bits in BITS]
    settings = Settings(episodes=episodes, seed=seed, num_workers=workers)
    start = time.perf_counter()
    if _is_slow(agent):
        fewer = Settings(episodes=max(20, episodes // 5), seed=seed, num_workers=workers)
        cells = precisions.measure(policy, default, settings, _tick)
        cells += precisions.measure(policy, naive, fewer, _tick)[1:]
    else:
        cells = precisions.measure(policy, [*default, *naive], settings, _tick)
    return {
        "agent": agent.name,
        "algo": agent.algo,
        "env_id": cells[0].evaluation.env_id,
        "trained_on": agent.env_id,
        "published": agent.published,
        "stochastic": cells[0].evaluation.stochastic,
        "seed": seed,
        "num_weights": policy.num_weights,
        "seconds": round(time.perf_counter() - start, 1),
        "rows": [asdict(cell.row) | {"returns": _returns(cell)} for cell in cells],
    }


def _is_slow(agent: agents.Trained) -> bool:
    return any(word in agent.env_id for word in SLOW)


def _tick(label: str, done: int) -> None:
    sys.stderr.write(".")
    sys.stderr.flush()


def _returns(cell: Cell) -> list[float]:
    return [round(float(x), 6) for x in cell.evaluation.returns]


def retime(agent: agents.Trained, result: dict[str, Any]) -> None:
    """Measures the latencies of a result again: returns can be had beside other work, microseconds cannot."""
    policy = read(agent.path)
    settings = Settings(seed=result["seed"])
    calibration, observations = (record(policy, stream, settings) for stream in ("calibration", "fidelity"))
    loaded = []
    for row in result["rows"]:
        spec = QuantSpec.parse(row["precision"], scheme=row["scheme"], mode=row["mode"])
        loaded.append(engines.load(quantize(policy, spec, calibration), row["engine"], batch=1))
    for row, timing in zip(result["rows"], time_engines(loaded, observations, seconds=0.2), strict=True):
        row["latency_us_p50"], row["latency_us_p99"] = timing.us_p50, timing.us_p99


def summarise(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Verdicts at int8, per agent and per algorithm."""
    rows = []
    errors: dict[tuple[str, str], list[tuple[Any, Any]]] = {}
    for result in results:
        exact = np.array(result["rows"][0]["returns"])
        stable = stats.stable(exact)
        for mode in ("dynamic", "static"):
            row = _row(result, "int8", "default", mode)
            rows.append(
                {
                    "agent": result["agent"],
                    "mode": mode,
                    "stable": stable,
                    "published": result["published"],
                    "fp32": float(exact.mean()),
                    "int8": row["mean"],
                    "error_pct": row["error_pct"],
                    "noninferior": row["noninferior"] if stable else None,
                }
            )
            algo = result["algo"].replace("ppo2", "ppo")
            errors.setdefault((algo, mode), []).append((exact, np.array(row["returns"])))
    algorithms = []
    for (algo, mode), pairs in sorted(errors.items()):
        interval = stats.mean_error_interval(pairs, np.random.default_rng(0))
        figure = SEEDS_FIGURE.get(algo)
        algorithms.append(
            {
                "algo": algo,
                "mode": mode,
                "agents": len(pairs),
                "mean_error_pct": interval.point,
                "ci_low": interval.low,
                "ci_high": interval.high,
                "original_pct": figure,
                "met": figure is None or (interval.low <= figure and interval.point <= figure + 2),
            }
        )
    return {"int8": rows, "algorithms": algorithms}


def _row(result: dict[str, Any], precision: str, scheme: str, mode: str) -> dict[str, Any]:
    wanted = (precision, scheme, mode)
    row: dict[str, Any] = next(r for r in result["rows"] if (r["precision"], r["scheme"], r["mode"]) == wanted)
    return row


COLUMNS = (
    ("int8", "default", "dynamic", "int8"),
    ("int8", "default", "static", "int8 static"),
    ("int8", "naive", "dynamic", "int8 naive"),
    ("int6", "default", "dynamic", "int6"),
    ("int6", "naive", "dynamic", "int6 naive"),
    ("int4", "default", "dynamic", "int4"),
    ("int4", "naive", "dynamic", "int4 naive"),
)


def table(results: list[dict[str, Any]]) -> str:
    """Markdown: mean returns, as the README shows them."""
    head = ["agent", "published", "fp32", *(title for *_, title in COLUMNS)]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for result in results:
        exact = result["rows"][0]
        published = "–" if result["published"] is None else f"{result['published'][0]:.1f}"
        cells = [result["agent"].replace("-", " ", 2), published, f"{exact['mean']:.1f} ± {exact['std']:.1f}"]
        cells += [f"{_row(result, *row)['mean']:.1f}" for *row, _ in COLUMNS]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("agents", type=Path, nargs="?", default=agents.DEFAULT_FOLDER)
    parser.add_argument("--only", nargs="*", default=[], help="names of agents, sb3-dqn-CartPole-v1; default: all")
    parser.add_argument("--retime", action="store_true", help="measure the latencies of finished agents again")
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/ptq"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    results = []
    for agent in agents.find(options.agents):
        path = options.out / f"{agent.name}.json"
        if not path.exists():
            if options.only and agent.name not in options.only:
                continue
            print(agent.name, end=" ", flush=True)
            result = measure(agent, options.episodes, options.workers, options.seed)
            result |= {"command": "make bench-ptq", "machine": machine()}
            path.write_text(json.dumps(result) + "\n")
            print(f" {result['seconds']} s", flush=True)
        result = json.loads(path.read_text())
        found = {"episodes": result["rows"][0]["episodes"], "seed": result["seed"]}
        if found != {"episodes": options.episodes, "seed": options.seed}:
            raise SystemExit(f"{path} was measured with {found}: remove it, or choose another folder with --out")
        if options.retime:
            print("retime", agent.name, flush=True)
            retime(agent, result)
            result["retimed"] = machine()
            path.write_text(json.dumps(result) + "\n")
        results.append(result)
    summary = summarise(results) | {"command": "make bench-ptq", "machine": machine()}
    options.out.with_suffix(".json").write_text(json.dumps(summary, indent=1) + "\n")
    options.out.with_suffix(".md").write_text(table(results))
    for row in summary["int8"]:
        print(row)
    for row in summary["algorithms"]:
        print(row)


if __name__ == "__main__":
    main()
