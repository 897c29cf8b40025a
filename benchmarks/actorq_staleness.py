"""Return against how seldom actors look for weights: DQN on CartPole-v1, int8 actors, 256x2, five seeds. Resumable.

python benchmarks/actorq_staleness.py [--seeds 5]
"""

from __future__ import annotations

import argparse

from actorq_results import RESULTS, measure, write

PARAMS = (
    "learning_rate:1e-3",
    "learning_starts:1000",
    "buffer_size:100000",
    "gamma:0.98",
    "n_steps:5",
    "target_update_interval:640",
    "exploration_fraction:0.1",
)
"""Chosen on seed 100, which is none of those that are shown: with a rate of 3e-4 and one step nothing is learned."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="5", help="training runs of each interval")
    options = parser.parse_args()
    words = ["--what", "staleness", "--arms", "int8", "--seeds", options.seeds, "--batch-size", "128"]
    words += ["-n", "100000", "--params", *PARAMS]
    rows = measure(words, RESULTS / "actorq-staleness")
    write("actorq-staleness", "make bench-actorq-staleness", arguments=words, rows=rows)


if __name__ == "__main__":
    main()
