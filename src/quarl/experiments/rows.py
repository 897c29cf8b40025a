"""Rows of a study: what its finished cells measured, compared with the float32 agent that each began from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quarl import stats
from quarl.arrays import Array
from quarl.experiments.cells import ACTORQ, DONE, FP32, NAMES, STATES, TRAIN, Named
from quarl.experiments.store import Record
from quarl.quant.spec import QuantSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Named):
    """One cell: the contract of the rows of `quarl study` and `quarl sweep`."""

    bits_weights: int
    bits_activations: int
    """32 where activations stay float."""
    state: str
    """done, failed, na, running or todo; what is measured is None in all but the first."""
    episodes: int
    mean: float | None
    ci_low: float | None
    """Ends of the 95 % bootstrap interval of the mean, over episodes."""
    ci_high: float | None
    error_pct: float | None
    """Loss against the fp32 cell of the same agent and seed, in percent of it; NaN where its interval contains 0."""
    noninferior: bool | None
    verdict: str | None
    """Paired with that cell's episodes, as stats.Verdict has it; None where there is no such cell."""
    differs: bool | None
    margin_pct: float
    """Loss that counts as non-inferior, in percent of the return in fp32."""
    measured: bool | None
    """False where no kernel runs the precision and it was simulated."""
    file_bytes: int | None
    weight_min: float | None
    weight_max: float | None
    weight_std: float | None
    seconds: float | None
    """From the cell's beginning to its end."""
    env_steps: int | None
    minutes: float | None
    """Of the training behind it; 0 where its agent comes from elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """How far one method of one agent is: the contract of `quarl study status --json`."""

    algo: str
    env_id: str
    source: str
    method: str
    cells: int
    done: int
    failed: int
    na: int
    running: int
    todo: int
    minutes: float
    """Of all cells that have ended."""


def rows(records: Sequence[Record], margin_pct: float) -> list[Row]:
    """A row for every cell that the study asks for; trainings, which score nothing themselves, have none."""
    exact = {_agent(record): returns(record) for record in records if is_baseline(record) and record.state == DONE}
    trained = {_agent(record): record.found for record in records if record.method == TRAIN and record.found}
    return [
        _row(record, exact.get(_agent(record)), trained.get(_agent(record), {}), margin_pct)
        for record in records
        if record.method != TRAIN
    ]


def is_baseline(record: Record) -> bool:
    """Whether other cells are compared with it: fp32, and among ActorQ's, fp32 actors."""
    return record.method == FP32 or (record.method == ACTORQ and record.precision == FP32)


def returns(record: Record) -> Array:
    """float64 [episodes] of a cell that is done."""
    assert record.found is not None
    return np.asarray(record.found["returns"], np.float64)


def _agent(record: Record) -> tuple[Any, ...]:
    return record.algo, record.env_id, record.source, record.seed, record.method == ACTORQ


def _row(record: Record, exact: Array | None, training: Mapping[str, Any], margin_pct: float) -> Row:
    about: dict[str, Any] = {name: getattr(record, name) for name in (*NAMES, "state", "episodes", "seconds")}
    spec = QuantSpec.parse(record.precision, scheme=record.scheme)
    about |= {
        "bits_weights": spec.weight_bits,
        "bits_activations": spec.activation_bits or 32,
        "margin_pct": margin_pct,
    }
    measured = ("measured", "file_bytes", "weight_min", "weight_max", "weight_std")
    nothing: dict[str, Any] = dict.fromkeys(
        ("mean", "ci_low", "ci_high", "error_pct", "env_steps", "minutes", *measured)
    )
    nothing |= stats.NO_VERDICT
    if record.state != DONE or record.found is None:
        return Row(**about, **nothing)
    training = record.found if "trained_steps" in record.found else training
    seconds = training.get("clock_s", 60 * training.get("minutes", 0.0))
    played = returns(record)
    rng = np.random.default_rng(record.seed)
    summary = stats.summary(played, rng)
    found: dict[str, Any] = {name: record.found.get(name) for name in measured}
    found |= {"mean": summary.mean, "ci_low": summary.ci_low, "ci_high": summary.ci_high}
    found |= {"env_steps": training.get("trained_steps", 0), "minutes": seconds / 60}
    if exact is not None and exact.size == played.size:
        found["error_pct"] = stats.error_pct(exact, played, np.random.default_rng(record.seed))
        found |= stats.verdict(exact, played, margin_pct, rng).to_json()
    return Row(**about, **(nothing | found))


def status(records: Sequence[Record]) -> list[Status]:
    """One row for every method of every agent, in the study's order."""
    groups: dict[tuple[str, str, str, str], list[Record]] = {}
    for record in records:
        groups.setdefault((record.algo, record.env_id, record.source, record.method), []).append(record)
    made = []
    for (algo, env_id, source, method), members in groups.items():
        states = [record.state for record in members]
        counts: dict[str, Any] = {state: states.count(state) for state in STATES}
        minutes = sum(record.seconds or 0.0 for record in members) / 60
        about = {"algo": algo, "env_id": env_id, "source": source, "method": method, "cells": len(members)}
        made.append(Status(**{**about, **counts, "minutes": minutes}))
    return made
