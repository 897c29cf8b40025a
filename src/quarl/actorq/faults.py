"""The faults of a run: told as they come, repeats only counted, and kept in faults.jsonl over all starts of the run."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from quarl.actorq.counters import Learner
from quarl.arrays import Array
from quarl.files import Dispensable, read_rows, write_rows
from quarl.formats import counted
from quarl.processes.child import Child
from quarl.processes.inside import note
from quarl.rows import Column, Row

SILENCE_S, LONGEST_S = 60.0, 3600.0
"""Seconds in which repeats of a fault are only counted, the first time; doubled each time up to the second number."""
NUMBERS = re.compile(r"\w*\d\w*")
"""Words that may differ between two errors of the same kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault(Row):
    """A fault of a run, or its repeats; a line of faults.jsonl in the run's folder."""

    command = "actorq faults"
    time: Annotated[str, Column("time")] = ""
    """Local time."""
    timesteps: Annotated[int, Column("steps", "{:,}".format)] = 0
    """Environment steps in replay."""
    clock_s: Annotated[float, Column("training seconds", "{:,.1f}".format)] = 0.0
    who: Annotated[str, Column("process")]
    """The process, environment or machine."""
    event: Annotated[str, Column("fault")]
    reason: Annotated[str, Column("reason")]
    count: Annotated[int, Column("times", "{:,}".format)] = 1
    """Number of faults; those after the first are counted together."""
    then: str
    """Consequence, and the log."""

    def __str__(self) -> str:
        """Return the line for the user."""
        times = f" {self.count} times" if self.count > 1 else ""
        return f"{self.who} {self.event}{times} ({self.reason}): {self.then}"


def death(child: Child, event: str, then: str = "") -> Fault:
    """Return the death of a child, and write it to the child's log.

    Args:
        child: The child, which is dead.
        event: What `Children.revive` returned.
        then: Consequence if it is not revived.
    """
    reason = child.reason()
    if child.log is not None:
        note(child.log, f"{time.strftime('%F %T')}: {child.name} died ({reason})")
    then = then or ("parked" if child.parked else "restarted")
    return Fault(who=child.name, event=event, reason=reason, then=f"{then}; see {child.log}")


@dataclass
class _Told:
    """A fault that was told, and its repeats since then."""

    since: float
    silence_s: float = SILENCE_S
    row: dict[str, Any] | None = None
    """Row of the repeats; None if there are none."""


class Faults:
    """The faults of one run."""

    def __init__(self, folder: Path, say: Callable[[str], None], learner: Array) -> None:
        """Read the faults of earlier starts.

        Args:
            folder: Folder of the run.
            say: Receives the lines for the user.
            learner: The learner's counters.
        """
        self._path, self._say, self._learner = folder / "faults.jsonl", say, learner
        self.rows = read_rows(self._path, numbers=("clock_s", "count"))
        self._told: dict[tuple[str, str, str], _Told] = {}
        self._files, self._rollbacks, self._written = Dispensable(say), 0, self.total()

    def total(self, who: str = "", event: str = "") -> int:
        """Return the number of faults over all starts, by the beginnings of `who` and `event`."""
        return sum(row["count"] for row in self.rows if row["who"].startswith(who) and row["event"].startswith(event))

    def tell(self, news: str | Fault) -> None:
        """Print a line or a new fault, and count a known one."""
        if isinstance(news, str):
            self._say(news)
            return
        key = news.who, news.event, NUMBERS.sub("", news.reason)
        if (known := self._told.get(key)) is None:
            self._told[key] = _Told(time.monotonic())
            self._say(str(news))
            self.record(news)
        else:
            known.row = known.row or self.record(replace(news, count=0))
            known.row |= {"count": known.row["count"] + news.count, "reason": news.reason}

    def record(self, fault: Fault) -> dict[str, Any]:
        """Count a fault that another line tells, and return its row."""
        steps, clock_s = int(self._learner[Learner.TIMESTEPS]), float(self._learner[Learner.CLOCK_S])
        self.rows.append(asdict(replace(fault, time=time.strftime("%F %T"), timesteps=steps, clock_s=clock_s)))
        return self.rows[-1]

    def look(self, *, last: bool = False) -> None:
        """Tell repeats that are due, and write the file if it has changed; at the end of the run all are due."""
        # The learner itself tells what diverged.
        if rollbacks := int(self._learner[Learner.ROLLBACKS]) - self._rollbacks:
            self._rollbacks += rollbacks
            reason, then = "a loss or a weight was not finite", "weights of its last checkpoint"
            self.record(Fault(who="learner", event="diverged", reason=reason, then=then, count=rollbacks))
        # Double the silence of those that come again, and forget the others.
        now = time.monotonic()
        for key, known in list(self._told.items()):
            if not last and now < known.since + known.silence_s:
                continue
            if (row := known.row) is None:
                del self._told[key]
            else:
                times = counted(row["count"], "more time")
                self._say(f"{row['who']} {row['event']} {times} in {now - known.since:.0f} s ({row['reason']})")
                self._told[key] = _Told(now, min(2 * known.silence_s, LONGEST_S))
        if (number := self.total()) != self._written:
            self._written = number
            self._files.write(lambda: write_rows(self._path, self.rows))
