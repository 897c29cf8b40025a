"""A household: the process that holds one policy with its calibration observations, and forks one process a cell.

A cell costs a fork, not the seconds of imports, and its crash, its memory and its end are its own.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from quarl.config.environment import EnvironmentConfig
from quarl.envs.names import MODULE_ID, is_same
from quarl.envs.options import EnvironmentOptions
from quarl.errors import QuarlError
from quarl.evaluate import played_on
from quarl.experiments.play import calibration, play
from quarl.experiments.processes import Outcome, attempt, end_with, kill_group, settle
from quarl.experiments.source import check_file
from quarl.policy.graph import is_quantized
from quarl.ptq import Calibrated
from quarl.quant.spec import QuantSpec
from quarl.readers import load


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """What a household begins with."""

    path: Path
    """The agent's file."""
    algo: str
    """What the file is said to hold; empty where nothing is said."""
    env_id: str
    """The living one."""
    identity: Mapping[str, Any]
    seed: int
    folder: Path
    """The study's."""
    calibrate: bool
    normalize: str | None = None
    """The statistics with which the agent observed, or none; None: what lies beside it."""
    transfers: bool = False
    """Whether it may be an agent of another environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """What a cell is."""

    key: str
    spec: QuantSpec
    episodes: int
    deterministic: bool = False


@dataclass(frozen=True, slots=True)
class Ready:
    """Said when the policy is there, or why it is not."""

    error: str = ""


@dataclass(frozen=True, slots=True)
class Begun:
    """Said of a cell that has its process."""

    key: str
    group: int


@dataclass(frozen=True, slots=True)
class Over:
    """Said of a cell: its outcome, or the exit code of its process that ended without one."""

    key: str
    outcome: Outcome | None
    exit_code: int


@dataclass(frozen=True, slots=True)
class _Held:
    """What all cells of a policy share."""

    calibrated: Calibrated
    seed: int
    env_id: str | None
    """None: the policy says which."""

    def prepare(self, spec: QuantSpec) -> None:
        """Makes here what the cell would make, where those after it find it too."""
        with contextlib.suppress(Exception):  # which the cell then meets in a process of its own
            self.calibrated.prepare(spec)

    def play(self, job: Play) -> dict[str, Any]:
        settings = {"episodes": job.episodes, "seed": self.seed, "deterministic": job.deterministic}
        return play(self.calibrated, job.spec, env_id=self.env_id, **settings)


def keep(link: Connection, life: Connection, home: Home) -> None:
    """A household's main: makes everything ready, then plays what the runner sends until it closes the link."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    outcome = attempt(partial(_prepare, home))
    link.send(Ready(outcome.error))
    if outcome.found is None:
        return
    held: _Held = outcome.found
    # What is here stays here: its pages are shared with every cell as long as nobody touches them.
    gc.collect()
    gc.freeze()
    cells: dict[Connection, tuple[str, int]] = {}
    leaving: set[int] = set()
    while True:
        for source in wait([link, *cells]):
            assert isinstance(source, Connection)
            if source in cells:
                key, process = cells.pop(source)
                said = _said(source)
                if said is None:
                    link.send(Over(key, None, _exit_code(process)))
                else:  # letting go of its memory takes it milliseconds, in which the next may begin
                    link.send(Over(key, said, 0))
                    leaving.add(process)
                leaving = {process for process in leaving if not os.waitpid(process, os.WNOHANG)[0]}
                continue
            try:
                job = link.recv()
            except (EOFError, OSError):
                for _, process in cells.values():
                    kill_group(process)
                return
            held.prepare(job.spec)
            source, process = _fork(job, held, link, life)
            cells[source] = job.key, process
            link.send(Begun(job.key, process))


def _prepare(home: Home) -> _Held:
    path = home.path
    check_file(path, home.identity, home.normalize)
    policy = load.read(path, home.algo, home.normalize)
    if is_quantized(policy):
        raise QuarlError(f"{path} is quantised already ({policy.spec.precision}); give the float policy")
    trained_on = policy.provenance.env_id
    same = bool(trained_on) and is_same(home.env_id, trained_on)
    if trained_on and not same and not home.transfers:
        raise QuarlError(f"{path} was trained on {trained_on}, not on {home.env_id}: correct the study")
    # what a file says of its environment names no module
    env_id = None if same and not MODULE_ID.fullmatch(home.env_id) else home.env_id
    told = EnvironmentConfig(**home.identity.get("environment", {}))
    policy = EnvironmentOptions.said(told).at_home(policy, env_id)
    played_on(policy, env_id)
    if not home.calibrate:
        return _Held(Calibrated(policy), home.seed, env_id)
    observations = calibration(policy, home.identity, home.seed, env_id, home.folder)
    return _Held(Calibrated(policy, observations), home.seed, env_id)


def _fork(job: Play, held: _Held, link: Connection, life: Connection) -> tuple[Connection, int]:
    """The end of a pipe on which the cell's process says its outcome, and the process."""
    source, sink = Pipe(duplex=False)
    parent = os.getpid()
    process = os.fork()
    if process == 0:
        # nothing of the household's own code runs on in this process, whatever happens
        code = 1
        try:
            link.close()
            source.close()
            settle(parent)
            end_with(life)
            sink.send(attempt(partial(held.play, job)))
            code = 0
        finally:
            os._exit(code)
    sink.close()
    with contextlib.suppress(OSError):  # both do it: neither may be late
        os.setpgid(process, process)
    return source, process


def _said(source: Connection) -> Outcome | None:
    """The outcome that a cell's process sends before it ends, if it comes to that."""
    with contextlib.closing(source), contextlib.suppress(EOFError, OSError):
        outcome: Outcome = source.recv()
        return outcome
    return None


def _exit_code(process: int) -> int:
    _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status)
