"""Time to reward by the protocol beside this file. Resumable: a command ends within 150 minutes, then repeat it.

    python benchmarks/actorq_time_to_reward.py [--minutes 90] [--only CartPole-v1 ...]

Cells lie in benchmarks/results/actorq-time-to-reward. A run that is under way when the minutes are over is finished;
the protocol bounds it to 35 minutes of training, to which its evaluations come.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from actorq_results import RESULTS, Rows, measure, noninferior, rows_of, verdict, write
from quarl.experiments.methods.actorq_speedup import FEWEST_SEEDS, MARGIN_PCT
from quarl.report.actorq_arms import own_ratios

PROTOCOL = Path(__file__).with_name("actorq_protocol.json")
GOAL = 2.5
"""Geometric mean of the speed-ups over torch fp32."""


def judge(speedups: Rows) -> list[dict[str, Any]]:
    """The goal, and for every task whether int8 actors leave the final return what it was."""
    bars = []
    for row in speedups:
        if row["precision"] != "int8" or row["best_ratio"]:
            continue
        if row["task"] == "all":
            goal = GOAL if row["against"].startswith("torch") else 1.0
            name = f"int8 against {row['against']}, geometric mean of {row['seeds']} runs"
            if row["lost"]:  # whoever never reached the target has no time, and a mean without it says too much
                name += f"; {row['lost']} more never reached the target"
            bars.append(verdict(name, None if row["lost"] else row["speedup"], goal, at_least=True))
        elif row["against"].startswith("litert") and row["noninferior"] is not None:
            name = f"{row['task']}: loss of final return with int8, %, upper end of its interval"
            bars.append(verdict(name, row["final_return_high"], MARGIN_PCT))
    return bars


def rounding(rows: Rows) -> list[dict[str, Any]]:
    """Of the runs that reached the target: what the actors' integers lose against the learner's own float32 policy.

    Two policies of one run, which have all but the rounding in common; `judge` compares runs, which differ by chance.
    """
    bars = []
    for task, ratio in own_ratios(rows).items():
        for precision in ("int8", "int4"):
            wanted = {"task": task, "precision": precision, "samples_per_insert": ratio, "censored": False}
            runs = [row for row in rows if wanted.items() <= row.items()]
            if len(runs) >= FEWEST_SEEDS:
                before, after = ([run[name] for run in runs] for name in ("final_return", "final_return_quantised"))
                what = f"{task}: loss of return by {precision} against the learner's policy"
                bars.append(noninferior(what, before, after))
    return bars


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", default="90", help="with this much time spent no new run is begun")
    parser.add_argument("--only", nargs="*", default=[], help="tasks; all that are finished are reported")
    options = parser.parse_args()
    folder = RESULTS / "actorq-time-to-reward"
    words = ["--what", "time-to-reward", "--protocol", str(PROTOCOL), "--minutes", options.minutes]
    if options.only:
        measure([*words, "--only", *options.only], folder)
        words[-1] = "1e-9"  # the rows of what is there, of all tasks
    rows = measure(words, folder)
    speedups = rows_of(folder, "speed-up")
    write(
        "actorq-time-to-reward",
        "make bench-actorq-time-to-reward",
        protocol=PROTOCOL.name,
        rows=rows,
        speedups=speedups,
        bars=judge(speedups) + rounding(rows),
    )


if __name__ == "__main__":
    main()
