"""Search for the bits of each layer: the fewest that fresh episodes show to lose no more return than allowed.

Assignments form a path from 8 bits in all layers to the narrowest. Their order follows the error that a layer's width
causes in actions on recorded states, which needs no episodes. Validation episodes choose an assignment on
this path, and fresh episodes confirm it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cache, partial
from typing import Annotated, Any

import numpy as np

from quarl import engines, formats
from quarl.arrays import Array
from quarl.calibration import Calibrated
from quarl.envelope import met_in
from quarl.envs.environment import Environment, home_of
from quarl.errors import QuarlError
from quarl.evaluation import Evaluation, evaluate, record
from quarl.judging import judged
from quarl.latency.timing import time_engines
from quarl.policy.graph import Policy, QuantizedPolicy, edge_weights
from quarl.post_training import measure
from quarl.post_training.measure import Cell, Make
from quarl.quant.spec import EXACT, QuantSpec
from quarl.rows import Column, Row
from quarl.specs import PATH, SEEDS, PtqSpec
from quarl.stats import FEWEST_EPISODES

NARROWER = {"bytes": (7, 6, 5, 4, 3, 2), "latency": (4,)}
"""Candidate widths in bits, by the quantity to minimize: only kernels of 4 bits do less work than those of 8."""
TRIED = "Bits of layers in the order in which they were tried"


def _accepted(accepted: bool, seeds: str, bits_mean: float) -> str:
    return "yes" if accepted else "start" if seeds == "validation" and bits_mean == 8 else "no"


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentRow(Row):
    """An assignment of bits to all layers, and the result of its episodes."""

    command = "ptq assignments"
    bits_mean: Annotated[float, Column("bits", "{:.2f}".format)]
    """Mean bits of a weight, over all layers."""
    bits_of_layers: Annotated[dict[str, int], Column("of layers", lambda bits: " ".join(map(str, bits.values())))]
    """Bits of each layer, by its name."""
    method: Annotated[str, Column("method")]
    """Origin of the weights: ptq, by calibration alone, or distill."""
    seeds: Annotated[str, Column("seeds")]
    """Seeds of the episodes: validation, which chooses, or evaluation, for fresh episodes."""
    episodes: Annotated[int, Column("episodes")]
    mean: Annotated[float, Column("return", formats.number)]
    difference: Annotated[
        float, Column("difference", formats.estimate, of=("difference", "difference_low", "difference_high"))
    ]
    """Mean of the paired differences to fp32, negative for a loss; with the ends of its 95 % interval."""
    difference_low: float
    difference_high: float
    accepted: Annotated[bool, Column("accepted", _accepted, of=("accepted", "seeds", "bits_mean"))]
    """True in validation if the loss is at most half the allowed one, or less if the maximum number of episodes cannot
    confirm half. True for fresh episodes if the interval excludes a loss above the allowed one. The search starts from
    int8 even if validation does not accept it: the table then has "start"."""


def choose(
    policy: Policy,
    environment: Environment | None,
    asked: PtqSpec,
    progress: Callable[[str, int], None] = lambda label, done: None,
    distilled: Make | None = None,
    recorded: Array | None = None,
    envelope: str | Array = PATH,
) -> tuple[list[Cell], list[AssignmentRow], list[str]]:
    """Measure a policy at its precisions, or with `auto` at int8 and at the best bits of its layers.

    The best assignment is the smallest, or fastest, that validation accepts and fresh episodes show to lose less than
    `max_loss`.

    Args:
        policy: The policy in float32.
        environment: The environment to play in; None means the policy's own.
        asked: The precisions, or the allowed loss.
        progress: Called with the precision and 1 for every finished episode.
        distilled: Distills the policy of an assignment that validation rejects after calibration; None rejects it.
        recorded: Observations in place of an environment, as in `measure`; not with `auto`, which needs returns.
        envelope: States that grids cover, as in `quarl.envelope.met_in`.

    Returns:
        The cells, fp32's first; the assignments that were tried; sentences about the choice.

    Raises:
        QuarlError: The episodes cannot even show that int8 loses less than `max_loss`.
    """
    if not asked.auto:
        about: Any = {"recorded": recorded, "envelope": envelope}
        return measure.measure(policy, environment, asked.specs(), asked, progress, **about), [], []
    search = _Search(policy, environment or home_of(policy), asked, progress, distilled, envelope)
    int8 = search.validate(search.int8, search.fewest)
    if search.needed(int8) > asked.most_episodes:
        raise search.refusal(int8)
    # Search the path by bisection: narrower assignments are assumed to lose more.
    errors = search.errors()
    specs = search.specs(errors)
    looks, chosen, above = {0: int8}, 0, len(specs)
    while above - chosen > 1:
        middle = (chosen + above) // 2
        looks[middle] = search.validate(specs[middle], search.planned(int8))
        chosen, above = (middle, above) if looks[middle].accepted else (chosen, middle)
    # Confirm the narrowest accepted assignment on fresh episodes, or the next wider one.
    passed = sorted((n for n, look in looks.items() if look.accepted or not n), reverse=True)
    for attempt, number in enumerate(passed, 1):
        cells = search.confirm(specs[number], attempt, looks[number])
        if cells[-1].row.noninferior:
            break
    else:
        raise search.refusal(search.rows[-1])
    # Describe the choice.
    row = cells[-1].row
    said = [
        f"{row.precision}, {row.bits_mean:.2f} bits a weight and {row.payload / cells[1].row.payload:.2f} of "
        f"int8's bytes, was chosen from {formats.counted(len(specs), 'assignment')}: in attempt {attempt}, "
        f"{row.episodes:,} fresh episodes exclude a loss of {row.margin_pct:g} %. A larger one passes in at most "
        f"{2.5 * attempt:g} % of such searches."
    ]
    narrower = [each for each in search.rows if each.bits_mean < 8]
    if not number and narrower:
        nearest = max(narrower, key=lambda each: each.bits_mean)
        difference = formats.estimate(nearest.difference, nearest.difference_low, nearest.difference_high)
        said.append(
            "int8 stays, because no assignment of fewer bits was accepted: the nearest, "
            f"{' '.join(map(str, nearest.bits_of_layers.values()))}, differs from fp32 by {difference} in "
            f"{nearest.episodes:,} episodes of {nearest.seeds}."
        )
    for name, by_bits in errors.items():
        each = ", ".join(f"{error:.2g} at {bits}" for bits, error in by_bits.items())
        said.append(f"{name} has {row.bits_of_layers[name]} bits; its action error by bits: {each}.")
    edges = edge_weights(policy)
    share, saved = formats.percent(edges / policy.num_weights), formats.size(edges // 8)
    said.append(f"Edges, the first and last layers, hold {share} % of the weights: each bit less saves {saved}.")
    return cells, search.rows, said


class _Search:
    """State of a search for the bits of one policy's layers, and the episodes that it plays."""

    def __init__(
        self,
        policy: Policy,
        environment: Environment,
        asked: PtqSpec,
        progress: Callable[[str, int], None],
        distilled: Make | None,
        envelope: str | Array,
    ) -> None:
        self.fewest = max(int(asked.episodes), FEWEST_EPISODES)
        self.asked, self.progress = replace(asked, margin=asked.loss_pct), progress
        (self.int8,) = asked.specs()
        where: Any = {"seed": asked.seed, "engine": asked.engine}
        self.environment, self.states = environment, record(policy, "fidelity", environment=environment, **where)
        self.calibrated = Calibrated(policy, met_in(envelope, policy, environment, **where))
        where |= {"progress": lambda episode: progress("validation", 1), "num_workers": asked.workers}
        play: Callable[..., Evaluation] = partial(evaluate, environment=environment, stream="validation", **where)
        self.quantize, self.distilled = cache(self.calibrated.quantize), distilled
        self.made = {EXACT: self.quantize(EXACT)}
        """Policy that validation played last, by its precision."""
        self.returns = cache(lambda policy, episodes: play(policy, episodes=episodes).returns)
        self.rows: list[AssignmentRow] = []

    def errors(self) -> dict[str, dict[int, float]]:
        """Return the action error of each layer, by its bits, with int8 in the other layers, on recorded states.

        The error is the mean squared difference to the actions of fp32, in shares of their range; discrete actions
        differ by 1 or 0.
        """

        def act(spec: QuantSpec) -> Array:
            return engines.greedy(self.quantize(spec), self.states, self.asked.engine)

        def error(*own: tuple[str, int]) -> float:
            return float(np.square(policy.head.distance(exact, act(replace(self.int8, layer_bits=own)))).mean())

        policy, exact, narrower = self.calibrated.policy, act(EXACT), NARROWER[self.asked.minimize]
        int8 = error()
        return {op.name: {8: int8, **{bits: error((op.name, bits)) for bits in narrower}} for op in policy.linear}

    def specs(self, errors: Mapping[str, Mapping[int, float]]) -> list[QuantSpec]:
        """Return int8 and the assignments after it on the path; for latency, only those faster than all before."""
        sizes = {op.name: math.prod(op.weight.shape) for op in self.calibrated.policy.linear}
        specs = [replace(self.int8, layer_bits=tuple(bits.items())) for bits in path(errors, sizes)]
        specs[0] = self.int8
        if self.asked.minimize == "bytes":
            return specs
        loaded = [engines.load(self.quantize(spec), self.asked.engine) for spec in specs]
        times = [timing.us_p50 for timing in time_engines(loaded, self.states)]
        return [spec for n, spec in enumerate(specs) if times[n] < min(times[:n], default=math.inf)]

    def validate(self, spec: QuantSpec, episodes: int) -> AssignmentRow:
        """Play validation episodes; return the row, accepted if fresh episodes are likely to confirm its loss."""
        row = self._look(spec, self.quantize(spec), episodes)
        if row.accepted or spec == self.int8 or self.distilled is None:
            return row
        return self._look(spec, self.distilled(self.calibrated, spec), episodes, "distill")

    def _look(self, spec: QuantSpec, policy: QuantizedPolicy, episodes: int, method: str = "ptq") -> AssignmentRow:
        self.made[spec] = policy
        returns, exact = self.returns(policy, episodes), self.returns(self.made[EXACT], episodes)
        row = self._keep("validation", policy, judged(returns, exact, self.asked.margin, self.asked.seed), method)
        share = max(0.5, math.sqrt(self.needed(row) / self.planned(row)))
        self.rows[-1] = replace(row, accepted=bool(row.difference >= (share - 1) * self.allowed(row)))
        return self.rows[-1]

    def confirm(self, spec: QuantSpec, attempt: int, look: AssignmentRow) -> list[Cell]:
        """Measure int8 and an assignment on fresh episodes; return fp32's cell, and theirs.

        Args:
            spec: The assignment.
            attempt: Number of the attempt, from 1; each plays other episodes.
            look: Row of the validation, from which the number of episodes follows.
        """
        fresh = replace(self.asked, seed=(self.asked.seed + attempt - 1) % SEEDS, episodes=self.planned(look))
        specs = list(dict.fromkeys((self.int8, spec)))
        cells = measure.measure(
            self.calibrated.policy,
            self.environment,
            specs,
            fresh,
            self.progress,
            self.calibrated,
            lambda _, spec: self.made[spec],
        )
        self._keep("evaluation", cells[-1].policy, asdict(cells[-1].row), look.method)
        return cells

    def allowed(self, row: AssignmentRow) -> float:
        """Return the allowed loss, as a share of fp32's return on the row's episodes."""
        return self.asked.margin / 100 * abs(row.mean - row.difference)

    def needed(self, row: AssignmentRow) -> float:
        """Return the number of episodes at which half the interval is the allowed loss; it shrinks with their root."""
        reach, allowed = (row.difference_high - row.difference_low) / 2, self.allowed(row)
        return row.episodes * (reach / allowed) ** 2 if allowed else math.inf

    def planned(self, row: AssignmentRow) -> int:
        """Return the number of episodes for an interval half as wide, but at most --max-episodes."""
        return int(max(min(4 * self.needed(row), self.asked.most_episodes), self.fewest))

    def refusal(self, int8: AssignmentRow) -> QuarlError:
        """Return the error that not even int8 was accepted."""
        difference = formats.estimate(int8.difference, int8.difference_low, int8.difference_high)
        return QuarlError(
            f"--max-loss {self.asked.max_loss} cannot be shown even for int8: its return differs from fp32's by "
            f"{difference} in {int8.episodes:,} episodes, and about {self.needed(int8):,.0f} would show it if int8 "
            "loses nothing; raise --max-episodes or --max-loss"
        )

    def _keep(self, seeds: str, policy: QuantizedPolicy, row: Mapping[str, Any], method: str) -> AssignmentRow:
        row = {**row, "bits_mean": policy.mean_bits, "bits_of_layers": policy.bits_of_layers, "seeds": seeds}
        row |= {"method": method, "accepted": row["noninferior"]}
        self.rows.append(AssignmentRow(**{key.name: row[key.name] for key in fields(AssignmentRow)}))
        return self.rows[-1]


def path(errors: Mapping[str, Mapping[int, float]], sizes: Mapping[str, int]) -> list[dict[str, int]]:
    """Return assignments of bits to layers, from 8 bits in all to the narrowest.

    Each step takes the reduction with the least additional error per bit.

    Args:
        errors: Error of each layer by its bits; errors add up over layers.
        sizes: Number of weights of each layer.

    >>> path({"first": {8: 0.0, 4: 1.0}, "last": {8: 0.0, 4: 0.0}}, {"first": 10, "last": 5})
    [{'first': 8, 'last': 8}, {'first': 8, 'last': 4}, {'first': 4, 'last': 4}]
    """
    points = [dict.fromkeys(sizes, 8)]
    while steps := [
        ((error - errors[name][bits]) / (sizes[name] * (bits - fewer)), fewer, name)
        for name, bits in points[-1].items()
        for fewer, error in errors[name].items()
        if fewer < bits
    ]:
        _, fewer, name = min(steps)
        points.append(points[-1] | {name: fewer})
    return points
