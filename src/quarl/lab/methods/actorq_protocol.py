"""The protocol of time to reward: tasks, targets, hyper-parameters, arms and seeds, fixed in a file before any run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from quarl.config import ActorQConfig
from quarl.config.base import ASIDE
from quarl.config.bench import split_arm
from quarl.errors import QuarlError
from quarl.inert.yaml import key_lines, read_yaml
from quarl.lab import checks
from quarl.lab.checks import Place, count, key, listed, mapping, number, real, word, words

OPTIONS = {field.name: field for field in dataclasses.fields(ActorQConfig)}
FIXED = (
    *("actor_precision", "engine", "seed", "output", "resume", "plan", "target", "samples_per_insert", "cluster"),
    *ASIDE,
)
"""Options of `quarl actorq` that the protocol sets itself."""
SHARED = ("arms", "seeds", "cap_minutes", "ratios", "envs_per_actor")
"""Keys of a task that the protocol may give for all tasks."""


def _above(value: Any, at: Place) -> float:
    return float(number(value, at))


def _by_name(value: Any, at: Place) -> Mapping[str, float]:
    return {name: _above(each, at / name) for name, each in mapping(value, at).items()}


_grid = partial(listed, read=_above)


class Choice(NamedTuple):
    """What an arm may choose where ratios are free."""

    samples_per_insert: float
    envs_per_actor: int | None = None
    """None: as the task's options say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One row of the speed-up table."""

    name: str
    target: float = key(real)
    samples_per_insert: float = key(_above)
    options: Mapping[str, Any] = key(mapping, default_factory=dict)
    """Options of `quarl actorq`, those of `common` included."""
    in_updates: Mapping[str, float] = key(_by_name, default_factory=dict)
    """Options and hyper-parameters that count environment steps, given in updates: a run does the same for each update
    at every ratio."""
    arms: tuple[str, ...] = key(words)
    """Arms that train."""
    derived: tuple[str, ...] = key(words, default=())
    """Arms whose seconds are the updates of the derived_from arm times their own measured seconds of an update."""
    seeds: tuple[int, ...] = key(checks.seeds)
    cap_minutes: float = key(_above)
    """The reference ends, censored, after so much training time, and with it the others."""
    also_samples_per_insert: tuple[float, ...] = key(_grid, default=())
    """Other ratios, for each arm's best one; with the seeds of also_seeds."""
    also_seeds: tuple[int, ...] = key(checks.seeds, default=())
    ratios: tuple[float, ...] = key(_grid, default=())
    """The grid of samples per insert where ratios are free."""
    envs_per_actor: tuple[int, ...] = key(partial(listed, read=count), default=())
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

    reference: str = key(word)
    """The arm whose time bounds the others'."""
    derived_from: str = key(word)
    cap_times: float = key(_above)
    """Other arms end, censored, at so many times the reference's seconds, if it reached the target."""
    cap_minutes: float = key(_above)
    """Of any run's training time."""
    window_s: float = key(_above)
    """Of training, in which derived arms' seconds of an update are measured."""
    tasks: tuple[Task, ...]
    development_seed: int | None = key(lambda value, at: value and count(value, at), default=None)
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
    """Return the protocol in a YAML or JSON file, all of whose runs have been checked."""
    document, at = read_yaml(path), Place(path, key_lines(path))
    checks.check_plain(document, at)
    known = [field.name for field in dataclasses.fields(Protocol)]
    told = checks.checked(Protocol, document, at, "a protocol", (*known, "about", "common", "in_updates", *SHARED))
    entries = mapping(document.get("tasks"), at / "tasks")
    protocol = Protocol(**told, tasks=tuple(_task(name, document, at / "tasks" / name) for name in entries))
    for task in protocol.tasks:
        if protocol.reference not in task.arms:
            raise at.wrong(f"task {task.name} lacks the reference arm {protocol.reference}")
        if task.derived and protocol.derived_from not in task.arms:
            raise at.wrong(f"task {task.name} derives from {protocol.derived_from}, which is none of its arms")
        if protocol.development_seed in task.seeds:
            raise at.wrong(f"task {task.name} measures development_seed {protocol.development_seed}: take another")
        for arm in (*task.arms, *task.derived):
            for choice in (*(Choice(ratio) for _, ratio in task.runs()), *task.choices()):
                task.training(arm, choice, task.seeds[0]).check()
    return protocol


def _task(name: str, document: Mapping[str, Any], at: Place) -> Task:
    entry = mapping(document["tasks"][name], at)
    shared = {key: document[key] for key in SHARED if key in document}
    both = {
        key: {**mapping(document.get(of_all, {}), at), **mapping(entry.get(key, {}), at / key)}
        for key, of_all in (("options", "common"), ("in_updates", "in_updates"))
    }
    task = Task(name=name, **checks.checked(Task, {**shared, **entry, **both}, at, "a task"))
    for option in task.options:
        if option not in OPTIONS or option in FIXED:
            raise at.wrong(f"{option!r} is not an option that a task can have")
    if "auto" in (task.options.get("actors"), task.options.get("envs_per_actor")):
        raise at.wrong("compared runs need actors and envs_per_actor as numbers, not auto")
    if task.in_updates and "batch_size" not in task.options:
        raise at.wrong("in_updates needs a batch_size among the options")
    return task
