"""A run of `quarl actorq` as a user starts it, seen from outside: its processes, its metrics, what it says, its end."""

from __future__ import annotations

import contextlib
import html
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from quarl.actorq.shared_memory import PREFIX
from stress.chaos.env import COUNTS

Row = dict[str, Any]
"""With `failed`: the laws that did not hold, in words."""
ENV = "stress.chaos.env:Chaos-v0"
SMALL = ("learning_starts:200", "buffer_size:20000", "batch_size:32", "train_freq:4", "target_update_interval:500")
TESTS = Path(__file__).resolve().parents[2]
PATIENCE_S = 600.0
"""For anything to happen, on a machine with other things to do; what has to be faster than that says so."""


class Laws:
    """What has to hold, and what did not."""

    def __init__(self) -> None:
        self.failed: list[str] = []

    def hold(self, law: str, holds: bool) -> None:
        if not holds:
            self.failed.append(law)


class Run:
    """One start of the command, in a process group of its own; leaving the block kills what is left of it."""

    def __init__(
        self,
        folder: Path,
        *words: str,
        chaos: dict[str, Any] | None = None,
        env: str = ENV,
        variables: dict[str, str] | None = None,
    ) -> None:
        self.output, self.log = folder / "run", folder / "log.txt"
        self.counts = folder / f"counts-{len(list(folder.glob('counts-*')))}"
        self.counts.mkdir(parents=True)
        self._skip = 0
        self._skip = len(self.rows())
        command = Path(sys.executable).with_name("quarl")
        options = f"--algo dqn --env {env} --eval-freq 0 --net-arch 32,32 --preset none".split()
        path = os.pathsep.join([str(TESTS), str(TESTS.parent / "src"), os.environ.get("PYTHONPATH", "")])
        settings = json.dumps({"folder": str(self.counts), **(chaos or {})})
        self._file = self.log.open("wb")
        self.process = subprocess.Popen(
            [str(command), "actorq", *options, "-o", str(self.output), "--params", *SMALL, *words],
            stdout=self._file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": path, "QUARL_CHAOS": settings, **(variables or {})},
            start_new_session=True,
        )

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()
        for pid in (self.process.pid, *self.members()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def ready(self) -> Run:
        """Returns when training has begun: the learner has taken steps in."""
        self.until(lambda: bool(found := self.rows()) and found[-1]["timesteps"] > found[0]["timesteps"])
        return self

    def until(self, condition: Callable[[], bool], timeout: float = PATIENCE_S) -> float:
        """Seconds until it holds; an error with the run's output where it does not, or where the run ends before."""
        start = time.monotonic()
        while not condition():
            if self.process.poll() is not None or time.monotonic() - start > timeout:
                raise AssertionError(
                    f"after {time.monotonic() - start:.1f} s (rc {self.process.poll()}): {self.text()}"
                )
            time.sleep(0.01)
        return time.monotonic() - start

    def finish(self, timeout: float = PATIENCE_S) -> int:
        """The exit code, when the run has ended."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it went on for {timeout:g} s: {self.text()}") from None

    def text(self) -> str:
        """Everything that it printed."""
        return self.log.read_text()

    def told(self, who: str, event: str, reason: str) -> bool:
        """Whether a line and the page's table tell of the fault."""
        page = html.unescape((self.output / "report.html").read_text())
        cells = re.escape(who), re.escape(event), re.escape(reason)
        in_table = re.search("".join(rf"<td[^>]*>{cell}[^<]*</td>\s*" for cell in cells), page)
        line = re.search(rf"quarl: {cells[0]}.* {cells[1]}( \d+ times)? \({cells[2]}", self.text())
        return line is not None and in_table is not None

    def faults(self, who: str, event: str = "died") -> int:
        """How many faults of that kind all starts of the run have counted."""
        lines = (self.output / "faults.jsonl").read_text().splitlines()
        found = [json.loads(line) for line in lines]
        return sum(row["count"] for row in found if row["who"].startswith(who) and row["event"].startswith(event))

    def rows(self) -> list[dict[str, Any]]:
        """Metrics of this start."""
        path = self.output / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")][self._skip :]

    def pid(self, name: str) -> int | None:
        """Of the child of that name, as `ps` shows it, while it lives."""
        wanted = (f"quarl-{name}", self.process.pid)
        return next((pid for pid, found in living().items() if (found.name, found.parent) == wanted), None)

    def children(self) -> dict[str, int]:
        """Process ids of the run's own children by their names."""
        mine = {pid: found.name for pid, found in living().items() if found.parent == self.process.pid}
        found = {name.removeprefix("quarl-"): pid for pid, name in mine.items()}
        return {name: pid for name, pid in found.items() if name.startswith(("actor", "learner", "publisher"))}

    def members(self) -> list[int]:
        """All living processes of the run's session, orphans too."""
        return session(self.process.pid)

    def send(self, name: str, number: int) -> int:
        """Signals a child; its process id."""
        pid = self.pid(name)
        assert pid is not None, f"{name} is not there: {self.text()}"
        os.kill(pid, number)
        return pid

    def workers(self, name: str) -> set[int]:
        """Process ids of all incarnations of an actor that made a step."""
        return {pid for pid, steps, _, _ in self.counted(name.replace("-", " ")) if steps}

    def back(self, name: str, before: set[int], timeout: float = PATIENCE_S) -> float:
        """Seconds until an incarnation that is not among those `before` has made a step."""
        return self.until(lambda: bool(self.workers(name) - before), timeout)

    def lost(self) -> int:
        """Environment steps that were made and not sent."""
        return sum(steps for _, steps, _, _ in self.counted()) - sum(a["steps"] for a in self.rows()[-1]["actors"])

    def orphans(self, within_s: float = PATIENCE_S) -> int:
        """Processes of the ended run that are there after so many seconds."""
        deadline = time.monotonic() + within_s
        while (left := self.members()) and time.monotonic() < deadline:
            time.sleep(0.02)
        return len(left)

    def shared_files(self) -> list[str]:
        """Memory of this run that is left behind."""
        return [path.name for path in Path("/dev/shm").glob(f"{PREFIX}{self.process.pid}-*")]

    def counted(self, name: str = "actor") -> Iterator[tuple[int, int, float, float]]:
        """As `counted`, of this start."""
        return counted(self.counts, name)


def counted(folder: Path, name: str = "actor") -> Iterator[tuple[int, int, float, float]]:
    """(process id, steps, time of the first, time of the last) of every process whose name starts so."""
    for path in folder.glob(f"{name}*[0-9]"):
        data = path.read_bytes()
        if len(data) == COUNTS.size and path.name.count(" ") == 2:
            steps, first, last = COUNTS.unpack(data)
            yield int(path.name.split()[-1]), steps, first * 1e-9, last * 1e-9


def session(leader: int) -> list[int]:
    """All living processes of a session."""
    return [pid for pid, found in living().items() if found.session == leader]


def names(pids: Iterable[int]) -> dict[int, str]:
    """Those that are there, as `ps` shows them."""
    found = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            found[pid] = Path(f"/proc/{pid}/comm").read_text().rstrip()
    return found


class Process(NamedTuple):
    """What /proc says of a process; Z is the state of one that is no more."""

    name: str
    state: str
    parent: int
    session: int


def process(pid: int) -> Process:
    """The process of that number."""
    try:
        name, _, rest = Path(f"/proc/{pid}/stat").read_text(errors="replace").partition("(")[2].rpartition(")")
    except OSError:  # it has ended
        return Process("", "Z", 0, 0)
    state, parent, _, leader = rest.split()[:4]
    return Process(name, state, int(parent), int(leader))


def living() -> dict[int, Process]:
    """All processes that are there and no zombies."""
    found = {int(path.name): process(int(path.name)) for path in Path("/proc").glob("[0-9]*")}
    return {pid: one for pid, one in found.items() if one.state != "Z"}


def below(root: int, name: str = "") -> list[int]:
    """Living processes that descend from this one, whose names begin so, in order of their numbers."""
    everyone, found = living(), {root}
    while more := {pid for pid, one in everyone.items() if one.parent in found} - found:
        found |= more
    return sorted(pid for pid in found - {root} if everyone[pid].name.startswith(name))


def resident_mb(pids: list[int]) -> float:
    """Memory that these processes hold together, pages that they share counted for each."""
    pages = 0
    for pid in pids:
        try:
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except OSError:
            continue
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
