"""DQN on Pong in mixed precision: an update of policies A, B and C, and whether A learns the same. Resumable.

    python benchmarks/mixed_precision.py [--only updates] [--minutes 90] [--device auto]

Learning is short: 240,000 environment steps, in which a DQN begins to score. On a processor with bfloat16 a training
takes an hour or more on its one core, so that two precisions can learn at once; fp16 is for a GPU.
"""

from __future__ import annotations

import argparse

from actorq_results import RESULTS, Rows, rows_of, write
from quarl.cli import main as quarl

PONG = (
    *("--env", "PongNoFrameskip-v4", "-n", "240000", "--episodes", "20", "--threads", "1", "--params"),
    *("learning_rate:3e-4", "n_steps:3", "learning_starts:10000", "target_update_interval:2000"),
    *("exploration_fraction:0.125", "exploration_final_eps:0.02"),
    "policy_kwargs:dict(optimizer_kwargs=dict(eps=1.5e-4, fused=True))",
)
"""RL Zoo's, but faster: the Nature CNN was at -8.6 after 200,000 steps with seed 100 (with 1e-4 at -20.8)."""


def measure(name: str, what: str, *words: str) -> Rows:
    """Rows of `quarl bench mixed-precision`, which goes on where it was stopped; SystemExit where it fails."""
    folder = RESULTS / f"mixed-precision-{name}"
    if code := quarl(["bench", "mixed-precision", "--what", what, *words, "-o", str(folder)]):
        raise SystemExit(code)
    return rows_of(folder, what)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("updates", "learning"), default="updates")
    parser.add_argument("--minutes", default="90", help="after which no cell begins")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtypes", nargs="*", default=["fp32", "bf16", "fp16"], help="that learn")
    parser.add_argument("--seeds", default="3")
    options = parser.parse_args()
    common = ("--minutes", options.minutes, "--device", options.device)
    if options.only == "updates":
        rows = measure("updates", "updates", *common)
    else:
        words = ("--policies", "A", "--dtypes", *options.dtypes, "--seeds", options.seeds, *PONG)
        rows = measure("pong", "learning", *words, *common)
    command = f"python benchmarks/mixed_precision.py --only {options.only}"
    write(f"mixed-precision-{options.only}", command, rows=rows)


if __name__ == "__main__":
    main()
