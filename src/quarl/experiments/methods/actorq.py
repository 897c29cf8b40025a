"""Cells of the ActorQ measurements: real runs, watched for a window or to their end."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from quarl.actorq.counters import CLASSES, Counters, Learner
from quarl.actorq.supervisor import Supervisor
from quarl.arrays import Array
from quarl.config import ActorQConfig
from quarl.config.base import METERED
from quarl.energy import OFF, Meter
from quarl.errors import QuarlError
from quarl.experiments.methods.cells import Cell, Say
from quarl.processes.signals import SIGNALLED

HISTOGRAMS = ("staleness", "latency_ms", "blocked_ms")
"""Of the counters: ages in updates, milliseconds, tenths of a millisecond."""
ADDED = (
    *("steps", "pulls", "skipped", "loop_s", "inference_s", "environment_s", "insert_s"),
    *("pull_s", "deserialize_s", "load_s", "wait_s", "stale_s"),
)
"""Of an actor's part of a row of metrics: what adds up over the run."""
LEARNER_S = ("train_s", "insert_s", "push_s", "wait_s")
ELSEWHERE = ("json", "output", "resume", "plan", *METERED)
"""Options that a cell does not depend on."""


def settings_of(config: ActorQConfig, **more: Any) -> dict[str, Any]:
    """What a cell depends on: the run's configuration and `more`."""
    found = {key: value for key, value in asdict(config).items() if key not in ELSEWHERE}
    return found | more


def described(config: ActorQConfig, *names: str) -> dict[str, Any]:
    """Precision and engine of a run's actors, as a row has them, and the run's options of these names."""
    own = {"precision": config.actor_precision, "engine": config.engine}
    return own | {name: getattr(config, name) for name in names}


def name_of(arm: str, config: ActorQConfig) -> str:
    """What a cell is called before its seed or number."""
    network = str(config.net_arch).replace(",", "x")
    return f"{arm}-spi{config.samples_per_insert:g}-{network}-every{config.actor_update_interval}"


def watch(config: ActorQConfig, *, warm_up: float, seconds: float, say: Say, meter: Meter = OFF) -> Cell:
    """What a run does in a window of training time that opens `warm_up` seconds after its actors use their policy."""
    with _running(config, say) as supervisor:
        rows = supervisor.run()
        acting_since: float | None = None
        window: _Window | None = None
        with contextlib.closing(rows):
            for row in rows:
                counters = supervisor.counters
                acting = all(actor["version"] for actor in row["actors"])
                if not acting or row["timesteps"] <= counters.learner[Learner.RANDOM_UNTIL]:
                    continue
                if acting_since is None:
                    acting_since = row["clock_s"]
                if window is None and row["clock_s"] - acting_since >= warm_up:
                    window = _Window(row, counters, meter)
                elif window is not None:
                    window.add(row)
                    if window.clock_s >= seconds:
                        return window.close(counters, config)
        raise _ended(supervisor, "before its window closed")


def train(config: ActorQConfig, *, cap_s: float = math.inf, say: Say, meter: Meter = OFF) -> Cell:
    """A run to its end, or until the training clock reaches `cap_s` (then it is censored).

    meter: counts the whole run: its start, its evaluations and what its processes take to end.
    """
    joules = meter.joules()
    with _running(config, say) as supervisor:
        rows = supervisor.run()
        censored = False
        with contextlib.closing(rows):
            for row in rows:
                if supervisor.evaluator.reached_s is None and row["clock_s"] >= cap_s:
                    censored = True
                    break
        if not censored and supervisor.result.exit_code:
            raise _ended(supervisor, "")
        reached_s = supervisor.evaluator.reached_s
        entries = supervisor.evaluator.entries
        return {
            **{name: row[name] for name in ("clock_s", "timesteps", "updates", "staleness_p50", "staleness_p99")},
            "joules": _since(joules, meter),
            "joules_by": meter.method,
            "reached_s": reached_s,
            "reached": next((entry for entry in entries if entry["clock_s"] == reached_s), None),
            "evaluations": entries,
        }


def _since(before: float | None, meter: Meter) -> float | None:
    now = meter.joules()
    return None if before is None or now is None else now - before


@contextlib.contextmanager
def _running(config: ActorQConfig, say: Say) -> Any:
    """A supervisor whose files vanish with it."""
    with tempfile.TemporaryDirectory(prefix="quarl-bench-") as folder:
        yield Supervisor(replace(config, output=Path(folder)), say)


def _ended(supervisor: Supervisor, when: str) -> BaseException:
    """What ended a run early: Ctrl-C goes on as such."""
    if supervisor.result.exit_code > SIGNALLED:
        return KeyboardInterrupt()
    message = supervisor.result.message.partition("; go on with")[0] or "see above"
    return QuarlError(
        f"the run ended {when} with exit code {supervisor.result.exit_code}: {message}".replace("  ", " ")
    )


class _Window:
    """Differences between the first row of a window and the last."""

    def __init__(self, row: dict[str, Any], counters: Counters, meter: Meter) -> None:
        self.first = self.last = row
        self.slices = [_point(row)]
        self.histograms = _histograms(counters)
        self.meter, self.joules = meter, meter.joules()

    def add(self, row: dict[str, Any]) -> None:
        self.last = row
        self.slices.append(_point(row))

    @property
    def clock_s(self) -> float:
        return float(self.last["clock_s"] - self.first["clock_s"])

    def close(self, counters: Counters, config: ActorQConfig) -> Cell:
        first, last = self.first, self.last
        pairs = list(zip(first["actors"], last["actors"], strict=True))
        updates = last["updates"] - first["updates"]
        pulls = min(after["pulls"] - before["pulls"] for before, after in pairs)
        more = {name: counts - self.histograms[name] for name, counts in _histograms(counters).items()}
        cpu_s = [row["publisher"]["cpu_share"] * row["wall_s"] for row in (first, last)]
        return {
            "clock_s": self.clock_s,
            "joules": _since(self.joules, self.meter),
            "joules_by": self.meter.method,
            "env_steps": last["timesteps"] - first["timesteps"],
            "updates": updates,
            "slices": self.slices,
            "actors": {name: sum(after[name] - before[name] for before, after in pairs) for name in ADDED},
            "updates_per_version": updates / pulls if pulls else None,
            "learner": {name: last["learner"][name] - first["learner"][name] for name in LEARNER_S},
            "publisher": {
                "cpu_share": (cpu_s[1] - cpu_s[0]) / (last["wall_s"] - first["wall_s"]),
                "published": last["publisher"]["published"] - first["publisher"]["published"],
                **{name: last["publisher"][name] for name in ("pack_ms", "quantize_ms", "share_of_fp32")},
            },
            **{name: {str(k): int(more[name][k]) for k in np.flatnonzero(more[name])} for name in HISTOGRAMS},
        }


def _point(row: dict[str, Any]) -> tuple[float, int, int]:
    return row["clock_s"], row["timesteps"], row["updates"]


def _histograms(counters: Counters) -> dict[str, Array]:
    return {name: getattr(counters, name).reshape(-1, CLASSES).sum(axis=0) for name in HISTOGRAMS}


def dense(*sparse: Mapping[str, int]) -> Array:
    """int64 [CLASSES]: the counts of several cells together."""
    counts = np.zeros(CLASSES, np.int64)
    for one in sparse:
        for key, count in one.items():
            counts[int(key)] += count
    return counts
