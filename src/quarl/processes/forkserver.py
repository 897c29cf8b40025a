"""The fork server: a process that has imported all that jobs need, from which workers are forked in milliseconds.

Like Python's own, but what it imports is made quiet first. A worker makes once what many jobs need, and forks a process
for each job: a job costs a fork, not the seconds of imports, and its crash, its memory and its end are its own.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
from collections.abc import Callable
from functools import partial
from multiprocessing import reduction
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, Protocol

from quarl.processes.child import kill_group
from quarl.processes.inside import Result, attempt, settle

READY = ""
"""Key of a worker's first word: what came of making what its jobs need."""


class Held(Protocol):
    """What a worker makes once and holds for its jobs."""

    def prepare(self, job: Any) -> None:
        """Makes in the worker what the job would make, where those after it find it too."""

    def run(self, job: Any) -> Any:
        """The job's result, in a process of its own."""


def fork(work: Callable[[], None]) -> int:
    """A new process, in a group of its own, that does `work` and nothing of what follows the call here."""
    parent = os.getpid()
    process = os.fork()
    if process:
        with contextlib.suppress(OSError):  # both do it: neither may be late
            os.setpgid(process, process)
        return process
    code = 1
    try:
        settle(parent, apart=True)
        work()
        code = 0
    finally:
        os._exit(code)


def serve(load: Callable[[], None], link: Connection) -> None:
    """The server's main. load: imports what workers and jobs need.

    It is sent what makes a worker's Held, then that worker's link, and says the worker's process. The worker says
    (key, message) on its link: READY and a Result; then of each job that it is sent as (key, job), its process, and its
    Result. It ends when the link is closed.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a worker ended: its link says it
    load()
    gc.collect()
    gc.freeze()  # a worker has only what is its own to go through
    while True:
        try:
            make = link.recv()
            handle = reduction.recv_handle(link)
        except (EOFError, OSError):
            return
        process = fork(partial(_work, link, handle, make))
        os.close(handle)
        link.send(process)


def _work(server: Connection, handle: int, make: Callable[[], Held]) -> None:
    """A worker's main: makes what its jobs need, then does those that it is sent until its link is closed."""
    server.close()
    link = Connection(handle)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    result = attempt(make)
    held: Held = result.value
    link.send((READY, Result(error=result.error)))
    if result.error:
        return
    # What is here stays here: its pages are shared with every job as long as nobody touches them.
    gc.collect()
    gc.freeze()
    running: dict[Connection, tuple[str, int]] = {}
    leaving: set[int] = set()
    while True:
        for source in wait([link, *running]):
            assert isinstance(source, Connection)
            if source in running:
                key, process = running.pop(source)
                word = _last_word(source)
                if word is None:
                    word = Result.of_exit(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
                else:  # letting go of its memory takes it milliseconds, in which the next may begin
                    leaving.add(process)
                link.send((key, word))
                leaving = {process for process in leaving if not os.waitpid(process, os.WNOHANG)[0]}
                continue
            try:
                key, job = link.recv()
            except (EOFError, OSError):
                for _, process in running.values():
                    kill_group(process)
                return
            with contextlib.suppress(Exception):  # which the job then meets in a process of its own
                held.prepare(job)
            source, sink = Pipe(duplex=False)
            process = fork(partial(_do, link, source, sink, partial(held.run, job)))
            sink.close()
            running[source] = key, process
            link.send((key, process))


def _do(link: Connection, source: Connection, sink: Connection, work: Callable[[], Any]) -> None:
    """A job's main."""
    link.close()
    source.close()
    sink.send(attempt(work))


def _last_word(source: Connection) -> Result | None:
    """What a job's process sends before it ends, if it comes to that."""
    with contextlib.closing(source), contextlib.suppress(EOFError, OSError):
        result: Result = source.recv()
        return result
    return None
