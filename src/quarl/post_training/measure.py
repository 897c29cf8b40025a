"""One agent across precisions: calibrate, quantise, play, time; one row each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

import numpy as np

from quarl import engines, formats
from quarl.arrays import Array
from quarl.calibration import Calibrated, quantised
from quarl.envs.environment import Environment
from quarl.evaluation import Evaluation, evaluate, record
from quarl.judging import judged, looks_of, until_judged
from quarl.latency.timing import time_engines
from quarl.policy import artifact
from quarl.policy.graph import Policy, QuantizedPolicy
from quarl.quant.spec import EXACT, QuantSpec
from quarl.rows import Column, EngineName, Episodes, Error, MaxEpisodes, Measured, Precision, Returns, Row, Scheme
from quarl.specs import PtqSpec
from quarl.stats import Interval, as_fields, drop_interval

AGREE_PCT = 1.0
"""Continuous actions agree where every component differs by at most this share of its range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PtqRow(Row):
    """One precision of one agent."""

    command = "ptq"
    precision: Precision
    bits_weights: int
    """Of the layers that are neither first nor last; 8 where each has bits of its own."""
    bits_mean: Annotated[float, Column("bits", formats.mean_bits, of=("bits_mean", "bits_weights"), optional=True)]
    """Of a weight, over all layers; a column where some layers have more bits than others."""
    bits_of_layers: dict[str, int]
    """By layer."""
    bits_activations: int
    """32 where activations stay float."""
    scheme: Scheme
    mode: Annotated[str, Column("mode", formats.activations, of=("mode", "bits_activations"), caption="{} activations")]
    """Activations: dynamic, on a grid for each row at run time, or static, on grids calibrated beforehand."""
    engine: EngineName
    measured: Measured
    episodes: Episodes
    max_episodes: MaxEpisodes
    mean: Annotated[float, Column("return", formats.spread, of=("mean", "std"))]
    """Mean over episodes of the sum of rewards."""
    std: float
    """Standard deviation over episodes (behind ±)."""
    iqm: Annotated[float, Column("IQM", formats.number)]
    """Interquartile mean: the mean of the middle half of the returns, which a few odd episodes do not move."""
    ci_low: Annotated[float | None, Column("95 % interval", formats.interval, of=("ci_low", "ci_high"), before="iqm")]
    """Ends of the 95 % bootstrap interval of the mean return; null of one episode."""
    ci_high: float | None
    success: Annotated[float | None, Column("success %", formats.percent, optional=True)]
    """Share of the episodes whose last step says `is_success`; its ends are those of Wilson's 95 % interval."""
    success_low: float | None
    success_high: float | None
    drop: Annotated[float | None, Column("lost %", formats.shares, of=("drop", "drop_low", "drop_high"), optional=True)]
    """Share of the episodes that fp32 wins less that of this precision, with its 95 % interval: as in McNemar's test
    those episodes count that only one of the two wins. Null of fp32."""
    drop_low: float | None
    drop_high: float | None
    error_pct: Error
    margin_pct: Annotated[float, Column("margin", "{:g} %".format, caption="margin {}")]
    """Loss that is still acceptable, in percent of the return in fp32."""
    noninferior: bool
    verdict: Annotated[
        str,
        Column("verdict", formats.verdict, of=("verdict", "differs", "precision"), before="margin_pct"),
    ]
    """By the 95 % interval of the mean difference to fp32, paired by episode: non-inferior, all of it above minus the
    margin; inferior, all of it below; else undecided, as with fewer than ten episodes."""
    differs: bool
    """Differs beyond noise: that interval does not contain 0, be it a loss or a gain."""
    difference: float
    """Mean over episodes of the return less that of fp32's episode from the same start; its ends are the verdict's."""
    difference_low: float | None
    difference_high: float | None
    bytes: Annotated[int, Column("file", formats.size)]
    """Size of the engine's own file, which keeps weights in 4, 8, 16 or 32 bits."""
    bytes_packed: Annotated[int, Column("packed", formats.size)]
    """Size of the policy with its weights at exactly their bits, scales and biases included."""
    latency_us_p50: Annotated[float, Column("µs p50", formats.three_digits)]
    """Median microseconds of one call: one observation in, one output out, one thread."""
    latency_us_p99: Annotated[float, Column("p99", formats.three_digits)]
    """99 of 100 such calls take no longer."""
    agreement: Annotated[float, Column("agree %", formats.percent, before="bytes")]
    """Share of recorded observations on which the action is that of fp32; where continuous, within 1 % of its
    range."""
    coverage: Annotated[float, Column("covered %", formats.percent, caption="{} % of the weights covered")]
    """Share of the policy's weights that are quantised."""
    returns: Returns = field(repr=False)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Cell:
    """A row with what it was computed from."""

    row: PtqRow
    policy: QuantizedPolicy
    calibrated: Calibrated
    evaluation: Evaluation


Make = Callable[[Calibrated, QuantSpec], QuantizedPolicy]


def measure(
    policy: Policy,
    environment: Environment,
    specs: Sequence[QuantSpec],
    asked: PtqSpec,
    progress: Callable[[str, int], None] = lambda label, done: None,
    calibrated: Calibrated | None = None,
    make: Make = quantised,
) -> list[Cell]:
    """Measure a policy in float32 and at every precision, each on the same episodes.

    Args:
        policy: The policy in float32.
        environment: The environment to play in.
        specs: The precisions.
        asked: The engine, the episodes and the margin; its own precisions are ignored.
        progress: Called with the precision and 1 for every finished episode.
        calibrated: The policy with its calibration observations; None records them here.
        make: Quantizes the policy.

    Returns:
        A cell of fp32, then one of each precision, in their order.
    """
    looks = looks_of(asked)
    where: Any = {"seed": asked.seed, "environment": environment, "engine": asked.engine}
    if calibrated is None:
        calibrated = Calibrated(policy, record(policy, **where))
    specs = [EXACT, *(spec for spec in specs if spec.float_type != "fp32")]
    quantized = [make(calibrated, spec) for spec in specs]
    loaded = [engines.load_fitting(each, asked.engine) for each in quantized]
    plays = [
        partial(
            evaluate,
            each,
            seed=asked.seed,
            environment=environment,
            engine=engine.name,
            num_workers=asked.workers,
            progress=partial(lambda label, episode: progress(label, 1), each.spec.precision),
        )
        for each, engine in zip(quantized, loaded, strict=True)
    ]
    evaluations = until_judged(plays, looks, asked.margin)
    observations = record(policy, "fidelity", **where)
    timings = time_engines(loaded, observations)
    actions = [engines.greedy(each, observations, engine.name) for each, engine in zip(quantized, loaded, strict=True)]
    cells = []
    for each, engine, played, timing, acted in zip(quantized, loaded, evaluations, timings, actions, strict=True):
        spec = each.spec
        row = PtqRow(
            precision=spec.precision,
            bits_weights=spec.weight_bits,
            bits_mean=each.mean_bits,
            bits_of_layers=each.bits_of_layers,
            bits_activations=spec.activation_bits or 32,
            scheme=spec.scheme.name,
            mode=spec.mode,
            engine=engine.name,
            measured=engine.measured,
            **judged(played.returns, evaluations[0].returns[: len(played.returns)], asked.margin, asked.seed, looks),
            **as_fields(played.success, "success", "success"),
            **as_fields(drop_of(played, evaluations[0]), "drop", "drop"),
            bytes=engine.file_bytes,
            bytes_packed=len(artifact.to_bytes(each)),
            latency_us_p50=timing.us_p50,
            latency_us_p99=timing.us_p99,
            agreement=agreement(policy, actions[0], acted),
            coverage=each.coverage,
            returns=played.returns.tolist(),
        )
        cells.append(Cell(row=row, policy=each, calibrated=calibrated, evaluation=played))
    return cells


def drop_of(played: Evaluation, exact: Evaluation) -> Interval | None:
    """The share of successes that is lost to fp32, in the episodes that both played; None of fp32 and where none is."""
    if played is exact or played.successes is None or exact.successes is None:
        return None
    return drop_interval(exact.successes[: len(played.successes)], played.successes)


def agreement(policy: Policy, exact: Array, actions: Array) -> float:
    """Share of rows whose action is the exact one: equal, or within AGREE_PCT of the range in every component."""
    return float(np.mean((policy.head.distance(exact, actions) <= AGREE_PCT / 100).all(axis=1)))
