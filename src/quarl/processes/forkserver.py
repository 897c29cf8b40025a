"""The fork server: a process that has imported everything jobs need, from which workers are forked in milliseconds.

It works like Python's own, but imports are muted first. A worker prepares once for many jobs, and forks a process for
each. A job therefore costs a fork instead of seconds of imports, and its crash, memory and end are its own.
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
"""Key of a worker's first message: the result of its preparation."""


class Held(Protocol):
    """The state that a worker creates once and holds for its jobs."""

    def prepare(self, job: Any) -> None:
        """Create in the worker everything that the job would create, so that later jobs share it."""

    def run(self, job: Any) -> Any:
        """Run the job in a process of its own, and return its result."""


def fork(work: Callable[[], None]) -> int:
    """Fork a process, in its own process group, that does `work` and exits."""
    parent = os.getpid()
    process = os.fork()
    if process:
        with contextlib.suppress(OSError):  # both sides do it: neither may be late
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
    """Run the server; `load` imports everything that workers and jobs need.

    The server receives the function that creates a worker's state, then that worker's link, and replies with the
    worker's process id. The worker sends (key, message) on its link: first READY and a Result; then, for each job
    received as (key, job), its process id and its Result. A worker ends when its link is closed.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # a worker's end is noticed on its link
    load()
    gc.collect()
    gc.freeze()  # the garbage collector of a worker then scans only its own objects
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
    """Run a worker: prepare for jobs, then run them until the link is closed."""
    server.close()
    link = Connection(handle)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    result = attempt(make)
    held: Held = result.value
    link.send((READY, Result(error=result.error)))
    if result.error:
        return
    # Keep existing objects: their pages are shared with every job as long as nothing writes to them.
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
                else:  # freeing its memory takes milliseconds, in which the next job may start
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
            with contextlib.suppress(Exception):  # the job then meets the error in its own process
                held.prepare(job)
            source, sink = Pipe(duplex=False)
            process = fork(partial(_do, link, source, sink, partial(held.run, job)))
            sink.close()
            running[source] = key, process
            link.send((key, process))


def _do(link: Connection, source: Connection, sink: Connection, work: Callable[[], Any]) -> None:
    """Run a job and send its result."""
    link.close()
    source.close()
    sink.send(attempt(work))


def _last_word(source: Connection) -> Result | None:
    """Return the result that a job's process sent before it ended, if any."""
    with contextlib.closing(source), contextlib.suppress(EOFError, OSError):
        result: Result = source.recv()
        return result
    return None
