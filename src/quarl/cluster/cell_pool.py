"""A pool of cells on several machines: a Ray actor with a pool on each, and a scheduler here."""

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

from quarl.cluster import begin_here
from quarl.errors import QuarlError, first_line, in_one_line, note, note_once
from quarl.files import beside
from quarl.formats import counted
from quarl.processes.forkserver import Held
from quarl.processes.inside import Result, die_with_parent
from quarl.processes.pool import GRACE_S, Bounds, Ended, LocalPool

POLL_S = 0.2
"""Seconds for which a machine waits for an event, and for its next jobs."""
AGAIN_S, PATIENCE_S = 2.0, 60.0
"""Seconds between two tries to restart a lost machine; seconds to wait for a machine if none is working."""


class NodePool:
    """One machine's part of the pool, in a Ray actor: calls are forwarded to its LocalPool."""

    def __init__(self) -> None:
        die_with_parent(True)  # exit with the raylet: other machines repeat its jobs
        self._pool: LocalPool | None = None

    def begin(self, folder: Path, proof: Path, log: Path, *about: Any) -> str:
        """Create the pool with its own log beside `log`, and return the machine's name.

        Args:
            folder: Working folder of the runner.
            proof: A file in the study's folder; it exists if both machines see the same folder.
            log: Path of the runner's log.
            *about: Further arguments of LocalPool.

        Raises:
            QuarlError: If the folder is not shared.
        """
        if self._pool is not None:  # it was unreachable, but not dead
            self._pool.close()
        self._pool = None
        name = begin_here()
        with contextlib.suppress(OSError):
            os.chdir(folder)
        if not proof.is_file():
            raise QuarlError(
                f"{name} does not see the runner's {folder / proof.parent}: choose a shared folder with -o"
            )
        self._pool = LocalPool(log.with_name(f"{log.stem}-{name}{log.suffix}"), *about)
        return name

    def poll(self, calls: Sequence[tuple[Any, ...]]) -> list[Ended] | None:
        """Make the calls and return the next events; None if this process has not begun, because Ray restarted it."""
        if self._pool is None:
            return None
        lost = []
        for name, *arguments in calls:
            # The worker may have died while the job was in transit.
            if name == "submit" and self._pool.ready(arguments[0]) is None:
                lost.append(Ended(arguments[1], Result(), lost=True))
            else:
                getattr(self._pool, name)(*arguments)
        return [*lost, *self._pool.events(0 if lost else POLL_S)]


@dataclass(slots=True, eq=False)
class _Node:
    """A machine, in the state after the calls that are queued for it."""

    actor: Any
    name: str = ""
    """Host name; empty until its first start."""
    at_work: bool = False
    answer: Any = None
    """Pending answer."""
    not_before: float = 0.0
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    tasks: dict[str, str] = field(default_factory=dict)
    """Worker of each occupied slot: jobs by key, and workers that are getting ready by name."""
    workers: set[str] = field(default_factory=set)


class ClusterPool:
    """A pool of processes on `num_nodes` machines of the connected cluster."""

    def __init__(self, num_nodes: int, log: Path, bounds: Bounds, jobs: int, load: Callable[[], None]) -> None:
        """Reserve the machines and create their pools.

        Args:
            num_nodes: Number of machines.
            log: Path of the log, as for LocalPool.
            bounds: Limits of each job, as for LocalPool.
            jobs: Number of simultaneous jobs of each machine.
            load: Preloads modules on each machine, as for LocalPool.
        """
        self._jobs, self._proof, self._worked = jobs, beside(log.with_name("cluster")), time.monotonic()
        for old in log.parent.glob(".cluster.*"):  # left by a killed runner
            old.unlink()
        self._proof.touch()
        self._about = Path.cwd(), self._proof, log, bounds, jobs, load
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
        """Number of occupied slots; 1 if no machine is working, because one is awaited."""
        return sum(len(node.tasks) for node in self._nodes) or not any(node.at_work for node in self._nodes)

    @property
    def full(self) -> bool:
        return not any(map(self._free, self._nodes))

    def ready(self, name: str) -> bool | None:
        """Return True if a machine with a free slot has the worker ready, None if none is getting it ready."""
        having = [node for node in self._nodes if name in node.workers]
        if any(name in node.tasks for node in having):
            return False
        return any(map(self._free, having)) or None

    def _give(self, nodes: Iterable[_Node], key: str, worker: str, *call: Any) -> _Node:
        """Queue the call for the machine with the most free slots, and return that machine."""
        node = max(nodes, key=self._free)
        node.tasks[key] = worker
        node.calls.append(call)
        return node

    def prepare(self, name: str, make: Callable[[], Held]) -> None:
        """Prepare the worker on one more machine."""
        others = [node for node in self._nodes if name not in node.workers]
        self._give(others, name, name, "prepare", name, make).workers.add(name)

    def submit(self, name: str, key: str, job: Any) -> None:
        """Queue a job for the worker on the machine with the most free slots.

        Args:
            name: Name of the worker.
            key: Key of the job in its events.
            job: Argument of the worker's function.
        """
        self._give([node for node in self._nodes if name in node.workers], key, name, "submit", name, key, job)

    def start(self, key: str, name: str, main: Callable[[Any], Any], spec: Any) -> None:
        """Queue a job in a process of its own on the machine with the most free slots.

        Args:
            key: Key of the job in its events.
            name: Name of the process.
            main: Function that the process runs.
            spec: Argument of `main`.
        """
        self._give(self._nodes, key, "", "start", key, name, main, spec)

    def keep_only(self, names: Collection[str]) -> None:
        for node in self._nodes:
            if idle := node.workers - {*names, *node.tasks.values()}:
                node.workers -= idle
                node.calls.append(("keep_only", [*node.workers]))

    def events(self, timeout: float) -> Iterator[Ended]:
        """Yield the events of all machines, and the loss of machines."""
        now = time.monotonic()
        # Fail if no machine has worked for a while.
        if any(node.at_work for node in self._nodes):
            self._worked = now
        elif now - self._worked > PATIENCE_S:
            raise QuarlError("no machine of the cluster answers: repeat the command to resume once machines are back")
        # Poll working machines, and restart lost ones.
        for node in self._nodes:
            if node.answer is None and node.at_work:
                node.answer, node.calls = node.actor.poll.remote(node.calls), []
            elif node.answer is None and now >= node.not_before:
                node.answer = node.actor.begin.remote(*self._about)
        # Wait for answers.
        answers = {node.answer: node for node in self._nodes if node.answer is not None}
        if not answers:
            time.sleep(timeout)
        for answer in ray.wait([*answers], timeout=timeout)[0]:
            yield from self._hear(answers[answer])

    def _hear(self, node: _Node) -> Iterator[Ended]:
        """Yield the events in a machine's answer, or handle its error."""
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
        """Return the lost machine's jobs to the queue: other machines repeat them, and this one once it is back."""
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
        """Kill all jobs at once, with the Ray actors that run them."""
        for node in self._nodes:
            with contextlib.suppress(Exception):
                ray.kill(node.actor)

    def close(self) -> None:
        """Leave nothing running on any machine, and nothing in the folder."""
        self._call([node for node in self._nodes if node.at_work], "kill")
        self.kill()
        self._proof.unlink(missing_ok=True)
