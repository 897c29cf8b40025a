"""Rows of a study: results of its finished cells, compared with the float32 agent that each started from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any

import numpy as np

from quarl import formats
from quarl.arrays import Array
from quarl.judging import judged
from quarl.lab.cells import ACTORQ, DONE, FP32, NA, NAMES, STATES, TRAIN, AgentName, Named
from quarl.lab.store import Record
from quarl.quant.spec import QuantSpec
from quarl.rows import Column, Episodes, Error, Interval, Mean, Method, Minutes, Returns, Row, by


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRow(Named, Row):
    """One cell."""

    command = "study"
    bits_weights: int
    bits_activations: int
    """Bits of activations; 32 if they stay float."""
    state: str
    """done, failed, na, running or todo; measured values are null except for done."""
    episodes: Episodes
    mean: Mean
    ci_low: Interval
    """Ends of the 95 % bootstrap interval of the mean, over episodes."""
    ci_high: float | None
    error_pct: Error
    """Loss against the fp32 cell of the same agent and seed (for actorq, with fp32 actors), in percent of it. Null
    if its interval contains 0, and without such a cell."""
    noninferior: bool | None
    verdict: Annotated[str | None, Column("verdict", _verdict, of=("verdict", "differs", "precision", "state"))]
    """Verdict paired with that cell's episodes; null without such a cell."""
    differs: bool | None
    margin_pct: Annotated[float, Column("margin", "{:g} %".format, caption="margin {}")]
    """Loss that counts as non-inferior, in percent of the return in fp32."""
    measured: Annotated[bool | None, Column("kernels", formats.kernels)]
    """False if no kernel runs the precision and it was simulated."""
    file_bytes: int | None
    bits_mean: float | None
    """Mean bits of a weight, over all layers."""
    payload: Annotated[int | None, Column("payload", formats.size, optional=True)]
    """Bytes of the weights at their bits, scales, zero points and biases; null in cells of older versions."""
    bytes_packed: int | None
    """Size of the saved policy's file, whose header is most of a small network's."""
    weight_min: float | None
    weight_max: float | None
    weight_std: float | None
    seconds: Annotated[float | None, Column("seconds", lambda seconds: "–" if seconds is None else f"{seconds:.2f}")]
    """Duration of the cell."""
    env_steps: int | None
    minutes: float | None
    """Duration of its training; 0 if its agent comes from another source."""
    distillation: dict[str, float] | None
    """Round of the chosen snapshot (0 is the calibrated policy), its updates, states and validation_mean,
    validation_episodes, and seconds: validation_s, and distillation_s without them. Null for other methods."""
    returns: Returns


def _verdict(verdict: str | None, differs: bool | None, precision: str, state: str) -> str:
    if state != DONE:
        return "n/a" if state == NA else state
    return "" if verdict is None else formats.verdict(verdict, differs, precision)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusRow(AgentName, Row):
    """Progress of one method of one agent."""

    command = "study status"
    method: Method
    cells: Annotated[int, Column("cells")]
    done: Annotated[int, Column("done", formats.count)]
    failed: Annotated[int, Column("failed", formats.count)]
    na: Annotated[int, Column("n/a", formats.count)]
    running: Annotated[int, Column("running", formats.count)]
    todo: Annotated[int, Column("to do", formats.count)]
    minutes: Minutes
    """Minutes of all cells that have ended."""


def rows(records: Sequence[Record], margin_pct: float) -> list[CellRow]:
    """Return a row for every cell of the study, without trainings, which have no score."""
    # baselines are cells in fp32, and for ActorQ those with fp32 actors
    baselines = (record for record in records if record.method in (FP32, ACTORQ) and record.precision == FP32)
    exact = {_agent(record): returns(record) for record in baselines if record.state == DONE}
    trained = {_agent(record): record.result for record in records if record.method == TRAIN and record.result}
    return [
        _row(record, exact.get(_agent(record)), trained.get(_agent(record), {}), margin_pct)
        for record in records
        if record.method != TRAIN
    ]


def returns(record: Record) -> Array:
    """Return the returns of a finished cell, float64 [episodes]."""
    return np.asarray(record.result["returns"], np.float64)


def _agent(record: Record) -> tuple[Any, ...]:
    return record.of_agent(), record.seed, record.mode if record.method == ACTORQ else None


def _row(record: Record, exact: Array | None, training: Mapping[str, Any], margin_pct: float) -> CellRow:
    spec = QuantSpec.parse(record.precision, scheme=record.scheme)
    row: dict[str, Any] = dict.fromkeys(field.name for field in fields(CellRow))
    row |= {name: getattr(record, name) for name in (*NAMES, "state", "episodes", "seconds")}
    row |= {"bits_weights": spec.weight_bits, "bits_activations": spec.activation_bits or 32, "margin_pct": margin_pct}
    if record.state == DONE and "returns" in record.result:
        training = record.result if "trained_steps" in record.result else training
        seconds = training.get("clock_s", 60 * training.get("minutes", 0.0))
        measured = {**record.result, **judged(returns(record), exact, margin_pct, record.seed)}
        measured |= {"env_steps": training.get("trained_steps", 0), "minutes": seconds / 60}
        row |= {name: measured.get(name, value) for name, value in row.items()}
    return CellRow(**row)


def status(records: Sequence[Record]) -> list[StatusRow]:
    """Return one row for every method of every agent, in the study's order."""
    counted = []
    for (agent, method), members in by(records, lambda record: (record.of_agent(), record.method)).items():
        states = [record.state for record in members]
        counts: dict[str, Any] = {state: states.count(state) for state in STATES}
        minutes = sum(record.seconds or 0.0 for record in members) / 60
        counted.append(StatusRow(**asdict(agent), method=method, cells=len(members), **counts, minutes=minutes))
    return counted
