"""ActorQ beside a GPU that is available for minutes: run the parts in order until the time is up.

    python benchmarks/gpu_actorq.py [OUT] [--seconds 540] [--device cuda] [--part updates inference rates few reward]

- updates: DQN and D4PG (2048x3, batch 256, sampling included; --net-arch for others), launched kernel by kernel and
  replayed as a graph, in blocks that take turns.
- inference: one policy on the GPU, batched over all environments, against a process on each core for its own 16.
- rates, few, reward: studies with 14 actors of 16 environments, with 4 of one, and to reward at free ratios.

Parts that do not fit are named. Each part writes its rows to OUT and to results/ when it ends, so that stopping the
script loses one part at most.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import itertools
import json
import multiprocessing
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.logger import Logger

from quarl import engines
from quarl.actorq.build import build
from quarl.actorq.replay import SegmentReplay
from quarl.algorithms.captured import Updates, graphs_for
from quarl.algorithms.precision import Precision
from quarl.calibration import quantize
from quarl.config import ActorQConfig
from quarl.inert.yaml import read_yaml
from quarl.lab.store import NAME
from quarl.latency.networks import build as network_policy
from quarl.latency.networks import with_hidden
from quarl.quant.spec import QuantSpec
from results import write

TASKS = {"dqn": "CartPole-v1", "d4pg": "dm_control/cheetah-run-v0"}
ROWS = 100_000
"""Rows in replay, as many as exceed a processor's caches."""
ALIKE = 20
"""Updates after which weights of both ways are compared: on a GPU sums differ in their last bits."""
BLOCKS = 10
STUDIES = Path(__file__).resolve().parents[1] / "studies"
PARTS = {"rates": 180.0, "few": 120.0, "reward": 540.0}
"""Parts that are studies, and the seconds after which they are stopped."""


def updates_of(algo: str, dtype: Any, options: argparse.Namespace, *, recorded: bool) -> Updates:
    """A learner's updates, with a replay full of made-up rows."""
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
    """Return the milliseconds of an update, from that many in a row."""
    start = time.perf_counter()
    for _ in range(number):
        updates.update()
    if device == "cuda":
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start) / number


def measure_updates(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each algorithm, number type and way."""
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


def on_core(barrier: Any, precision: str, arch: str, seconds: float) -> float:
    """Return the rows that a process infers in a second with LiteRT, one thread and 16 rows a call."""
    network = with_hidden(tuple(map(int, arch.split(","))))
    observations = np.random.default_rng(0).normal(size=(16, *network.observation_shape)).astype(np.float32)
    spec = QuantSpec.parse(precision).nearest
    engine = engines.load(quantize(network_policy(network), spec, observations), batch=16)
    engine.run(observations)
    barrier.wait()
    calls, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds:
        engine.run(observations)
        calls += 1
    return 16 * calls / passed


def measure_inference(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield rows a second: of 14 processes on the CPU, and of calls on the device with copies to it and back."""
    widths = (17, *map(int, options.net_arch.split(",")))
    hidden = [torch.nn.Sequential(torch.nn.Linear(*pair), torch.nn.ReLU()) for pair in itertools.pairwise(widths)]
    policy = torch.nn.Sequential(*hidden, torch.nn.Linear(widths[-1], 6)).to(options.device).requires_grad_(False)
    for dtype, rows in itertools.product((torch.float32, torch.bfloat16), (14, 224, 3584)):
        policy, observations = policy.to(dtype), torch.zeros(rows, 17)
        inputs = torch.zeros(rows, 17, dtype=dtype, device=options.device)
        call = policy
        if options.device == "cuda":
            call = torch.cuda.make_graphed_callables(copy.deepcopy(policy), (inputs,))
        times = []
        for _ in range(1000 if options.device == "cuda" else 10):
            start = time.perf_counter()
            call(inputs.copy_(observations)).float().cpu()
            times.append(time.perf_counter() - start)
        us = 1e6 * statistics.median(times)
        yield {"where": options.device, "number": str(dtype)[6:], "rows": rows, "us": us, "rows_per_s": 1e6 * rows / us}
    for precision in ("fp32", "int8", "int4"):
        with multiprocessing.get_context("spawn").Pool(14) as pool, multiprocessing.Manager() as manager:
            barrier = manager.Barrier(14)
            found = pool.starmap(on_core, [(barrier, precision, options.net_arch, 4.0)] * 14, chunksize=1)
        yield {"where": "cpu", "number": precision, "rows": 16 * 14, "us": None, "rows_per_s": sum(found)}


def study(name: str, options: argparse.Namespace) -> Path:
    """Write the study of a part: that of two cores, with a learner on the device and wide policies and actors.

    Evaluations are shorter, and only CartPole is left: evaluating a wide policy on a CPU takes longer than training.
    """
    found = read_yaml(STUDIES / f"actorq-{'free-ratio' if name == 'reward' else 'throughput'}.yml")
    (method,) = found["methods"]
    method |= {"precision": ["int8", "fp32"], "net_arch": options.net_arch, "device": options.device}
    method |= {"actors": 4 if name == "few" else 14, "envs_per_actor": 1 if name == "few" else 16}
    if name == "reward":
        del found["policies"][1:]
        found["policies"][0]["actorq"]["in_updates"]["eval_freq"] = 250
        method |= {"eval_episodes": 5, "publish_interval": 50, "cap": {**method["cap"], "minutes": 1}}
    else:
        method |= {"samples_per_insert": [1, 4], "seconds": options.window, "warm_up": 3}
        method |= {"learner_dtype": "fp32", "params": {"learning_starts": 2000}}
    path: Path = options.out / f"{name}.yml"
    path.write_text(json.dumps(found))
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?", default=Path("runs/gpu-actorq"))
    parser.add_argument("--seconds", type=float, default=540.0, help="of all parts together")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--net-arch", default="2048,2048,2048")
    parser.add_argument("--updates", type=int, default=50, help="of a block")
    parser.add_argument("--window", type=float, default=15.0, help="seconds of a cell of the throughput")
    parser.add_argument("--part", nargs="*", default=["updates", "inference", *PARTS])
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    options.out.mkdir(parents=True, exist_ok=True)
    device = torch.cuda.get_device_name() if options.device == "cuda" else options.device
    if "updates" in options.part:
        rows = [{"device": device, **row} for row in measure_updates(options)]
        write("gpu-actorq", "make bench-gpu-actorq", updates=rows)
    if "inference" in options.part:
        rows = [{"device": device, "net_arch": options.net_arch, **row} for row in measure_inference(options)]
        print(*rows, sep="\n", flush=True)
        write("gpu-actorq", "make bench-gpu-actorq", inference=rows)
    for name in [name for name in PARTS if name in options.part]:
        left = min(end - time.monotonic(), PARTS[name])
        if left < 60:
            print(f"{name}: left out, {left:.0f} s are left", flush=True)
            continue
        folder = options.out / name
        told = ["study", "run", str(study(name, options)), "--minutes", f"{(left - 40) / 60:.2f}", "-o", str(folder)]
        print(f"{name}: quarl {' '.join(told)}", flush=True)
        bound = ("timeout", "-k", "20", f"{left:.0f}")  # SIGTERM, so that finished cells are on the disk
        code = subprocess.call([*bound, sys.executable, "-m", "quarl", *told])
        print(f"{name}: exit code {code}{', for its time was over' * (code == 124)}", flush=True)
        if not (folder / NAME).is_file():  # it was refused, for example because a package is missing
            continue
        subprocess.call([sys.executable, "-m", "quarl", "study", "report", str(folder)])
        tables = {f"{name}-{path.stem}": json.loads(path.read_text())["rows"] for path in folder.glob("*.json")}
        with contextlib.closing(sqlite3.connect(folder / NAME)) as file:
            done = file.execute(
                "SELECT source || ' ' || precision || ' ' || mode || ' ' || seed, row FROM cells WHERE state = 'done'"
            ).fetchall()
        tables["cells"] = [
            {"name": f"{name} {cell}", "part": name, "gpu": device, **json.loads(row)} for cell, row in done
        ]
        write("gpu-actorq", "make bench-gpu-actorq", **tables)


if __name__ == "__main__":
    main()
