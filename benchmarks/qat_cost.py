"""Wall time of quantization-aware training with delay 0 against plain training: pairs of runs that take turns.

python benchmarks/qat_cost.py [--pairs 9]
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import gymnasium
import torch
from scipy.stats import binom
from stable_baselines3 import DQN, PPO

from quarl import qat
from results import RESULTS, verdict, write

RUNS: dict[str, tuple[Any, str, str, int, dict[str, Any], float]] = {
    "ppo": (PPO, "MlpPolicy", "CartPole-v1", 16_384, {}, 1.4),
    "dqn": (
        DQN,
        "MlpPolicy",
        "CartPole-v1",
        6_000,
        {"learning_starts": 1_000, "policy_kwargs": {"net_arch": [256, 256]}},
        1.7,
    ),
    "ppo-cnn": (PPO, "CnnPolicy", "CarRacing-v3", 512, {"n_steps": 256, "batch_size": 64, "n_epochs": 4}, 1.5),
}
"""Cases by name: class, policy, environment, steps, arguments, and the limit on the ratio of training times."""


def seconds(name: str, seed: int, spec: str | None) -> float:
    """Return the seconds of one run."""
    cls, policy, env_id, steps, settings, _ = RUNS[name]
    env_kwargs = {"continuous": False} if env_id == "CarRacing-v3" else {}
    model = cls(policy, gymnasium.make(env_id, **env_kwargs), seed=seed, device="cpu", **settings)
    callback = None
    if spec is not None:
        qat.prepare(model, spec)
        callback = qat.QuantDelay(0)
    start = time.perf_counter()
    model.learn(steps, callback=callback)
    return time.perf_counter() - start


def median_interval(values: list[float]) -> tuple[float, float]:
    """Ends of the 95 % interval of the median that asks nothing of the distribution (Conover 1999, section 3.2): the
    second and the eighth of nine; of fewer than six values the first and the last, which cover less."""
    beyond = max(int(binom.ppf(0.025, len(values), 0.5)), 1)
    ordered = sorted(values)
    return ordered[beyond - 1], ordered[-beyond]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--precision", default="w8a8")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows, bars = [], []
    for name, (*_, bar) in RUNS.items():
        if options.only and name not in options.only:
            continue
        seconds(name, 0, options.precision)  # warms up caches and the allocator
        pairs = []
        for seed in range(options.pairs):
            arms = [None, options.precision]
            took = {arm: seconds(name, seed, arm) for arm in (arms if seed % 2 else arms[::-1])}
            pairs.append((took[None], took[options.precision]))
        ratios = [qat_s / plain_s for plain_s, qat_s in pairs]
        low, high = median_interval(ratios)
        row = {"run": name, "ratio": round(statistics.median(ratios), 3), "low": round(low, 3), "high": round(high, 3)}
        row["ratios"] = [round(x, 3) for x in ratios]
        row["seconds_fp32"] = round(statistics.median(plain_s for plain_s, _ in pairs), 2)
        row["seconds_qat"] = round(statistics.median(qat_s for _, qat_s in pairs), 2)
        rows.append(row)
        print(row, flush=True)
        bars.append(verdict(f"{name}: times as long as fp32", row["ratio"], bar))
    if not options.only:
        summary = [{"precision": options.precision, "pairs": options.pairs}]
        write("qat-cost", "make bench-qat-cost", root=options.out, summary=summary, rows=rows, bars=bars)


if __name__ == "__main__":
    main()
