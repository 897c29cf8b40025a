"""Groups of cells: one agent, or one for each seed, at one precision, with its returns beside those of fp32."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from quarl import stats
from quarl.arrays import Array
from quarl.experiments.cells import ACTORQ, DONE, FP32, PTQ, TRAIN
from quarl.experiments.rows import returns
from quarl.experiments.store import Record
from quarl.quant.spec import QuantSpec
from quarl.stats import Interval, Verdict

Pairs = list[tuple[Array, Array]]


@dataclass(frozen=True, slots=True)
class Agent:
    """What a study calls one policy; its seeds are several agents, or several evaluations of one from a file."""

    algo: str
    env_id: str
    source: str


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Group:
    """One method at one precision over the seeds that are done."""

    agent: Agent
    method: str
    precision: str
    scheme: str
    mode: str
    records: tuple[Record, ...]
    """One a seed."""
    exact: Mapping[int, Array]
    """Returns in fp32 of each seed that is done."""

    @property
    def bits(self) -> int | None:
        """As `bits_of` has it."""
        return bits_of(self.records[0])

    @property
    def pairs(self) -> Pairs:
        """(fp32, this) returns of each seed that has both."""
        both = [(self.exact[one.seed], returns(one)) for one in self.records if one.seed in self.exact]
        return [(exact, own) for exact, own in both if exact.size == own.size]

    @property
    def measured(self) -> bool:
        """Whether kernels of its precision ran; else it was simulated."""
        return all((one.found or {}).get("measured", True) for one in self.records)

    def of(self, seeds: Collection[int]) -> Group | None:
        """The same with no other seeds; None where none is left."""
        records = tuple(one for one in self.records if one.seed in seeds)
        return replace(self, records=records) if records else None

    def mean(self) -> Interval:
        """Return, over seeds and their episodes."""
        return stats.over_seeds([returns(record) for record in self.records], np.random.default_rng(0))

    def error(self) -> Interval | None:
        """Loss against fp32 in percent; None where no seed has both."""
        pairs = self.pairs
        return stats.error_over_seeds(pairs, np.random.default_rng(0)) if pairs else None

    def gain(self, other: Group | None) -> Interval | None:
        """Return over the other's, paired by seed and episode; None where that lacks one of the seeds."""
        theirs = {} if other is None else {one.seed: returns(one) for one in other.records}
        if any(one.seed not in theirs or theirs[one.seed].size != returns(one).size for one in self.records):
            return None
        differences = [returns(one) - theirs[one.seed] for one in self.records]
        return stats.over_seeds(differences, np.random.default_rng(0))

    def verdict(self, margin_pct: float) -> Verdict | None:
        """Whether it loses less than the margin: with one seed by its episodes, else by the error's interval."""
        pairs = self.pairs
        return stats.verdict_over_seeds(pairs, margin_pct, np.random.default_rng(0)) if pairs else None


def groups(records: Sequence[Record]) -> list[Group]:
    """All groups with a finished cell, in the study's order; ActorQ is a table of its own."""
    done = [record for record in records if record.state == DONE and record.method not in (TRAIN, ACTORQ)]
    exact: dict[Agent, dict[int, Array]] = {}
    for record in done:
        if record.method == FP32:
            exact.setdefault(agent_of(record), {})[record.seed] = returns(record)
    members: dict[tuple[Agent, str, str, str, str], list[Record]] = {}
    for record in done:
        about = (agent_of(record), record.method, record.precision, record.scheme, record.mode)
        members.setdefault(about, []).append(record)
    return [
        Group(
            agent=agent,
            method=method,
            precision=precision,
            scheme=scheme,
            mode=mode,
            records=tuple(some),
            exact=exact.get(agent, {}),
        )
        for (agent, method, precision, scheme, mode), some in members.items()
    ]


def agent_of(record: Record) -> Agent:
    return Agent(record.algo, record.env_id, record.source)


def bits_of(record: Record) -> int | None:
    """Of a weight that post-training quantisation makes an integer beside 8-bit activations: N of intN. None for
    everything else, w4a4 too: widths are compared where nothing else differs."""
    spec = QuantSpec.parse(record.precision, scheme=record.scheme)
    return spec.weight_bits if record.method == PTQ and record.precision == f"int{spec.weight_bits}" else None
