"""Time to reward: the seconds that each ActorQ training of a study with a target took."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Annotated, Literal

from quarl import formats
from quarl.lab.cells import ACTORQ, DONE
from quarl.lab.store import Record
from quarl.report.schema import Fields
from quarl.rows import RATIO, ActorPrecision, Column, Row, Steps, Updates, by

Curve = list[dict[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardRow(Row):
    """One measured or derived run."""

    command = "study time-to-reward"
    task: Annotated[str, Column("task")]
    algo: str
    precision: ActorPrecision
    engine: str
    seed: Annotated[int, Column("seed")]
    target: Annotated[float, Column("target", formats.number)]
    seconds: Annotated[float, Column("seconds", _seconds, of=("seconds", "censored"))]
    """Training clock at the second of two evaluations running that reach the target; or, censored, at the end of a
    run that did not."""
    derived: Annotated[bool, Column("", lambda derived: "derived" if derived else "")]
    """Seconds are the updates of another arm's run times this arm's measured seconds of an update."""
    censored: bool
    env_steps: Steps
    updates: Updates
    final_return: Annotated[float | None, Column("final return", formats.number)]
    """Mean return of the learner's policy in the last evaluation."""
    final_return_quantised: Annotated[float | None, Column("quantized", formats.number)]
    samples_per_insert: Annotated[float, replace(RATIO, before="seed")]
    envs_per_actor: Annotated[int, Column("environments", caption="{} environment{s} an actor", before="seed")]
    part: Annotated[Literal["fixed", "development", "choice", "measured"], Column("part", caption="{}", before="seed")]
    """fixed: with the options of the study. With a development_seed, development: on that seed; choice: of these the
    precision's fastest that reached the target; measured: a seed of the study at the choice."""
    updates_per_s: Annotated[float | None, Column("updates/s", formats.three_digits)]
    """Updates per second between the first evaluation after an update and the last one; null if there was none in
    between."""
    predicted_updates_per_s: Annotated[
        float | None, Column("predicted", _predicted, of=("predicted_updates_per_s", "updates_per_s"), optional=True)
    ]
    """Prediction of `quarl actorq --plan`; null without a development_seed."""
    cpu: str
    """The processor."""


def _seconds(seconds: float, censored: bool) -> str:
    return f"{'> ' if censored else ''}{seconds:,.0f}"


def _predicted(predicted: float | None, measured: float | None) -> str:
    if predicted is None or not measured:
        return formats.three_digits(predicted)
    return f"{formats.three_digits(predicted)} ({100 * (predicted / measured - 1):+.0f} %)"


Run = tuple[RewardRow, Curve]
"""A row and the evaluations behind it, none if it is derived."""


def runs(records: Sequence[Record]) -> list[Run]:
    """Return the runs with a target, in the study's order."""
    done = [record for record in records if record.method == ACTORQ and record.state == DONE]
    timed = [record for record in done if record.result["target"] is not None and "ended" in record.result]
    choices = {record.result["choice"] for record in timed}
    return [(_row(record, is_choice=record.key in choices), record.result["evaluations"]) for record in timed]


def _row(record: Record, *, is_choice: bool) -> RewardRow:
    facts, curve = record.result, record.result["evaluations"]
    paced = [entry for entry in curve if entry["updates"]]
    seconds, updates = (paced[-1][name] - paced[0][name] if paced else 0 for name in ("clock_s", "updates"))
    return RewardRow(
        task=record.env_id if record.source == ACTORQ else record.source,
        algo=record.algo,
        precision=record.precision,
        seed=record.seed,
        **{name: facts[name] for name in ("target", "cpu")},
        **{name: facts["options"][name] for name in ("engine", "samples_per_insert", "envs_per_actor")},
        seconds=facts["ended"]["clock_s"],
        derived=facts.get("derived", False),
        censored=facts["reached_s"] is None,
        env_steps=int(facts["ended"]["timesteps"]),
        updates=int(facts["ended"]["updates"]),
        final_return=facts["final_return"],
        final_return_quantised=facts["final_return_quantised"],
        part="choice" if is_choice else facts["part"],
        updates_per_s=updates / seconds if updates else None,
        predicted_updates_per_s=facts.get("predicted_updates_per_s"),
    )


def sentences(rows: Iterable[Fields]) -> Iterator[str]:
    """Yield the choice of each precision on each task, or that there was none."""
    tried = [row for row in rows if row["part"] in ("development", "choice")]
    for (task, precision), attempts in by(tried, itemgetter("task", "precision")).items():
        for row in (run for run in attempts if run["part"] == "choice"):
            yield (
                f"{task}: of {len(attempts)} runs on seed {row['seed']} {precision} was fastest on {row['engine']} "
                f"with {row['samples_per_insert']:g} samples per insert, environments an actor: "
                f"{row['envs_per_actor']}."
            )
        if all(run["censored"] for run in attempts):
            yield (
                f"{task}: {precision} reached the target in none of {len(attempts)} development runs, and is not "
                "measured."
            )
