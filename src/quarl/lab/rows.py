"""Rows of a study: results of its finished cells, compared with the float32 agent that each started from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any

import numpy as np

from quarl import formats
from quarl.arrays import Array
from quarl.judging import judged
from quarl.lab.cells import ACTORQ, DONE, FP32, NA, NAMES, RUNNING, STATES, TODO, TRAIN, AgentName, Named
from quarl.lab.store import Record
from quarl.quant.spec import SCHEMES, QuantSpec
from quarl.rows import (
    VERDICTS,
    Column,
    Drop,
    Episodes,
    Error,
    Interval,
    Lengths,
    Mean,
    Method,
    Minutes,
    PartOfVerdict,
    Returns,
    Row,
    Success,
    Successes,
    SuccessMargin,
    by,
)
from quarl.stats import as_fields, wilson_interval


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
    success: Success
    success_low: float | None
    success_high: float | None
    drop: Drop
    drop_low: float | None
    drop_high: float | None
    error_pct: Error
    """Loss against the fp32 cell of the same agent and seed (for actorq, with fp32 actors), in percent of it. Null
    if its interval contains 0, and without such a cell."""
    noninferior: bool | None
    verdict: Annotated[str | None, Column("verdict", _verdict, of=("state", *VERDICTS))]
    """Verdict paired with that cell's episodes, the worse of those on return and on success; null without such a
    cell."""
    verdict_return: PartOfVerdict
    verdict_success: PartOfVerdict
    differs: bool | None
    margin_pct: Annotated[float, Column("margin", "{:g} %".format, caption="margin {}")]
    """Loss that counts as non-inferior, in percent of the return in fp32."""
    success_margin: SuccessMargin
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
    lengths: Lengths
    """Null in cells of older versions, like `successes`."""
    successes: Successes


def _verdict(state: str, verdict: str | None, *about: Any) -> str:
    if state != DONE:
        return "n/a" if state == NA else state
    return formats.verdict_if_played(verdict, *about)


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
    precisions: Annotated[list[str], Column("precisions", " ".join, left=True)]
    minutes: Minutes
    """Minutes of all cells that have ended."""
    minutes_to_go: Annotated[float | None, Column("to go", lambda left: "unknown" if left is None else f"{left:.1f}")]
    """Estimated minutes of the cells to do, from finished ones of the same agent and method; null without any."""


def rows(records: Sequence[Record], margin_pct: float) -> list[CellRow]:
    """Return a row for every cell of the study, without trainings, which have no score."""
    # baselines are cells in fp32, and for ActorQ those with fp32 actors
    baselines = (record for record in records if record.method in (FP32, ACTORQ) and record.precision == FP32)
    exact = {_agent(record): record for record in baselines if record.state == DONE}
    trained = {_agent(record): record.result for record in records if record.method == TRAIN and record.result}
    return [
        _row(record, exact.get(_agent(record)), trained.get(_agent(record), {}), margin_pct)
        for record in records
        if record.method != TRAIN
    ]


def returns(record: Record) -> Array:
    """Return the returns of a finished cell, float64 [episodes]."""
    return np.asarray(record.result["returns"], np.float64)


def spec_of(record: Record) -> QuantSpec:
    """Return the precision of a cell; a scheme of the user's own is not imported, and has the default's widths."""
    return QuantSpec.parse(record.precision, scheme=record.scheme if record.scheme in SCHEMES else "default")


def both_successes(exact: Record, record: Record) -> tuple[Array, Array] | None:
    """Return the successes of two cells, bool [episodes] each; None unless both have one for each return."""
    both = [np.array(each.result.get("successes") or [], np.bool_) for each in (exact, record)]
    return (both[0], both[1]) if {each.size for each in both} == {returns(exact).size} else None


def incomplete(records: Sequence[Record]) -> str:
    """Return how many cells a study has measured, in words; empty if nothing is missing."""
    wanted = [record.state for record in records if record.method != TRAIN and record.state != NA]
    done = wanted.count(DONE)
    return "" if done == len(wanted) else f"{done:,} of {len(wanted):,} cells are measured"


def _agent(record: Record) -> tuple[Any, ...]:
    return record.of_agent(), record.seed, record.mode if record.method == ACTORQ else None


def _row(record: Record, exact: Record | None, training: Mapping[str, Any], margin_pct: float) -> CellRow:
    spec = spec_of(record)
    row: dict[str, Any] = dict.fromkeys(field.name for field in fields(CellRow))
    row |= {name: getattr(record, name) for name in (*NAMES, "state", "episodes", "seconds")}
    row |= {"bits_weights": spec.weight_bits, "bits_activations": spec.activation_bits or 32, "margin_pct": margin_pct}
    if record.state == DONE and "returns" in record.result:
        training = record.result if "trained_steps" in record.result else training
        seconds = training.get("clock_s", 60 * training.get("minutes", 0.0))
        won, fp32 = both_successes(record, record), None if exact is None else returns(exact)
        pair = None if exact is None or exact is record else both_successes(exact, record)
        measured = {**record.result, **judged(returns(record), fp32, margin_pct, record.seed, successes=pair)}
        measured |= as_fields(wilson_interval(won[0]) if won else None, "success", "success")
        measured |= {"env_steps": training.get("trained_steps", 0), "minutes": seconds / 60}
        row |= {name: measured.get(name, value) for name, value in row.items()}
    return CellRow(**row)


def status(records: Sequence[Record], finished: Sequence[Record] = ()) -> list[StatusRow]:
    """Return one row for every method of every agent, in the study's order.

    Args:
        records: The cells to count.
        finished: More cells, whose duration is known.
    """
    counted = []
    ended = by((each for each in (*records, *finished) if each.state == DONE), _kind)
    for (agent, method), members in by(records, _kind).items():
        states = [record.state for record in members]
        counts: dict[str, Any] = {state: states.count(state) for state in STATES}
        minutes = sum(record.seconds or 0.0 for record in members) / 60
        left = sum(state in (TODO, RUNNING) for state in states) / 60
        alike = [each.seconds or 0.0 for each in ended.get((agent, method), ())]
        to_go = left * float(np.mean(alike)) if alike else None if left else 0.0
        about: dict[str, Any] = {"precisions": list(dict.fromkeys(record.precision for record in members))}
        about |= {"cells": len(members), **counts, "minutes": minutes, "minutes_to_go": to_go}
        counted.append(StatusRow(**asdict(agent), method=method, **about))
    return counted


def _kind(record: Record) -> tuple[AgentName, str]:
    return record.of_agent(), record.method
