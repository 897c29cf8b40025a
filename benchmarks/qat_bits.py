"""Return against bits, after training and trained for it: the project's protocol. Resumable; a task's cells stay.

python benchmarks/qat_bits.py [--only ppo-CartPole-v1 ...] [--minutes 140] [--jobs 2]
"""

from __future__ import annotations

import argparse
import json
import shutil
import time

from actorq_results import RESULTS
from quarl.cli import main as quarl
from quarl.interrupt import SIGNALLED
from quarl.machine import machine

ALL = ("8", "7", "6", "5", "4", "3", "2")
SOME = ("8", "4", "2")
ONE_SEED = ("--seeds", "1")
TASKS: dict[str, tuple[str, ...]] = {
    "ppo-CartPole-v1": ("--algo", "ppo", "--env", "CartPole-v1", "--bits", *ALL),
    "dqn-CartPole-v1": ("--algo", "dqn", "--env", "CartPole-v1", "--bits", *ALL, "w6a6", "w4a4"),
    "a2c-CartPole-v1": ("--algo", "a2c", "--env", "CartPole-v1", "--bits", *ALL, "w6a6", "w4a4"),
    "ddpg-Pendulum-v1": ("--algo", "ddpg", "--env", "Pendulum-v1", "--bits", *ALL),
    "dqn-Acrobot-v1": ("--algo", "dqn", "--env", "Acrobot-v1", "--bits", *ALL),
    "a2c-LunarLander-v3": ("--algo", "a2c", "--env", "LunarLander-v3", "--bits", *ALL),
    "ppo-LunarLander-v3": ("--algo", "ppo", "--env", "LunarLander-v3", "-n", "500000", "--bits", *ALL),
    "ddpg-MountainCarContinuous-v0": (
        *("--algo", "ddpg", "--env", "MountainCarContinuous-v0", "-n", "60000", "--bits", *SOME, *ONE_SEED),
    ),
    "d4pg-cartpole-balance": (
        *("--algo", "d4pg", "--env", "dm_control/cartpole-balance-v0", "-n", "25000", "--bits", *SOME, *ONE_SEED),
        *("--params", "learning_starts:2000", "train_freq:2", "policy_kwargs:dict(net_arch=[256, 256])"),
    ),
    "ppo-HalfCheetahBulletEnv-v0": (
        *("--algo", "ppo", "--env", "HalfCheetahBulletEnv-v0", "-n", "1000000", "--bits", *SOME, *ONE_SEED),
    ),
}
"""Tuned hyper-parameters and budgets are RL Zoo's where nothing else stands; three seeds, but where a training is long.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], help="tasks; default: all")
    parser.add_argument("--minutes", type=float, default=140.0, help="after which no training begins")
    parser.add_argument("--jobs", default="2")
    options = parser.parse_args()
    folder = RESULTS / "qat-bits"
    codes, begun = [], time.monotonic()
    for task, words in TASKS.items():
        if options.only and task not in options.only:
            continue
        own = folder / task
        left = max(options.minutes - (time.monotonic() - begun) / 60, 0)
        command = ["sweep", "--seeds", "3", *words, "--jobs", options.jobs, "--minutes", str(left)]
        codes.append(quarl([*command, "-o", str(own)]))
        if codes[-1] > SIGNALLED:
            break
        shutil.rmtree(own / "runs", ignore_errors=True)  # agents and checkpoints: large, and made again by the command
        about = {"command": f"python benchmarks/qat_bits.py --only {task}", "machine": machine()}
        (own / "about.json").write_text(json.dumps(about) + "\n")
    raise SystemExit(max(codes))


if __name__ == "__main__":
    main()
