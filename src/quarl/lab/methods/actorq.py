"""Cells of the ActorQ measurements: real runs, watched for a window or to their end."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from quarl.actorq.counters import CLASSES, Counters, Learner
from quarl.actorq.supervisor import Supervisor
from quarl.arrays import Array
from quarl.config import ActorQConfig
from quarl.config.base import ASIDE
from quarl.energy import OFF, Meter
from quarl.errors import QuarlError
from quarl.files import temporary_folder
from quarl.lab.methods.cells import Cell, Say
from quarl.processes.signals import SIGNALLED

HISTOGRAMS = ("staleness", "latency_ms", "blocked_ms")
"""Of the counters: ages in updates, milliseconds, tenths of a millisecond."""
ADDED = (
    *("steps", "pulls", "skipped", "loop_s", "inference_s", "environment_s", "insert_s"),
    *("pull_s", "deserialize_s", "load_s", "wait_s", "stale_s"),
)
"""Of an actor's part of a row of metrics: what adds up over the run."""
ELSEWHERE = ("output", "resume", "plan", *ASIDE)
"""Options that a cell does not depend on."""


def settings_of(config: ActorQConfig, **more: Any) -> dict[str, Any]:
    """What a cell depends on: the run's configuration and `more`."""
    return {key: value for key, value in asdict(config).items() if key not in ELSEWHERE} | more


def described(config: ActorQConfig, *names: str) -> dict[str, Any]:
    """Precision and engine of a run's actors, as a row has them, and the run's options of these names."""
    arm = {"precision": config.actor_precision, "engine": config.engine}
    return arm | {name: getattr(config, name) for name in names}


def watch(config: ActorQConfig, *, warm_up: float, seconds: float, say: Say, meter: Meter = OFF) -> Cell:
    """What a run does in a window of training time that opens `warm_up` seconds after its actors use their policy."""
    with _running(config, say) as (supervisor, rows):
        acting_since: float | None = None
        window: list[dict[str, Any]] = []
        for row in rows:
            # the window waits until all actors act on weights of the learner, and not by chance
            acting = all(actor["version"] for actor in row["actors"])
            if not acting or row["timesteps"] <= supervisor.counters.learner[Learner.RANDOM_UNTIL]:
                continue
            if acting_since is None:
                acting_since = row["clock_s"]
            if not window and row["clock_s"] - acting_since >= warm_up:
                before, joules = _histograms(supervisor.counters), meter.joules()
                window.append(row)
            elif window:
                window.append(row)
                if row["clock_s"] - window[0]["clock_s"] >= seconds:
                    after = _histograms(supervisor.counters)
                    ages = {name: _sparse(after[name] - before[name]) for name in HISTOGRAMS}
                    return {**_differences(window), **ages, **_cost(joules, meter)}
    raise _ended(supervisor, "before its window closed")


def train(config: ActorQConfig, *, cap_s: float = math.inf, say: Say, meter: Meter = OFF) -> Cell:
    """A run to its end, or until the training clock reaches `cap_s` (then it is censored).

    meter: counts the whole run: its start, its evaluations and what its processes take to end.
    """
    joules, censored = meter.joules(), False
    with _running(config, say) as (supervisor, rows):
        for row in rows:
            if supervisor.evaluator.reached_s is None and row["clock_s"] >= cap_s:
                censored = True
                break
    if not censored and supervisor.result.exit_code:
        raise _ended(supervisor, "")
    reached_s, entries = supervisor.evaluator.reached_s, supervisor.evaluator.entries
    return {
        **{name: row[name] for name in ("clock_s", "timesteps", "updates", "staleness_p50", "staleness_p99")},
        **_cost(joules, meter),
        "reached_s": reached_s,
        "reached": next((entry for entry in entries if entry["clock_s"] == reached_s), None),
        "evaluations": entries,
    }


def _cost(before: float | None, meter: Meter) -> dict[str, Any]:
    """Joules since then, and how they were found."""
    now = meter.joules()
    return {"joules": None if before is None or now is None else now - before, "joules_by": meter.method}


@contextlib.contextmanager
def _running(config: ActorQConfig, say: Say) -> Iterator[tuple[Supervisor, Iterator[dict[str, Any]]]]:
    """A supervisor, whose files vanish with it, and the rows of metrics of its run."""
    with temporary_folder() as folder:
        supervisor = Supervisor(replace(config, output=folder), say)
        with contextlib.closing(supervisor.run()) as rows:
            yield supervisor, rows


def _ended(supervisor: Supervisor, when: str) -> BaseException:
    """What ended a run early: Ctrl-C goes on as such."""
    if supervisor.result.exit_code > SIGNALLED:
        return KeyboardInterrupt()
    message = supervisor.result.message.partition("; go on with")[0] or "see above"
    return QuarlError(
        f"the run ended {when} with exit code {supervisor.result.exit_code}: {message}".replace("  ", " ")
    )


def _differences(window: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What has come between the first row of a window and the last."""
    first, last = window[0], window[-1]
    pairs = list(zip(first["actors"], last["actors"], strict=True))
    updates = last["updates"] - first["updates"]
    pulls = min(after["pulls"] - before["pulls"] for before, after in pairs)
    cpu_s = [row["publisher"]["cpu_share"] * row["wall_s"] for row in (first, last)]
    return {
        "clock_s": last["clock_s"] - first["clock_s"],
        "env_steps": last["timesteps"] - first["timesteps"],
        "updates": updates,
        "slices": [(row["clock_s"], row["timesteps"], row["updates"]) for row in window],
        "actors": {name: sum(after[name] - before[name] for before, after in pairs) for name in ADDED},
        "updates_per_version": updates / pulls if pulls else None,
        "learner": {"wait_s": last["learner"]["wait_s"] - first["learner"]["wait_s"]},
        "publisher": {
            "cpu_share": (cpu_s[1] - cpu_s[0]) / (last["wall_s"] - first["wall_s"]),
            "share_of_fp32": last["publisher"]["share_of_fp32"],
        },
    }


def _histograms(counters: Counters) -> dict[str, Array]:
    return {name: getattr(counters, name).reshape(-1, CLASSES).sum(axis=0) for name in HISTOGRAMS}


def _sparse(counts: Array) -> dict[str, int]:
    return {str(place): int(counts[place]) for place in np.flatnonzero(counts)}


def dense(*sparse: Mapping[str, int]) -> Array:
    """int64 [CLASSES]: the counts of several cells together."""
    counts = np.zeros(CLASSES, np.int64)
    for cell in sparse:
        for place, count in cell.items():
            counts[int(place)] += count
    return counts
