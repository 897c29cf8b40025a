"""The contract of every --json file: keys and types of the document and of the rows of each verb."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
Document = Mapping[str, Any]
Types = tuple[type, ...]
NULL = type(None)

DOCUMENT: Mapping[str, Types] = {
    "command": (str,),
    "model": (str, NULL),
    "algo": (str, NULL),
    "env_id": (str, NULL),
    "seed": (int, NULL),
    "rows": (list,),
}

ROWS: Mapping[str, Mapping[str, Types]] = {
    "ptq": {
        "precision": (str,),
        "bits_weights": (int,),
        "bits_activations": (int,),
        "scheme": (str,),
        "mode": (str,),
        "engine": (str,),
        "measured": (bool,),
        "episodes": (int,),
        "mean": (float,),
        "std": (float,),
        "iqm": (float,),
        "ci_low": (float,),
        "ci_high": (float,),
        "error_pct": (float, NULL),
        "margin_pct": (float,),
        "noninferior": (bool,),
        "bytes": (int,),
        "bytes_packed": (int,),
        "latency_us_p50": (float,),
        "latency_us_p99": (float,),
        "agreement": (float,),
        "coverage": (float,),
    },
    "eval": {
        "precision": (str,),
        "engine": (str,),
        "measured": (bool,),
        "stochastic": (bool,),
        "episodes": (int,),
        "mean": (float,),
        "std": (float,),
        "iqm": (float,),
        "ci_low": (float,),
        "ci_high": (float,),
        "steps": (int,),
        "steps_per_s": (float,),
    },
    "inspect": {
        "layer": (str,),
        "operator": (str,),
        "shape": (list,),
        "precision": (str,),
        "scheme": (str,),
        "min": (float,),
        "max": (float,),
        "range": (float,),
        "levels": (int,),
        "sqnr_db": (float, NULL),
        "saturation": (float,),
        "histogram": (dict,),
    },
    "bench latency": {
        "network": (str,),
        "batch": (int,),
        "engine": (str,),
        "precision": (str,),
        "us_p50": (float,),
        "us_p99": (float,),
        "bytes": (int,),
    },
    "train": {
        "algo": (str,),
        "env_id": (str,),
        "precision": (str,),
        "quant_delay": (int, NULL),
        "learner_dtype": (str,),
        "seed": (int,),
        "timesteps": (int,),
        "updates": (int,),
        "clock_s": (float,),
        "wall_s": (float,),
        "steps_per_s": (float,),
        "episodes": (int,),
        "mean": (float,),
        "std": (float,),
        "ci_low": (float,),
        "ci_high": (float,),
        "mean_quantised": (float, NULL),
        "ci_low_quantised": (float, NULL),
        "ci_high_quantised": (float, NULL),
        "measured_quantised": (bool, NULL),
        "best_mean": (float, NULL),
        "best_timesteps": (int, NULL),
        "folder": (str,),
    },
    "actorq": {
        "algo": (str,),
        "env_id": (str,),
        "precision": (str,),
        "engine": (str,),
        "seed": (int,),
        "clock_s": (float,),
        "wall_s": (float,),
        "timesteps": (int,),
        "updates": (int,),
        "samples_per_insert": (float, NULL),
        "reached_s": (float, NULL),
        "final": (dict, NULL),
        "actor_deaths": (int,),
    },
    "actorq plan": {
        "precision": (str,),
        "engine": (str,),
        "env_us": (float,),
        "inference_us": (float,),
        "overhead_us": (float,),
        "steps_per_s": (float,),
        "learner_ms": (float,),
        "predicted_updates_per_s": (float,),
        "predicted_speedup_vs_torch_fp32": (float, NULL),
        "predicted_speedup_vs_litert_fp32": (float, NULL),
        "bottleneck": (str,),
    },
    "bench actorq throughput": {
        "precision": (str,),
        "engine": (str,),
        "samples_per_insert": (float,),
        "net_arch": (str,),
        "actors": (int,),
        "updates_per_s": (float,),
        "env_steps_per_s": (float,),
        "speedup_vs_torch_fp32": (float, NULL),
        "speedup_vs_litert_fp32": (float, NULL),
        "predicted_speedup": (float, NULL),
        "predicted_updates_per_s": (float,),
        "vs_torch_low": (float, NULL),
        "vs_torch_high": (float, NULL),
        "vs_litert_low": (float, NULL),
        "vs_litert_high": (float, NULL),
        "seconds": (float,),
        "updates": (int,),
        "env_steps": (int,),
        "realised_samples_per_insert": (float,),
        "inference_us": (float,),
        "environment_us": (float,),
        "overhead_us": (float,),
        "actor_wait_share": (float,),
        "learner_wait_share": (float,),
        "updates_per_version": (float, NULL),
        "versions_advance": (bool,),
        "staleness_p50": (float, NULL),
        "staleness_p99": (float, NULL),
        "latency_ms_p50": (float, NULL),
        "latency_ms_p99": (float, NULL),
        "blocked_ms_p50": (float, NULL),
        "blocked_ms_p99": (float, NULL),
        "bytes_share_of_fp32": (float, NULL),
        "publisher_cpu_share": (float,),
    },
    "bench actorq time-to-reward": {
        "task": (str,),
        "algo": (str,),
        "precision": (str,),
        "engine": (str,),
        "seed": (int,),
        "target": (float,),
        "seconds": (float,),
        "derived": (bool,),
        "censored": (bool,),
        "env_steps": (int,),
        "updates": (int,),
        "final_return": (float, NULL),
        "final_return_quantised": (float, NULL),
        "samples_per_insert": (float,),
    },
    "bench actorq speed-up": {
        "task": (str,),
        "precision": (str,),
        "engine": (str,),
        "against": (str,),
        "best_ratio": (bool,),
        "seconds": (float, NULL),
        "seconds_against": (float, NULL),
        "speedup": (float,),
        "low": (float,),
        "high": (float,),
        "at_least": (bool,),
        "derived": (bool,),
        "seeds": (int,),
        "lost": (int,),
        "final_return_pct": (float, NULL),
        "noninferior": (bool, NULL),
    },
    "bench actorq breakdown": {
        "precision": (str,),
        "engine": (str,),
        "actor_update_interval": (int,),
        "publish_interval": (int,),
        "samples_per_insert": (float,),
        "net_arch": (str,),
        "actors": (int,),
        "env_steps": (int,),
        "inference_ms": (float,),
        "environment_ms": (float,),
        "insert_ms": (float,),
        "pull_ms": (float,),
        "deserialize_ms": (float,),
        "load_ms": (float,),
        "wait_ms": (float,),
        "other_ms": (float,),
    },
    "bench actorq staleness": {
        "task": (str,),
        "algo": (str,),
        "precision": (str,),
        "engine": (str,),
        "actor_update_interval": (int,),
        "publish_interval": (int,),
        "samples_per_insert": (float,),
        "seed": (int,),
        "staleness_p50": (float, NULL),
        "staleness_p99": (float, NULL),
        "env_steps": (int,),
        "updates": (int,),
        "final_return": (float,),
        "final_return_quantised": (float,),
    },
    "doctor": {
        "check": (str,),
        "found": (str,),
        "ok": (bool,),
        "advice": (str,),
    },
}
"""By the document's `command`. A whole number stands for a float too; null where the verb has no such thing."""


def document(
    command: str,
    rows: Sequence[Row],
    *,
    model: str | None = None,
    algo: str | None = None,
    env_id: str | None = None,
    seed: int | None = None,
) -> Document:
    """What a --json file holds; numbers that JSON cannot write (NaN, infinity) become null."""
    plain = [{key: _plain(value) for key, value in row.items()} for row in rows]
    return {"command": command, "model": model, "algo": algo, "env_id": env_id, "seed": seed, "rows": plain}


def to_text(document: Document) -> str:
    """The document as JSON text, one row a line, so that two runs can be compared line by line."""
    head = {key: value for key, value in document.items() if key != "rows"}
    fields = [f'  "{key}": {json.dumps(value)}' for key, value in head.items()]
    rows = ",\n".join(f"    {json.dumps(row, allow_nan=False)}" for row in document["rows"])
    return "{\n" + ",\n".join([*fields, f'  "rows": [\n{rows}\n  ]']) + "\n}\n"


def check(document: Document) -> None:
    """Raises ValueError where the document breaks the contract, naming the first key that does."""
    _check_keys(document, DOCUMENT, "the document")
    if document["command"] not in ROWS:
        raise ValueError(f"command is {document['command']!r}, expected one of {', '.join(ROWS)}")
    for number, row in enumerate(document["rows"]):
        _check_keys(row, ROWS[document["command"]], f"row {number}")


def _check_keys(found: Mapping[str, Any], wanted: Mapping[str, Types], where: str) -> None:
    if list(found) != list(wanted):
        raise ValueError(f"{where} has keys {list(found)}, expected {list(wanted)}")
    for key, types in wanted.items():
        # bool is a kind of int in Python, but not in JSON
        accepted = {*types, *((int,) if float in types else ())}
        if type(found[key]) not in accepted:
            raise ValueError(f"{where}: {key} is {found[key]!r}, expected {' or '.join(t.__name__ for t in types)}")


def _plain(value: Any) -> Any:
    """The value without numpy's types; numbers that JSON has no word for become None."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value
