"""Measurement of one agent at several precisions: calibrate, quantize, play and time each; one row per precision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Annotated, Any

from quarl import engines, formats
from quarl.arrays import Array
from quarl.calibration import Calibrated, quantised
from quarl.engines import Engine
from quarl.envelope import met_in
from quarl.envs.environment import Environment, home_of
from quarl.evaluation import Evaluation, carry, evaluate, record, sample, split_by_time
from quarl.judging import against, fidelity, looks_of, until_judged
from quarl.latency.timing import Timing, time_engines
from quarl.policy import artifact
from quarl.policy.graph import Policy, QuantizedPolicy
from quarl.quant.spec import EXACT, QuantSpec
from quarl.rows import (
    VERDICTS,
    Column,
    EngineName,
    Episodes,
    Error,
    ErrorMax,
    ErrorRms,
    JudgedRow,
    Lengths,
    MaxEpisodes,
    Measured,
    Payload,
    Returns,
    Scheme,
    Successes,
)
from quarl.specs import PATH, PtqSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class PtqRow(JudgedRow):
    """The measurement of one agent at one precision.

    If recorded observations replace the environment, no episodes are played, and all that depends on returns is null.
    """

    command = "ptq"
    bits_weights: int
    """Bits of the weights in layers other than the first and the last; 8 if each layer has its own number of bits."""
    bits_mean: Annotated[float, Column("bits", formats.mean_bits, of=("bits_mean", "bits_weights"), optional=True)]
    """Mean bits of a weight, over all layers; the table has this column if some layers have more bits than others."""
    bits_of_layers: dict[str, int]
    """Bits of each layer, by its name."""
    bits_activations: int
    """Bits of the activations; 32 if they stay float."""
    scheme: Scheme
    mode: Annotated[str, Column("mode", formats.activations, of=("mode", "bits_activations"), caption="{} activations")]
    """Quantization of activations: dynamic, on a grid per row at run time, or static, on calibrated grids; static
    symmetric if their zero points are 0."""
    engine: EngineName
    measured: Measured
    episodes: Episodes
    max_episodes: MaxEpisodes
    mean: Annotated[float | None, Column("return", formats.spread, of=("mean", "std"), optional=True)]
    """Mean over episodes of the sum of rewards."""
    std: float | None
    """Standard deviation over episodes (after ±)."""
    iqm: Annotated[float | None, Column("IQM", formats.number, optional=True)]
    """Interquartile mean: the mean of the middle half of the returns, which is robust to outliers."""
    ci_low: Annotated[
        float | None,
        Column("95 % interval", formats.interval, of=("ci_low", "ci_high"), before="iqm", optional=True),
    ]
    """Ends of the 95 % bootstrap interval of the mean return; null for a single episode."""
    ci_high: float | None
    error_pct: Annotated[Error, Column("E %", formats.number, optional=True)]
    margin_pct: Annotated[
        float | None,
        Column("margin", lambda margin: f"{margin:g} %" if margin else "", caption="margin {}", optional=True),
    ]
    """Acceptable loss in percent of the return in fp32."""
    verdict: Annotated[
        str | None,
        Column(
            "verdict",
            formats.verdict_if_played,
            of=VERDICTS,
            before="margin_pct",
            optional=True,
        ),
    ]
    """Verdict by the 95 % interval of the mean difference to fp32, paired by episode. Non-inferior if all of it is
    above minus the margin, inferior if all of it is below; otherwise, or with fewer than ten episodes, undecided. If
    the environment reports successes, it is the worse of this and the same verdict on them, by `drop`."""
    observations: Annotated[
        int | None, Column("held out", formats.count, caption="{} held-out observations", optional=True)
    ]
    """Number of observations that stand for episodes: the last tenth of the recorded ones, which calibrated nothing.
    Null, like the errors of actions on them, if episodes were played."""
    error_rms: ErrorRms
    error_max: ErrorMax
    bytes: Annotated[int, Column("file", formats.if_measured(formats.size), of=("bytes", "measured"))]
    """Size of the engine's own file, which keeps weights in 4, 8, 16 or 32 bits. Tables leave it and the latency of
    simulated rows out."""
    payload: Payload
    bytes_packed: int
    """Size of the saved policy's file, whose header is most of a small network's."""
    latency_us_p50: Annotated[
        float | None,
        Column(
            "µs p50",
            formats.if_measured(formats.three_digits),
            of=("latency_us_p50", "measured"),
            optional=True,
        ),
    ]
    """Median microseconds of one call: one observation in, one output out, one thread."""
    latency_us_p99: Annotated[
        float | None,
        Column("p99", formats.if_measured(formats.three_digits), of=("latency_us_p99", "measured"), optional=True),
    ]
    """99th percentile of the same calls in microseconds."""
    agreement: Annotated[float | None, Column("agree %", formats.percent, before="bytes", optional=True)]
    """Share of observations apart from those of calibration on which the action equals that of fp32; continuous actions
    may differ by 1 % of their range."""
    coverage: Annotated[float | None, Column("covered %", formats.percent, caption="{} % of the weights covered")]
    """Share of the policy's weights that are quantized."""
    returns: Returns = field(repr=False)
    lengths: Lengths = field(repr=False)
    successes: Successes = field(repr=False)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Cell:
    """A row with the policy and the episodes from which it was computed."""

    row: PtqRow
    policy: QuantizedPolicy
    calibrated: Calibrated
    evaluation: Evaluation | None
    """The episodes; None if recorded observations replace the environment."""


Make = Callable[[Calibrated, QuantSpec], QuantizedPolicy]


def measure(
    policy: Policy,
    environment: Environment | None,
    specs: Sequence[QuantSpec],
    asked: PtqSpec,
    progress: Callable[[str, int], None] = lambda label, done: None,
    calibrated: Calibrated | None = None,
    make: Make = quantised,
    recorded: Array | None = None,
    envelope: str | Array = PATH,
) -> list[Cell]:
    """Measure a policy in float32 and at every precision, each on the same episodes or held-out observations.

    Args:
        policy: The policy in float32.
        environment: The environment to play in; None means the policy's own.
        specs: The precisions.
        asked: The engine, the episodes and the margin; its own precisions are ignored.
        progress: Called with the precision and 1 for every finished episode.
        calibrated: The policy with its calibration observations; None records them here.
        make: Quantizes the policy.
        recorded: Observations [N, *shape] in the order of time, in place of an environment: the first nine tenths
            calibrate, and actions are compared on the others.
        envelope: States that grids cover, as in `quarl.envelope.met_in`.

    Returns:
        A cell of fp32, then one of each precision, in their order.
    """
    where: Any = {"seed": asked.seed, "engine": asked.engine}
    if recorded is not None:
        seen, held_out = split_by_time(recorded)
        calibrated = Calibrated(policy, met_in(envelope, policy, recorded=sample(policy, seen), seed=asked.seed))
    else:
        where["environment"] = environment = environment or home_of(policy, recordable=True)
        calibrated = calibrated or Calibrated(policy, met_in(envelope, policy, **where))
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
    evaluations: Sequence[Evaluation | None] = [None] * len(plays)
    if recorded is None:
        evaluations = until_judged(plays, looks_of(asked), asked.margin, asked.success_margin)
        held_out = record(policy, "fidelity", **where)
    timings = time_engines(loaded, held_out)
    rows = [held_out if recorded is None else carry(each, held_out, asked.engine) for each in quantized]
    actions = [engines.greedy(each, x, engine.name) for each, x, engine in zip(quantized, rows, loaded, strict=True)]
    cells = []
    for each, engine, played, timing, acted in zip(quantized, loaded, evaluations, timings, actions, strict=True):
        row = _without_returns(each, engine, timing)
        errors = fidelity(policy, actions[0], acted)
        if played is not None and (exact := evaluations[0]) is not None:
            row |= against(played, exact, asked) | {"agreement": errors["agreement"]}
        else:
            row |= {"observations": len(held_out), **errors}
        cells.append(Cell(row=PtqRow(**row), policy=each, calibrated=calibrated, evaluation=played))
    return cells


def _without_returns(policy: QuantizedPolicy, engine: Engine, timing: Timing) -> dict[str, Any]:
    """Return the fields of a row without episodes; those about returns are None."""
    latency = {"latency_us_p50": timing.us_p50, "latency_us_p99": timing.us_p99}
    nulls = dict.fromkeys(field.name for field in fields(PtqRow))
    return nulls | precision_of(policy, engine) | {"episodes": 0, **latency}


def precision_of(policy: QuantizedPolicy, engine: Engine) -> dict[str, Any]:
    """Return the fields of a row about the precision and sizes of a policy, or of an exported file without operators.

    The sizes of such a file are its own, and its bits those of its contract.
    """
    spec, is_graph = policy.spec, bool(policy.ops)
    return {
        "precision": spec.precision,
        "bits_weights": spec.weight_bits,
        "bits_mean": policy.mean_bits if is_graph else spec.weight_bits,
        "bits_of_layers": policy.bits_of_layers,
        "bits_activations": spec.activation_bits or 32,
        "scheme": spec.scheme.name,
        "mode": spec.activations,
        "engine": engine.name,
        "measured": engine.measured,
        "bytes": engine.file_bytes,
        "payload": policy.payload if is_graph else None,
        "bytes_packed": len(artifact.to_bytes(policy)) if is_graph else engine.file_bytes,
        "coverage": policy.coverage if is_graph else None,
    }
