"""Work in a process of its own, begun and heard of by a crew."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from quarl.experiments.processes import Outcome, attempt, end_with, ended, kill_group, print_to, settle
from quarl.processes.leaving import leave

EXIT_S = 2.0
"""For a process to exit after its last word."""


class Alone:
    """Work in a process of its own, begun at once."""

    def __init__(self, name: str, work: Callable[[], Any], life: Connection, log: Path) -> None:
        """life: the readable end of a pipe whose other end closes with this process. log: what the work prints."""
        context = multiprocessing.get_context("spawn")
        self.source, sink = context.Pipe(duplex=False)
        arguments = (work, sink, life, log, os.getpid())
        self.process: BaseProcess = context.Process(target=_alone, args=arguments, name=f"quarl-{name}")
        self.process.start()
        self.group = self.process.pid or 0
        sink.close()

    def hear(self) -> Outcome:
        """Waits for what came of it; nothing of it is left then."""
        outcome: Outcome | None = None
        with contextlib.suppress(EOFError, OSError):
            outcome = self.source.recv()
        self.source.close()
        self.process.join(EXIT_S)
        self.end()
        self.process.join()
        return outcome or Outcome(None, ended(self.process.exitcode or 0))

    def end(self) -> None:
        """Ends it and its children at once."""
        kill_group(self.group)
        self.process.kill()  # it may not have its group yet


def _alone(work: Callable[[], Any], sink: Connection, life: Connection, log: Path, parent: int) -> None:
    """The process's main."""
    settle(parent)
    print_to(log)
    end_with(life)
    sink.send(attempt(work))
    leave(0, print)
