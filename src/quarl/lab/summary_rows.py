"""Rows of a study's tables: errors as in the paper's tables, sweet spots, training for a precision, ActorQ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from quarl import formats
from quarl.lab.cells import NA, AgentName
from quarl.quant.spec import FLOAT_BITS, SCHEMES
from quarl.rows import VERDICTS, Column, Episodes, Interval, Mean, Method, Minutes, PartOfVerdict, Precision, Row
from quarl.stats import INFERIOR, NONINFERIOR


def _mode(mode: str, scheme: str, precision: str = "int8") -> str:
    """Return the mode of integers; floats and the original's scheme leave activations in float32."""
    return "" if precision in FLOAT_BITS or (scheme in SCHEMES and SCHEMES[scheme].original) else mode


Seeds = Annotated[int, Column("seeds", formats.count, caption="seeds: {}")]
Scheme = Annotated[str, Column("scheme", caption="scheme {}")]
Mode = Annotated[str, Column("mode", _mode, of=("mode", "scheme"), caption="{} activations")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorsRow(AgentName, Row):
    """One agent in one requested precision and scheme; rows with env_id `mean` end each algorithm."""

    command = "study errors"
    scheme: Annotated[str, Column("scheme", formats.unless_float, of=("scheme", "precision"), caption="scheme {}")]
    mode: Annotated[str, Column("mode", _mode, of=("mode", "scheme", "precision"), caption="{} activations")]
    precision: Precision
    agents: Annotated[int, Column("agents", lambda count: str(count) if count > 1 else "", optional=True)]
    seeds: Annotated[
        int, Column("seeds", lambda seeds, env_id: "" if env_id == "mean" else str(seeds), ("seeds", "env_id"))
    ]
    """Seeds whose cell of this precision was measured; 0 if none was yet."""
    fp32: Annotated[float | None, Column("fp32", formats.number)]
    """Mean return in fp32 of the same seeds."""
    fp32_low: Annotated[float | None, Column("its interval", formats.interval, of=("fp32_low", "fp32_high"))]
    """Ends of its 95 % interval: over seeds Student's, for one seed a bootstrap over episodes."""
    fp32_high: float | None
    mean: Mean
    error_pct: Annotated[
        float | None,
        Column("E %", formats.number),
        "(fp32 - q) / |fp32| in percent of the mean returns. Null if the bootstrap interval over fp32's episodes "
        "contains 0.",
    ]
    error_low: Annotated[
        float | None, Column("interval of E", formats.interval, of=("error_low", "error_high"), optional=True)
    ]
    """Ends of the 95 % interval of E: over several seeds Student's, otherwise a bootstrap over episodes. That of a
    row `mean` is a bootstrap over the episodes of these agents, and says nothing about others."""
    error_high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SweetSpotRow(AgentName, Row):
    """The widths at which one agent in one scheme keeps its return."""

    command = "study sweet spots"
    scheme: Scheme
    mode: Mode
    seeds: Seeds
    """Largest number of seeds measured at a width; a width with fewer than were asked for is incomplete."""
    widths: Annotated[
        list[int],
        Column(
            "bits non-inferior, (undecided), [inferior], incomplete?", _widths, of=("widths", "verdicts"), left=True
        ),
    ]
    noninferior: list[bool]
    verdicts: list[str | None]
    """Verdicts by width; null if that of a seed is missing."""
    sweet_spot: Annotated[
        int | None,
        Column(
            "sweet spot",
            lambda bits, words: f"{bits} bits" if bits is not None else "none" if words[0] else "unknown",
            of=("sweet_spot", "verdicts"),
        ),
    ]
    """The narrowest width that is non-inferior together with all wider ones; null if the widest is not shown to be."""


def _widths(widths: Sequence[int], verdicts: Sequence[str | None]) -> str:
    """Return the widths from wide to narrow, in brackets unless they are non-inferior, with ? if seeds are missing."""
    marks = {NONINFERIOR: "{}", INFERIOR: "[{}]", None: "{}?"}
    return " ".join(marks.get(word, "({})").format(bits) for bits, word in zip(widths, verdicts, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedRow(AgentName, Row):
    """One agent trained or distilled for a precision."""

    command = "study trained"
    method: Method
    precision: Annotated[str, Column("trained for")]
    seeds: Seeds
    fp32: Annotated[float | None, Column("fp32", formats.number)]
    ptq: Annotated[float | None, Column("ptq", formats.number)]
    """Return of the fp32 agent quantized to that precision after training."""
    error_ptq_pct: Annotated[float | None, Column("E_ptq %", formats.number)]
    trained: Annotated[float | None, Column("trained", formats.number)]
    error_trained_pct: Annotated[float | None, Column("E_trained %", formats.number)]
    error_trained_low: Annotated[
        float | None,
        Column("its interval", formats.interval, of=("error_trained_low", "error_trained_high"), optional=True),
    ]
    error_trained_high: float | None
    noninferior: bool | None
    verdict: Annotated[str | None, Column("verdict", formats.verdict, of=VERDICTS)]
    """The worse of the verdicts on return and on success."""
    success_margin: float | None
    """Acceptable loss of successes in percentage points; null without successes."""
    verdict_return: PartOfVerdict
    verdict_success: PartOfVerdict
    differs: bool | None
    gain: float | None
    """Gain of its return over ptq, with the ends of its interval."""
    gain_low: float | None
    gain_high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningRow(AgentName, Row):
    """One agent that the study trained in float32, beside the first of the same algorithm and environment."""

    command = "study learning"
    seeds: Seeds
    env_steps: Annotated[int, Column("steps", "{:,}".format)]
    """Environment steps of each training."""
    updates: Annotated[int, Column("updates", "{:,}".format)]
    """Updates of each training."""
    episodes: Episodes
    """Episodes of each seed's best agent."""
    before: Annotated[float | None, Column("before", formats.number, optional=True)]
    """Mean return of the same networks before training; null if the study does not measure it."""
    mean: Mean
    ci_low: Interval
    """Ends of the 95 % interval over seeds and their episodes."""
    ci_high: float | None
    difference: Annotated[
        float | None, Column("to the first", formats.estimate, of=("difference", "difference_low", "difference_high"))
    ]
    """Difference in return to the first agent, paired by seed and episode; null for the first itself."""
    difference_low: float | None
    difference_high: float | None
    equal: Annotated[bool | None, Column("equal", lambda equal: {None: "–", True: "within", False: "apart"}[equal])]
    """True if the difference's interval contains 0."""
    minutes: Minutes
    """Mean duration of a training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorQRow(AgentName, Row):
    """One agent trained with actors of one precision."""

    command = "study actorq"
    precision: Annotated[str, Column("actors")]
    mode: Annotated[str, Column("options", lambda mode: "" if mode == "dynamic" else mode, optional=True)]
    """Engine and options in which runs differ; dynamic if they do not."""
    seeds: Seeds
    mean: Mean
    ci_low: Interval
    ci_high: float | None
    target: Annotated[float | None, Column("target", formats.number)]
    reached: Annotated[
        int,
        Column(
            "reached",
            lambda reached, seeds, target: "–" if target is None else f"{reached} of {seeds}",
            of=("reached", "seeds", "target"),
        ),
    ]
    """Seeds whose learner reached the target."""
    seconds: Annotated[float, Column("seconds", formats.three_digits)]
    """Training clock in seconds, to the target or to the end of a run that never reached it or had none; geometric
    mean."""
    speedup: Annotated[float | None, Column("× fp32", _speedup, of=("speedup", "at_least"))]
    at_least: bool | None
    """True if a run with fp32 actors was stopped before the target: the true speed-up is larger."""
    staleness_p50: Annotated[float | None, Column("age p50", formats.three_digits, optional=True)]
    """Updates between the weights behind a step and the learner that takes it in; the mean over seeds, as the rest."""
    staleness_p99: Annotated[float | None, Column("p99", formats.three_digits, optional=True)]
    final_return: Annotated[float | None, Column("last", formats.number, optional=True)]
    """Return of the learner's policy in the last evaluation of a training."""
    final_return_quantised: Annotated[float | None, Column("quantized", formats.number, optional=True)]
    """The same for the actors' policy."""


def _speedup(speedup: float | None, at_least: bool | None) -> str:
    return formats.times(speedup, at_least=at_least)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcludedRow(AgentName, Row):
    """Cells without a result, with the reason."""

    command = "study excluded"
    method: Method
    cells: Annotated[int, Column("cells")]
    state: Annotated[str, Column("", _state)]
    reason: Annotated[str, Column("reason")]


def _state(state: str) -> str:
    return "n/a" if state == NA else state
