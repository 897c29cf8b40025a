"""Return against bits, after training and trained for it: the project's protocol. Resumable; a task's cells stay.

python benchmarks/qat_bits.py [--only ppo-CartPole-v1 ...] [--minutes 140] [--jobs 2]
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from quarl import stats
from quarl.cli import main as quarl
from quarl.experiments.cells import DONE, TRAIN
from quarl.experiments.store import NAME, Store
from quarl.processes.signals import SIGNALLED
from quarl.quant.spec import QuantSpec
from results import verdict, write

ALL = ("8", "7", "6", "5", "4", "3", "2")
SOME = ("8", "4", "2")
LOSS_PCT = 5.0
ONE_SEED = ("--seeds", "1")
SIX_SEEDS = ("--seeds", "6")


def finetuned(algo: str, name: str) -> tuple[str, str]:
    """Options that train RL Zoo's agent on; its path is seen from the project's folder, where the benchmark runs."""
    return "-i", f"../shared/agents/sb3/{algo}/{name}_1/{name}.zip"


DQN_CARTPOLE = (
    *("-n", "9984", "--quant-delay", "2560", "--eval-freq", "256"),
    *("--params", "learning_rate:3e-4", "gradient_steps:512", "learning_starts:2500"),
)
"""Fine-tuning of RL Zoo's agent, for its repair (qat_repair.py) too. Its return goes from 500 to 100 and back between
two rollouts, so it is looked at after each."""
DDPG_FINETUNING = (
    *("-n", "30000", "--quant-delay", "3000", "--bits", *SOME, *ONE_SEED),
    *("--params", "learning_starts:2000"),
)
TASKS: dict[str, tuple[str, ...]] = {
    "ppo-CartPole-v1": ("--algo", "ppo", "--env", "CartPole-v1", "--bits", *ALL),
    "dqn-CartPole-v1": ("--algo", "dqn", "--env", "CartPole-v1", "--bits", *ALL, "w6a6", "w4a4", *SIX_SEEDS),
    "dqn-CartPole-v1-lin": (
        *("--algo", "dqn", "--env", "CartPole-v1", "--bits", *ALL, "w6a6", "w4a4"),
        *("--params", "learning_rate:lin_0.0023"),
    ),
    "a2c-CartPole-v1": ("--algo", "a2c", "--env", "CartPole-v1", "--bits", *ALL, "w6a6", "w4a4"),
    "a2c-CartPole-v1-lin": (
        *("--algo", "a2c", "--env", "CartPole-v1", "--bits", *ALL, "w6a6", "w4a4"),
        *("--params", "learning_rate:lin_0.0007"),
    ),
    "ddpg-Pendulum-v1": ("--algo", "ddpg", "--env", "Pendulum-v1", "--bits", *ALL),
    "dqn-Acrobot-v1": ("--algo", "dqn", "--env", "Acrobot-v1", "--bits", *ALL),
    "dqn-Acrobot-v1-lin": (
        *("--algo", "dqn", "--env", "Acrobot-v1", "--bits", *ALL, *SIX_SEEDS),
        *("--params", "learning_rate:lin_0.00063"),
    ),
    "a2c-LunarLander-v3": ("--algo", "a2c", "--env", "LunarLander-v3", "--bits", *ALL),
    "ppo-LunarLander-v3": ("--algo", "ppo", "--env", "LunarLander-v3", "--bits", *ALL),
    "ppo-LunarLander-v3-lin": (
        *("--algo", "ppo", "--env", "LunarLander-v3", "--bits", *ALL),
        *("--params", "learning_rate:lin_0.0003"),
    ),
    "ddpg-MountainCarContinuous-v0": (
        *("--algo", "ddpg", "--env", "MountainCarContinuous-v0", "-n", "60000", "--bits", *SOME, *ONE_SEED),
    ),
    "ddpg-HopperBulletEnv-v0": (
        *("--algo", "ddpg", "--env", "HopperBulletEnv-v0", *DDPG_FINETUNING, *finetuned("ddpg", "HopperBulletEnv-v0")),
    ),
    "ddpg-Walker2DBulletEnv-v0": ("--algo", "ddpg", "--env", "Walker2DBulletEnv-v0", *DDPG_FINETUNING),
    "ddpg-BipedalWalker-v3": ("--algo", "ddpg", "--env", "BipedalWalker-v3", *DDPG_FINETUNING),
    "ddpg-HalfCheetahBulletEnv-v0-finetuned": ("--algo", "ddpg", "--env", "HalfCheetahBulletEnv-v0", *DDPG_FINETUNING),
    "ddpg-HalfCheetahBulletEnv-v0": (
        *("--algo", "ddpg", "--env", "HalfCheetahBulletEnv-v0", "-n", "100000", "--bits", *SOME, *ONE_SEED),
    ),
    "d4pg-cartpole-balance": (
        *("--algo", "d4pg", "--env", "dm_control/cartpole-balance-v0", "-n", "25000", "--bits", *SOME, *ONE_SEED),
        *("--params", "learning_starts:2000", "train_freq:2", "policy_kwargs:dict(net_arch=[256, 256])"),
    ),
    "ppo-HalfCheetahBulletEnv-v0": (
        *("--algo", "ppo", "--env", "HalfCheetahBulletEnv-v0", "-n", "1000000", "--bits", *SOME, *ONE_SEED),
    ),
    "ppo-CartPole-v1-finetuned": (
        *("--algo", "ppo", "--env", "CartPole-v1", "-n", "19968", "--bits", *ALL, *SIX_SEEDS),
        *("--quant-delay", "4000", "--params", "learning_rate:lin_1e-4", *finetuned("ppo", "CartPole-v1")),
    ),
    "dqn-CartPole-v1-finetuned": (
        *("--algo", "dqn", "--env", "CartPole-v1", "--bits", *ALL, "w6a6", "w4a4", *SIX_SEEDS),
        *(*DQN_CARTPOLE, *finetuned("dqn", "CartPole-v1")),
    ),
    "a2c-CartPole-v1-finetuned": (
        *("--algo", "a2c", "--env", "CartPole-v1", "-n", "100000", "--bits", *ALL, "w6a6", "w4a4", *SIX_SEEDS),
        *("--quant-delay", "20000", "--params", "learning_rate:lin_7e-5", *finetuned("a2c", "CartPole-v1")),
    ),
    "dqn-Acrobot-v1-finetuned": (
        *("--algo", "dqn", "--env", "Acrobot-v1", "-n", "20000", "--bits", *ALL, *SIX_SEEDS),
        *("--quant-delay", "5000", "--params", "learning_rate:lin_1e-5", "learning_starts:5000"),
        *("exploration_initial_eps:0.1", *finetuned("dqn", "Acrobot-v1")),
    ),
    "ppo-LunarLander-v3-finetuned": (
        *("--algo", "ppo", "--env", "LunarLander-v3", "-n", "196608", "--bits", *ALL, *SIX_SEEDS),
        *("--quant-delay", "32768", "--params", "learning_rate:lin_3e-5", *finetuned("ppo", "LunarLander-v2")),
    ),
}
"""Tuned hyper-parameters and budgets are RL Zoo's where nothing else stands; three seeds, one where a training is long,
six where quantisation costs DQN so differently from seed to seed that three settle nothing.

Four tasks come twice: with the zoo's constant learning rate, and with the same rate falling to 0. At the constant one
one of A2C's three agents forgets CartPole before quantisation begins, and DQN's of Acrobot with few bits go from -80
to -500 and back to the end; with the falling one they come to rest. PPO learns less of LunarLander with it.

Fine-tuned are RL Zoo's finished agents, trained on for at most a fifth of their steps, with six seeds as that is quick;
rates and lengths were chosen on seeds from 100 on. DDPG's have one seed and the lengths of Hopper's, and where the zoo
has no agent they go on from one of AGENT_STEPS.
"""

AGENT_STEPS = {
    "ddpg-HalfCheetahBulletEnv-v0-finetuned": "100000",
    "ddpg-Walker2DBulletEnv-v0": "100000",
    "ddpg-BipedalWalker-v3": "100000",
}
"""Of a float32 training whose agent is then fine-tuned, where nobody's is at hand."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=tuple(TASKS), default=list(TASKS))
    parser.add_argument("--minutes", type=float, default=140.0, help="after which no training begins")
    parser.add_argument("--jobs", default="2")
    options = parser.parse_args()
    folder = Path("runs/qat-bits")
    codes, begun = [], time.monotonic()
    for task in options.only:
        own = folder / task
        command = ["sweep", "--seeds", "3", *TASKS[task], "--jobs", options.jobs, "-o", str(own)]
        if task not in AGENT_STEPS:
            codes.append(quarl([*command, *left(options.minutes, begun)]))
        elif not complete(own):  # the agent of what is complete is no longer there
            codes.append(quarl([*agent_of(task, own), *left(options.minutes, begun)]))
            for agent in () if codes[-1] else own.glob("agent/runs/*/*/*/best_model.zip"):
                codes.append(quarl([*command, "--trained-agent", str(agent), *left(options.minutes, begun)]))
        if codes and codes[-1] > SIGNALLED:
            break
        if complete(own):
            # agents and checkpoints: large, made again by the command, and of no use once all cells are there
            for folder_of in ("runs", "agent"):
                shutil.rmtree(own / folder_of, ignore_errors=True)
        about(own)
    judge(folder)
    raise SystemExit(max(codes, default=0))


def left(minutes: float, begun: float) -> tuple[str, str]:
    """The options that keep a sweep within what remains."""
    return "--minutes", str(max(minutes - (time.monotonic() - begun) / 60, 0))


def complete(folder: Path) -> bool:
    if not (folder / NAME).is_file():
        return False
    with Store(folder) as store:
        return set(store.states().values()) == {DONE}


def agent_of(task: str, folder: Path) -> list[str]:
    """The sweep that trains in float32 only, from the beginning and with RL Zoo's numbers."""
    words = TASKS[task]
    command = ["sweep", *words[: words.index("-n")], "-n", AGENT_STEPS[task], *ONE_SEED]
    return [*command, "--methods", "ptq", "--bits", "8", "-o", str(folder / "agent")]


def about(folder: Path) -> None:
    """Writes how the cells are made again, and which machines made them."""
    made = [json.loads(path.read_text())["machine"] for path in sorted(folder.glob("cells/*.json"))]
    words = {"command": f"python benchmarks/qat_bits.py --only {folder.name}"}
    machines = list({(one["cpu"], one["commit"]): one for one in made}.values())
    (folder / "about.json").write_text(json.dumps(words | {"machines": machines}) + "\n")


def judge(folder: Path) -> None:
    """The table of all tasks that are there, and how it stands against what is asked of trained precision."""
    rows = []
    for task in TASKS:
        path = folder / task / "summary.json"
        if path.exists():
            single = by_agent(folder / task)
            rows += [row | {"agents": single[row["precision"]]} for row in compared(task, read(path))]
    recipes = dict.fromkeys(row["recipe"] for row in rows)
    bars = [bar for name in (None, *recipes) for bar in answered(rows, name)]
    write("qat-bits", "make bench-qat-bits", rows=rows, bars=bars)


def recipe(task: str) -> str:
    """How the task's agents are trained."""
    if "-i" in TASKS[task] or task in AGENT_STEPS:
        return "fine-tuning"
    return "falling rate" if task.endswith("-lin") else "from scratch"


def answered(rows: list[dict[str, Any]], of: str | None) -> list[dict[str, Any]]:
    """What is asked of trained precision, answered by the rows of one recipe, or of all."""
    rows = [row for row in rows if of in (None, row["recipe"])]
    agents = [agent for row in rows for agent in row["agents"]]
    bars = []
    for noun, asked_of, names in (
        ("pairs of task and precision", rows, tuple(QUESTIONS)),
        ("agents that were quantised", agents, OF_AGENTS),
    ):
        for name in names:
            ask, bar = QUESTIONS[name]
            answers = [answer for one in asked_of if (answer := ask(one)) is not None]
            if answers:
                what = f"share of {len(answers)} {noun}{f', {of}' if of else ''}: {name}"
                bars.append(verdict(what, sum(answers) / len(answers), bar, at_least=True))
    return bars


def compared(task: str, summary: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Post-training quantisation and training for the precision side by side, at every precision that has both."""
    found = {(row["method"], row["precision"]): row for row in summary}
    exact = found["fp32", "fp32"]
    rows = []
    for (method, precision), qat in found.items():
        if method == "qat" and ("ptq", precision) in found:
            row = {
                "task": task,
                "recipe": recipe(task),
                "precision": precision,
                "seeds": qat["seeds"],
                "fp32": exact["mean"],
            }
            for name, one in (("ptq", found["ptq", precision]), ("qat", qat)):
                row |= {name: one["mean"]}
                row |= {f"{name}_{key}": one[key] for key in ("error_pct", "error_low", "error_high", "noninferior")}
            rows.append(row | {key: qat[key] for key in ("gain", "gain_low", "gain_high")})
    return rows


def by_agent(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """By precision, for each seed: what post-training quantisation loses, and how the agent trained for it compares.

    Each pair of agents plays the same episodes; the interval of the gain is over these.
    """
    returns: dict[tuple[str, str, int], Any] = {}
    for path in sorted(folder.glob("cells/*.json")):
        for one in json.loads(path.read_text())["played"]:
            key = one["method"], QuantSpec.parse(one["bits"]).precision, int(path.stem.rpartition("-")[2])
            returns[key] = np.asarray(one["returns"])
    if (folder / NAME).is_file():
        with Store(folder) as store:
            done = [one for one in store.records() if one.method != TRAIN and one.found is not None]
        for one in done:
            assert one.found is not None
            returns[one.method, QuantSpec.parse(one.precision).precision, one.seed] = np.asarray(one.found["returns"])
    rows = {(row["method"], row["precision"], row["seed"]): row for row in read(folder / "rows.json")}
    found: dict[str, list[dict[str, Any]]] = {}
    for (method, precision, seed), qat in rows.items():
        ptq = rows.get(("ptq", precision, seed))
        if method != "qat" or ptq is None:
            continue
        gained = returns[method, precision, seed] - returns["ptq", precision, seed]
        gain = stats.bootstrap_interval(gained, np.random.default_rng(0))
        agent = {"seed": seed, "gain": gain.point, "gain_low": gain.low, "gain_high": gain.high}
        for name, one in (("ptq", ptq), ("qat", qat)):
            agent |= {f"{name}_{key}": one[key] for key in ("error_pct", "noninferior")}
        found.setdefault(precision, []).append(agent)
    return found


def read(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
    return rows


def better_where_ptq_loses(row: dict[str, Any]) -> bool | None:
    return row["gain_low"] > 0 if row["ptq_error_pct"] > LOSS_PCT else None


def noninferior_elsewhere(row: dict[str, Any]) -> bool | None:
    return row["qat_noninferior"] if row["ptq_error_pct"] <= LOSS_PCT else None


def noninferior_at(precision: str, row: dict[str, Any]) -> bool | None:
    """Where the float32 agents solve the task."""
    words = TASKS[row["task"]]
    if row["precision"] != precision or row["fp32"] < SOLVED.get(words[words.index("--env") + 1], math.inf):
        return None
    return row["qat_noninferior"]


SOLVED = {
    "CartPole-v1": 475.0,
    "Acrobot-v1": -100.0,
    "LunarLander-v3": 200.0,
    "MountainCarContinuous-v0": 90.0,
    "Pendulum-v1": -200.0,
}
"""Gymnasium's thresholds; it has none for Pendulum, whose best controllers reach about -150."""
QUESTIONS: dict[str, tuple[Callable[[dict[str, Any]], bool | None], float]] = {
    "QAT better where PTQ loses more than 5 %": (better_where_ptq_loses, 1.0),
    "QAT non-inferior where PTQ does not": (noninferior_elsewhere, 1.0),
    "4-bit QAT non-inferior where float32 solves the task": (partial(noninferior_at, "int4"), 1.0),
    "3-bit QAT non-inferior where float32 solves the task": (partial(noninferior_at, "int3"), 2 / 3),
}
"""What is asked of a row, None where it is not, and the share of rows that has to answer yes."""
OF_AGENTS = tuple(QUESTIONS)[:2]
"""What is asked of a single training seed too."""


if __name__ == "__main__":
    main()
