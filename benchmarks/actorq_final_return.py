"""Final return after equal updates with int8 actors and with LiteRT's float32 ones: D4PG on cartpole-balance, 2048x3.

python benchmarks/actorq_final_return.py [--seeds 3]

Resumable. Runs of the time to reward stop where they first reach their target, and say little of where they end; these
go on for 2,468 updates, some 1,100 beyond it. Four samples per insert: the learner is what both wait for.
"""

from __future__ import annotations

import argparse

from actorq_results import RESULTS, measure, noninferior, write

WORDS = (
    *("--algo", "d4pg", "--env", "dm_control/cartpole-balance-v0", "--net-arch", "2048,2048,2048"),
    *("--samples-per-insert", "4", "--batch-size", "256", "--actor-update-interval", "30", "--publish-interval", "10"),
    *("--learner-dtype", "bf16", "--n-timesteps", "160000"),
    *("--params", "n_steps:20", "learning_rate:3e-4", "learning_starts:2000", "target_update_interval:20"),
)
"""Hyper-parameters are those of actorq_protocol.json."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="3", help="training runs of each precision")
    options = parser.parse_args()
    words = ["--what", "staleness", "--arms", "int8", "fp32", "--seeds", options.seeds, *WORDS]
    rows = measure(words, RESULTS / "actorq-final-return")
    before, after = (
        [row["final_return_quantised"] for row in rows if row["precision"] == precision]
        for precision in ("fp32", "int8")
    )
    bar = noninferior("cartpole-balance: loss of final return with int8 actors", before, after)
    write("actorq-final-return", "make bench-actorq-final-return", arguments=words, rows=rows, bars=[bar])


if __name__ == "__main__":
    main()
