"""Cells of ActorQ: runs to their target or their bound, and runs that are watched for a window."""

from __future__ import annotations

import contextlib
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from quarl.actorq.counters import CLASSES, Control, Counters, Learner
from quarl.arrays import Array
from quarl.config import ActorQConfig
from quarl.errors import QuarlError
from quarl.files import temporary_folder
from quarl.lab.cells import Job
from quarl.lab.trainings import actorq_config, played, say
from quarl.machine import machine
from quarl.policy.graph import QuantizedPolicy
from quarl.processes.signals import SIGNALLED
from quarl.readers import load
from quarl.runs.folder import RunFolder

if TYPE_CHECKING:
    from quarl.actorq.supervisor import Supervisor

Facts = Mapping[str, Any]
HISTOGRAMS = ("staleness", "latency_ms", "blocked_ms")
"""Counters in bins: ages in updates, milliseconds, tenths of a millisecond."""
ADDED = (
    *("steps", "pulls", "skipped", "loop_s", "inference_s", "environment_s", "insert_s"),
    *("pull_s", "deserialize_s", "load_s", "wait_s", "stale_s"),
)
"""Values of an actor in a row of metrics that add up over the run."""
OF_CURVES = ("clock_s", "timesteps", "updates", "return", "return_quantised")
"""Values of an evaluation that are kept."""
ENDED = ("clock_s", "timesteps", "updates")
"""Values of the moment at which a run reached its target, or ended without."""
DESCRIBED = (
    *("engine", "net_arch", "samples_per_insert", "actors", "envs_per_actor"),
    *("actor_update_interval", "publish_interval"),
)
"""Options of a run that its rows hold."""
ENDLESS = 10**9
"""Environment steps of a run that is watched for a window."""
WARM_UP_S = 10.0
"""Seconds before the window in which a derived arm's pace is measured."""


def run(job: Job) -> dict[str, Any]:
    """Train a learner with quantized actors and play its policy, in float.

    A run with a limit on its time restarts after a kill, and leaves no files.
    """
    from quarl.actorq.auto import chosen  # here: other cells need no learner
    from quarl.actorq.supervisor import Supervisor

    job = _chosen(job)
    work = job.cell.work
    config, is_timed = actorq_config(work, job.folder), "cap" in work
    if "derived" in work:
        return _derived(job, config)
    cap_s = _cap_s(job) if is_timed else math.inf
    if RunFolder(config.output).checkpoints() and not is_timed:
        config = replace(config, resume=True)
    else:
        shutil.rmtree(job.folder, ignore_errors=True)  # it was killed before there was anything to resume
    rates = _rates(config) if "part" in work else None
    supervisor = Supervisor(chosen(config, say), say)
    for metrics in supervisor.run():
        if metrics["clock_s"] >= cap_s and supervisor.evaluator.reached_s is None:
            supervisor.counters.control[Control.FINISH] = 1
    ended, row = supervisor.result, supervisor.result.row
    if ended.exit_code:
        raise _ended(supervisor, "")
    policy = load.read(job.folder / "policy-fp32.safetensors")
    assert isinstance(policy, QuantizedPolicy)
    assert row is not None
    entries = supervisor.evaluator.entries
    last: Facts = next(reversed(entries), {})
    reached = next((entry for entry in entries if entry["clock_s"] == row["reached_s"]), row)
    facts = {
        **played(job, policy),
        **{name: row[name] for name in ("clock_s", "reached_s", "updates")},
        **{name: metrics[name] for name in ("staleness_p50", "staleness_p99")},
        **{f"final_{name}": last.get(name) for name in ("return", "return_quantised")},
        "options": _described(supervisor.config, row["samples_per_insert"]),
        "predicted_updates_per_s": rates and rates["predicted_updates_per_s"],
        "target": config.target,
        "trained_steps": row["timesteps"],
        "ended": {name: reached[name] for name in ENDED},
        "evaluations": [{name: entry[name] for name in OF_CURVES if name in entry} for entry in entries],
        "part": work.get("part", "fixed"),
        "choice": work.get("choice"),
        "cpu": machine()["cpu"],
    }
    if is_timed:
        shutil.rmtree(job.folder)
    return facts


def seconds_of(facts: Facts) -> float:
    """Return the seconds to the target, or to the end of a run without."""
    return float(facts["ended"]["clock_s"])


def _chosen(job: Job) -> Job:
    """Return the job with the options of the fastest development run, if it has to choose; of equal ones the first."""
    work = job.cell.work
    if "choices" not in work:
        return job
    tried = [(job.before[choice["key"]], choice) for choice in work["choices"] if choice["key"] in job.before]
    arrived = [(facts, choice) for facts, choice in tried if facts["reached_s"] is not None]
    if failed := len(work["choices"]) - len(tried):
        raise QuarlError(f"{failed} of its development runs failed, and it is not measured")
    if not arrived:
        raise QuarlError(
            f"{job.cell.precision} reached the target in none of {len(tried)} development runs, and is not measured"
        )
    _, choice = min(arrived, key=lambda pair: seconds_of(pair[0]))
    work = {**work, "options": choice["options"], "choice": choice["key"]}
    return replace(job, cell=replace(job.cell, work=work))


def _cap_s(job: Job) -> float:
    """Return the training time after which the run ends; QuarlError if its bound is of another processor."""
    cap, here = job.cell.work["cap"], machine()["cpu"]
    for facts in job.before.values():
        if facts["cpu"] != here:
            raise QuarlError(
                f"the run that it is compared with was measured on {facts['cpu']}, and this is {here}: "
                "run the study there, or in another folder"
            )
    own = [job.before[key] for key in cap.get("own", ()) if key in job.before]
    if job.cell.work.get("part") == "development":
        own = [facts for facts in own if facts["reached_s"] is not None]
    if own:
        return min(map(seconds_of, own))
    longest = 60 * float(cap["minutes"])
    if "reference" not in cap:
        return longest
    shorter = 60 * float(cap["reference_minutes"])
    if not cap["reference"]:
        return shorter
    if (reference := job.before.get(cap["reference"])) is None:
        return longest
    times = float(cap["times"])
    return min(times * seconds_of(reference), longest if reference["reached_s"] is not None else shorter)


def _derived(job: Job, config: ActorQConfig) -> dict[str, Any]:
    """Return the facts of another arm's run at the measured pace of this one."""
    told = job.cell.work["derived"]
    if (source := job.before.get(told["of"])) is None:
        raise QuarlError("the run whose updates count failed")
    window = watch(config, warm_up=WARM_UP_S, seconds=told["seconds"])
    if not window["updates"]:
        raise QuarlError("the window saw no update, and so no pace: raise the seconds of derived")
    pace_s = window["clock_s"] / window["updates"]
    seconds = source["ended"]["updates"] * pace_s
    return {
        **source,
        "options": _described(config, source["options"]["samples_per_insert"]),
        "ended": {**source["ended"], "clock_s": seconds},
        "clock_s": source["updates"] * pace_s,
        "reached_s": None if source["reached_s"] is None else seconds,
        "evaluations": [],
        "derived": True,
    }


def watch_window(job: Job) -> dict[str, Any]:
    """Watch a run for a window, and predict its updates a second."""
    work = job.cell.work
    config = actorq_config(work, job.folder)
    window = watch(config, warm_up=work["warm_up"], seconds=work["seconds"])
    rates = _rates(config)
    options = _described(config, rates["samples_per_insert"])
    return {**window, **rates, "options": options, "cpu": machine()["cpu"]}


def _described(config: ActorQConfig, ratio: float) -> dict[str, Any]:
    """Return the options of a run that its rows hold; `ratio` is its samples per insert if it names none."""
    options = {name: getattr(config, name) for name in DESCRIBED}
    return options | {
        "net_arch": config.net_arch or "default",
        "samples_per_insert": config.samples_per_insert or ratio,
    }


def _rates(config: ActorQConfig) -> dict[str, Any]:
    """Return the updates a second that `quarl actorq --plan` predicts for the run."""
    from quarl.actorq import throughput_plan  # here: other cells predict nothing

    rates = throughput_plan.measure(config, ((config.actor_precision, config.engine),))
    row, *_ = throughput_plan.predict(rates, config)
    return {
        "predicted_updates_per_s": row.predicted_updates_per_s,
        "batch_size": rates.batch_size,
        "samples_per_insert": rates.samples_per_insert,
    }


def watch(config: ActorQConfig, *, warm_up: float, seconds: float) -> dict[str, Any]:
    """Watch a run without an end for a window of training time.

    Args:
        config: The run; its length, target and evaluations have no effect.
        warm_up: Seconds from the first actions of the policy to the window.
        seconds: Length of the window.

    Returns:
        What came about between the window's ends: steps, updates, waits, ages of weights.
    """
    from quarl.actorq.supervisor import Supervisor  # here: other cells need no learner

    endless: dict[str, Any] = {
        "n_timesteps": ENDLESS,
        "eval_freq": 0,
        "target": None,
        "save_freq": ENDLESS,
        "save_minutes": 0.0,
    }
    acting_since: float | None = None
    window: list[dict[str, Any]] = []
    with temporary_folder() as folder:
        supervisor = Supervisor(replace(config, **endless, save_replay_buffer=False, output=folder), say)
        with contextlib.closing(supervisor.run()) as rows:
            for row in rows:
                # the window opens after all actors act on weights of the learner instead of at random
                acting = all(actor["version"] for actor in row["actors"])
                if not acting or row["timesteps"] <= supervisor.counters.learner[Learner.RANDOM_UNTIL]:
                    continue
                if acting_since is None:
                    acting_since = row["clock_s"]
                if not window and row["clock_s"] - acting_since >= warm_up:
                    before = _histograms(supervisor.counters)
                    window.append(row)
                elif window:
                    window.append(row)
                    if row["clock_s"] - window[0]["clock_s"] >= seconds:
                        after = _histograms(supervisor.counters)
                        ages = {name: _sparse(after[name] - before[name]) for name in HISTOGRAMS}
                        return {**_differences(window), **ages}
    raise _ended(supervisor, "before its window closed")


def _ended(supervisor: Supervisor, when: str) -> BaseException:
    """Return the exception for a run that ended early; a signal ends the process with its code."""
    code = supervisor.result.exit_code
    if code > SIGNALLED:
        return SystemExit(code)
    message = supervisor.result.message.partition("; resume with")[0] or f"exit code {code}"
    return QuarlError(f"the run ended {when}: {message}" if when else message)


def _differences(window: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the differences between the first row of a window and the last."""
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
