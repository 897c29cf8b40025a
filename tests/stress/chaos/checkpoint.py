"""Damages checkpoints and kills their writers; counts how many are noticed and how many load.

    python -m stress.chaos.checkpoint [--out results]

cuts, flips   the newest checkpoint is cut short, or one of its bits turned (half of them in its header): the load must
              say so and go back to the one before it
rebuilt       a value of its manifest is changed and every checksum made right again: a clean load and restore or one
              typed line, nothing else
kills         a process that saves without a pause gets SIGKILL at a random moment inside `save`: what loads must be
              whole and no older than the last save that returned
kill points   the same at every single step of a save: before each write, sync, rename and removal, and halfway
              through each write
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import random
import shutil
import signal
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3 import DDPG, DQN
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from quarl import checkpoint_file, files
from quarl.errors import QuarlError
from quarl.runs import checkpoint
from results import RESULTS, write
from stepwise import Stepwise

Row = dict[str, Any]


def small_model(seed: int = 0) -> DQN:
    """A DQN after two updates; its replay holds 400 rows."""
    kwargs: dict[str, Any] = {"replay_buffer_class": Stepwise, "buffer_size": 400, "batch_size": 8}
    model = DQN("MlpPolicy", "CartPole-v1", seed=seed, learning_starts=398, train_freq=1, device="cpu", **kwargs)
    return model.learn(400)


def stamp(model: OffPolicyAlgorithm, count: int) -> None:
    """Makes the model recognisable: every weight of it is the number of its updates."""
    model._n_updates = count
    with torch.no_grad():
        for parameter in model.policy.parameters():
            parameter.fill_(count)


def is_whole(found: checkpoint.Checkpoint) -> bool:
    """What was stamped and saved in one go came back in one piece."""
    weights = [array for name, array in found.arrays.items() if name.startswith("policy/")]
    same = all((array == found.updates).all() for array in weights)
    return bool(weights) and same and found.state == {"count": found.updates} and not found.warnings


def damage(folder: Path, model: OffPolicyAlgorithm, cuts: int, flips: int, seed: int) -> list[Row]:
    """Rows of the cuts and of the flips."""
    rng = random.Random(seed)
    model._n_updates = 1
    before = checkpoint.save(folder, model, {}, replay=model.replay_buffer)
    model._n_updates = 2
    path = checkpoint.save(folder, model, {}, replay=model.replay_buffer)
    data = path.read_bytes()
    header = 8 + int.from_bytes(data[:8], "little")

    def detected(broken: bytes) -> bool:
        path.write_bytes(broken)
        found = checkpoint.load_latest(folder)
        return found.path == before and len(found.warnings) == 1 and path.name in found.warnings[0]

    def flipped(within: int) -> bytes:
        bit = rng.randrange(8 * within)
        return data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]

    ends = [rng.randrange(header if i % 2 else len(data)) for i in range(cuts)]
    rows = [
        _row("cuts", [detected(data[:end]) for end in ends], "detected"),
        _row("flips", [detected(flipped(header if i % 2 else len(data))) for i in range(flips)], "detected"),
    ]
    path.write_bytes(data)
    return [{**row, "file_bytes": len(data), "header_bytes": header} for row in rows]


def rebuild(folder: Path, model: OffPolicyAlgorithm, count: int, seed: int) -> Row:
    """Changed values under right checksums."""
    rng = random.Random(seed)
    path = checkpoint.save(folder, model, {"list": [1, {"x": 2}]}, replay=model.replay_buffer)
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    original = json.loads(data[8 : 8 + length])["__metadata__"]["manifest"]
    ends: Counter[str] = Counter()
    failures = []
    for number in range(count):
        manifest = json.loads(original)
        _change(rng, manifest)
        try:
            start = checkpoint_file.first_bytes(json.dumps(manifest))
        except (LookupError, TypeError, AttributeError):  # no header can be made of this one; any will do
            start = data[: 8 + length]
        path.write_bytes(start + data[8 + length :])
        try:
            checkpoint.restore(checkpoint.load_latest(folder), model, model.replay_buffer)
            ends["clean"] += 1
        except QuarlError:
            ends["refused"] += 1
        except Exception as error:  # whatever it is, a user would see it
            failures.append(f"{number}: {type(error).__name__}: {error}")
    return {"what": "rebuilt", "tried": count, **ends, "failed": len(failures), "failures": failures[:10]}


def _change(rng: random.Random, manifest: Any) -> None:
    """Replaces or removes one value, at any depth."""
    at = manifest
    while True:
        key = rng.choice(list(at) if isinstance(at, dict) else range(len(at)))
        if isinstance(at[key], dict | list) and at[key] and rng.random() < 0.8:
            at = at[key]
            continue
        if rng.random() < 0.2:
            del at[key]
        else:
            at[key] = rng.choice([0, 1, -1, 2**70, 0.5, 1e400, "", "x", None, True, [], {}, [[1]], {"a": 1}])
        return


def kills(folder: Path, model: OffPolicyAlgorithm, count: int, seed: int) -> Row:
    """Random moments inside `save`."""
    rng = random.Random(seed)
    shared = mmap.mmap(-1, 16)  # (inside a save, updates of the last one that returned)
    stamp(model, 1)
    start = time.perf_counter()
    checkpoint.save(folder, model, {"count": 1}, replay=model.replay_buffer)
    duration = time.perf_counter() - start
    results, outside, leftovers = [], 0, 0
    while len(results) < count:
        shared[:] = struct.pack("qq", 0, checkpoint.load_latest(folder).updates)
        child = _fork(lambda: _save_for_ever(folder, model, shared))
        while struct.unpack("qq", shared)[0] == 0:
            time.sleep(0)
        time.sleep(rng.uniform(0, 3 * duration))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        inside, returned = struct.unpack("qq", shared)
        found = checkpoint.load_latest(folder)
        if not inside:
            outside += 1
            continue
        leftovers += bool(list(folder.glob(f"{checkpoint_file.TEMPORARY}*")))
        results.append(is_whole(found) and found.updates >= returned)
    return {**_row("kills", results, "loadable"), "between_saves": outside, "left_a_temporary_file": leftovers}


def _save_for_ever(folder: Path, model: OffPolicyAlgorithm, shared: mmap.mmap) -> None:
    count = checkpoint.load_latest(folder).updates
    while True:
        stamp(model, count := count + 1)
        shared[:8] = struct.pack("q", 1)
        checkpoint.save(folder, model, {"count": count}, replay=model.replay_buffer)
        shared[:] = struct.pack("qq", 0, count)


def kill_points(folder: Path, model: OffPolicyAlgorithm, stride: int) -> Row:
    """Every step of a save, or one in `stride`."""
    results = []
    count = 1
    stamp(model, count)
    checkpoint.save(folder, model, {"count": count}, replay=model.replay_buffer)
    for half in (False, True):
        step, killed = 0, True
        while killed:
            stamp(model, count := count + 1)
            child = _fork(lambda step=step, half=half, count=count: _save_until(folder, model, count, step, half))
            killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
            found = checkpoint.load_latest(folder)
            if killed:
                results.append(is_whole(found))
            elif found.updates != count:
                results.append(False)
            step += stride
    return _row("kill points", results, "loadable")


def _save_until(folder: Path, model: OffPolicyAlgorithm, count: int, last: int, half: bool) -> None:
    """A save that kills its process at its step `last`; where that is a write, after `half` of it."""
    step = 0

    def deadly(real: Callable[..., None]) -> Callable[..., None]:
        def call(*args: Any, **kwargs: Any) -> None:
            nonlocal step
            if step == last:
                if half and real is put:
                    file, data = args
                    put(file, data[: len(data) // 2])
                    file.flush()
                os.kill(os.getpid(), signal.SIGKILL)
            step += 1
            real(*args, **kwargs)

        return call

    put = files.put
    for name in ("put", "sync", "rename", "sync_folder"):
        setattr(files, name, deadly(getattr(files, name)))
    Path.unlink = deadly(Path.unlink)  # type: ignore[method-assign]  # in this process, which ends here
    checkpoint.KEPT = 1  # so that an older one is removed, too
    checkpoint.save(folder, model, {"count": count}, replay=model.replay_buffer)


def _fork(work: Callable[[], None]) -> int:
    """The id of a process that does the work and ends; this one has no other thread that could hold a lock."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    return child


def speed(folder: Path, repeats: int) -> Row:
    """Seconds of a save and of load and restore: policy 2048x3, 8.4 million parameters, no replay."""
    arch = {"pi": [2048, 2048, 2048], "qf": [512, 512, 256]}
    kwargs: dict[str, Any] = {"buffer_size": 200, "batch_size": 32, "learning_starts": 100, "train_freq": 1}
    model = DDPG("MlpPolicy", "Pendulum-v1", policy_kwargs={"net_arch": arch}, device="cpu", **kwargs).learn(102)
    saving, loading = [], []
    for _ in range(repeats):
        start = time.perf_counter()
        path = checkpoint.save(folder, model, {})
        saving.append(time.perf_counter() - start)
        start = time.perf_counter()
        checkpoint.restore(checkpoint.load_latest(folder), model)
        loading.append(time.perf_counter() - start)
    return {
        "what": "speed",
        "file_mb": round(path.stat().st_size / 1e6, 1),
        "repeats": repeats,
        "save_s_p50": round(float(np.median(saving)), 3),
        "save_s_max": round(max(saving), 3),
        "load_and_restore_s_p50": round(float(np.median(loading)), 3),
    }


def _row(what: str, results: list[bool], verb: str) -> Row:
    return {"what": what, "tried": len(results), verb: sum(results), "failed": len(results) - sum(results)}


def main() -> int:
    """0 where nothing failed."""
    cli = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    cli.add_argument("--cuts", type=int, default=200)
    cli.add_argument("--flips", type=int, default=1000)
    cli.add_argument("--rebuilt", type=int, default=2000)
    cli.add_argument("--kills", type=int, default=100)
    cli.add_argument("--stride", type=int, default=1, help="kill at one in so many steps of a save")
    cli.add_argument("--saves", type=int, default=9, help="timed saves of a large model; 0: none")
    cli.add_argument("--seed", type=int, default=0)
    cli.add_argument("--out", type=Path, default=RESULTS, help="where the rows are written")
    args = cli.parse_args()
    root = Path(tempfile.mkdtemp(prefix="quarl-chaos-"))
    try:
        rows = [speed(root / "speed", args.saves)] if args.saves else []
        torch.set_num_threads(1)
        model = small_model(args.seed)
        rows += damage(root / "damage", model, args.cuts, args.flips, args.seed)
        rows.append(kills(root / "kills", model, args.kills, args.seed))
        rows.append(kill_points(root / "points", model, args.stride))
        rows.append(rebuild(root / "rebuilt", small_model(args.seed), args.rebuilt, args.seed))
    finally:
        shutil.rmtree(root, ignore_errors=True)
    for row in rows:
        print("  ".join(f"{key} {value}" for key, value in row.items()))
    named = ("cuts", "flips", "rebuilt", "kills", "stride", "saves", "seed")
    counts = " ".join(f"--{name} {getattr(args, name)}" for name in named)
    write("chaos-checkpoint", f"python -m stress.chaos.checkpoint {counts}", root=args.out, rows=rows)
    return int(any(row.get("failed") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
