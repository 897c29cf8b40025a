"""Groups of cells: one agent, or one for each seed, at one precision, with its returns beside those of fp32."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from quarl import stats
from quarl.arrays import Array
from quarl.lab.cells import DISTILL, DONE, FP32, PTQ, QAT, UNTRAINED, AgentName
from quarl.lab.rows import both_successes, returns, spec_of
from quarl.lab.store import Record
from quarl.rows import by
from quarl.specs import ComparisonSpec
from quarl.stats import NO_VERDICT, Interval, Verdict, as_fields

Pairs = list[tuple[Array, Array]]


@dataclass(frozen=True, eq=False, slots=True)
class Group:
    """One method at one precision over the finished seeds; a group without records returns None for every statistic."""

    agent: AgentName
    method: str
    precision: str
    scheme: str
    mode: str
    records: tuple[Record, ...] = ()
    """One record per seed."""
    exact: Mapping[int, Record] = dataclasses.field(default_factory=dict)
    """The fp32 cell of each finished seed."""

    @property
    def bits(self) -> int | None:
        """Bits of a weight, as returned by `bits_of`."""
        return bits_of(self.records[0])

    @property
    def pairs(self) -> Pairs:
        """(fp32, this) returns of each seed that has both."""
        return [(returns(exact), returns(record)) for exact, record in self._both]

    @property
    def _both(self) -> list[tuple[Record, Record]]:
        """Return the cells in fp32 and in this precision of each seed that has both, with as many episodes."""
        both = [(self.exact[record.seed], record) for record in self.records if record.seed in self.exact]
        return [(exact, record) for exact, record in both if returns(exact).size == returns(record).size]

    @property
    def measured(self) -> bool:
        """True if kernels of its precision ran; otherwise it was simulated."""
        return all(record.result.get("measured", True) for record in self.records)

    def of(self, seeds: Collection[int]) -> Group:
        """Return the group with only these seeds."""
        return replace(self, records=tuple(record for record in self.records if record.seed in seeds))

    def mean(self) -> Interval | None:
        """Return the mean over seeds and their episodes."""
        every = [returns(record) for record in self.records]
        return stats.over_seeds(every, np.random.default_rng(0)) if every else None

    @property
    def point(self) -> float | None:
        """The mean return without its interval."""
        mean = self.mean()
        return None if mean is None else mean.point

    def error(self) -> Interval | None:
        """Return the loss against fp32 in percent; None if no seed has both."""
        pairs = self.pairs
        return stats.error_over_seeds(pairs, np.random.default_rng(0)) if pairs else None

    def gain(self, other: Group) -> Interval | None:
        """Return the gain over the other group, paired by seed and episode; None if it lacks one of the seeds."""
        there = {record.seed: returns(record) for record in other.records}
        here = {record.seed: returns(record) for record in self.records}
        if not here or any(seed not in there or there[seed].size != returned.size for seed, returned in here.items()):
            return None
        return stats.over_seeds([returned - there[seed] for seed, returned in here.items()], np.random.default_rng(0))

    def verdict(self, margin_pct: float) -> Verdict | None:
        """Return the verdict on the margin: from the episodes of a single seed, otherwise from the error's interval.

        It includes the verdict on successes if all seeds have them.
        """
        if not (pairs := self.pairs):
            return None
        verdict = stats.verdict_over_seeds(pairs, margin_pct, np.random.default_rng(0))
        won = [both_successes(*both) for both in self._both]
        known = [each for each in won if each is not None]
        success = stats.success_over_seeds(known, ComparisonSpec.success_margin) if len(known) == len(won) else None
        return replace(verdict, success=success)

    def compared(self, margin_pct: float, other: Group, error: str = "error") -> dict[str, Any]:
        """Return the columns of a comparison with fp32: error and verdict, and the gain over the other group.

        Args:
            margin_pct: Acceptable loss in percent.
            other: Group that the gain refers to.
            error: Prefix of the error's columns.

        Returns:
            Values by column.
        """
        verdict = self.verdict(margin_pct)
        return {
            **as_fields(self.error(), f"{error}_pct", error),
            **dict.fromkeys(("verdict_return", "verdict_success", "success_margin")),
            **(NO_VERDICT if verdict is None else verdict.to_json()),
            **as_fields(self.gain(other), "gain", "gain"),
        }


EMPTY = Group(AgentName(algo="", env_id="", source=""), "", "", "", "")


def grouped(records: Sequence[Record], methods: Collection[str] = (FP32, PTQ, DISTILL, QAT, UNTRAINED)) -> list[Group]:
    """Return all groups of these methods with a finished cell, in the study's order; ActorQ has its own table."""
    done = [record for record in records if record.state == DONE and record.method in methods]
    exact = by((record for record in done if record.method == FP32), Record.of_agent)
    members = by(done, lambda done: (done.of_agent(), done.method, done.precision, done.scheme, done.mode))
    return [
        Group(*about, tuple(cells), {record.seed: record for record in exact.get(about[0], ())})
        for about, cells in members.items()
    ]


def bits_of(record: Record) -> int | None:
    """Return N of intN and of intNeK from post-training quantization, the bits of a weight beside 8-bit activations.

    Everything else returns None, w4a4 too: widths are compared only if nothing else differs.
    """
    return spec_of(record).weight_bits if record.method == PTQ and record.precision.startswith("int") else None
