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
from quarl.processes.child import Fault
from quarl.rows import Column, Row

SILENCE_S, LONGEST_S = 60.0, 3600.0
"""Seconds in which repeats of a fault are only counted, the first time; doubled each time up to the second number."""
WRITE_S = 1.0
"""Seconds between two writes of the file."""
NUMBERS = re.compile(r"\w*\d\w*")
"""Words that may differ between two errors of the same kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRow(Row):
    """A fault of a run, or its repeats; a line of faults.jsonl in the run's folder."""

    command = "actorq faults"
    time: Annotated[str, Column("time")]
    """Local time."""
    timesteps: Annotated[int, Column("steps", "{:,}".format)]
    """Environment steps in replay."""
    clock_s: Annotated[float, Column("training seconds", "{:,.1f}".format)]
    who: Annotated[str, Column("process")]
    """The process, environment or machine."""
    event: Annotated[str, Column("fault")]
    reason: Annotated[str, Column("reason")]
    count: Annotated[int, Column("times", "{:,}".format)]
    """Number of faults; those after the first are counted together."""


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
        self.lines: set[str] = set()
        """Lines that were printed."""
        self._told: dict[tuple[str, str, str], _Told] = {}
        self._files, self._written, self._changed, self._rollbacks = Dispensable(say), 0.0, False, 0

    def total(self, who: str, event: str) -> int:
        """Return the number of faults over all starts, by the beginnings of `who` and `event`."""
        return sum(row["count"] for row in self.rows if row["who"].startswith(who) and row["event"].startswith(event))

    def tell(self, fault: Fault) -> None:
        """Print a new fault, and count a known one."""
        self._changed = True
        key = fault.who, fault.event, NUMBERS.sub("", fault.reason)
        if (known := self._told.get(key)) is None:
            for (who, _, _), other in self._told.items():
                if who == fault.who:
                    self._tell_repeats(other)
            self._told[key] = _Told(time.monotonic())
            self._print(str(fault))
            self.record(fault)
        else:
            known.row = known.row or self.record(replace(fault, count=0))
            known.row["count"] += fault.count
            known.row["reason"] = fault.reason

    def record(self, fault: Fault) -> dict[str, Any]:
        """Count a fault that another line tells, and return its row."""
        row = FaultRow(
            time=time.strftime("%F %T"),
            timesteps=int(self._learner[Learner.TIMESTEPS]),
            clock_s=float(self._learner[Learner.CLOCK_S]),
            who=fault.who,
            event=fault.event,
            reason=fault.reason,
            count=fault.count,
        )
        self.rows.append(asdict(row))
        self._changed = True
        return self.rows[-1]

    def look(self, *, last: bool = False) -> None:
        """Tell repeats that are due, and write the file; at the end of the run all are due."""
        # The learner itself tells what diverged.
        if rollbacks := int(self._learner[Learner.ROLLBACKS]) - self._rollbacks:
            self._rollbacks += rollbacks
            reason, event = "a loss or a weight was not finite", "returned to the weights of its last checkpoint"
            self.record(Fault(who="learner", event=event, reason=reason, then="", count=rollbacks))
        # Double the silence of those that come again, and forget the others.
        now = time.monotonic()
        for key, known in list(self._told.items()):
            if last or now >= known.since + known.silence_s:
                if known.row is None:
                    del self._told[key]
                else:
                    self._tell_repeats(known)
                    known.silence_s = min(2 * known.silence_s, LONGEST_S)
        if self._changed and (last or now >= self._written + WRITE_S):
            self._changed, self._written = False, now
            self._files.write(lambda: write_rows(self._path, self.rows))

    def _tell_repeats(self, known: _Told) -> None:
        if known.row is not None:
            row, now = known.row, time.monotonic()
            times = counted(row["count"], "more time")
            self._print(f"{row['who']} {row['event']} {times} in {now - known.since:.0f} s ({row['reason']})")
            known.since, known.row = now, None

    def _print(self, line: str) -> None:
        self.lines.add(line)
        self._say(line)
