"""A study's tables: errors as the paper's tables have them, sweet spots, training for a precision, time to reward."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from quarl import stats
from quarl.arrays import Array
from quarl.experiments.cells import ACTORQ, FAILED, FP32, NA, PTQ, QAT, TRAIN, AgentName
from quarl.experiments.groups import EMPTY, Group, bits_of, groups
from quarl.experiments.store import Record
from quarl.experiments.summary_rows import ActorQRow, ErrorsRow, ExcludedRow, QatRow, SweetSpotRow
from quarl.quant.spec import QuantSpec
from quarl.report.schema import Fields
from quarl.stats import as_fields

FP16, INT8 = "fp16", "int8"
MEAN = "mean"
"""Stands for the environment in the row of an algorithm's mean."""
Grid = tuple[str, str]
"""Scheme and mode."""


def errors(found: Sequence[Group]) -> list[ErrorsRow]:
    """Return in fp32, fp16 and int8 with E, one row a policy and scheme, then each algorithm's mean of E."""
    grids = list(dict.fromkeys((one.scheme, one.mode) for one in found if one.precision == INT8 and one.method == PTQ))
    made: list[ErrorsRow] = []
    for algo in dict.fromkeys(one.agent.algo for one in found):
        agents = list(dict.fromkeys(one.agent for one in found if one.agent.algo == algo))
        for grid in grids or [("default", "dynamic")]:
            columns = [
                of_the_same_seeds(
                    _find(found, agent, FP32, FP32),
                    _find(found, agent, PTQ, FP16),
                    _find(found, agent, PTQ, INT8, grid),
                )
                for agent in agents
            ]
            made += [_error_row(agent, grid, *some) for agent, some in zip(agents, columns, strict=True)]
            if len(agents) > 1:
                made.append(_mean_row(algo, grid, columns))
    return made


def of_the_same_seeds(*columns: Group) -> list[Group]:
    """Means stand side by side only where they are of the same seeds."""
    seeds = [{record.seed for record in one.records} for one in columns if one.records]
    common = set.intersection(*seeds) if seeds else set()
    return [one.of(common) for one in columns]


def _find(found: Sequence[Group], agent: AgentName, method: str, precision: str, grid: Grid | None = None) -> Group:
    wanted = (one for one in found if (one.agent, one.method, one.precision) == (agent, method, precision))
    return next((one for one in wanted if grid in (None, (one.scheme, one.mode))), EMPTY)


def _error_row(agent: AgentName, grid: Grid, exact: Group, fp16: Group, int8: Group) -> ErrorsRow:
    row: dict[str, Any] = {**asdict(agent), "scheme": grid[0], "mode": grid[1], "agents": 1}
    row["seeds"] = max(len(one.records) for one in (exact, fp16, int8))
    row |= as_fields(exact.mean(), FP32, FP32)
    for name, one in ((FP16, fp16), (INT8, int8)):
        row |= {name: one.point, **as_fields(one.error(), f"error_{name}_pct", f"error_{name}")}
    return ErrorsRow(**row)


def _mean_row(algo: str, grid: Grid, columns: Sequence[Sequence[Group]]) -> ErrorsRow:
    """Mean of E over the policies that have one in every column, as the paper's tables end.

    columns: in fp32, fp16 and int8 of each policy.
    """
    places = [place for place in (1, 2) if any(some[place].records for some in columns)]
    agents = [{place: _together(some[place]) for place in places} for some in columns]
    usable = [agent for agent in agents if all(pair is not None for pair in agent.values())]
    row: dict[str, Any] = {"algo": algo, "env_id": MEAN, "source": "", "scheme": grid[0], "mode": grid[1]}
    row |= {"agents": len(usable), "seeds": 0, **as_fields(None, FP32, FP32)}
    for place, name in ((1, FP16), (2, INT8)):
        pairs = [pair for agent in usable if (pair := agent.get(place)) is not None]
        error = stats.mean_error_interval(pairs, np.random.default_rng(0)) if pairs else None
        row |= {name: None, **as_fields(error, f"error_{name}_pct", f"error_{name}")}
    return ErrorsRow(**row)


def _together(one: Group) -> tuple[Array, Array] | None:
    """All seeds' episodes: one is as good as another for what is asked here, of these agents and not of others. None
    where there is none, or no E because fp32's interval contains 0."""
    if not (pairs := one.pairs):
        return None
    exact, own = (np.concatenate(side) for side in zip(*pairs, strict=True))
    return None if math.isnan(stats.error_pct(exact, own, np.random.default_rng(0))) else (exact, own)


def sweet_spots(found: Sequence[Group], records: Sequence[Record], margin_pct: float) -> list[SweetSpotRow]:
    """The smallest width whose every wider width is non-inferior, one row a policy and scheme.

    records: all of the study; a width that is not measured with each of its seeds has shown nothing.
    """
    planned: dict[tuple[AgentName, str, str], dict[int, set[int]]] = {}
    for record in records:
        if record.method == PTQ and (bits := bits_of(record)) is not None:
            widths_of = planned.setdefault((record.of_agent(), record.scheme, record.mode), {})
            widths_of.setdefault(bits, set()).add(record.seed)
    members = {(one.agent, one.scheme, one.mode, one.bits): one for one in found if one.bits is not None and one.pairs}
    made: list[SweetSpotRow] = []
    for (agent, scheme, mode), widths_of in planned.items():
        widths = sorted(widths_of, reverse=True)
        some = [members.get((agent, scheme, mode, bits), EMPTY) for bits in widths]
        if not any(one.pairs for one in some):
            continue
        verdicts = [
            one.verdict(margin_pct) if len(one.pairs) == len(widths_of[bits]) else None
            for bits, one in zip(widths, some, strict=True)
        ]
        good = [one is not None and one.noninferior for one in verdicts]
        reach = next((number for number, fine in enumerate(good) if not fine), len(good))
        made.append(
            SweetSpotRow(
                **asdict(agent),
                scheme=scheme,
                mode=mode,
                seeds=max(len(seeds) for seeds in widths_of.values()),
                widths=widths,
                noninferior=good,
                verdicts=[None if one is None else one.verdict for one in verdicts],
                sweet_spot=widths[reach - 1] if reach else None,
            )
        )
    return made


def means(found: Sequence[Group]) -> list[Fields]:
    """Return over seeds of every policy with every method at every precision, over the seeds that all of them have."""
    made: list[Fields] = []
    for agent in dict.fromkeys(one.agent for one in found):
        for one in of_the_same_seeds(*(other for other in found if other.agent == agent)):
            if one.records:
                about = {"method": one.method, "precision": one.precision, "scheme": one.scheme, "mode": one.mode}
                ends = as_fields(one.mean(), "mean", "ci")
                made.append({**asdict(agent), **about, **ends, "measured": one.measured, "seeds": len(one.records)})
    return made


def trained(found: Sequence[Group], margin_pct: float) -> list[QatRow]:
    """Agents trained for a precision beside fp32 and what post-training quantisation makes of it at that precision,
    with the default scheme, dynamic before static."""
    made: list[QatRow] = []
    for one in (one for one in found if one.method == QAT):
        name = QuantSpec.parse(one.precision).precision
        grids = (("default", "dynamic"), ("default", "static"))
        candidates = [_find(found, one.agent, PTQ, name, grid) for grid in grids]
        best = next((other for other in candidates if other.records), EMPTY)
        exact, ptq, own = of_the_same_seeds(_find(found, one.agent, FP32, FP32), best, one)
        ptq_error = ptq.error()
        made.append(
            QatRow(
                **asdict(one.agent),
                precision=one.precision,
                seeds=len(own.records),
                fp32=exact.point,
                ptq=ptq.point,
                error_ptq_pct=None if ptq_error is None else ptq_error.point,
                qat=own.point,
                **own.compared(margin_pct, ptq, "error_qat"),
            )
        )
    return made


def actorq(records: Sequence[Record]) -> list[ActorQRow]:
    """ActorQ trainings over seeds: what the learner's policy scores, when it reached the target, and how much sooner.

    Seconds are of the training clock: to the target, or to the end of a run that never reached it, or that had none;
    their geometric mean.
    """
    found = groups(records, (ACTORQ,))
    made: list[ActorQRow] = []
    for one in found:
        facts = [record.result for record in one.records]
        same = {record.seed: record.result for record in _find(found, one.agent, ACTORQ, FP32).records}
        against = [(same[record.seed], record.result) for record in one.records if record.seed in same]
        ratios = [_seconds(exact) / _seconds(own) for exact, own in against]
        # whoever was stopped short of the target would have taken longer
        clear = one.precision != FP32 and all(own["reached_s"] is not None for _, own in against)
        faster = stats.geometric_mean(ratios) if ratios and clear else None
        made.append(
            ActorQRow(
                **asdict(one.agent),
                precision=one.precision,
                seeds=len(facts),
                **as_fields(one.mean(), "mean", "ci"),
                target=facts[0]["target"],
                reached=sum(fact["reached_s"] is not None for fact in facts),
                seconds=stats.geometric_mean([_seconds(fact) for fact in facts]),
                speedup=faster,
                at_least=any(exact["reached_s"] is None for exact, _ in against) if faster is not None else None,
            )
        )
    return made


def _seconds(fact: Mapping[str, Any]) -> float:
    reached = fact["reached_s"]
    return max(float(fact["clock_s"] if reached is None else reached), 1e-3)


def excluded(records: Sequence[Record]) -> list[ExcludedRow]:
    """Cells that have no result and never will by themselves, with why: n/a, and failed."""
    counts = Counter(
        (record.of_agent(), record.method, record.state, record.error or "")
        for record in records
        if record.state in (NA, FAILED) and record.method != TRAIN
    )
    return [
        ExcludedRow(**asdict(agent), method=method, state=state, reason=reason, cells=count)
        for (agent, method, state, reason), count in counts.items()
    ]
