"""Groups of cells: one agent, or one for each seed, at one precision, with its returns beside those of fp32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl import stats
from quarl.quant.spec import QuantSpec
from quarl.stats import Interval
from quarl.study.cells import ACTORQ, DONE, FP32, PTQ, TRAIN
from quarl.study.rows import returns
from quarl.study.store import Record

Array = NDArray[Any]
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
    pairs: Pairs
    """(fp32, this) returns of each seed that has both."""

    @property
    def bits(self) -> int | None:
        """Of a weight that post-training quantisation made an integer beside 8-bit activations: N of intN. None for
        everything else, w4a4 too: widths are compared where nothing else differs."""
        spec = QuantSpec.parse(self.precision, scheme=self.scheme)
        return spec.weight_bits if self.method == PTQ and self.precision == f"int{spec.weight_bits}" else None

    def mean(self) -> Interval:
        """Return, over seeds and their episodes."""
        return stats.over_seeds([returns(record) for record in self.records], np.random.default_rng(0))

    def error(self) -> Interval | None:
        """Loss against fp32 in percent; None where no seed has both."""
        return stats.error_over_seeds(self.pairs, np.random.default_rng(0)) if self.pairs else None

    def noninferior(self, margin_pct: float) -> bool | None:
        """Whether it loses less than the margin: with one seed by its episodes, else by the error's interval."""
        if not self.pairs:
            return None
        if len(self.pairs) == 1:
            return stats.noninferior(*self.pairs[0], margin_pct, np.random.default_rng(0)).noninferior
        error = self.error()
        return error is not None and stats.noninferior_over_seeds(self.pairs, error, margin_pct)


def groups(records: Sequence[Record]) -> list[Group]:
    """All groups with a finished cell, in the study's order; ActorQ is a table of its own."""
    done = [record for record in records if record.state == DONE and record.method not in (TRAIN, ACTORQ)]
    exact = {(_agent(record), record.seed): returns(record) for record in done if record.method == FP32}
    members: dict[tuple[Agent, str, str, str, str], list[Record]] = {}
    for record in done:
        about = (_agent(record), record.method, record.precision, record.scheme, record.mode)
        members.setdefault(about, []).append(record)
    return [
        Group(
            agent=agent,
            method=method,
            precision=precision,
            scheme=scheme,
            mode=mode,
            records=tuple(some),
            pairs=[(exact[agent, one.seed], returns(one)) for one in some if _is_paired(exact, agent, one)],
        )
        for (agent, method, precision, scheme, mode), some in members.items()
    ]


def _agent(record: Record) -> Agent:
    return Agent(record.algo, record.env_id, record.source)


def _is_paired(exact: dict[tuple[Agent, int], Array], agent: Agent, record: Record) -> bool:
    return (agent, record.seed) in exact and exact[agent, record.seed].size == returns(record).size
