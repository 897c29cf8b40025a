"""Processes of real runs that are killed or stopped; what comes back goes into a row of the campaign."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

from quarl.runs import checkpoint
from stress.chaos.run import Laws, Row, Run

BOUND = 60
"""--max-staleness of the runs whose publisher stands still."""


def actors_killed(folder: Path, rng: random.Random, *, kills: int, every_s: float) -> Row:
    """Row 1: SIGKILL for one actor after the other while four of them run, every `every_s` in the mean."""
    laws, back = Laws(), []
    steps = int(700 * (kills * every_s + 3))
    with Run(folder, "--actors", "4", "-n", str(steps), chaos={"step_s": 0.005}) as run:
        run.ready()
        began = time.monotonic()
        for number, moment in enumerate(sorted(rng.uniform(0, kills * every_s) for _ in range(kills))):
            time.sleep(max(began + moment - time.monotonic(), 0))
            before = run.workers(name := f"actor-{number % 4}")
            run.send(name, signal.SIGKILL)
            back.append(round(run.back(name, before), 2))
        code = run.finish()
        last, learner = run.rows()[-1], run.rows()[-1]["learner"]
        laws.hold("rc 0", code == 0)
        laws.hold("back to work within 5 s", max(back) <= 5)
        laws.hold("at most one segment lost per kill", run.lost() <= kills)
        laws.hold("no duplicate and no gap", learner["duplicates"] == learner["gaps"] == 0)
        laws.hold("all steps of the run are in replay", last["timesteps"] == steps)
        laws.hold("no shared memory left", not run.shared_files())
        laws.hold("every kill is counted", run.faults("actor ") == kills)
        laws.hold("told", all(run.told(f"actor {i}", "died", "killed by SIGKILL") for i in range(min(kills, 4))))
        found = {"kills": kills, "rc": code, "back_s": back, "lost": run.lost()}
    return found | {"duplicates": learner["duplicates"], "gaps": learner["gaps"], "failed": laws.failed}


def learner_killed(folder: Path, rng: random.Random, *, kills: int) -> Row:
    """Rows 3 and 6: SIGKILL at a random moment of start, training or saving, and `--resume`, again and again.

    The first kill comes before there is a checkpoint; the second start shows how long it takes to training.
    """
    laws = Laws()
    words = ("--actors", "2", "--save-replay-buffer", "--save-freq", "100")
    versions, saved, span, early, refused = 0, 0, 0.5, 0, 0
    for number in range(kills):
        more = ("--resume",) if number else ()
        with Run(folder, *words, *more, "-n", "200000", chaos={"step_s": 0.002}) as run:
            run.until(lambda run=run: run.pid("learner") is not None, 90)
            began = time.monotonic()
            if number == 1:
                run.ready()
                span = time.monotonic() - began + 3
            until = (time.monotonic() if number == 1 else began) + rng.uniform(0, 3 if number == 1 else span)
            while time.monotonic() < until:
                time.sleep(0.001)
            run.send("learner", signal.SIGKILL)
            code, rows = run.finish(30), run.rows()
            laws.hold(f"kill {number}: rc 1 and how to go on", code == 1 and "resume with --resume" in run.text())
            seen = [row["version"] for row in rows]
        early += not rows
        refused += code != 1
        laws.hold(f"kill {number}: versions go on", not seen or (seen[0] > versions and seen == sorted(seen)))
        laws.hold(f"kill {number}: steps go on", not rows or rows[0]["timesteps"] >= saved)
        versions = max([versions, *seen])
        if not list(run.output.glob("checkpoint-*")):
            continue
        found = checkpoint.load_latest(run.output)
        steps = found.facts["counters"]["num_timesteps"]
        laws.hold(f"kill {number}: a sound checkpoint, no older than the last", steps >= saved and not found.warnings)
        laws.hold(f"kill {number}: replay has all its steps", int(found.arrays["replay/counters"][0]) == steps)
        saved = steps
    goal = saved + 1000
    with Run(folder, *words, "--resume", "-n", str(goal), chaos={"step_s": 0.002}) as run:
        code = run.finish()
        last = run.rows()[-1]
    laws.hold("the last one finishes", code == 0 and last["timesteps"] == goal)
    laws.hold("no duplicate", last["learner"]["duplicates"] == 0)
    laws.hold("its versions go on", last["version"] > versions)
    found = checkpoint.load_latest(run.output)
    counters = found.arrays["replay/counters"].tolist()
    laws.hold("its replay has all steps", counters[0] == goal)
    return {
        "kills": kills,
        "killed_before_the_first_row": early,
        "resumed": kills - refused - (code != 0),
        "rc_of_the_last": code,
        "timesteps": last["timesteps"],
        "replay_rows": counters[0],
        "duplicates": counters[2],
        "newest_version": last["version"],
        "failed": laws.failed,
    }


def publisher_stopped(folder: Path, rng: random.Random, *, kills: int, frozen_s: float) -> Row:
    """Rows 4 and 12: SIGKILL, then SIGSTOP for a while."""
    laws, back = Laws(), []
    steps = int(700 * (3 * kills + 4) + 2000)
    words = ("--actors", "4", "-n", str(steps), "--max-staleness", str(BOUND))
    with Run(folder, *words, chaos={"step_s": 0.005}) as run:
        run.ready()
        actors = {name: pid for name, pid in run.children().items() if name.startswith("actor")}
        for _ in range(kills):
            time.sleep(rng.uniform(0, 2))
            before = run.rows()[-1]["publisher"]["published"]
            pid = run.send("publisher", signal.SIGKILL)
            back.append(round(run.until(lambda pid=pid: run.pid("publisher") not in (None, pid), 30), 2))
            run.until(lambda before=before: run.rows()[-1]["publisher"]["published"] > before, 30)
        frozen = run.rows()[-1]
        run.send("publisher", signal.SIGSTOP)
        time.sleep(frozen_s)
        thawed = run.rows()[-1]
        run.send("publisher", signal.SIGCONT)
        same = {name: pid for name, pid in run.children().items() if name.startswith("actor")} == actors
        code = run.finish()
        last = run.rows()[-1]
        waits = [b["stale_s"] - a["stale_s"] for a, b in zip(frozen["actors"], thawed["actors"], strict=True)]
        learner = last["learner"]
        laws.hold("rc 0", code == 0)
        laws.hold("back within 3 s", max(back) <= 3)
        laws.hold("no actor left", same and not any(actor["incarnation"] for actor in last["actors"]))
        laws.hold("no row older than the bound", last["staleness_max"] <= BOUND)
        laws.hold("every actor waits at the bound", min(waits) > frozen_s / 4)
        laws.hold("and says so, once", run.text().count("actors wait for newer weights") == 1)
        laws.hold("every kill is counted", run.faults("publisher") == kills)
        laws.hold("told", run.told("publisher", "died", "killed by SIGKILL"))
        laws.hold("told", run.told("actors", "wait for newer weights", "their weights are --max-staleness"))
        laws.hold("nothing is discarded", last["timesteps"] == steps and learner["duplicates"] == learner["gaps"] == 0)
    return {
        "kills": kills,
        "back_s": back,
        "actor_exits": sum(actor["incarnation"] for actor in last["actors"]),
        "frozen_s": frozen_s,
        "max_staleness": BOUND,
        "oldest_row": last["staleness_max"],
        "rows_older": int(last["staleness_max"] > BOUND),
        "steps_while_frozen": thawed["timesteps"] - frozen["timesteps"],
        "actors_waited_s": [round(wait, 2) for wait in waits],
        "failed": laws.failed,
    }


def goodput(folder: Path, *, seconds: float, every_s: float) -> Row:
    """Environment steps in replay with an actor killed every so often, against none."""
    laws = Laws()
    made = {}
    for name in ("without", "with"):
        with Run(folder / name, "--actors", "4", "-n", "200000", chaos={"step_s": 0.005}) as run:
            run.ready()
            first, kills = run.rows()[-1], 0
            begin = time.monotonic()
            while time.monotonic() < begin + seconds:
                if name == "with" and time.monotonic() >= begin + (kills + 0.5) * every_s:
                    run.send(f"actor-{kills % 4}", signal.SIGKILL)
                    kills += 1
                time.sleep(0.01)
            last = run.rows()[-1]
            made[name] = (last["timesteps"] - first["timesteps"]) / (last["wall_s"] - first["wall_s"])
    share = made["with"] / made["without"]
    laws.hold("at least 0.90", share >= 0.90)
    return {
        "kills": kills,
        "steps_per_s": {name: round(rate, 1) for name, rate in made.items()},
        "goodput": round(share, 3),
        "failed": laws.failed,
    }
