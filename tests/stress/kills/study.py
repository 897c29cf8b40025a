"""A study that is killed at random moments inside its cells and resumed, against one that nobody disturbs.

python -m stress.kills.study [--kills 20]

The study trains an agent, plays it in float32 and quantised, and trains another for a precision; each cell takes 20
seconds and more. Half of the kills hit the whole process group, as a terminal or a scheduler does, half the runner
alone. Each comes at a random moment of a cell that is running, the cells taking turns. In the end all rows have to be
those of the undisturbed study in everything but time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from results import RESULTS, write
from stress.chaos.run import session

ROOT = Path(__file__).resolve().parents[3]
STUDY = """\
name: kills
episodes: {episodes}
policies:
  - {{algo: a2c, env: CartPole-v1, source: train, n_timesteps: {n_timesteps}}}
methods:
  - {{method: fp32}}
  - {{method: ptq, precision: [8, 4]}}
  - {{method: qat, precision: w4a8}}
"""
NUM_CELLS = 5
"""The training included."""
ALONE_S = 5.0
"""For the processes of a runner that was killed to end by themselves."""
START_S = 120.0
"""For a run to reach its next cell, beside the time of the cells before."""
Found = dict[str, dict[str, Any]]
"""State, seconds and result of each cell by its key."""


class Run:
    """One start of the command in a session of its own."""

    def __init__(self, study: Path, folder: Path) -> None:
        self.folder, self.rows = folder, folder.with_suffix(".json")
        code = "import sys; from quarl.cli import main; sys.exit(main(sys.argv[1:]))"
        words = ["study", "run", str(study), "-o", str(folder), "--json", str(self.rows)]
        path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *words],
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )

    def members(self) -> list[int]:
        """Processes of the session that are alive: the runner's and, whatever group they are in, all that it began."""
        return session(self.process.pid)

    def kill(self, *, alone: bool) -> float:
        """SIGKILL for the runner, or for its group too; seconds until everything that it began had ended."""
        if alone:
            self.process.kill()
        else:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        began = time.monotonic()
        while self.members() and time.monotonic() < began + ALONE_S:
            time.sleep(0.02)
        return time.monotonic() - began

    def finish(self, timeout: float) -> int:
        return self.process.wait(timeout)


def cells(folder: Path) -> Found:
    """What the study's database holds, in the study's order."""
    if not (folder / "study.sqlite").is_file():
        return {}
    with contextlib.closing(sqlite3.connect(folder / "study.sqlite", timeout=30)) as database:
        try:
            rows = database.execute("SELECT key, state, started, seconds, row FROM cells ORDER BY place").fetchall()
        except sqlite3.OperationalError:  # before its tables are there
            return {}
    names = ("state", "started", "seconds", "row")
    return {key: dict(zip(names, values, strict=True)) for key, *values in rows}


def killed(run: Run, place: int, rng: random.Random, seconds: list[float], *, alone: bool) -> dict[str, Any] | None:
    """Waits until the cell at that place runs, or one after it where it is done, and kills at a random moment of it.

    None where the study is at its end before.
    """
    deadline = time.monotonic() + START_S + 3 * sum(seconds)
    while True:
        states = [cell["state"] for cell in cells(run.folder).values()]
        if "running" in states[place:]:
            place = states.index("running", place)
            break
        if run.process.poll() == 0:
            return None
        if run.process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"neither cell {place} nor one after it comes to run: {states}")
        time.sleep(0.02)
    wait = rng.uniform(0, 0.9 * seconds[place])
    time.sleep(wait)
    before = cells(run.folder)
    inside = list(before.values())[place]["state"] == "running"
    gone_s = run.kill(alone=alone)
    left, after = run.members(), cells(run.folder)
    lost = [key for key, cell in before.items() if cell["state"] == "done" and after.get(key) != cell]
    return {
        "cell": place,
        "after_s": round(wait, 2),
        "inside": inside,
        "alone": alone,
        "gone_s": round(gone_s, 2),
        "left_running": len(left),
        "lost": len(lost),
    }


def measure(folder: Path, *, kills: int, episodes: int, n_timesteps: int, seed: int) -> dict[str, Any]:
    """The undisturbed study, the one that is killed, and what of their rows differs."""
    study = folder / "kills.yml"
    study.write_text(STUDY.format(episodes=episodes, n_timesteps=n_timesteps))
    plain = Run(study, folder / "undisturbed")
    if plain.finish(3600):
        raise SystemExit("the undisturbed study failed")
    undisturbed = cells(plain.folder)
    seconds = [cell["seconds"] for cell in undisturbed.values()]
    rng = random.Random(seed)
    moments: list[dict[str, Any]] = []
    disturbed = [folder / "killed-0"]
    while (inside := sum(moment["inside"] for moment in moments)) < kills:  # a cell may end before its kill comes
        run = Run(study, disturbed[-1])
        moment = killed(run, inside * NUM_CELLS // kills, rng, seconds, alone=bool(len(moments) % 2))
        if moment is None:  # nothing is left to be killed: once more from the beginning
            disturbed.append(folder / f"killed-{len(disturbed)}")
            continue
        moments.append(moment)
        print(json.dumps(moment), flush=True)
    last = [Run(study, one) for one in disturbed]
    code = max(run.finish(3600) for run in last)
    equal = code == 0 and all(_rows(run.rows) == _rows(plain.rows) for run in last)
    results = code == 0 and all(
        [_result(cell) for cell in cells(one).values()] == [_result(cell) for cell in undisturbed.values()]
        for one in disturbed
    )
    return {
        "kills": kills,
        "studies": len(disturbed),
        "inside_a_cell": sum(moment["inside"] for moment in moments),
        "cell_seconds": [round(value, 1) for value in seconds],
        "finished_cells_lost": sum(moment["lost"] for moment in moments),
        "processes_left": sum(moment["left_running"] for moment in moments),
        "slowest_end_s": max(moment["gone_s"] for moment in moments),
        "resumed": kills if code == 0 else 0,
        "rows_equal": equal,
        "returns_equal": results,
        "moments": moments,
    }


def _rows(path: Path) -> list[dict[str, Any]]:
    """The rows without their columns of time."""
    return [
        {key: value for key, value in row.items() if key not in ("seconds", "minutes")}
        for row in json.loads(path.read_text())["rows"]
    ]


def _result(cell: dict[str, Any]) -> dict[str, Any]:
    """Every episode's return and the rest of what the cell found, without minutes."""
    return {key: value for key, value in json.loads(cell["row"] or "{}").items() if key != "minutes"}


def main() -> None:
    parser = argparse.ArgumentParser(description="Kills inside the cells of a study.")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--episodes", type=int, default=4000, help="of a cell: 20 seconds and more")
    parser.add_argument("--n-timesteps", type=int, default=120_000, help="of a training: 20 seconds and more")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="quarl-study-kills-") as folder:
        found = measure(
            Path(folder),
            kills=options.kills,
            episodes=options.episodes,
            n_timesteps=options.n_timesteps,
            seed=options.seed,
        )
    moments = found.pop("moments")
    write("study-kills", "make kills", root=options.out, summary=[found], moments=moments)
    print(json.dumps(found))
    sound = found["rows_equal"] and found["returns_equal"]
    sys.exit(not (sound and not found["finished_cells_lost"] and not found["processes_left"]))


if __name__ == "__main__":
    main()
