"""Exported int8 agents in every runtime: bits, actions, memory, and what episodes return when it acts in them.

    python -m stress.runtimes AGENTS [AGENTS ...] [--runtimes litert tflm] [--observations 1000] [--episodes 50]
                              [--only WORD] [--keep]

AGENTS holds agents in the zoo's layout. Each is quantised on every second observation of its own episodes and written
for every target; what a runtime gives for the others is held to the reference in its arithmetic. Then it plays the
episodes of fp32 in the runtime, unless it gives the reference's bits, whose returns it then has. Ends with 1 where a
bound is broken: f32-rne 1e-6 of the range; q31-double no bit, 1e-6 behind tanh; qdq all greedy actions and 99.5 % of
the observations within 1e-5 of the range; 5 % of return for those that are stable in fp32.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from quarl import engines, stats
from quarl.arrays import Array
from quarl.calibration import quantize
from quarl.engines import litert, onnx, reference
from quarl.envs import home_of
from quarl.envs.rollout import Play, play
from quarl.errors import QuarlError
from quarl.evaluation import record
from quarl.export import qdq, runtimes
from quarl.policy.graph import Policy, QuantizedPolicy
from quarl.quant.spec import QuantSpec
from results import write
from stress.boards import agents

TARGETS: dict[str, tuple[str, Callable[[QuantizedPolicy], bytes], tuple[str, ...]]] = {
    "tflite": ("policy.tflite", lambda policy: litert.write(policy, acts=True), ("litert", "openvino", "tflm")),
    "onnx": ("policy.onnx", lambda policy: onnx.write(policy, 1, acts=True), ("ort", "openvino", "tract")),
    "onnx-qdq": ("policy.onnx", qdq.write, ("ort", "openvino", "tract")),
}
"""By target: its file, what writes it, and the runtimes that run it."""
RUNTIMES = tuple(dict.fromkeys(name for *_, names in TARGETS.values() for name in names))
CLOSE, SHARE, TIGHT, MARGIN_PCT = 1e-5, 0.995, 1e-6, 5.0
STABLE_PCT = 10.0
"""The largest standard error of fp32's mean return, in percent of it, of an agent that is called stable."""


def given(policy: QuantizedPolicy, x: Array, arithmetic: str) -> Array:
    """What the reference says that a file gives: scores of discrete actions, else the action."""
    exact = "f32-rne" if arithmetic == "qdq" else arithmetic
    outputs = engines.run_all(reference.load(policy, 64, exact), x)
    return outputs if policy.head.is_discrete else policy.head(outputs)


def returns(policy: Policy, run: Callable[[Array], Array], episodes: int) -> Array:
    """[episodes] of what acts on `run`, which gives scores or actions."""
    if not policy.head.is_discrete:
        policy = dataclasses.replace(policy, head=dataclasses.replace(policy.head, kind="clip"))
    setting = Play(policy=policy, batch=1, stream="evaluation", seed=0, **home_of(policy).playing(policy))
    played = sorted(play(setting, run, range(episodes)), key=lambda episode: episode.index)
    return np.array([episode.total for episode in played])


def measured(policy: QuantizedPolicy, file: Path, name: str, x: Array) -> tuple[dict[str, Any], runtimes.Runtime]:
    """What the runtime makes of the observations, and the runtime."""
    runtime = runtimes.load(name, file)
    got, expected = runtime.run(x), given(policy, x, runtime.arithmetic)
    span = max(float(np.abs(expected).max()), 1.0) if policy.head.is_discrete else policy.head.high - policy.head.low
    away = (np.abs(got - expected) / np.where(np.isfinite(span), span, 1.0)).max(axis=1)
    greedy = float((policy.head(got) == policy.head(expected)).mean()) if policy.head.is_discrete else None
    bounds = {
        "f32-rne": away.max() <= TIGHT,
        "q31-double": away.max() <= (TIGHT if policy.head.kind == "tanh" else 0),
        "qdq": greedy in (None, 1.0) and (away <= CLOSE).mean() >= SHARE,
    }
    return {
        "version": runtime.version,
        "arithmetic": runtime.arithmetic,
        "head": policy.head.kind,
        "observations": len(x),
        "rows_that_differ": int((got != expected).any(axis=1).sum()),
        "largest_error": float(away.max()),
        "rows_within_1e-5": float((away <= CLOSE).mean()),
        "greedy_equal": greedy,
        "file_bytes": file.stat().st_size,
        "arena": runtimes.arena(file) if name == "tflm" else None,
        "within": bool(bounds[runtime.arithmetic]),
    }, runtime


def judged(before: Array, after: Array) -> dict[str, Any]:
    """The verdict on returns, of an agent that is stable in fp32."""
    verdict = stats.verdict(before, after, MARGIN_PCT, np.random.default_rng(0))
    spread = before.std(ddof=1) / np.sqrt(len(before))
    return {
        "return_fp32": float(before.mean()),
        "return": float(after.mean()),
        "difference_low": verdict.difference.low,
        "difference_high": verdict.difference.high,
        "verdict": verdict.verdict,
        "stable": bool(spread <= STABLE_PCT / 100 * abs(before.mean())),
    }


def rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Of every agent, target and runtime."""
    for agent, policy in agents(options.agents):
        if options.only not in agent:
            continue
        try:
            fp32 = quantize(policy, QuantSpec.parse("fp32"))
            x = record(policy, engine=engines.load(fp32, batch=2), num=2 * options.observations, min_episodes=2)
            made = quantize(policy, QuantSpec.parse("int8", mode="static"), x[::2])
            before = returns(policy, acting(fp32), options.episodes) if options.episodes else None
            known: dict[str, Array] = {}
            for target, (file, writes, names) in TARGETS.items():
                with tempfile.TemporaryDirectory() as folder:
                    path = Path(folder) / file
                    path.write_bytes(writes(made))
                    for name in (name for name in names if name in options.runtimes):
                        row, runtime = measured(made, path, name, x[1::2])
                        if before is not None:
                            # bits of the reference: so would its episodes be
                            key = row["arithmetic"] if not row["rows_that_differ"] else f"{target} {name}"
                            if key not in known:
                                known[key] = returns(policy, runtime.run, options.episodes)
                            row |= judged(before, known[key])
                        yield {
                            "name": f"{agent} {target} {name}",
                            "agent": agent,
                            "runtime": name,
                            "target": target,
                            **row,
                        }
        except QuarlError as error:  # an environment or a runtime that is not installed, too
            print(f"{agent}: not measured: {error}", file=sys.stderr)


def acting(policy: QuantizedPolicy) -> Callable[[Array], Array]:
    """What a file of the policy gives, on LiteRT."""
    engine = engines.load(policy, batch=1)
    return lambda x: engine.run(x) if policy.head.is_discrete else policy.head(engine.run(x))


def main() -> int:
    """1 where a bound is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("agents", type=Path, nargs="+")
    parser.add_argument("--runtimes", nargs="+", choices=RUNTIMES, default=RUNTIMES)
    parser.add_argument("--observations", type=int, default=1000)
    parser.add_argument("--episodes", type=int, default=50, help="of a runtime; 0 plays none")
    parser.add_argument("--only", default="", help="a word in the names of those that are measured")
    parser.add_argument("--keep", action="store_true", help="write the rows to results/runtimes")
    options = parser.parse_args()
    table = []
    for row in rows(options):
        table.append(row)
        print(*(f"{key} {value}" for key, value in row.items() if key != "name"), sep=", ", flush=True)
    worse = [row["name"] for row in table if row.get("stable") and row["verdict"] == "inferior"]
    wrong = [row["name"] for row in table if not row["within"]]
    print(f"{len(table)} rows, {len(wrong)} beyond their bound, {len(worse)} inferior", *wrong, *worse, sep="\n  ")
    if options.keep:
        write("runtimes", "python -m stress.runtimes AGENTS --keep", agents=table)
    return 1 if wrong or worse or not table else 0


if __name__ == "__main__":
    sys.exit(main())
