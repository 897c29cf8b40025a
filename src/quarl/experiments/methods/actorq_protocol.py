"""The protocol of time to reward: tasks, targets, hyper-parameters, arms and seeds, fixed in a file before any run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from quarl.config import ActorQConfig
from quarl.config.base import ASIDE
from quarl.config.bench import split_arm
from quarl.errors import QuarlError

MAX_BYTES = 2**20
OPTIONS = {field.name: field for field in dataclasses.fields(ActorQConfig)}
FIXED = (
    *("actor_precision", "engine", "seed", "output", "resume", "plan", "target", "samples_per_insert", "cluster"),
    *ASIDE,
)
"""Options of `quarl actorq` that the protocol sets itself."""


class Choice(NamedTuple):
    """What an arm may choose where ratios are free."""

    samples_per_insert: float
    envs_per_actor: int | None = None
    """None: as the task's options say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One row of the speed-up table."""

    name: str
    target: float
    samples_per_insert: float
    options: Mapping[str, Any]
    """Options of `quarl actorq`, those of `common` included."""
    in_updates: Mapping[str, float]
    """Options and hyper-parameters that count environment steps, given in updates: a run does the same for each update
    at every ratio."""
    arms: tuple[str, ...]
    """Arms that train."""
    derived: tuple[str, ...] = ()
    """Arms whose seconds are the updates of the derived_from arm times their own measured seconds of an update."""
    seeds: tuple[int, ...]
    cap_minutes: float
    """The reference ends, censored, after so much training time, and with it the others."""
    also_samples_per_insert: tuple[float, ...] = ()
    """Other ratios, for each arm's best one; with the seeds of also_seeds."""
    also_seeds: tuple[int, ...] = ()
    ratios: tuple[float, ...] = ()
    """The grid of samples per insert where ratios are free."""
    envs_per_actor: tuple[int, ...] = ()
    """That of environments an actor; where empty there is no choice of them."""

    def choices(self) -> list[Choice]:
        """What every arm tries on the development seed, in order."""
        return list(map(Choice._make, product(self.ratios, self.envs_per_actor or (None,))))

    def training(self, arm: str, choice: Choice, seed: int) -> ActorQConfig:
        """The run of a cell."""
        precision, engine = split_arm(arm)
        ratio, envs = choice
        options: dict[str, Any] = {"preset": "none", "save_replay_buffer": False}
        options |= {key: tuple(value) if isinstance(value, list) else value for key, value in self.options.items()}
        for name, updates in self.in_updates.items():
            steps = max(round(updates * options["batch_size"] / ratio), 1) if ratio > 0 else 1
            if name in OPTIONS:
                options[name] = steps
            else:
                options["params"] = (*options.get("params", ()), f"{name}:{steps}")
        of_arm: dict[str, Any] = {"actor_precision": precision, "engine": engine, "seed": seed}
        of_arm |= {"samples_per_insert": ratio, "target": self.target}
        options |= {} if envs is None else {"envs_per_actor": envs}
        try:
            return ActorQConfig(**options, **of_arm)
        except TypeError as error:
            raise QuarlError(f"protocol, task {self.name}: {error}") from None

    def runs(self) -> Iterator[tuple[int, float]]:
        """(seed, ratio): all seeds at the task's own ratio, then the others."""
        for seed in self.seeds:
            yield seed, self.samples_per_insert
        for seed in self.also_seeds:
            for ratio in self.also_samples_per_insert:
                if ratio != self.samples_per_insert:
                    yield seed, ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """The whole file."""

    reference: str
    """The arm whose time bounds the others'."""
    derived_from: str
    cap_times: float
    """Other arms end, censored, at so many times the reference's seconds, if it reached the target."""
    cap_minutes: float
    """Of any run's training time."""
    window_s: float
    """Of training, in which derived arms' seconds of an update are measured."""
    tasks: tuple[Task, ...]
    development_seed: int | None = None
    """The seed on which arms choose where ratios are free; none that is measured."""

    def chosen(self, only: tuple[str, ...], *, free: bool = False) -> tuple[Task, ...]:
        """The tasks of these names, all of them for none. free: each must have a grid to choose from."""
        known = [task.name for task in self.tasks]
        for name in only:
            if name not in known:
                raise QuarlError(f"the protocol has no task {name!r}; it has {', '.join(known)}")
        tasks = tuple(task for task in self.tasks if not only or task.name in only)
        if free and (self.development_seed is None or not all(task.ratios for task in tasks)):
            raise QuarlError("--ratios free wants a development_seed in the protocol, and ratios for each of its tasks")
        return tasks


def read(path: Path) -> Protocol:
    """The protocol in a JSON file; every run that it describes has been checked."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise QuarlError(f"{path} is larger than {MAX_BYTES:,} bytes: it is no protocol")
        document = json.loads(path.read_text())
    except OSError as error:
        raise QuarlError(f"cannot read the protocol {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise QuarlError(f"the protocol {path} is no JSON: {error}") from None
    try:
        protocol = _protocol(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise QuarlError(f"the protocol {path} is not as expected: {reason}") from None
    for task in protocol.tasks:
        for arm in (*task.arms, *task.derived):
            for choice in (*(Choice(ratio) for _, ratio in task.runs()), *task.choices()):
                task.training(arm, choice, task.seeds[0]).check()
    return protocol


def _protocol(document: Mapping[str, Any]) -> Protocol:
    common = dict(document["common"])
    tasks = tuple(_task(name, entry, document, common) for name, entry in document["tasks"].items())
    protocol = Protocol(
        reference=str(document["reference"]),
        derived_from=str(document["derived_from"]),
        cap_times=float(document["cap_times"]),
        cap_minutes=float(document["cap_minutes"]),
        window_s=float(document["window_s"]),
        tasks=tasks,
        development_seed=None if document.get("development_seed") is None else int(document["development_seed"]),
    )
    for task in tasks:
        if protocol.reference not in task.arms:
            raise ValueError(f"task {task.name} lacks the reference arm {protocol.reference}")
        if task.derived and protocol.derived_from not in task.arms:
            raise ValueError(f"task {task.name} derives from {protocol.derived_from}, which is none of its arms")
        if protocol.development_seed in task.seeds:
            raise ValueError(f"task {task.name} measures development_seed {protocol.development_seed}: take another")
    return protocol


def _task(name: str, entry: Mapping[str, Any], document: Mapping[str, Any], common: Mapping[str, Any]) -> Task:
    options = {**common, **entry["options"]}
    for key in options:
        if key not in OPTIONS or key in FIXED:
            raise ValueError(f"task {name}: {key!r} is no option that a task can have")
    if "auto" in (options.get("actors"), options.get("envs_per_actor")):
        raise ValueError(f"task {name}: runs that are compared say actors and envs_per_actor as numbers, not auto")
    in_updates = {
        key: float(value) for key, value in {**document.get("in_updates", {}), **entry.get("in_updates", {})}.items()
    }
    if in_updates and "batch_size" not in options:
        raise ValueError(f"task {name}: in_updates needs a batch_size among its options")
    grids = {key: entry.get(key, document.get(key)) for key in ("ratios", "envs_per_actor")}
    if [] in grids.values():
        raise ValueError(f"task {name}: ratios and envs_per_actor need at least one value each, or are left out")
    return Task(
        name=name,
        in_updates=in_updates,
        target=float(entry["target"]),
        samples_per_insert=float(entry["samples_per_insert"]),
        options=options,
        arms=tuple(map(str, entry.get("arms", document["arms"]))),
        derived=tuple(map(str, entry.get("derived", ()))),
        seeds=tuple(map(int, entry.get("seeds", document["seeds"]))),
        cap_minutes=float(entry.get("cap_minutes", document["cap_minutes"])),
        also_samples_per_insert=tuple(map(float, entry.get("also_samples_per_insert", ()))),
        also_seeds=tuple(map(int, entry.get("also_seeds", ()))),
        ratios=tuple(map(float, grids["ratios"] or ())),
        envs_per_actor=tuple(map(int, grids["envs_per_actor"] or ())),
    )
