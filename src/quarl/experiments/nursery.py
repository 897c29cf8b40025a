"""The nursery: a process that has imported everything a cell needs, from which households are forked in milliseconds.

Like Python's own fork server, but what it imports is made quiet first, and its children hold an end of a pipe that the
runner holds the other end of.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import multiprocessing
import os
import signal
from collections.abc import Collection
from multiprocessing import reduction
from multiprocessing.connection import Connection, Pipe
from multiprocessing.process import BaseProcess
from pathlib import Path

from quarl.envs import make
from quarl.envs.wrappers import wrapper_class
from quarl.errors import QuarlError
from quarl.experiments.household import Home, keep
from quarl.experiments.processes import one_thread, print_to, settle

MODULES = ("torch", "quarl.engines.litert", "quarl.engines.reference")
"""Loaded before anything is forked."""
ATTEMPTS = 2


class Nursery:
    """The runner's side of it; started when the first household is asked for."""

    def __init__(self, life: Connection, log: Path, env_ids: Collection[str], wrappers: Collection[str]) -> None:
        """life: the readable end of a pipe whose other end closes with the runner. env_ids, wrappers: made or imported
        beforehand."""
        self._life, self._log = life, log
        self._env_ids, self._wrappers = tuple(env_ids), tuple(wrappers)
        self._process: BaseProcess | None = None
        self._link: Connection

    def fork(self, home: Home) -> tuple[Connection, int]:
        """The link to a new household, and its process; it says Ready when it is."""
        for _ in range(ATTEMPTS):
            if self._process is None or not self._process.is_alive():
                self._start()
            ours, theirs = Pipe()
            try:
                self._link.send(home)
                reduction.send_handle(self._link, theirs.fileno(), self._process.pid if self._process else None)
                return ours, self._link.recv()
            except (EOFError, OSError):  # the nursery was ended from outside
                ours.close()
                self.close()
            finally:
                theirs.close()
        raise QuarlError(f"no process for cells can be started; {self._log} may say why")

    def close(self) -> None:
        """Ends it; households that it forked end with it."""
        if self._process is not None:
            self._link.close()
            self._process.kill()
            self._process.join()
            self._process = None

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")  # forks and the runner's threads do not mix
        self._link, theirs = context.Pipe()
        arguments = (theirs, self._life, self._log, self._env_ids, self._wrappers, os.getpid())
        self._process = context.Process(target=_nurse, args=arguments, name="quarl-nursery", daemon=True)
        with one_thread():
            self._process.start()
        theirs.close()


def _nurse(
    link: Connection, life: Connection, log: Path, env_ids: Collection[str], wrappers: Collection[str], parent: int
) -> None:
    """The nursery's main."""
    settle(parent)
    print_to(log)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a household ended: its link says it
    _load(env_ids, wrappers)
    gc.collect()
    gc.freeze()  # a household has only what is its own to go through
    here = os.getpid()
    while True:
        try:
            home = link.recv()
            handle = reduction.recv_handle(link)
        except (EOFError, OSError):
            return
        process = os.fork()
        if process == 0:
            try:
                link.close()
                settle(here)
                keep(Connection(handle), life, home)
            finally:
                os._exit(0)
        os.close(handle)
        link.send(process)


def _load(env_ids: Collection[str], wrappers: Collection[str]) -> None:
    """Imports; what cannot be imported, made or closed is said by the cell that needs it."""
    for module in MODULES:
        importlib.import_module(module)
    for dotted in wrappers:
        with contextlib.suppress(QuarlError):
            wrapper_class(dotted)
    for env_id in env_ids:
        with contextlib.suppress(Exception):  # whatever a simulator raises
            make(env_id).close()
