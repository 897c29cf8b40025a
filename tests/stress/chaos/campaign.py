"""Kills, stops, hangs and poisons real runs of `quarl actorq`, and counts what is lost.

    python -m stress.chaos.campaign [--out results]

Times are of the machine as it was: a process that comes back needs one or two seconds of processor time. Actors are
killed in turn at moments drawn uniformly over the run from the seed (for goodput every ten seconds); the learner at one
of each start; the publisher up to two seconds after it has come back.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from results import RESULTS, read, write
from stress.chaos import cluster, faults, kills
from stress.chaos.poison import poisoned
from stress.chaos.run import Row


def main() -> int:
    """0 where nothing failed."""
    cli = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    cli.add_argument("--only", nargs="*", default=[], help="names of rows; the others stay as they are in the file")
    cli.add_argument("--seed", type=int, default=0)
    cli.add_argument("--out", type=Path, default=RESULTS, help="folder of results")
    args = cli.parse_args()
    unknown = set(args.only) - set(ROWS)
    if unknown:
        cli.error(f"no such row: {', '.join(sorted(unknown))}; there are {', '.join(ROWS)}")
    for name, measure in ROWS.items():
        if args.only and name not in args.only:
            continue
        folder = Path(tempfile.mkdtemp(prefix="quarl-chaos-"))
        start = time.monotonic()
        try:
            found = measure(folder, random.Random(args.seed))
        except AssertionError as error:
            found = {"failed": [str(error)]}
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        row = {"name": name, **found, "seconds": round(time.monotonic() - start, 1)}
        print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
        # each row takes the place of its own: a run that is broken off loses none
        write("chaos", f"python -m stress.chaos.campaign --seed {args.seed}", root=args.out, rows=[row])
    return int(any(row["failed"] for row in read("chaos", "rows", root=args.out)))


ROWS: dict[str, Callable[[Path, random.Random], Row]] = {
    "actors killed": lambda folder, rng: kills.actors_killed(folder, rng, kills=10, every_s=3.0),
    "crash loop": lambda folder, rng: faults.crash_loop(folder),
    "learner killed": lambda folder, rng: kills.learner_killed(folder, rng, kills=20),
    "publisher killed and frozen": lambda folder, rng: kills.publisher_stopped(folder, rng, kills=3, frozen_s=10.0),
    "poisoned updates": lambda folder, rng: poisoned(folder, poisons=60),
    "environments raise": lambda folder, rng: faults.environments_raise(folder, steps=20_000),
    "environment hangs, actor slow": lambda folder, rng: faults.hang_and_slow(folder, seconds=60.0),
    "slow learner": lambda folder, rng: faults.slow_learner(folder, seconds=60.0),
    "signals": lambda folder, rng: faults.signals(folder, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)),
    "goodput": lambda folder, rng: kills.goodput(folder, seconds=60.0, every_s=10.0),
    "cluster: agents killed": lambda folder, rng: cluster.agents_killed(folder, rng, kills=5),
    "cluster: raylets killed": lambda folder, rng: cluster.raylets_killed(folder, rng, kills=2),
    "cluster: learner killed": lambda folder, rng: cluster.learner_killed(folder),
    "cluster: slow machine": lambda folder, rng: cluster.slow_machine(folder, seconds=20.0),
    "cluster: machine stopped": lambda folder, rng: cluster.machine_stopped(folder, short_s=10.0, long_s=40.0),
}
"""FAULTS.md's rows by what happens in them."""


if __name__ == "__main__":
    sys.exit(main())
