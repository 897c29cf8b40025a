"""ActorQ with a GPU that is lent for minutes: what is asked of it, in order, until the time is up.

    python benchmarks/gpu_actorq.py [OUT] [--seconds 540] [--device cuda] [--part updates rates few reward images]

Updates of DQN and D4PG first (2048x3, batch 256, sampling included; --net-arch for others), launched kernel by kernel
and replayed as a graph, in blocks that take turns; then `quarl bench`: 14 actors with 16 environments and 4 with one,
to reward at free ratio, and DQN on images in three number types. What does not fit is left out and said.
Each part leaves its rows in OUT, and in results/, when it ends: whoever stops the script has those of the parts before.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import sqlite3
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.logger import Logger

from quarl.actorq.build import build
from quarl.actorq.replay import SegmentReplay
from quarl.algorithms.captured import Updates, graphs_for
from quarl.algorithms.precision import Precision
from quarl.config import ActorQConfig
from quarl.experiments.store import NAME
from results import write

TASKS = {"dqn": "CartPole-v1", "d4pg": "dm_control/cheetah-run-v0"}
ROWS = 100_000
"""In replay, as many as fall out of a processor's caches."""
ALIKE = 20
"""Updates after which weights of both ways are compared: on a GPU sums differ in their last bits."""
BLOCKS = 10
THROUGHPUT = (*("bench", "actorq", "--arms", "int8", "fp32", "--samples-per-insert", "1", "4"), "--params")
PARTS: dict[str, tuple[float, tuple[str, ...]]] = {
    "rates": (180, (*THROUGHPUT, "learning_starts:2000", "--actors", "14", "--envs-per-actor", "16")),
    "few": (120, (*THROUGHPUT, "learning_starts:2000", "--actors", "4")),
    "reward": (420, ("bench", "actorq", "--what", "time-to-reward", "--ratios", "free")),
    "images": (180, ("bench", "mixed-precision", "--dtypes", "fp32", "bf16", "fp16")),
}
"""Seconds after which a part is stopped, and what it runs."""


def updates_of(algo: str, dtype: Any, options: argparse.Namespace, *, recorded: bool) -> Updates:
    """A learner's updates, its replay full of made-up rows."""
    arch = options.net_arch
    config = ActorQConfig(
        algo=algo, env=TASKS[algo], net_arch=arch, batch_size=256, preset="none", device=options.device, plan=True
    )
    model = build(config)
    replay, rng = model.replay_buffer, np.random.default_rng(0)
    assert isinstance(replay, SegmentReplay)
    rows = np.zeros(ROWS, replay.segment_dtype)
    rows["sequence"] = np.arange(ROWS)
    for name in ("observation", "next_observation"):
        rows[name] = rng.standard_normal(rows[name].shape)
    rows["action"] = rng.integers(2, size=rows["action"].shape) if algo == "dqn" else rng.random(rows["action"].shape)
    rows["reward"], rows["truncated"] = rng.random(ROWS), np.arange(ROWS) % 1000 == 999
    replay.insert(rows)
    model.set_logger(Logger(folder=None, output_formats=[]))
    model._setup_learn(ROWS)
    precision = Precision.of(model, dtype)
    return Updates(model, precision, graphs_for(model, precision, qat=False) if recorded else None)


def timed(updates: Updates, number: int, device: str) -> float:
    """Milliseconds of an update, of so many one after the other."""
    start = time.perf_counter()
    for _ in range(number):
        updates.update()
    if device == "cuda":
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start) / number


def measure_updates(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each algorithm, number type and way."""
    rows = []
    for algo in TASKS:
        ways = list(
            itertools.product(("fp32", "auto", "bf16"), (False, True) if options.device == "cuda" else (False,))
        )
        learners = {way: updates_of(algo, way[0], options, recorded=way[1]) for way in ways}
        blocks: dict[tuple[str, bool], list[float]] = {way: [] for way in ways}
        for updates in learners.values():
            timed(updates, ALIKE, options.device)  # recorded meanwhile
        weights = {way: [w.detach().clone() for w in each.model.policy.parameters()] for way, each in learners.items()}
        for way, updates in itertools.chain.from_iterable([list(learners.items())] * BLOCKS):
            blocks[way].append(timed(updates, options.updates, options.device))
        for (dtype, recorded), ms in blocks.items():
            updates = learners[dtype, recorded]
            losses = updates.losses()
            row = {"algo": algo, "net_arch": options.net_arch, "batch": 256, "dtype": updates.precision.dtype}
            row |= {"asked": dtype, "recorded": updates.graphs is not None, "ms_per_update": statistics.median(ms)}
            row |= {"least_ms": min(ms), "most_ms": max(ms), "updates": BLOCKS * options.updates, "losses": losses}
            if recorded:
                pairs = zip(weights[dtype, True], weights[dtype, False], strict=True)
                row["weights_apart"] = max(float((a - b).abs().max()) for a, b in pairs)
            rows.append(row)
            print(row, flush=True)
        learners.clear()
    return rows


def protocol(options: argparse.Namespace) -> str:
    """A file beside the others: two cores' protocol with a learner on the device, and wide policies and actors.

    Evaluations are rarer and shorter: of a wide policy, on a CPU, they take longer than what they interrupt.
    """
    found = json.loads(Path(__file__).with_name("actorq_free.json").read_text())
    found["common"] |= {"net_arch": options.net_arch, "device": options.device, "eval_episodes": 5}
    found["common"] |= {"actors": 14, "envs_per_actor": 16, "publish_interval": 50}
    found["in_updates"]["eval_freq"] = 500
    path = options.out / "protocol.json"
    path.write_text(json.dumps(found | {"arms": ["int8", "fp32"], "cap_minutes": 2}))
    return str(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?", default=Path("runs/gpu-actorq"))
    parser.add_argument("--seconds", type=float, default=540.0, help="of all parts together")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--net-arch", default="2048,2048,2048")
    parser.add_argument("--updates", type=int, default=50, help="of a block")
    parser.add_argument("--window", default="15", help="seconds of a cell of the throughput")
    parser.add_argument("--part", nargs="*", default=["updates", *PARTS])
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    options.out.mkdir(parents=True, exist_ok=True)
    device = torch.cuda.get_device_name() if options.device == "cuda" else options.device
    if "updates" in options.part:
        rows = [{"device": device, **row} for row in measure_updates(options)]
        write("gpu-actorq", "make bench-gpu-actorq", updates=rows)
    own = ("--device", options.device, "--seconds", options.window)
    rates = (*own, "--net-arch", options.net_arch, "--warm-up", "3")
    more = {"rates": rates, "few": rates, "reward": ("--protocol", protocol(options)), "images": own}
    for name, (seconds, words) in [item for item in PARTS.items() if item[0] in options.part]:
        left = min(end - time.monotonic(), seconds)
        if left < 60:
            print(f"{name}: left out, {left:.0f} s are left", flush=True)
            continue
        folder = options.out / name
        told = [*words, *more[name], "--minutes", f"{(left - 40) / 60:.2f}", "-o", str(folder)]
        print(f"{name}: quarl {' '.join(told)}", flush=True)
        bound = ("timeout", "-k", "20", f"{left:.0f}")  # by SIGTERM, so that finished cells are on the disk
        code = subprocess.call([*bound, sys.executable, "-m", "quarl", *told])
        print(f"{name}: exit code {code}{', for its time was over' * (code == 124)}", flush=True)
        if not (folder / NAME).is_file():  # it was refused, as where a package is missing
            continue
        tables = {f"{name}-{path.stem}": json.loads(path.read_text())["rows"] for path in folder.glob("*.json")}
        with contextlib.closing(sqlite3.connect(folder / NAME)) as file:
            done = file.execute("SELECT source, row FROM cells WHERE state = 'done'").fetchall()
        tables["cells"] = [{"name": f"{name} {cell}", "part": name, **json.loads(row)} for cell, row in done]
        write("gpu-actorq", "make bench-gpu-actorq", **tables)


if __name__ == "__main__":
    main()
