"""Cells of ActorQ: runs of several arms, which bound one another's time, and windows of runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import product
from typing import Any

from quarl.config import ActorQConfig
from quarl.errors import UnsupportedError
from quarl.lab import checks
from quarl.lab.cells import ACTORQ, THROUGHPUT, Cell, turned
from quarl.lab.file import OF_METHOD, MethodEntry, split_arm
from quarl.lab.planned import Planned
from quarl.lab.trainings import check_actorq
from quarl.quant.spec import QuantSpec

BEST = "best"
"""Mode of a run at the fastest of the development runs."""
Point = Mapping[str, Any]
"""Values of the options that have several."""


@dataclass(frozen=True, slots=True)
class _Runs:
    """The runs of one policy by one method."""

    policy: Planned
    method: MethodEntry
    options: Mapping[str, Any]
    """Options of `quarl actorq`; those with several values have lists of them."""
    points: Sequence[Point]
    turn: int
    """The arms take turns at being early."""

    def cell(self, arm: str, point: Point, **more: Any) -> Cell:
        """Return the cell of one arm at one point; `more` is part of its work, or `seed`, `after` and `mode`."""
        policy, entry, method = self.policy, self.policy.entry, self.method
        precision, engine = split_arm(arm)
        spec = QuantSpec.parse(precision, edges=method.edge_bits)
        options = {**self.options, **point, **({"engine": engine} if engine == "torch" else {})}
        names = [f"{name.replace('_', ' ')} {value}" for name, value in point.items()]
        seed, after = more.pop("seed", policy.seed), more.pop("after", ())
        mode = more.pop("mode", ", ".join([engine] * (engine == "torch") + names)) or "dynamic"
        work = {
            "algo": entry.algo,
            "env_id": policy.env_id,
            **entry.identity,
            "options": self._in_steps(options),
            "precision": precision if spec.edge_bits is None else spec.precision,
            "seed": seed,
            **({} if method.method == THROUGHPUT else policy.played),
            **more,
        }
        about = {**policy.about, "source": entry.name or ACTORQ, "seed": seed, "method": method.method}
        cell = Cell(**about, precision=spec.precision, mode=mode, after=after, work=work)
        try:
            policy.check(partial(check_actorq, work))
        except UnsupportedError as error:  # an on-policy algorithm
            cell = cell.refused(str(error).partition(": ")[2])
        return cell

    def _in_steps(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options with those of in_updates in environment steps."""
        steps = dict(options)
        for name, updates in self.method.in_updates.items():
            if not all(isinstance(options.get(key), int | float) for key in ("batch_size", "samples_per_insert")):
                raise self.method.at.wrong("in_updates needs numbers as batch_size and samples_per_insert")
            number = max(round(updates * options["batch_size"] / options["samples_per_insert"]), 1)
            if name in (each.name for each in fields(ActorQConfig)):
                steps[name] = number
            else:
                steps["params"] = {**steps["params"], name: number}
        return steps

    def at(self, point: Point, own: Mapping[str, Sequence[str]], **more: Any) -> dict[str, Cell]:
        """Return the cells of all arms at one point, the reference first.

        Args:
            point: The values of the options.
            own: Keys of runs whose seconds bound an arm's, in place of the reference's.
            more: What `cell` takes.

        Returns:
            The cells by arm.
        """
        cap, derived, cells = self.method.cap, self.method.derived, dict[str, Cell]()
        if cap is None:
            return {arm: self.cell(arm, point, **more) for arm in self.method.precision}
        reference = [cap.reference] * bool(cap.reference)
        others = turned([arm for arm in self.method.precision if arm not in reference], self.turn)
        for arm in (*reference, *others):
            first = cells[cap.reference].key if cap.reference and arm not in reference else ""
            cells[arm] = self.capped(arm, point, first, own.get(arm, ()), **more)
        if derived is not None:
            source = cells[derived.of].key
            told = {"of": source, "seconds": derived.seconds}
            for arm in derived.precision:
                cells[arm] = self.cell(arm, point, **more, cap={}, derived=told, after=(source,))
        return cells

    def capped(self, arm: str, point: Point, reference: str, own: Sequence[str] = (), **more: Any) -> Cell:
        """Return the cell of a run with a bound.

        Args:
            arm: The arm.
            point: The values of the options.
            reference: Key of the run whose time bounds it; empty for the reference itself.
            own: Keys of runs whose seconds bound it in place of the reference's.
            more: What `cell` takes; `after` precedes these.
        """
        cap = self.method.cap
        assert cap is not None
        bound: dict[str, Any] = {"minutes": cap.minutes}
        if cap.reference:
            bound |= {"reference_minutes": cap.reference_minutes or cap.minutes, "reference": reference}
            bound |= {"times": cap.times} if reference else {}
        if own:
            bound["own"] = [*own]
        after = (*more.pop("after", ()), *filter(None, [reference]), *own)
        return self.cell(arm, point, **more, cap=bound, after=after)

    def of_seed(self) -> Iterator[Cell]:
        """Yield the runs of a seed at every point; with also_seeds only some seeds have more than the first."""
        chosen, own = self.method.also_seeds, dict[str, list[str]]()
        for number, point in enumerate(self.points):
            cells = self.at(point, own)
            yield from cells.values()
            if chosen is not None and number == 0:
                own = {arm: [cell.key] for arm, cell in cells.items()}
                if self.policy.seed not in chosen:
                    return

    def chosen(self) -> Iterator[Cell]:
        """Yield the runs of the development seed at every point, then one of each precision at its fastest."""
        own: dict[str, list[str]] = {}
        tried: dict[str, list[Cell]] = {}
        for point in self.points:
            for arm, cell in self.at(point, own, seed=self.method.development_seed, part="development").items():
                yield cell
                own.setdefault(arm, []).append(cell.key)
                tried.setdefault(split_arm(arm)[0], []).append(cell)
        cap = self.method.cap
        assert cap is not None
        first = split_arm(cap.reference)[0] if cap.reference else ""
        others, reference = turned([name for name in tried if name != first], self.turn), ""
        for precision in (*[first] * bool(first), *others):
            keys = tuple(cell.key for cell in tried[precision])
            choices = [{"key": cell.key, "options": cell.work.get("options")} for cell in tried[precision]]
            more: dict[str, Any] = {"part": "measured", "choices": choices, "mode": BEST, "after": keys}
            cell = self.capped(precision, self.points[0], reference, **more)
            yield cell
            reference = reference or (cell.key if precision == first else "")


def runs(policy: Planned, method: MethodEntry) -> Iterator[Cell]:
    """Yield ActorQ trainings with actors of every precision; the learner's policy is played in the end.

    Each is an agent of its own, whatever the policy's source: it begins from Stable-Baselines3's hyper-parameters and
    not from RL Zoo's tuned ones.
    """
    planned = _planned(policy, method)
    method = planned.method
    cap, derived, at = method.cap, method.derived, method.at
    if method.development_seed is not None:
        if cap is None or len(planned.points) < 2 or "target" not in planned.options or derived is not None:
            raise at.wrong("development_seed needs a cap, a target and an option with several values, and no derived")
        if method.development_seed in (policy.entry.seeds or policy.study.seeds):
            raise at.wrong(f"development_seed {method.development_seed} is one of the seeds: take another")
    if cap is None and (derived is not None or method.also_seeds is not None):
        raise at.wrong("derived and also_seeds need a cap")
    for arm in [each for each in (cap and cap.reference, derived and derived.of) if each]:
        if arm not in method.precision:
            raise at.wrong(f"{arm} is not one of the precisions: {', '.join(method.precision)}")
    yield from planned.of_seed() if method.development_seed is None else planned.chosen()


def windows(policy: Planned, method: MethodEntry) -> Iterator[Cell]:
    """Yield windows of runs without end; each seed is one more round."""
    planned = _planned(policy, method)
    told = {"seconds": planned.method.seconds, "warm_up": planned.method.warm_up}
    for point in planned.points:
        for arm in turned(planned.method.precision, planned.turn):
            yield planned.cell(arm, point, **told)


def _planned(policy: Planned, method: MethodEntry) -> _Runs:
    """Return the runs of the method with the policy's options for it."""
    entry = policy.entry
    own = checks.checked(MethodEntry, entry.actorq, entry.at / "actorq", "quarl actorq", OF_METHOD[ACTORQ])
    method = replace(method, **own)
    options: dict[str, Any] = {"n_timesteps": entry.n_timesteps} if entry.n_timesteps is not None else {}
    options |= {**method.options, **{name: value for name, value in entry.actorq.items() if name not in own}}
    shared = {name: value for name, value in entry.params.items() if name not in options}  # shared by all its trainings
    options["params"] = {**shared, **method.options.get("params", {}), **entry.actorq.get("params", {})}
    if "qat" in options:
        options["edge_bits"] = method.edge_bits
    compared = method.method == THROUGHPUT or method.cap is not None
    if compared and "auto" in (options.get("actors"), options.get("envs_per_actor")):
        raise method.at.wrong("compared runs need actors and envs_per_actor as numbers, not auto")
    several = {name: value for name, value in options.items() if isinstance(value, list | tuple)}
    if empty := [name for name, values in several.items() if not values]:
        raise method.at.wrong(f"{empty[0]} is an empty list; name at least one value")
    points = [dict(zip(several, values, strict=True)) for values in product(*several.values())]
    seeds = policy.entry.seeds or policy.study.seeds
    turn = seeds.index(policy.seed) if policy.seed in seeds else 0
    return _Runs(policy, method, options, points, turn)
