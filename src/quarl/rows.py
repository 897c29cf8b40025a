"""Rows of a command's measurements, whose fields declare their columns once.

A command's row is a dataclass below `Row`. A field of the type Annotated[T, Column(...)] is shown in the command's
table, others only in files; the string under a field is its meaning. Tables, CSV, JSON, its schema and
docs/reference/json.md follow from these.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, TypeVar, get_args, get_type_hints

from quarl import formats

Each = TypeVar("Each")
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The base of all rows."""

    command: ClassVar[str]
    """Name of the command in the document of its rows."""


@dataclass(frozen=True, slots=True)
class Column:
    """The column of a table that shows a field."""

    heading: str
    text: Callable[..., str] = str
    """Function from the values of the fields `of` to the cell's text; a lambda has only these."""
    of: tuple[str, ...] = ()
    """Fields shown in the cell; if empty, the field itself."""
    caption: str = ""
    """Text that joins the caption in place of the column if all cells agree.

    It has {} for the cell and {s} for a plural's s.
    """
    left: bool | None = None
    """Alignment to the left; None aligns numbers to the right and all else to the left."""
    optional: bool = False
    """Leave the column out if no row has a cell, or only en dashes."""
    before: str = ""
    """Field whose column follows this one, if it is not the next field."""


def by(rows: Iterable[Each], key: Callable[[Each], Key]) -> dict[Key, list[Each]]:
    """Return the rows of each key, both in their original order."""
    groups: dict[Key, list[Each]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def columns(row: type[Row]) -> tuple[Column, ...]:
    """Return the columns of the row's table, from left to right."""
    hints = get_type_hints(row, include_extras=True)
    shown = {
        name: replace(extra, of=extra.of or (name,), left=not _is_number(hint) if extra.left is None else extra.left)
        for name, hint in hints.items()
        for extra in getattr(hint, "__metadata__", ())
        if isinstance(extra, Column)
    }
    order = list(shown)
    for name, column in shown.items():
        if column.before:
            order.remove(name)
            order.insert(order.index(column.before), name)
    return tuple(shown[name] for name in order)


def _is_number(hint: Any) -> bool:
    inner = hint.__origin__
    return any(each in (int, float) for each in get_args(inner) or (inner,))


Algorithm = Annotated[str, Column("algorithm"), "dqn, ppo, ..."]
Environment = Annotated[str, Column("environment"), "Id of the environment."]
Source = Annotated[str, Column("agent", caption="agents from {}"), "Source of the agent."]
Method = Annotated[str, Column("method"), "fp32, ptq, distill, qat, actorq, throughput, untrained or updates."]
Precision = Annotated[
    str, Column("precision"), "fp32, fp16, bf16; intN: N-bit weights and 8-bit activations; wNaM: M-bit activations."
]
Scheme = Annotated[
    str,
    Column("scheme", formats.unless_float, of=("scheme", "precision"), caption="scheme {}"),
    "Method of quantizing weights and activations: the grids and their calibration.",
]
EngineName = Annotated[str, Column("engine", caption="on {}"), "The runtime whose kernels run the policy."]
Measured = Annotated[
    bool,
    Column("kernels", formats.kernels, caption="{} kernels"),
    "Measured (true): kernels of the precision ran. Simulated (false): there are none, so its values were computed in "
    "float; returns hold, latency and file size do not.",
]
Seed = Annotated[int, Column("seed", caption="seed {}")]
Episodes = Annotated[int, Column("episodes", caption="{} episode{s} each")]
MaxEpisodes = Annotated[
    int | None,
    Column("at most", formats.count, caption="episodes until a verdict, at most {}", optional=True),
    "Largest number of episodes played until a verdict; the ends of `difference` are those of "
    "the deciding analysis, or of the last. Null if the number of episodes was fixed.",
]
Mean = Annotated[float | None, Column("return", formats.number), "Mean return."]
Interval = Annotated[
    float | None,
    Column("95 % interval", formats.interval, of=("ci_low", "ci_high")),
    "Ends of the 95 % interval of the mean; null for one episode.",
]
VERDICTS = ("verdict", "differs", "precision", "verdict_return", "verdict_success")
"""Fields of the verdict in a table."""
PartOfVerdict = Annotated[
    str | None,
    "One of the two verdicts, on return and on success, of which `verdict` is the worse. Null if the environment "
    "reports no successes.",
]
Success = Annotated[
    float | None,
    Column(
        "success %",
        formats.shares,
        of=("success", "success_low", "success_high"),
        optional=True,
        before="error_pct",
    ),
    "Share of episodes whose last step has `is_success`, with Wilson's 95 % interval; null if none has it.",
]
Drop = Annotated[
    float | None,
    Column("lost %", formats.shares, of=("drop", "drop_low", "drop_high"), optional=True, before="error_pct"),
    "Share of successful episodes of fp32 minus that of this row in the same episodes, with Newcombe's interval of the "
    "paired difference (1998, method 10), at the level of `difference`. Null for fp32 and without successes.",
]
SuccessMargin = Annotated[
    float | None,
    Column(
        "success margin",
        lambda margin: f"{margin:g} points" if margin else "",
        caption="success margin {}",
        optional=True,
        before="margin_pct",
    ),
    "Acceptable loss of successes in percentage points; null without successes.",
]
Payload = Annotated[
    int,
    Column("payload", formats.size),
    "Bytes of the weights at their bits, scales, zero points and biases, without a file's header and without "
    "calibration statistics.",
]
Error = Annotated[
    float | None,
    Column("E %", formats.number),
    "(fp32 - q) / |fp32| in percent of the mean returns: a loss is positive. Null if fp32's interval contains 0.",
]
ErrorRms = Annotated[
    float | None,
    Column("RMS error %", formats.share_of_range, optional=True),
    "Root mean square of the difference of actions to those of fp32 on held-out observations, as a share of their "
    "range. Null for discrete actions.",
]
ErrorMax = Annotated[
    float | None,
    Column("largest %", formats.share_of_range, optional=True),
    "Largest such difference of one component. Null for discrete actions.",
]
Returns = Annotated[list[float] | None, "Return of each episode, in the same order for all precisions."]
Lengths = Annotated[list[int] | None, "Steps of each episode."]
Successes = Annotated[list[bool] | None, "Success of each episode; null if the environment does not report it."]
Steps = Annotated[int, Column("steps", "{:,}".format), "Environment steps."]
Saturated = Annotated[
    float | None,
    Column("saturated %", formats.percent, optional=True),
    "Share of steps, 0..1, with a code at an end of its grid, from a sample of the steps of each episode. Results of "
    "ReLU, tanh and sigmoid at their own limits do not count. Null without static grids.",
]
Outside = Annotated[
    float | None,
    Column("outside %", formats.percent, optional=True),
    "Share of steps, 0..1, of the same sample, with a number of the observation outside the calibrated box. Null "
    "without a box.",
]
Updates = Annotated[int, Column("updates", "{:,}".format), "Gradient steps."]
Minutes = Annotated[float, Column("minutes", "{:.1f}".format)]
ActorPrecision = Annotated[
    str, Column("actor", formats.actor, of=("precision", "engine")), "Precision and engine that the actors run."
]
RATIO = Column("samples per insert", "{:g}".format, caption="{} samples per insert")


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRow(Row):
    """A precision of one agent, compared with fp32 in the same episodes; subclasses have its return and verdict."""

    precision: Precision
    success: Success
    success_low: float | None
    success_high: float | None
    drop: Drop
    drop_low: float | None
    drop_high: float | None
    success_margin: SuccessMargin
    noninferior: bool | None
    verdict_return: PartOfVerdict
    verdict_success: PartOfVerdict
    differs: bool | None
    """True if the difference, a loss or a gain, is beyond noise: its interval does not contain 0."""
    difference: float | None
    """Mean over episodes of the return minus that of fp32 from the same start; its ends are those of the verdict."""
    difference_low: float | None
    difference_high: float | None
