"""Environments that fail, a learner that is slow, signals; what comes of it goes into a row of the campaign."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

from quarl.actorq.learner import AT_ONCE
from quarl.actorq.supervisor import RING_ROWS
from quarl.runs import checkpoint
from stress.chaos.env import STEP
from stress.chaos.run import SMALL, Laws, Row, Run, resident_mb


def crash_loop(folder: Path) -> Row:
    """Row 2: one actor of two can never make a step; then both leave in every episode."""
    laws = Laws()
    with Run(folder / "one", "--actors", "2", "-n", "8000", chaos={"raises": ["actor 0"], "step_s": 0.002}) as run:
        code, text = run.finish(), run.text()
        laws.hold("the other actor finishes the run", code == 0)
        laws.hold("it is parked once", text.count("actor 0 died 5 times") == text.count("parked") == 1)
        laws.hold("no traceback on the terminal, all in the log", "Traceback" not in text)
        laws.hold(
            "told", run.told("actor 0", "died 5 times in 60 s of work", "RuntimeError: the simulation broke down")
        )
        deaths = (run.output / "actor-0.log").read_text().count("Traceback")
    with Run(folder / "all", "--actors", "2", "-n", "3000", chaos={"exits": ["actor 0", "actor 1"]}) as run:
        few, text = run.finish(), run.text()
        laws.hold("rc 4 with too few actors", few == 4)
        laws.hold("no traceback on the terminal", "Traceback" not in text)
    return {"deaths_until_parked": deaths, "rc_with_one_left": code, "rc_with_none_left": few, "failed": laws.failed}


def environments_raise(folder: Path, *, steps: int, chance: float = 0.01) -> Row:
    """Row 10: an environment that raises at one step in a hundred."""
    laws = Laws()
    words = ("--actors", "2", "-n", str(steps), "--save-replay-buffer")
    with Run(folder, *words, chaos={"raise_p": chance}) as run:
        code = run.finish(300)
        last = run.rows()[-1]
        raised = len(list(run.counts.glob("raised*")))
        laws.hold("every error is counted", run.faults("environment", "raised") == raised)
        laws.hold("told", run.told("environment of actor 0", "raised", "RuntimeError: the simulation broke down"))
    found = links(run.output)
    errors, dropped = (sum(actor[name] for actor in last["actors"]) for name in ("errors", "dropped"))
    laws.hold("rc 0", code == 0)
    laws.hold("no link across a gap", found["links_across"] == 0)
    laws.hold("no transition across a gap", found["transitions_across"] == 0)
    laws.hold("errors and dropped steps are counted", errors > chance * steps / 2 and dropped > errors)
    laws.hold("every error is a gap", last["learner"]["gaps"] <= errors)
    counts = {"errors": errors, "dropped_steps": dropped, "gaps": last["learner"]["gaps"]}
    return {"steps": steps, **counts, **found, "failed": laws.failed}


def links(output: Path) -> Row:
    """Links and transitions of the replay in the newest checkpoint, and those whose ends do not belong together."""
    arrays = checkpoint.load_latest(output).arrays
    before, after, successor = (arrays[f"replay/{name}"] for name in ("observation", "next_observation", "successor"))
    linked = np.flatnonzero(successor >= 0)
    torn = (after[linked] != before[successor[linked]]).any(axis=1)
    foreign = (before[:, 0] != after[:, 0]) | (after[:, 1] != before[:, 1] + np.float32(STEP))
    return {
        "rows": len(before),
        "environments": len(np.unique(before[:, 0])),
        "links": len(linked),
        "links_across": int(torn.sum()),
        "transitions_across": int(foreign.sum()),
    }


def hang_and_slow(folder: Path, *, seconds: float, timeout: float = 3.0) -> Row:
    """Rows 11 and 13, against a run without faults; environments sleep, so that cores do not decide."""
    laws = Laws()
    chaos: dict[str, dict[str, Any]] = {
        "none": {},
        "hang": {"hangs": {"actor 1": 200}},
        "slow": {"slow": {"actor 3": 0.2}},
    }
    rates: dict[str, dict[str, float]] = {}
    for name, more in chaos.items():
        words = ("--actors", "4", "-n", str(int(200 * seconds)), "--env-timeout", str(timeout))
        with Run(folder / name, *words, chaos={"step_s": 0.02, **more}) as run:
            code = run.finish(300)
            laws.hold(f"{name}: rc 0", code == 0)
            rates[name] = {}
            for i in range(4):
                found = sorted(run.counted(f"actor {i}"), key=lambda one: one[2])
                spans = [(steps - 1) / (last - first) for _, steps, first, last in found if steps > 1]
                rates[name][f"actor {i}"] = spans[-1]
                if name == "hang" and i == 1:
                    laws.hold("hang: one successor", len(found) == 2)
                    recovered = found[-1][2] - found[0][3]
            if name == "hang":
                laws.hold("hang: it is told", run.told("actor 1", "died", "no step for 3 s"))
    others = min(rates["hang"][f"actor {i}"] / rates["none"][f"actor {i}"] for i in (0, 2, 3))
    share = sum(rates["slow"].values()) / sum(rates["none"].values())
    laws.hold("recovered within timeout + 2 s", recovered <= timeout + 2)
    laws.hold("the others keep 95 % of their rate", others >= 0.95)
    laws.hold("one slow actor costs its own share", share >= 0.95 * 3.1 / 4)
    return {
        "env_timeout_s": timeout,
        "recovered_s": round(recovered, 2),
        "rate_of_the_others": round(others, 3),
        "rate_with_a_slow_actor": round(share, 3),
        "least_wanted": round(0.95 * 3.1 / 4, 3),
        "failed": laws.failed,
    }


def slow_learner(folder: Path, *, seconds: float) -> Row:
    """Row 14: actors without any limit but their rings, and a learner that trains a large network on large batches."""
    laws = Laws()
    words = "--actors 2 -n 100000000 --updates 10000 --samples-per-insert 8 --error-buffer 1e9 --net-arch 512,512"
    small = ("--params", *SMALL, "buffer_size:5000", "batch_size:4096")
    with Run(folder, *words.split(), *small) as run:
        run.ready()
        run.until(lambda: min(actor["wait_s"] for actor in run.rows()[-1]["actors"]) > 5)
        first, pids = run.rows()[-1], [run.process.pid, *run.children().values()]
        memory = [resident_mb(pids)]
        while len(memory) <= seconds:
            time.sleep(1)
            memory.append(resident_mb(pids))
        last = run.rows()[-1]
        waiting = sum(actor["steps"] for actor in last["actors"]) - last["timesteps"]
        waits = [b["wait_s"] - a["wait_s"] for a, b in zip(first["actors"], last["actors"], strict=True)]
        third = len(memory) // 3  # medians: the temporaries of a batch come and go
        growth = float(np.median(memory[-third:]) - np.median(memory[:third]))
        # what the learner has taken in before its update is shown after it
        laws.hold("rings bound what waits", 0 < waiting <= 2 * RING_ROWS + AT_ONCE)
        laws.hold("actors wait, and it is counted", min(waits) > seconds / 4)
        laws.hold("training goes on", last["updates"] > first["updates"])
        laws.hold("memory grows by less than 50 MB", growth < 50)
    return {
        "watched_s": seconds,
        "segments_waiting": waiting,
        "actors_waited_s": [round(wait, 1) for wait in waits],
        "updates": last["updates"] - first["updates"],
        "resident_mb": [round(min(memory), 1), round(max(memory), 1)],
        "growth_mb": round(growth, 1),
        "failed": laws.failed,
    }


def signals(folder: Path, numbers: tuple[signal.Signals, ...]) -> Row:
    """Row 18: a signal to all processes as a terminal sends it; a second one; a killed supervisor."""
    laws = Laws()
    found: Row = {}
    for number in numbers:
        with Run(folder / number.name, "--actors", "2", "-n", "200000", chaos={"step_s": 0.002}) as run:
            run.ready()
            start = time.monotonic()
            os.killpg(run.process.pid, number)
            code, seconds = run.finish(30), time.monotonic() - start
            orphans, last = run.orphans(1.0), run.rows()[-1]
            saved = checkpoint.load_latest(run.output).updates
            text = run.text()
            laws.hold(f"{number.name}: exit code", code == 128 + number)
            laws.hold(f"{number.name}: within 5 s", seconds <= 5)
            laws.hold(f"{number.name}: a checkpoint of the last update", saved == last["updates"] > 0)
            laws.hold(f"{number.name}: no orphan, no shared memory", not orphans and not run.shared_files())
            laws.hold(f"{number.name}: how to go on, no traceback", "--resume" in text and "Traceback" not in text)
            found[number.name] = {"rc": code, "seconds": round(seconds, 2), "orphans": orphans}
    chaos = {"step_s": 0.002, "hangs": {"actor 0": 20}}  # it would not leave by itself
    with Run(folder / "twice", "--actors", "2", "-n", "200000", chaos=chaos) as run:
        run.ready()
        os.killpg(run.process.pid, signal.SIGINT)
        time.sleep(0.3)
        start = time.monotonic()
        os.killpg(run.process.pid, signal.SIGINT)
        code, seconds = run.finish(30), time.monotonic() - start
        orphans = run.orphans(1.0)
        laws.hold("a second signal: at once", code == 130 and seconds <= 1)
        laws.hold("a second signal: no orphan, no shared memory", not orphans and not run.shared_files())
        found["a second SIGINT"] = {"rc": code, "seconds": round(seconds, 2), "orphans": orphans}
    with Run(folder / "killed", "--actors", "2", "-n", "200000", chaos=chaos) as run:
        before = run.ready()
        run.process.kill()
        start = time.monotonic()
        orphans = run.orphans(2.0)
        seconds = time.monotonic() - start
        saved = checkpoint.load_latest(run.output).updates if before else 0
        laws.hold("a killed supervisor: everyone leaves within 2 s", not orphans)
        laws.hold(
            "a killed supervisor: the learner saves, and removes the memory", saved > 0 and not run.shared_files()
        )
        found["SIGKILL of the supervisor"] = {"orphans": orphans, "seconds": round(seconds, 2), "saved_updates": saved}
    return found | {"failed": laws.failed}
