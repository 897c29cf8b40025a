"""Throughput of a study: every agent at nine precisions, 20 episodes each, in one command, against a loop over SB3.

python benchmarks/study_speed.py [--agents FOLDER] [--only CartPole ...] [--jobs 2]

The study is `quarl study run` over all agents; its seconds count everything, from reading an agent and recording its
calibration observations to the last row on the disk. The loop is what users of Stable-Baselines3 write: for each of the
nine precisions `evaluate_policy` over 20 episodes, in torch on one thread, with 1, 4 or 16 environments side by side,
whichever is quickest for the agent; loading the agent and making environments is not counted. It is timed with the
float policy, as which a fake-quantized one takes as long a step. But that plays other episodes: with few bits an agent
falls early, and is reset sooner. So `ratio` gives the loop as many environment steps and resets as the study's cells
really made, at what each takes there; `ratio_float` takes nine float evaluations as they are.

Agents are played by class: with several jobs, where agents overlap, the time from the last row of one class to the last
row of the next is the later's.

Stable-Baselines3 executes what its files hold; give it only files you trust.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pickle
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium
import torch
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

import agents
from fidelity import sb3_model
from quarl.envs import make
from quarl.readers.load import read
from results import RESULTS, write

BITS = "[fp16, 8, 7, 6, 5, 4, 3, 2]"
NUM_PRECISIONS = 9
EPISODES = 20
SIDE_BY_SIDE = (1, 4, 16)
CLASSIC = ("CartPole", "Acrobot", "MountainCar")
"""Tasks with negligible time per step."""
GOALS = {True: 2.0, False: 1.0}
"""Required ratios of classic tasks and of the others."""
RESETS = 5
"""Timed evaluations for each number of environments."""


def is_classic(agent: agents.Trained) -> bool:
    return agent.env_id.startswith(CLASSIC)


def study_name(agent: agents.Trained) -> str:
    return agent.name.replace("ppo2", "ppo")


def study_of(trained: list[agents.Trained], folder: Path) -> str:
    """Return the study file."""
    lines = ["name: speed", f"episodes: {EPISODES}", f"agents: {folder.resolve()}", "policies:"]
    for agent in trained:
        algo = agent.algo.replace("ppo2", "ppo")
        lines.append(f'  - {{algo: {algo}, env: {agent.env_id}, source: "zoo:{agent.kind}"}}')
    lines += ["methods:", "  - {method: fp32}", f"  - {{method: ptq, precision: {BITS}}}"]
    return "\n".join(lines) + "\n"


def run_study(trained: list[agents.Trained], folder: Path, work: Path, jobs: int) -> dict[str, Any]:
    """Return the wall time of the command, and for each agent the seconds since the end of the one before it."""
    work.mkdir()
    (work / "speed.yml").write_text(study_of(trained, folder))
    code = "import sys; from quarl.cli import main; sys.exit(main(sys.argv[1:]))"
    words = ["study", "run", str(work / "speed.yml"), "-o", str(work / "out"), "--jobs", str(jobs)]
    began, start = time.time(), time.perf_counter()
    subprocess.run([sys.executable, "-c", code, *words], check=True, stdout=subprocess.DEVNULL)
    wall_s = time.perf_counter() - start
    with contextlib.closing(sqlite3.connect(work / "out" / "study.sqlite")) as database:
        cells = database.execute(
            "SELECT algo, env_id, source, state, started, seconds, row FROM cells ORDER BY place"
        ).fetchall()
    found: dict[str, dict[str, Any]] = {}
    for algo, env_id, source, state, started, seconds, row in cells:
        name = f"{source.partition(':')[2]}-{algo}-{env_id}"
        one = found.setdefault(name, {"cells": [], "states": [], "steps": 0})
        one["cells"].append((started, started + seconds))
        one["states"].append(state)
        one["steps"] += json.loads(row)["env_steps"] if row else 0
    before = min(cell[0] for one in found.values() for cell in one["cells"])
    startup_s = before - began
    for one in found.values():
        end = max(before, *(cell[1] for cell in one["cells"]))
        one["seconds"] = end - before
        one["in_cells_s"] = sum(cell[1] - cell[0] for cell in one["cells"])
        before = end
    return {"wall_s": wall_s, "startup_s": startup_s, "jobs": jobs, "agents": found}


def reset_s(envs: VecEnv) -> tuple[float, float]:
    """Return the seconds of an environment's first reset, in which some load their robot, and of a later one."""
    taken = []
    for _ in range(1 + RESETS):
        start = time.perf_counter()
        envs.reset()
        taken.append((time.perf_counter() - start) / envs.num_envs)
    return taken[0], sorted(taken[1:])[RESETS // 2]


def loop_of(agent: agents.Trained) -> dict[str, float]:
    """Return seconds, environment steps and resets of one `evaluate_policy` over 20 episodes, by number of
    environments.

    `step` and `reset` are the shares of one step and one reset in those seconds.
    """
    model, policy = sb3_model(agent), read(agent.path)
    source = policy.provenance

    def one() -> gymnasium.Env[Any, Any]:
        return Monitor(make(source.env_id, wrappers=source.wrappers, env_kwargs=source.env_kwargs))

    found: dict[str, float] = {}
    for num_envs in SIDE_BY_SIDE:
        envs: VecEnv = DummyVecEnv([one] * num_envs)
        statistics = agent.path / agent.env_id / "vecnormalize.pkl"
        if statistics.exists():
            saved = pickle.loads(statistics.read_bytes())
            envs = VecNormalize(envs, training=False, norm_reward=False, clip_obs=saved.clip_obs, epsilon=saved.epsilon)
            envs.obs_rms = saved.obs_rms
        envs.seed(0)
        first, later = reset_s(envs)
        start = time.perf_counter()
        _, lengths = evaluate_policy(model, envs, EPISODES, return_episode_rewards=True, warn=False)
        seconds = time.perf_counter() - start
        assert isinstance(lengths, list)
        steps = sum(lengths)
        envs.close()
        found[f"seconds_{num_envs}"], found[f"steps_{num_envs}"] = seconds, steps
        found[f"first_{num_envs}"], found[f"reset_{num_envs}"] = first, later
        found[f"step_{num_envs}"] = (seconds - (num_envs + EPISODES) * later) / steps
    return found


def compare(agent: agents.Trained, alone: dict[str, Any]) -> dict[str, Any]:
    """Return one row: the study's seconds for the agent, with one job, and the loop's."""
    row: dict[str, Any] = {
        "agent": agent.name,
        "classic": is_classic(agent),
        "cells_done": alone["states"].count("done"),
        "study_s": round(alone["seconds"], 3),
        "in_cells_s": round(alone["in_cells_s"], 3),
        "steps": alone["steps"],
    }
    if agent.kind != "sb3":  # Stable-Baselines3 cannot load its predecessor's files
        return row | dict.fromkeys(("loop_s", "best_of", "step_us", "reset_us", "ratio", "ratio_float"))
    loop = loop_of(agent)

    def loop_s(n: int) -> float:
        """Return the seconds of the loop with n environments, over as many steps and resets as the study's."""
        first_s = n * (loop[f"first_{n}"] - loop[f"reset_{n}"])
        resets_s = NUM_PRECISIONS * (n + EPISODES) * loop[f"reset_{n}"]
        steps_s: float = alone["steps"] * loop[f"step_{n}"]
        return first_s + resets_s + steps_s

    best = min(SIDE_BY_SIDE, key=loop_s)
    return row | {
        "loop_s": round(loop_s(best), 3),
        "best_of": best,
        "step_us": round(1e6 * loop[f"step_{best}"], 2),
        "reset_us": round(1e6 * loop[f"reset_{best}"], 1),
        "ratio": round(loop_s(best) / alone["seconds"], 2),
        "ratio_float": round(NUM_PRECISIONS * min(loop[f"seconds_{n}"] for n in SIDE_BY_SIDE) / alone["seconds"], 2),
    }


def of_class(rows: list[dict[str, Any]], classic: bool, jobs_s: float) -> dict[str, Any]:
    """Return the ratios of all agents of a class together, with the range of those of single agents.

    `jobs_s` are the seconds of the class with several jobs.
    """
    compared = [row for row in rows if row["loop_s"] is not None and row["classic"] == classic]
    if not compared:
        return {}
    loop_s, study_s = (sum(row[name] for row in compared) for name in ("loop_s", "study_s"))
    single = [row["ratio"] for row in compared]
    return {
        "agents": len(compared),
        "goal": GOALS[classic],
        "loop_s": round(loop_s, 2),
        "study_s": round(study_s, 2),
        "study_jobs_s": round(jobs_s, 2),
        "ratio": round(loop_s / study_s, 2),
        "ratio_range": [min(single), max(single)],
        "agents_at_goal": sum(ratio >= GOALS[classic] for ratio in single),
        "ratio_jobs": round(loop_s / jobs_s, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=Path, default=agents.DEFAULT_FOLDER)
    parser.add_argument("--only", nargs="*", default=[], help="words in the names of agents; default: all")
    parser.add_argument("--jobs", type=int, default=2, help="of a second run of the study, beside the one with 1")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    trained = [
        agent
        for agent in agents.find(options.agents)
        if not options.only or any(word in agent.name for word in options.only)
    ]
    trained.sort(key=lambda agent: (agent.kind != "sb3", not is_classic(agent)))
    with tempfile.TemporaryDirectory(prefix="quarl-study-speed-") as folder:
        alone = run_study(trained, options.agents, Path(folder) / "alone", 1)
        print(f"study, one job: {alone['wall_s']:.1f} s", flush=True)
        together = run_study(trained, options.agents, Path(folder) / "together", options.jobs)
        print(f"study, {options.jobs} jobs: {together['wall_s']:.1f} s", flush=True)
    rows = []
    for agent in trained:
        rows.append(compare(agent, alone["agents"][study_name(agent)]))
        print(json.dumps(rows[-1]), flush=True)
    jobs_s = {
        classic: sum(
            together["agents"][study_name(agent)]["seconds"]
            for agent in trained
            if agent.kind == "sb3" and is_classic(agent) == classic
        )
        for classic in (True, False)
    }
    summary = {
        "precisions": NUM_PRECISIONS,
        "episodes": EPISODES,
        "agents": len(rows),
        "cells": NUM_PRECISIONS * len(rows),
        "wall_s": round(alone["wall_s"], 1),
        "startup_s": round(alone["startup_s"], 1),
        "jobs": options.jobs,
        "wall_jobs_s": round(together["wall_s"], 1),
        "classic": of_class(rows, True, jobs_s[True]),
        "environment_bound": of_class(rows, False, jobs_s[False]),
    }
    write("study-speed", "make bench-study-speed", root=options.out, summary=[summary], rows=rows)
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
