"""Cells on several machines: on each a Ray actor with a pool of its own, and here one that shares the cells out."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from quarl import __version__
from quarl.cluster import begin_here
from quarl.errors import QuarlError, first_line, in_one_line, note, note_once
from quarl.files import beside
from quarl.formats import counted
from quarl.processes.forkserver import Held
from quarl.processes.inside import Result, die_with_parent
from quarl.processes.pool import GRACE_S, Bounds, Ended, LocalPool

POLL_S = 0.2
"""A machine waits so long for something to happen, and for its next jobs."""
AGAIN_S, PATIENCE_S = 2.0, 60.0
"""Between two tries to begin on a machine that was lost; for one to begin where none is at work."""


class NodePool:
    """What a machine has, in a Ray actor: the calls that come are its LocalPool's."""

    def __init__(self) -> None:
        die_with_parent(True)  # its raylet: what others are to do again ends here
        self._pool: LocalPool | None = None

    def begin(self, version: str, where: Path, proof: Path, log: Path, *about: Any) -> str:
        """Makes the pool, with a log of its own beside `log`; the machine's name.

        where: the runner's folder. proof: a file in the study's, which is there if it is the same on both machines.
        """
        if self._pool is not None:  # it was out of reach, not dead
            self._pool.close()
        self._pool = None
        name = begin_here(version)
        with contextlib.suppress(OSError):
            os.chdir(where)
        if not proof.is_file():
            raise QuarlError(f"{name} does not see the runner's {where / proof.parent}: choose a shared folder with -o")
        self._pool = LocalPool(log.with_name(f"{log.stem}-{name}{log.suffix}"), *about)
        return name

    def poll(self, calls: Sequence[tuple[Any, ...]]) -> list[Ended] | None:
        """What happens next, after these calls; None where this is another process than the one that has begun."""
        if self._pool is None:
            return None
        lost = []
        for name, *arguments in calls:
            if name == "submit" and self._pool.ready(arguments[0]) is None:  # it died while the job was on its way
                lost.append(Ended(arguments[1], Result(), lost=True))
            else:
                getattr(self._pool, name)(*arguments)
        return [*lost, *self._pool.events(0 if lost else POLL_S)]


@dataclass(slots=True, eq=False)
class _Node:
    """A machine, as it is once it has got the calls that wait for it."""

    actor: Any
    name: str = ""
    """Empty until it has begun for the first time."""
    at_work: bool = False
    answer: Any = None
    """That is waited for."""
    not_before: float = 0.0
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    tasks: dict[str, str] = field(default_factory=dict)
    """Workers by what takes a place: jobs' keys, and names of workers that get ready."""
    workers: set[str] = field(default_factory=set)


class ClusterPool:
    """Processes of so many machines of the cluster that this process is connected to."""

    def __init__(self, num_nodes: int, log: Path, bounds: Bounds, jobs: int, load: Callable[[], None]) -> None:
        """log, bounds, jobs, load: of each machine, as LocalPool takes them."""
        self._jobs, self._proof, self._worked = jobs, beside(log.with_name("cluster")), time.monotonic()
        for old in log.parent.glob(".cluster.*"):  # of a runner that was killed
            old.unlink()
        self._proof.touch()
        self._about = __version__, Path.cwd(), self._proof, log, bounds, jobs, load
        group = placement_group([{"memory": 1}] * num_nodes, strategy="STRICT_SPREAD")
        make = ray.remote(NodePool).options(
            num_cpus=0,
            memory=1,
            max_restarts=-1,
            max_task_retries=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group),
        )
        self._nodes = [_Node(make.remote()) for _ in range(num_nodes)]

    def _free(self, node: _Node) -> int:
        return self._jobs - len(node.tasks) if node.at_work else 0

    @property
    def occupied(self) -> int:
        """Places that are taken; one where no machine is at work, which is waited for."""
        return sum(len(node.tasks) for node in self._nodes) or not any(node.at_work for node in self._nodes)

    @property
    def full(self) -> bool:
        return not any(map(self._free, self._nodes))

    def ready(self, name: str) -> bool | None:
        """Whether a machine with a free place has it ready; None where none is about to."""
        having = [node for node in self._nodes if name in node.workers]
        if any(name in node.tasks for node in having):
            return False
        return any(map(self._free, having)) or None

    def _give(self, nodes: Iterable[_Node], key: str, worker: str, *call: Any) -> _Node:
        """Has the machine do it that has most places free; returns it."""
        node = max(nodes, key=self._free)
        node.tasks[key] = worker
        node.calls.append(call)
        return node

    def prepare(self, name: str, make: Callable[[], Held]) -> None:
        """Begins the worker on one machine more."""
        others = [node for node in self._nodes if name not in node.workers]
        self._give(others, name, name, "prepare", name, make).workers.add(name)

    def submit(self, name: str, key: str, job: Any) -> None:
        self._give([node for node in self._nodes if name in node.workers], key, name, "submit", name, key, job)

    def start(self, key: str, name: str, main: Callable[[Any], Any], spec: Any) -> None:
        self._give(self._nodes, key, "", "start", key, name, main, spec)

    def keep_only(self, names: Collection[str]) -> None:
        for node in self._nodes:
            if idle := node.workers - {*names, *node.tasks.values()}:
                node.workers -= idle
                node.calls.append(("keep_only", [*node.workers]))

    def events(self, timeout: float) -> Iterator[Ended]:
        """What has happened on all machines, and to them."""
        now = time.monotonic()
        if any(node.at_work for node in self._nodes):
            self._worked = now
        elif now - self._worked > PATIENCE_S:
            raise QuarlError("no machine of the cluster measures cells: repeat the command to go on once some answer")
        for node in self._nodes:
            if node.answer is None and node.at_work:
                node.answer, node.calls = node.actor.poll.remote(node.calls), []
            elif node.answer is None and now >= node.not_before:
                node.answer = node.actor.begin.remote(*self._about)
        answers = {node.answer: node for node in self._nodes if node.answer is not None}
        if not answers:
            time.sleep(timeout)
        for answer in ray.wait([*answers], timeout=timeout)[0]:
            yield from self._hear(answers[answer])

    def _hear(self, node: _Node) -> Iterator[Ended]:
        """What a machine answers, or what has become of it."""
        answer, node.answer = node.answer, None
        try:
            ended = ray.get(answer)
        except RayError as error:
            reason = in_one_line(error.cause) if isinstance(error, RayTaskError) else ""
            if not node.name or (reason and node.at_work):
                raise QuarlError(reason or f"a machine cannot measure cells: {first_line(error)}") from None
            if reason:
                note_once(reason)
            ended = None
        if ended is None:
            yield from self._lose(node)
            return
        if not node.at_work:
            if node.name:
                note(f"{ended} measures cells again")
            node.name, node.at_work, ended = ended, True, []
        for event in ended:
            worker = node.tasks.pop(event.key)
            if event.lost or (event.key == worker and event.result.error):
                node.workers.discard(worker)
            yield event

    def _lose(self, node: _Node) -> Iterator[Ended]:
        """Its jobs are to be done again, where there are places, and there when it is back."""
        keys = [key for key, worker in node.tasks.items() if key != worker]
        if node.at_work:
            note(f"{node.name} was lost: {counted(len(keys), 'cell')} to be measured again")
        node.at_work, node.not_before = False, time.monotonic() + AGAIN_S
        node.calls, node.tasks, node.workers = [], {}, set()
        yield from (Ended(key, Result(), lost=True) for key in keys)

    def leave(self, keys: Collection[str]) -> None:
        self._call([node for node in self._nodes if node.tasks.keys() & {*keys}], "leave", keys)

    def _call(self, nodes: Iterable[_Node], *call: Any) -> None:
        answers = [node.actor.poll.remote([call]) for node in nodes]
        ray.wait(answers, num_returns=len(answers), timeout=2 * GRACE_S)

    def kill(self) -> None:
        """Ends all jobs at once, with the actors whose they are."""
        for node in self._nodes:
            with contextlib.suppress(Exception):
                ray.kill(node.actor)

    def close(self) -> None:
        """Nothing is left on any machine, nor in the folder."""
        self._call([node for node in self._nodes if node.at_work], "kill")
        self.kill()
        self._proof.unlink(missing_ok=True)
