"""Zoo agents of DQN that lose more than 10 % at a width, repaired by fine-tuning from their zips for that width.

    python benchmarks/qat_repair.py [--agents ../shared/agents/sb3]

The width is the largest at which post-training quantisation, by the project's default scheme, loses so much
(results/ptq). Fine-tuning has a fifth of the steps that the agent was trained for.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from qat_bits import DQN_CARTPOLE
from quarl.cli import main as quarl
from results import verdict, write

TASKS: dict[str, tuple[str, tuple[str, ...]]] = {
    "CartPole-v1": ("4", DQN_CARTPOLE),
    "MountainCar-v0": (
        "5",
        (
            *("-n", "24000", "--quant-delay", "1500"),
            *("--params", "learning_rate:1e-4", "exploration_initial_eps:0.07"),
        ),
    ),
}
"""By environment: bits, and the options of fine-tuning: steps (at most a fifth of the zoo's 50,000 and 120,000, in
whole rollouts), steps before quantisation acts, hyper-parameters over the zoo's; chosen on seeds from 100 on. DQN
begins to learn after 1,000 steps, or `learning_starts`: what the old agent did until then is the replay's first
content."""
WANTED_PCT = 5.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=Path, default=Path(__file__).resolve().parents[2] / "shared/agents/sb3")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--jobs", default="2")
    parser.add_argument("--seed", default="0", help="the first of three")
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/qat-repair"))
    options = parser.parse_args()
    rows, bars = [], []
    for env_id, (bits, fine_tuning) in TASKS.items():
        if options.only and env_id not in options.only:
            continue
        own = options.output / f"dqn-{env_id}"
        steps = int(fine_tuning[fine_tuning.index("-n") + 1])
        agent = options.agents / "dqn" / f"{env_id}_1" / f"{env_id}.zip"
        words = ["sweep", "--algo", "dqn", "--env", env_id, "-i", str(agent), "--bits", bits, *fine_tuning]
        words += ["--seeds", "3", "--seed", options.seed, "--jobs", options.jobs, "-o", str(own)]
        if code := quarl(words):
            raise SystemExit(code)
        shutil.rmtree(own / "runs", ignore_errors=True)
        summary = json.loads((own / "summary.json").read_text())["rows"]
        rows += [{"env_id": env_id, "fine_tuning_steps": steps, **row} for row in summary]
        loss = next(row["error_pct"] for row in summary if row["method"] == "qat")
        bars.append(verdict(f"{env_id}, {bits}-bit weights, repaired: loss of return, %", loss, WANTED_PCT))
    if not options.only:
        write("qat-repair", "make bench-qat-repair", rows=rows, bars=bars)


if __name__ == "__main__":
    main()
