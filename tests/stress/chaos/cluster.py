"""Faults of a cluster: agents, raylets and machines killed, stopped and slow; what comes of it goes into a row."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from quarl.runs import checkpoint
from stress.chaos.run import PATIENCE_S, TESTS, Laws, Row, Run, counted, names, session
from waiting import until

EACH = 2
"""Actors of a machine."""
ANSWERS_S, ROWS_S, NOTICED_S, LEFT_S = 5.0, 20.0, 30.0, 10.0
"""Allowed until a killed agent's successor answers, until its actors' rows come, until a lost machine is noticed, and
until nothing is left of it once it goes on."""
LOCAL = ("--cluster", "local", "--actors-per-node")
BACK, LOST = "the machine is back", re.compile("machine .* was lost")
AGENT, RAYLET, ACTOR = "ray::NodeAgent", "raylet", "quarl-actor"
STEP = {"step_s": 0.004}


class Raylets:
    """A process of `quarl cluster start` or `join`, in a session of its own with all that it starts."""

    def __init__(self, folder: Path, *words: str, chaos: dict[str, Any]) -> None:
        counts = folder / f"{words[0]}-{len(list(folder.glob('*.log')))}"
        counts.mkdir(parents=True)
        self.counts, self.log = counts, counts.with_suffix(".log")
        command = [str(Path(sys.executable).with_name("quarl")), "cluster", *words, "--token", str(folder / "token")]
        path = os.pathsep.join([str(TESTS), str(TESTS.parent / "src"), os.environ.get("PYTHONPATH", "")])
        settings = {"PYTHONPATH": path, "QUARL_CHAOS": json.dumps({"folder": str(counts), **chaos})}
        with self.log.open("wb") as file:
            self.process = subprocess.Popen(
                [*command, "--cpus", "4"],
                stdout=file,
                stderr=file,
                env={**os.environ, **settings},
                start_new_session=True,
            )
        until(self._ready)

    def _ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        return "Ctrl-C" in self.log.read_text()

    def send(self, number: int, name: str = "") -> list[int]:
        """Signals all its processes whose names begin so; their ids."""
        pids = [pid for pid, found in names(session(self.process.pid)).items() if found.startswith(name)]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return pids

    def close(self) -> None:
        """Ctrl-C, and SIGKILL for what does not hear it; nothing of it is left."""
        self.send(signal.SIGCONT)
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(LEFT_S)
        while self.send(signal.SIGKILL):
            time.sleep(0.05)
        self.process.wait()


class Cluster:
    """Two machines that are processes of this one: the learner's, and one that joins; leaving the block ends them."""

    def __init__(self, folder: Path, **chaos: Any) -> None:
        """chaos: of the second machine's environments, beside what the first one's do."""
        self.folder, self.chaos = folder, {**STEP, **chaos}
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.counts: list[Path] = []
        self._before = set(os.listdir("/dev/shm"))

    def __enter__(self) -> Cluster:
        self.head = Raylets(self.folder, "start", "--port", self.address.partition(":")[2], chaos=STEP)
        self.counts.append(self.head.counts)
        self.join()
        return self

    def join(self) -> None:
        """A second machine."""
        self.second = Raylets(self.folder, "join", self.address, chaos=self.chaos)
        self.counts.append(self.second.counts)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.second.close()
        self.head.close()

    def run(self, *words: str) -> Run:
        """A run on both."""
        token = {"RAY_AUTH_TOKEN_PATH": str(self.folder / "token")}
        on = ("--cluster", self.address, "--actors-per-node", str(EACH))
        return Run(self.folder / "of-run", *on, *words, chaos=STEP, variables=token)

    def left(self) -> set[str]:
        """Shared memory that was not there before, once all has ended."""
        return set(os.listdir("/dev/shm")) - self._before


def agents_killed(folder: Path, rng: random.Random, *, kills: int, every_s: float = 3.0, each: int = EACH) -> Row:
    """SIGKILL of the process that stands for a machine; Ray makes another one, whose actors begin anew."""
    laws, answers, new_rows = Laws(), [], []
    with Run(folder, *LOCAL, str(each), "-n", "1000000", chaos=STEP) as run:
        at_work(run)
        actor = next(pid for pid, name in names(run.members()).items() if name.startswith(ACTOR))
        os.kill(actor, signal.SIGKILL)
        run.until(lambda: " died (killed by SIGKILL): restarted" in run.text())
        for number in range(kills):
            time.sleep(rng.uniform(0, every_s))
            agents = [pid for pid, name in names(run.members()).items() if name.startswith(AGENT)]
            begun = begins(run)
            os.kill(rng.choice(agents), signal.SIGKILL)
            answers.append(round(run.until(lambda number=number: run.text().count(BACK) > number), 2))
            new_rows.append(round(answers[-1] + run.until(lambda begun=begun: has_begun(run, begun)), 2))
        found = ended(run, laws, run.counts)
        laws.hold("every kill is counted", (run.faults("actor "), run.faults("machine", "was lost")) == (1, kills))
        laws.hold("over its agents, too", sum(actor["deaths"] for actor in run.rows()[-1]["actors"]) == 1)
        laws.hold("told", run.told("machine ", "was lost", "Actor"))
    laws.hold(f"the agent answers within {ANSWERS_S:g} s", max(answers) <= ANSWERS_S)
    laws.hold(f"its actors' rows come within {ROWS_S:g} s", max(new_rows) <= ROWS_S)
    laws.hold("one agent a kill began anew", found["begins"] == 2 + kills)
    return {"kills": kills, "answers_s": answers, "rows_s": new_rows, **found, "failed": laws.failed}


def raylets_killed(folder: Path, rng: random.Random, *, kills: int) -> Row:
    """SIGKILL of the second machine's raylet, with which all of it goes; another one joins."""
    laws, noticed, new_rows = Laws(), [], []
    with Cluster(folder) as cluster, cluster.run("-n", "1000000") as run:
        at_work(run)
        for number in range(kills):
            time.sleep(rng.uniform(0, 2))
            begun, said, lost = begins(run), len(LOST.findall(run.text())), cluster.second
            lost.send(signal.SIGKILL, RAYLET)
            noticed.append(round(run.until(lambda said=said: len(LOST.findall(run.text())) > said), 2))
            laws.hold("the other machine goes on", grows(run, 0) or grows(run, 1))
            lost.close()
            cluster.join()
            run.until(lambda number=number: run.text().count(BACK) > number)
            new_rows.append(round(run.until(lambda begun=begun: has_begun(run, begun)), 2))
        found = ended(run, laws, *cluster.counts)
    laws.hold(f"it is noticed within {NOTICED_S:g} s", max(noticed) <= NOTICED_S)
    laws.hold("nothing is left in shared memory", not cluster.left())
    return {"kills": kills, "noticed_s": noticed, "rows_s": new_rows, **found, "failed": laws.failed}


def learner_killed(folder: Path, *, steps: int = 2000) -> Row:
    """SIGKILL of the learner, which ends the run, and `--resume` on new raylets."""
    laws, words = Laws(), ("--save-replay-buffer", "--save-freq", "200")
    with Run(folder, *LOCAL, str(EACH), *words, "-n", "1000000", chaos=STEP) as run:
        at_work(run)
        run.send("learner", signal.SIGKILL)
        laws.hold("rc 1 and how to go on", run.finish() == 1 and "resume with --resume" in run.text())
        laws.hold("no orphan", not run.orphans())
        before, saved = run.rows()[-1], checkpoint.load_latest(run.output).facts["counters"]["num_timesteps"]
    with Run(folder, *words, "--resume", "-n", str(saved + steps), chaos=STEP) as run:
        code, rows = run.finish(), run.rows()
        laws.hold("no orphan of the second start", not run.orphans())
    last = rows[-1]
    laws.hold("the second start finishes", code == 0 and last["timesteps"] == saved + steps)
    laws.hold("steps go on", rows[0]["timesteps"] >= saved)
    laws.hold("versions go on", rows[0]["version"] > before["version"] and go_on(rows))
    laws.hold("0 duplicates", last["learner"]["duplicates"] == 0)
    laws.hold("nothing is left in shared memory", not run.shared_files())
    found = {"saved": saved, "timesteps": last["timesteps"], "duplicates": last["learner"]["duplicates"]}
    return {**found, "failed": laws.failed}


def slow_machine(folder: Path, *, seconds: float, times: int = 10) -> Row:
    """A machine whose environments are many times slower, against one that is as fast as the other."""
    laws, rates = Laws(), {}
    for name, slower in (("even", 1), ("slow", times)):
        with Cluster(folder / name, step_s=slower * STEP["step_s"]) as cluster, cluster.run("-n", "1000000") as run:
            at_work(run)
            first = run.rows()[-1]
            run.until(lambda run=run, first=first: run.rows()[-1]["wall_s"] > first["wall_s"] + seconds)
            last = run.rows()[-1]
            pairs = zip(first["machines"], last["machines"], strict=True)
            span = last["wall_s"] - first["wall_s"]
            rates[name] = sorted(round((after["rows"] - before["rows"]) / span, 1) for before, after in pairs)
            found = ended(run, laws, *cluster.counts)
        laws.hold("nothing is left in shared memory", not cluster.left())
    share = sum(rates["slow"]) / sum(rates["even"])
    least = 0.95 * (1 + 1 / times) / 2
    laws.hold("a slow machine costs its own share", share >= least)
    shown = {"rows_per_s": rates, "share": round(share, 3), "least_wanted": round(least, 3)}
    return {"times_slower": times, **shown, **found, "failed": laws.failed}


def machine_stopped(folder: Path, *, short_s: float, long_s: float) -> Row:
    """SIGSTOP for all of the second machine: it goes on after a short while, and is another one after a long one."""
    laws = Laws()
    with Cluster(folder) as cluster, cluster.run("-n", "1000000") as run:
        at_work(run)
        begun = begins(run)
        cluster.second.send(signal.SIGSTOP)
        time.sleep(short_s)
        cluster.second.send(signal.SIGCONT)
        run.until(lambda: grows(run, 0) and grows(run, 1))
        laws.hold("after a short stop the same agent goes on", begins(run) == begun)
        stopped = cluster.second
        stopped.send(signal.SIGSTOP)
        time.sleep(long_s)
        laws.hold("a long one is said", LOST.search(run.text()) is not None)
        actors = stopped.send(signal.SIGCONT, ACTOR)
        stopped.send(signal.SIGCONT)
        start = time.monotonic()
        while set(actors) & set(session(stopped.process.pid)) and time.monotonic() < start + PATIENCE_S:
            time.sleep(0.02)
        left_s = time.monotonic() - start
        stopped.close()
        cluster.join()
        back_s = run.until(lambda: has_begun(run, begun))
        found = ended(run, laws, *cluster.counts)
    laws.hold("its old actors leave", actors and left_s <= LEFT_S)
    laws.hold("one agent began anew", found["begins"] == 3)
    laws.hold("nothing is left in shared memory", not cluster.left())
    times = {"stopped_s": [short_s, long_s], "old_actors_left_s": round(left_s, 2), "rows_s": round(back_s, 2)}
    return {**times, **found, "failed": laws.failed}


def at_work(run: Run) -> None:
    """Returns when the learner trains and rows have come from every machine."""
    run.ready().until(lambda: all(machine["rows"] for machine in run.rows()[-1]["machines"]))


def begins(run: Run) -> list[int]:
    """How often each machine's agent has begun."""
    return [machine["begun"] for machine in run.rows()[-1]["machines"]]


def has_begun(run: Run, before: list[int]) -> bool:
    """Whether a machine has begun once more than before, and rows have come from it since."""
    later = [row["machines"] for row in run.rows() if [machine["begun"] for machine in row["machines"]] != before]
    if not later:
        return False
    triples = zip(later[0], later[-1], before, strict=True)
    return any(last["begun"] > begun and last["rows"] > first["rows"] for first, last, begun in triples)


def grows(run: Run, place: int) -> bool:
    """Whether rows come from that machine: between the last two rows of metrics."""
    before, last = (row["machines"][place]["rows"] for row in run.rows()[-2:])
    return bool(last > before)


def go_on(rows: list[dict[str, Any]]) -> bool:
    """Whether no version goes backwards: the learner's, each machine's, and that of each actor's incarnations."""
    streams = [[row["version"] for row in rows]]
    for group, life in (("machines", "begun"), ("actors", "incarnation")):
        for many in zip(*(row[group] for row in rows), strict=True):
            streams.append([(one[life], one["version"]) for one in many if one["version"]])  # 0: it has none yet
    return all(stream == sorted(stream) for stream in streams)


def ended(run: Run, laws: Laws, *folders: Path) -> Row:
    """Ends the run by Ctrl-C, holds it to what holds of every one, and says what it counted."""
    os.kill(run.process.pid, signal.SIGINT)
    laws.hold("Ctrl-C ends it", run.finish() == 130)
    laws.hold("no orphan", not run.orphans())
    laws.hold("nothing is left in shared memory", not run.shared_files())
    rows = run.rows()
    last, learner = rows[-1], rows[-1]["learner"]
    made = sum(steps for folder in folders for _, steps, _, _ in counted(folder))
    lost = made - sum(actor["steps"] for actor in last["actors"])
    laws.hold("0 duplicates", learner["duplicates"] == 0)
    laws.hold("versions never go backwards", go_on(rows))
    laws.hold("no step came that was not made", lost >= 0)
    laws.hold("no traceback on the terminal", "Traceback" not in run.text())
    counts = {
        "timesteps": last["timesteps"],
        "lost": lost,
        "gaps": learner["gaps"],
        "duplicates": learner["duplicates"],
    }
    return {**counts, "begins": sum(machine["begun"] for machine in last["machines"])}
