"""The supervisor: starts learner, publisher and actors, replaces those that die, evaluates, and keeps the books."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from quarl.actorq import actor, learner, metrics, publisher
from quarl.actorq.actor import ActorSpec
from quarl.actorq.build import build
from quarl.actorq.channel import LocalChannel
from quarl.actorq.exploration import ladder
from quarl.actorq.family import Child, Family
from quarl.actorq.judge import Judge
from quarl.actorq.learner import LearnerSpec
from quarl.actorq.ledger import Actor, Control, Learner, Ledger
from quarl.actorq.memory import Block, Memory
from quarl.actorq.publisher import PublisherSpec
from quarl.actorq.segment import segment_dtype
from quarl.actorq.weights import Template
from quarl.config import ActorQConfig
from quarl.errors import QuarlError
from quarl.machine import usable_cores

RING_ROWS = 4096
"""Segments that an actor may be ahead of the learner's reading; fewer where observations are large."""
RING_BYTES = 64 * 2**20
TICK_S = 0.05
ROW_S = 1.0
"""Between two rows of metrics."""
CATCH_UP_S = 30.0
"""For the publisher to pack the newest weights before an evaluation."""
GRACE_S = 4.0
"""For the learner's last checkpoint after a signal."""
TOO_FEW = 4
"""Exit code: fewer actors than --min-actors."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """How a run ended."""

    exit_code: int
    message: str
    """One line, empty where all went well."""
    summary: dict[str, Any]


class Supervisor:
    """One run, from start to its last line of metrics."""

    def __init__(self, config: ActorQConfig, say: Callable[[str], None]) -> None:
        self.config, self.say = config, say
        config.output.mkdir(parents=True, exist_ok=True)
        model = build(config)
        self.template = Template.of(model)
        observation_space, action_space = model.observation_space, model.action_space
        rungs = ladder(self.template.initial.head.kind, config.actors, config.sigma)
        dtype = segment_dtype(observation_space, action_space)
        rows = max(min(RING_ROWS, RING_BYTES // dtype.itemsize), 2 * config.envs_per_actor)
        self.blocks: dict[str, Block] = Ledger.blocks(config.actors)
        self.blocks |= LocalChannel.blocks(self.template.num_floats, dtype, config.actors, rows)
        self.memory = Memory.create(self.blocks)
        self.ledger = Ledger(self.memory)
        self.channel = LocalChannel(self.memory, config.actors)
        self.judge = Judge(config, self.template, self.channel)
        cpus = _cpus(config.actors)
        shared: dict[str, Any] = {"memory": self.memory.path, "blocks": self.blocks}
        self.learner = Child("learner", learner.main, LearnerSpec(config=config, cpu=cpus[0], **shared))
        self.publisher = Child(
            "publisher",
            publisher.main,
            PublisherSpec(
                num_actors=config.actors, template=self.template.to_bytes(), packer=self.judge.packer_options, **shared
            ),
        )
        self.actors = [
            Child(
                f"actor {i}",
                actor.main,
                ActorSpec(
                    index=i,
                    num_actors=config.actors,
                    incarnation=0,
                    env_id=config.env,
                    num_envs=config.envs_per_actor,
                    engine=config.engine,
                    update_interval=config.actor_update_interval,
                    max_staleness=config.max_staleness,
                    rung=rungs[i],
                    seed=config.seed,
                    cpu=cpus[1 + i],
                    **shared,
                ),
            )
            for i in range(config.actors)
        ]
        self.family = Family(self.say)
        self.signal: int | None = None

    def run(self) -> Iterator[dict[str, Any]]:
        """Rows of metrics, one a second; `result` is there when they end."""
        self.result = Result(exit_code=1, message="the run did not end", summary={})
        started = time.perf_counter()
        previous: dict[str, Any] | None = None
        with contextlib.ExitStack() as stack:
            stack.callback(self.memory.remove)
            stack.callback(self.family.kill)
            stack.enter_context(self._signals())
            file = stack.enter_context((self.config.output / "metrics.jsonl").open("a"))
            for child in (self.learner, self.publisher, *self.actors):
                self.family.start(child)
            next_row = time.perf_counter()
            while (ended := self._tick()) is None:
                if time.perf_counter() >= next_row and self.ledger.learner[Learner.READY]:
                    next_row = time.perf_counter() + ROW_S
                    previous = metrics.row(self.ledger, time.perf_counter() - started, previous)
                    print(json.dumps(previous), file=file, flush=True)
                    yield previous
            last = metrics.row(self.ledger, time.perf_counter() - started, previous)
            print(json.dumps(last), file=file, flush=True)
            code, message = ended
            if code == 0:
                self._evaluate(last=True)
            self.result = Result(exit_code=code, message=message, summary=self._summary(last))
            yield last

    def _tick(self) -> tuple[int, str] | None:
        """One look at everything; (exit code, message) when the run is over."""
        wait([child.sentinel for child in self.family.alive()], timeout=TICK_S)
        if self.signal is not None:
            return self._leave()
        cells, control = self.ledger.learner, self.ledger.control
        if not self.learner.alive():
            if cells[Learner.DONE]:
                self._catch_up()
                control[Control.STOP] = 1
                self.family.wind_up(GRACE_S)
                return 0, ""
            code = self.learner.exit_code
            if code == 2:  # it has said why
                return 2, ""
            return 1, f"the learner died ({_reason(code)}); go on with --resume -o {self.config.output}"
        if not self.publisher.alive():
            self.family.revive(self.publisher)
            if self.publisher.parked:
                return 1, f"the publisher keeps dying; go on with --resume -o {self.config.output}"
        for child, numbers in zip(self.actors, self.ledger.actors, strict=True):
            heard = float(numbers[Actor.HEARTBEAT_S])
            hung = heard and time.monotonic() - max(heard, child.started) > self.config.env_timeout
            if child.alive() and hung and not cells[Learner.PAUSED]:
                self.say(f"{child.name} made no step for {self.config.env_timeout:g} s: killed")
                child.kill()
            if not child.alive() and not child.parked:
                if child.exit_code == 2 and child.incarnation == 0:
                    return 2, ""
                self.family.revive(child)
        at_work = sum(not child.parked for child in self.actors)
        control[Control.ACTORS] = sum(child.alive() for child in self.actors)
        if at_work < self.config.min_actors:
            control[Control.STOP] = 1
            self.family.wind_up(GRACE_S)
            return TOO_FEW, f"only {at_work} of {self.config.actors} actors are left, --min-actors wants more"
        if cells[Learner.EVALUATIONS] > control[Control.EVALUATED]:
            if self._evaluate():
                control[Control.FINISH] = 1
            control[Control.EVALUATED] = cells[Learner.EVALUATIONS]
        return None

    def _evaluate(self, *, last: bool = False) -> bool:
        """Plays episodes with the weights that the learner has just pushed; True where the target is reached."""
        cells = self.ledger.learner
        if not last:
            self._catch_up()
        entry = self.judge.judge(
            last=last,
            clock_s=float(cells[Learner.CLOCK_S]),
            timesteps=int(cells[Learner.TIMESTEPS]),
            updates=int(cells[Learner.UPDATES]),
        )
        with (self.config.output / "evaluations.jsonl").open("a") as file:
            print(json.dumps(entry), file=file)
        return self.judge.reached

    def _catch_up(self) -> None:
        """Waits until the publisher has packed what the learner pushed last."""
        deadline = time.monotonic() + CATCH_UP_S
        while self.channel.packed.version < self.channel.floats.version and time.monotonic() < deadline:
            if not self.publisher.alive() and not self.publisher.parked:
                self.family.revive(self.publisher)
            time.sleep(0.005)

    def _leave(self) -> tuple[int, str]:
        """After Ctrl-C or SIGTERM: the learner finishes its update and saves, then everyone goes."""
        self.say("stopping: the learner finishes its update and saves; once more to leave at once")
        assert self.signal is not None
        self.ledger.control[Control.FINISH] = self.ledger.control[Control.STOP] = 1
        self.family.wind_up(GRACE_S)
        return 128 + self.signal, f"stopped; go on with --resume -o {self.config.output}"

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """The first Ctrl-C or SIGTERM asks for an orderly end; the second kills what is left."""

        def handle(number: int, frame: object) -> None:
            if self.signal is not None:
                self.family.kill()
                self.memory.remove()
                os._exit(128 + number)
            self.signal = number

        before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _summary(self, last: dict[str, Any]) -> dict[str, Any]:
        evaluations = self.judge.entries
        return {
            "algo": self.config.algo,
            "env_id": self.config.env,
            "precision": self.config.actor_precision,
            "engine": self.config.engine,
            "seed": self.config.seed,
            "clock_s": last["clock_s"],
            "wall_s": last["wall_s"],
            "timesteps": last["timesteps"],
            "updates": last["updates"],
            "samples_per_insert": last["samples_per_insert"],
            "reached_s": self.judge.reached_s,
            "final": evaluations[-1] if evaluations else None,
            "actor_deaths": sum(child.incarnation for child in self.actors),
        }


def _cpus(actors: int) -> list[int | None]:
    """Cores for the learner and each actor; None leaves the choice to the system."""
    if not hasattr(os, "sched_getaffinity"):
        return [None] * (1 + actors)
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        return [None] * (1 + actors)
    return [cores[0], *(cores[1 + i % (len(cores) - 1)] for i in range(actors))]


def warn_about_cores(config: ActorQConfig) -> None:
    """One line where there are more processes than cores to run them."""
    if config.actors + 1 > usable_cores():
        print(
            f"quarl: {config.actors} actors and a learner share {usable_cores()} cores: they will slow each other down",
            file=sys.stderr,
        )


def _reason(code: int | None) -> str:
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-code).name
    return f"exit code {code}"


def new_run(config: ActorQConfig) -> None:
    """Refuses a folder that holds a run already, which no typo should overwrite, or none where one is to go on."""
    found = sorted(path.name for path in Path(config.output).glob("checkpoint-*"))
    if found and not config.resume:
        raise QuarlError(f"{config.output} holds a run ({found[-1]}): go on with --resume, or name another folder")
    if config.resume and not found:
        raise QuarlError(f"no checkpoint in {config.output}: start without --resume, or name the folder of the run")
