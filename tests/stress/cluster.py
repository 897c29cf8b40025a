"""Two raylets on this machine against the local channel, same actors, and the parts of both; and whether they learn.

    python -m stress.cluster

The parts are what benchmarks/cluster_simulation.py makes more machines of.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from quarl.actorq.channel import LocalChannel
from quarl.actorq.counters import Learner
from quarl.actorq.segment import segment_dtype
from quarl.cluster import connection
from quarl.cluster.leases import Leases
from results import RESULTS, Row, verdict, write
from stress.chaos.run import ENV, Run

WARM_UP_S, MANY, REPEATS = 5.0, 1000, 30
SIZES, NUMS = (2**14, 2**20, 2**23), (64, 1024, 4096, 16_000)
"""Bytes of weights, and rows of a piece, that parts are timed at."""
BATCH, AHEAD = 32, 20_000
"""Samples of an update, and rows that actors may be ahead by."""
SMALL = {"net": "64,64", "each": 2, "envs": 16, "ratio": 0.25, "interval": 10}
WIDE = {"net": "2048,2048,2048", "each": 1, "envs": 1, "ratio": 1.0, "interval": 2}
SETUPS: dict[str, Row] = {
    "sleeping": {**SMALL, "env": ENV, "step_s": 5e-4, "bar": 0.95},
    "busy": {**SMALL, "env": "CartPole-v1", "step_s": 0.0, "bar": 0.80},
    "weights": {**SMALL, **WIDE, "env": ENV, "step_s": 1e-2, "bar_ms": 60.0},
}
"""each: actors of a machine. step_s: how long a step sleeps."""
LEARN, TARGET, SEEDS = "learn", 475, 3
ROLES = ("learner", "publisher", "relay", "actor")


def cpu_s(run: Run) -> dict[str, float]:
    """Seconds of the run's processes so far: its own by their roles, the machines' agents, and Ray's."""
    spent = dict.fromkeys((*ROLES, "supervisor", "agent", "ray"), 0.0)
    for pid in run.members():
        name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
        role = next((role for role in ROLES if name.startswith(f"quarl-{role}")), "ray")
        role = "supervisor" if pid == run.process.pid else "agent" if name.startswith("ray::Node") else role
        spent[role] += sum(map(int, rest.split()[11:13])) / os.sysconf("SC_CLK_TCK")
    return spent


def measured(name: str, channel: str, seconds: float) -> tuple[Row, Row]:
    """What a run does once it is warm, and its parts."""
    setup = SETUPS[name]
    on = ("--cluster", "local", "--actors-per-node", setup["each"])
    words = (
        *(on if channel == "cluster" else ("--actors", 2 * setup["each"])),
        *("--envs-per-actor", setup["envs"], "--net-arch", setup["net"], "--samples-per-insert", setup["ratio"]),
        *("--publish-interval", setup["interval"], "--error-buffer", setup["ratio"] * AHEAD, "-n", 10**9),
        *("--params", "learning_starts:2000", "buffer_size:100000", f"batch_size:{BATCH}", "--no-save-replay-buffer"),
    )
    more: Any = {"env": setup["env"], "chaos": {"step_s": setup["step_s"]}}
    with tempfile.TemporaryDirectory() as folder, Run(Path(folder), *map(str, words), **more) as run:
        run.until(lambda: bool(rows := run.rows()) and rows[-1]["publisher"]["published"] > 1)
        time.sleep(WARM_UP_S)
        first, before, began = run.rows()[-1], cpu_s(run), time.monotonic()
        time.sleep(seconds)
        last, span = run.rows()[-1], time.monotonic() - began
        shares = {role: round((spent - before[role]) / span, 3) for role, spent in cpu_s(run).items()}
        ages_ms = {m["version"]: 1e3 * m["weights_s"] for row in run.rows() for m in row["machines"][1:]}
        os.kill(run.process.pid, signal.SIGINT)
        run.finish()
    ages = [age for version, age in ages_ms.items() if version > 20]
    machines, wall_s = list(zip(first["machines"], last["machines"], strict=True)), last["wall_s"] - first["wall_s"]
    row = {
        **{"name": name, "channel": channel, "versions": last["publisher"]["published"]},
        **{f"age_ms_p{of}": round(float(np.percentile(ages, of)), 2) if ages else None for of in (50, 95)},
        **{f"{what}_per_s": (last[of] - first[of]) / wall_s for what, of in (("rows", "timesteps"), ("updates",) * 2)},
        "version_bytes": last["publisher"]["bytes_per_version"],
        **{
            f"bytes_{way}_per_s": sum(after[of] - before[of] for before, after in machines) / wall_s
            for way, of in (("out", "weights_bytes"), ("in", "rows_bytes"))
        },
        **{"cpu": shares, "load": round(sum(shares.values()) / len(os.sched_getaffinity(0)), 3)},
    }
    return row, {"name": name, "actors": setup["each"], "samples_per_insert": setup["ratio"], **parts_of(first, last)}


def parts_of(first: Row, last: Row) -> Row:
    """Seconds of what learner, publisher and actors did between two rows of metrics."""

    def spent(*names: str) -> float:
        pairs = zip(first["actors"], last["actors"], strict=True)
        return sum(after[name] - before[name] for before, after in pairs for name in names)

    learner = {name: last["learner"][name] - first["learner"][name] for name in ("train_s", "insert_s", "push_s")}
    loads_s = spent("pull_s", "deserialize_s", "load_s")
    return {
        "step_s": (spent("loop_s") - spent("wait_s", "stale_s") - loads_s) / spent("steps"),
        "update_s": (learner["train_s"] / (last["updates"] - first["updates"]), 0),
        "insert_s": (0, learner["insert_s"] / (last["timesteps"] - first["timesteps"])),
        "push_s": (learner["push_s"] / (last["version"] - first["version"]), 0),
        "pack_s": (sum(last["publisher"][f"{name}_ms"] for name in ("pull", "pack", "publish")) / 1e3, 0),
        "load_s": (loads_s / spent("pulls"), 0),
    }


class Stub:
    """Answers as an agent does."""

    def tell(self, cells: Any) -> float:
        return time.monotonic()

    def load(self, data: Any) -> float:
        self.data = data.copy()
        return time.monotonic()

    def collect(self, num: int, dtype: Any) -> Any:
        return np.zeros(num, dtype)

    def never(self) -> None:
        time.sleep(3600)


def timed(call: Callable[[int], object], sizes: tuple[int, ...]) -> Any:
    """[[seconds of a call, of each unit more] by the clock, by this process's CPU]: a line through medians."""
    medians = []
    for size in sizes:
        call(size)
        times = []
        for _ in range(REPEATS):
            wall, cpu = time.perf_counter(), time.process_time()
            call(size)
            times.append((time.perf_counter() - wall, time.process_time() - cpu))
        medians.append(np.median(times, axis=0))
    return np.maximum(np.polynomial.polynomial.polyfit(sizes, medians, 1), 0).T


def parts_of_ray() -> Row:
    """Seconds of what relay and agents do with nothing beside them, and of what many machines cost the learner."""
    world = gymnasium.make("CartPole-v1")
    dtype = segment_dtype(world.observation_space, world.action_space)
    channel, rings = LocalChannel.create(1, 1, dtype, 2**15), LocalChannel.create(MANY, 1, dtype, 16)
    sink, cells, leases = np.zeros(2**15, dtype), np.zeros(len(Learner)), Leases(MANY, 1)
    with tempfile.TemporaryDirectory() as folder, connection.Local(Path(folder)) as local:
        machines = connection.connect(local.address, token=local.token)
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

        (other,) = (each.id for each in machines if each.id != ray.get_runtime_context().get_node_id())
        remote = ray.remote(Stub).options(scheduling_strategy=On(other, soft=False), max_concurrency=4, num_cpus=0)
        stub, silent = remote.remote(), remote.remote()
        pending = [silent.never.remote() for _ in range(3 * MANY)]

        def put(num: int) -> Any:
            return ray.put(np.zeros(num, np.uint8))

        def collect(num: int) -> None:
            channel.of(0).send_rows(ray.get(stub.collect.remote(num, dtype)).copy())
            channel.drain(sink)

        def turn(num: int) -> None:
            leases.alive[:num] = True
            leases.grant(1e6, 0, time.monotonic())
            for place in range(num):
                leases.cells(place, cells, 0, 0)
            ray.wait(pending[: 3 * num], timeout=0)

        (piece_s, take_s), put_s, (turn_s, _) = timed(collect, NUMS), timed(put, SIZES)[0], timed(turn, (2, MANY))
        load_s = timed(lambda num: ray.get(stub.load.remote(put(num))), SIZES)[0] - put_s
        call_s = timed(lambda num: ray.get([stub.tell.remote(cells) for _ in range(num)]), (1, 64))[1]
        connection.disconnect()
    look_s, drain_s = (
        timed(lambda num, call=call: [call() for _ in range(num)], (1, 20))[0]
        for call in (rings.num_waiting, lambda: rings.drain(sink))
    )
    for each in (channel, rings):
        each.remove()
    found = {"take_s": take_s, "turn_s": turn_s, "call_s": (call_s[1], 0), "look_s": (0, look_s[1] / MANY)}
    found["drain_s"] = (0, drain_s[1] / MANY)
    found |= {"put_s": put_s, "transfer_s": load_s, "collect_s": piece_s - take_s}
    return {"row_bytes": dtype.itemsize, **{name: np.maximum(part, 0).tolist() for name, part in found.items()}}


def learnt(seed: int) -> Row:
    """What DQN's CartPole returned last on two local machines, with RL Zoo's hyper-parameters."""
    with tempfile.TemporaryDirectory() as folder:
        words = ("--algo", "dqn", "--env", "CartPole-v1", "--cluster", "local", "--actors-per-node", 1, "-n", 200_000)
        until = ("--target", TARGET, "--eval-freq", 2500, "--eval-episodes", 20, "--seed", seed, "-o", folder)
        command = [Path(sys.executable).with_name("quarl"), "actorq", *words, *until]
        subprocess.run([*map(str, command)], check=True, capture_output=True)
        evaluations = [json.loads(line) for line in Path(folder, "evaluations.jsonl").read_text().splitlines()]
    *_, before, last = [entry for entry in evaluations if not entry.get("last")]
    named = {name: last[name] for name in ("timesteps", "updates", "clock_s", "return", "return_quantised")}
    return {"name": f"seed {seed}", "target": TARGET, "met": min(before["return"], last["return"]) >= TARGET, **named}


def main() -> None:
    """Each setup on both channels in turn, and the parts."""
    cli = argparse.ArgumentParser(description=__doc__)
    cli.add_argument("--seconds", type=float, default=25.0, help="of a run, once it is warm")
    cli.add_argument("--rounds", type=int, default=2)
    cli.add_argument("--only", nargs="+", default=[*SETUPS, LEARN], choices=[*SETUPS, LEARN])
    cli.add_argument("--out", type=Path, default=RESULTS)
    options = cli.parse_args()
    if LEARN in options.only:
        learning = [learnt(seed) for seed in range(SEEDS)]
        print(learning, write("cluster", "make bench-cluster", root=options.out, learning=learning), flush=True)
    setups = [name for name in options.only if name in SETUPS]
    of_ray = parts_of_ray() if setups else {}
    for name in setups:
        runs, setup, of_run = [], SETUPS[name], {}
        for _, channel in itertools.product(range(options.rounds), ("local", "cluster")):
            row, parts = measured(name, channel, options.seconds)
            of_run = parts if channel == "local" else of_run
            runs.append(row)
            print(row, flush=True)
        local, cluster = ([row for row in runs if row["channel"] == channel] for channel in ("local", "cluster"))
        bar = verdict(
            "steps/s over those of the local channel", ratio(cluster, local), setup.get("bar", 0), at_least=True
        )
        if "bar_ms" in setup:
            bar = verdict("ms until weights are there, p95", max(row["age_ms_p95"] for row in cluster), setup["bar_ms"])
        fixed = {"version_bytes": local[0]["version_bytes"], "publish_interval": setup["interval"], "batch_size": BATCH}
        fixed["error_buffer"] = setup["ratio"] * AHEAD
        tables = {"runs": runs, "parts": [{**of_run, **of_ray, **fixed}], "bars": [{"name": name, **bar}]}
        print(tables["bars"], write("cluster", "make bench-cluster", root=options.out, **tables), flush=True)


def ratio(over: list[Row], under: list[Row]) -> float:
    """Of their steps a second."""
    over_mean, under_mean = (float(np.mean([row["rows_per_s"] for row in rows])) for rows in (over, under))
    return over_mean / under_mean


if __name__ == "__main__":
    main()
