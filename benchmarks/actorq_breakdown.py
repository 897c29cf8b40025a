"""Where an actor's time goes: D4PG on cheetah-run, policy 2048x3, weights looked for every 30 and 300 steps. Resumable.

    python benchmarks/actorq_breakdown.py [--seconds 60]

A version is published after every update, as the original did, so that every look finds new weights.
"""

from __future__ import annotations

import argparse

from actorq_results import RESULTS, learner_dtype, measure, write


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", default="60", help="length of a window")
    options = parser.parse_args()
    words = [
        "--what",
        "breakdown",
        "--arms",
        "torch-fp32",
        "fp32",
        "fp16",
        "int8",
        "int4",
        "--seconds",
        options.seconds,
    ]
    words += ["--learner-dtype", learner_dtype(), "--params", "learning_starts:2000", "buffer_size:200000"]
    rows = measure(words, RESULTS / "actorq-breakdown")
    write("actorq-breakdown", "make bench-actorq-breakdown", arguments=words, rows=rows)


if __name__ == "__main__":
    main()
