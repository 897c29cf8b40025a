"""Tables of a study: errors as in the paper's tables, sweet spots, training for a precision, time to reward."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product
from typing import Any

import numpy as np

from quarl import stats
from quarl.arrays import Array
from quarl.lab.cell_groups import EMPTY, Group, bits_of, grouped
from quarl.lab.cells import ACTORQ, DISTILL, FAILED, FP32, NA, PTQ, QAT, TRAIN, UNTRAINED, AgentName
from quarl.lab.store import Record
from quarl.lab.summary_rows import ActorQRow, ErrorsRow, ExcludedRow, LearningRow, SweetSpotRow, TrainedRow
from quarl.quant.spec import FLOAT_BITS, QuantSpec
from quarl.report.schema import Fields
from quarl.rows import by
from quarl.stats import as_fields

MEAN = "mean"
"""Name in place of the environment in the row of an algorithm's mean."""
MEANS = ("staleness_p50", "staleness_p99", "final_return", "final_return_quantised")
"""Facts of an ActorQ training that its row averages over the seeds."""
Grid = tuple[str, str]
"""Scheme and mode."""
PrecisionAndGrid = tuple[str, str, str]


def errors(groups: Sequence[Group], records: Sequence[Record]) -> list[ErrorsRow]:
    """Return a row of return and E for each policy and requested precision, then each algorithm's means of E.

    Args:
        groups: Groups of the study.
        records: All cells of the study; a precision without a finished one has a row without numbers.
    """
    wanted = (record for record in records if record.method == PTQ and record.state != NA)
    asked = dict.fromkeys((one.of_agent(), (one.precision, one.scheme, one.mode)) for one in wanted)
    rows: list[ErrorsRow] = []
    for algo, members in by(asked, lambda one: one[0].algo).items():
        pairs = {
            (agent, column): of_the_same_seeds(
                _find(groups, agent, FP32, FP32), _find(groups, agent, PTQ, column[0], column[1:])
            )
            for agent, column in members
        }
        rows += [_error_row(agent, column, *pair) for (agent, column), pair in pairs.items()]
        if len({agent for agent, _ in pairs}) > 1:
            rows += _mean_rows(algo, {key: q for key, (_, q) in pairs.items()})
    return rows


def of_the_same_seeds(*columns: Group) -> list[Group]:
    """Return the groups with only common seeds, so that their means are comparable."""
    seeds = [{record.seed for record in group.records} for group in columns if group.records]
    common = set.intersection(*seeds) if seeds else set()
    return [group.of(common) for group in columns]


def _find(groups: Sequence[Group], agent: AgentName, method: str, precision: str, grid: Grid | None = None) -> Group:
    alike = (group for group in groups if (group.agent, group.method, group.precision) == (agent, method, precision))
    return next((group for group in alike if grid in (None, (group.scheme, group.mode))), EMPTY)


def _error_row(agent: AgentName, column: PrecisionAndGrid, exact: Group, q: Group) -> ErrorsRow:
    row: dict[str, Any] = {**asdict(agent), "precision": column[0], "scheme": column[1], "mode": column[2]}
    row |= {"agents": 1, "seeds": len(q.records), "mean": q.point}
    return ErrorsRow(**row, **as_fields(exact.mean(), FP32, FP32), **as_fields(q.error(), "error_pct", "error"))


def _mean_rows(algo: str, groups: Mapping[tuple[AgentName, PrecisionAndGrid], Group]) -> list[ErrorsRow]:
    """Return the mean of E in each precision, as at the end of the paper's tables.

    It is over the policies that have an E in every precision of the same scheme and in every float format.

    Args:
        algo: The algorithm.
        groups: Group of each policy and precision.
    """
    found = {key: _together(group) for key, group in groups.items()}
    columns = dict.fromkeys(column for (_, column), group in groups.items() if group.records)
    rows = []
    for column in columns:
        alike = [other for other in columns if other[1:] == column[1:] or other[0] in FLOAT_BITS]
        agents = dict.fromkeys(agent for agent, _ in groups)
        usable = [agent for agent in agents if all(found.get((agent, other)) for other in alike)]
        pairs = [pair for agent in usable if (pair := found[agent, column])]
        error = stats.mean_error_interval(pairs, np.random.default_rng(0)) if pairs else None
        row = _error_row(AgentName(algo=algo, env_id=MEAN, source=""), column, EMPTY, EMPTY)
        rows.append(replace(row, agents=len(usable), **as_fields(error, "error_pct", "error")))
    return rows


def _together(group: Group) -> tuple[Array, Array] | None:
    """Return the episodes of all seeds together, because the question is about these agents and not about others.

    None without episodes, or without E because fp32's interval contains 0.
    """
    if not (pairs := group.pairs):
        return None
    exact, quantised = (np.concatenate(side) for side in zip(*pairs, strict=True))
    return None if math.isnan(stats.error_pct(exact, quantised, np.random.default_rng(0))) else (exact, quantised)


def sweet_spots(groups: Sequence[Group], records: Sequence[Record], margin_pct: float) -> list[SweetSpotRow]:
    """Return the smallest width whose every wider width is non-inferior, one row per policy and scheme.

    Args:
        groups: Groups of the study.
        records: All cells of the study; a width that lacks one of its seeds counts as not non-inferior.
        margin_pct: Acceptable loss in percent.

    Returns:
        The rows.
    """
    planned: dict[tuple[AgentName, str, str], dict[int, set[int]]] = {}
    for record in records:
        if record.method == PTQ and (bits := bits_of(record)) is not None:
            widths_of = planned.setdefault((record.of_agent(), record.scheme, record.mode), {})
            widths_of.setdefault(bits, set()).add(record.seed)
    paired = (group for group in groups if group.bits is not None and group.pairs)
    members = {(group.agent, group.scheme, group.mode, group.bits): group for group in paired}
    rows: list[SweetSpotRow] = []
    for (agent, scheme, mode), widths_of in planned.items():
        widths = sorted(widths_of, reverse=True)
        by_width = [members.get((agent, scheme, mode, bits), EMPTY) for bits in widths]
        if not any(group.pairs for group in by_width):
            continue
        verdicts = [
            group.verdict(margin_pct) if len(group.pairs) == len(widths_of[bits]) else None
            for bits, group in zip(widths, by_width, strict=True)
        ]
        good = [verdict is not None and verdict.noninferior for verdict in verdicts]
        reach = next((number for number, fine in enumerate(good) if not fine), len(good))
        rows.append(
            SweetSpotRow(
                **asdict(agent),
                scheme=scheme,
                mode=mode,
                seeds=max(len(group.pairs) for group in by_width),
                widths=widths,
                noninferior=good,
                verdicts=[None if verdict is None else verdict.headline for verdict in verdicts],
                sweet_spot=widths[reach - 1] if reach else None,
            )
        )
    return rows


def means(groups: Sequence[Group]) -> list[Fields]:
    """Return the mean return of every policy, method and precision, over the seeds that all of them have."""
    points: list[Fields] = []
    for agent in dict.fromkeys(group.agent for group in groups):
        for group in of_the_same_seeds(*(other for other in groups if other.agent == agent)):
            if group.records:
                names = ("method", "precision", "scheme", "mode", "measured")
                about = {name: getattr(group, name) for name in names} | as_fields(group.mean(), "mean", "ci")
                points.append({**asdict(agent), **about, "seeds": len(group.records)})
    return points


def trained(groups: Sequence[Group], margin_pct: float) -> list[TrainedRow]:
    """Return agents trained or distilled for a precision beside fp32 and post-training quantization.

    The latter has the same precision and scheme or, if that is not measured, mid-tread; dynamic comes before static.
    """
    rows: list[TrainedRow] = []
    for group in (group for group in groups if group.method in (QAT, DISTILL)):
        name = QuantSpec.parse(group.precision).precision
        grids = product((group.scheme, "mid-tread"), ("dynamic", "static"))
        candidates = [_find(groups, group.agent, PTQ, name, grid) for grid in grids]
        best = next((other for other in candidates if other.records), EMPTY)
        exact, ptq, after = of_the_same_seeds(_find(groups, group.agent, FP32, FP32), best, group)
        ptq_error = ptq.error()
        rows.append(
            TrainedRow(
                **asdict(group.agent),
                method=group.method,
                precision=group.precision,
                seeds=len(after.records),
                fp32=exact.point,
                ptq=ptq.point,
                error_ptq_pct=None if ptq_error is None else ptq_error.point,
                trained=after.point,
                **after.compared(margin_pct, ptq, "error_trained"),
            )
        )
    return rows


def learning(groups: Sequence[Group], records: Sequence[Record]) -> list[LearningRow]:
    """Return a row for each float32 agent that the study trained, if another or the untrained one is beside it."""
    lengths = {(record.of_agent(), record.seed): record.result for record in records if record.method == TRAIN}
    played = (group for group in groups if group.method == FP32)
    trained = [group for group in played if all((group.agent, record.seed) in lengths for record in group.records)]
    rows: list[LearningRow] = []
    for task in by(trained, lambda group: (group.agent.algo, group.agent.env_id)).values():
        for group in task:
            before, after = of_the_same_seeds(_find(groups, group.agent, UNTRAINED, FP32), group)
            if not after.records or not (before.records or len(task) > 1):
                continue
            # the seeds that both have
            difference = after.of(task[0].exact).gain(task[0] if group is not task[0] else EMPTY)
            facts = [lengths[group.agent, record.seed] for record in after.records]
            within = difference is not None and not math.isnan(difference.low)
            rows.append(
                LearningRow(
                    **asdict(group.agent),
                    seeds=len(after.records),
                    env_steps=max(fact["trained_steps"] for fact in facts),
                    updates=max(fact["updates"] for fact in facts),
                    episodes=after.records[0].episodes,
                    before=before.point,
                    **as_fields(after.mean(), "mean", "ci"),
                    **as_fields(difference, "difference", "difference"),
                    equal=difference.low <= 0 <= difference.high if difference is not None and within else None,
                    minutes=float(np.mean([fact["minutes"] for fact in facts])),
                )
            )
    return rows


def actorq(records: Sequence[Record]) -> list[ActorQRow]:
    """Return ActorQ trainings over seeds.

    Rows have the score of the learner's policy, the seconds to the target, and the speed-up.

    Seconds are of the training clock, to the target or to the end of a run that never reached it or had none; the row
    has their geometric mean.
    """
    groups = grouped(records, (ACTORQ,))
    rows: list[ActorQRow] = []
    for group in groups:
        facts = [record.result for record in group.records]
        same = {
            record.seed: record.result
            for record in _find(groups, group.agent, ACTORQ, FP32, (group.scheme, group.mode)).records
        }
        against = [(same[record.seed], record.result) for record in group.records if record.seed in same]
        ratios = [_seconds(exact) / _seconds(result) for exact, result in against]
        # a run stopped before the target would have taken longer
        clear = group.precision != FP32 and all(result["reached_s"] is not None for _, result in against)
        faster = stats.geometric_mean(ratios) if ratios and clear else None
        rows.append(
            ActorQRow(
                **asdict(group.agent),
                precision=group.precision,
                mode=group.mode,
                seeds=len(facts),
                **as_fields(group.mean(), "mean", "ci"),
                target=facts[0]["target"],
                reached=sum(fact["reached_s"] is not None for fact in facts),
                seconds=stats.geometric_mean([_seconds(fact) for fact in facts]),
                speedup=faster,
                at_least=any(exact["reached_s"] is None for exact, _ in against) if faster is not None else None,
                **_means(facts),
            )
        )
    return rows


def _means(facts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean of each of MEANS over the seeds that have it; cells of older versions do not."""
    known = {name: [fact[name] for fact in facts if fact.get(name) is not None] for name in MEANS}
    return {name: float(np.mean(values)) if values else None for name, values in known.items()}


def _seconds(fact: Mapping[str, Any]) -> float:
    reached = fact["reached_s"]
    return max(float(fact["clock_s"] if reached is None else reached), 1e-3)


def excluded(records: Sequence[Record]) -> list[ExcludedRow]:
    """Return the cells that have no result and need action, n/a or failed, with the reason."""
    counts = Counter(
        (record.of_agent(), record.method, record.state, record.error or "")
        for record in records
        if record.state in (NA, FAILED) and record.method != TRAIN
    )
    return [
        ExcludedRow(**asdict(agent), method=method, state=state, reason=reason, cells=count)
        for (agent, method, state, reason), count in counts.items()
    ]
