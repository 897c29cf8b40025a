"""Plan: updates a second at every precision and the side that everything waits for, predicted from measured parts.

A run in balance makes batch_size / samples_per_insert environment steps for every update. So one update costs the
learner, the actors and the publisher a known time each, and the slowest resource sets the pace: the learner's core, the
actors' cores, or all cores together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from quarl.actorq.parts import Parts
from quarl.actorq.parts_actor import ArmParts
from quarl.config import ActorQConfig
from quarl.errors import QuarlError
from quarl.machine import usable_cores

Bottleneck = Literal["actors", "learner", "even"]
EVEN = 1.1
"""Sides whose rates are within this factor of each other are even."""
WORTHWHILE = 1.1
WAITS = {"actors": "actors are the bottleneck", "learner": "the learner is the bottleneck", "even": "sides even"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One precision on one engine: the contract of `quarl actorq --plan --json`."""

    precision: str
    engine: str
    env_us: float
    inference_us: float
    """Of one environment step: a call, divided by the environments that it serves."""
    overhead_us: float
    """Exploration, books and ring of a step, and its share of taking in new weights."""
    steps_per_s: float
    """Of one actor that never waits: 1e6 over the sum of the three, times its share of a core."""
    learner_ms: float
    """One update, with its inserts and its share of a push."""
    predicted_updates_per_s: float
    predicted_speedup_vs_torch_fp32: float | None
    predicted_speedup_vs_litert_fp32: float | None
    bottleneck: Bottleneck


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a prediction is for."""

    samples_per_insert: float
    actors: int
    actor_update_interval: int
    publish_interval: int
    learner_threads: int = 1
    cores: int

    @property
    def actor_cores(self) -> int:
        """Those that the learner's threads leave to actors, who fill one each."""
        return min(self.actors, max(self.cores - self.learner_threads, 1))

    @classmethod
    def of(cls, config: ActorQConfig, parts: Parts, samples_per_insert: float | None = None) -> Setting:
        """The configuration's, on this machine."""
        return cls(
            samples_per_insert=samples_per_insert or parts.samples_per_insert,
            actors=config.actors,
            actor_update_interval=config.actor_update_interval,
            publish_interval=config.publish_interval,
            learner_threads=config.learner_threads,
            cores=usable_cores(),
        )


def predict(parts: Parts, setting: Setting) -> list[Row]:
    """A row for every arm of the parts, in their order."""
    paces = [_Pace(parts, arm, setting) for arm in parts.arms]
    rates = {(arm.precision, arm.engine): pace.updates_per_s for arm, pace in zip(parts.arms, paces, strict=True)}

    def speedup(pace: _Pace, engine: str) -> float | None:
        base = rates.get(("fp32", engine))
        return None if base is None else round(pace.updates_per_s / base, 3)

    return [
        Row(
            precision=arm.precision,
            engine=arm.engine,
            env_us=round(parts.env_us, 2),
            inference_us=round(arm.inference_us, 2),
            overhead_us=round(pace.overhead_us, 2),
            steps_per_s=round(pace.steps_per_s, 1),
            learner_ms=round(1e3 * pace.learner_s, 3),
            predicted_updates_per_s=round(pace.updates_per_s, 3),
            predicted_speedup_vs_torch_fp32=speedup(pace, "torch"),
            predicted_speedup_vs_litert_fp32=speedup(pace, "litert"),
            bottleneck=pace.bottleneck,
        )
        for arm, pace in zip(parts.arms, paces, strict=True)
    ]


class _Pace:
    """What one update costs each side with one arm's actors, in seconds, and what follows from it."""

    def __init__(self, parts: Parts, arm: ArmParts, setting: Setting) -> None:
        steps = parts.batch_size / setting.samples_per_insert
        # Every actor looks for weights once an interval, and finds new ones once a publish.
        pulls = min(steps / setting.actors / setting.actor_update_interval, 1 / setting.publish_interval)
        self.overhead_us = parts.overhead_us + 1e3 * arm.pull_ms * pulls * setting.actors / steps
        step_s = 1e-6 * (parts.env_us + arm.inference_us + self.overhead_us)
        self.learner_s = 1e-3 * (parts.train_ms + parts.push_ms / setting.publish_interval)
        self.learner_s += 1e-6 * steps * parts.insert_us
        actors_s, publisher_s = steps * step_s, 1e-3 * arm.pack_ms / setting.publish_interval
        cores, actor_cores = setting.cores, setting.actor_cores
        busy_s = self.learner_s * setting.learner_threads + actors_s
        # The publisher runs where there is room, and fills one core at most.
        together = max(cores / (busy_s + publisher_s), (cores - 1) / busy_s)
        learner, actors = 1 / self.learner_s, actor_cores / actors_s
        self.steps_per_s = actor_cores / setting.actors / step_s
        self.updates_per_s = min(learner, actors, together)
        ratio = actors / learner
        self.bottleneck: Bottleneck = "actors" if ratio < 1 / EVEN else "learner" if ratio > EVEN else "even"


def even_ratio(parts: Parts, arm: ArmParts, setting: Setting) -> float:
    """The samples per insert at which this arm's actors and the learner are equally fast, pulls left out."""
    step_s = 1e-6 * (parts.env_us + arm.inference_us + parts.overhead_us)
    # batch / ratio steps take the actors as long as train_ms and the inserts take the learner
    spare_s = step_s / setting.actor_cores - 1e-6 * parts.insert_us
    return parts.batch_size * spare_s / (1e-3 * parts.train_ms) if spare_s > 0 else 0.0


def sentences(rows: Sequence[Row], parts: Parts, setting: Setting, precision: str) -> Iterator[str]:
    """What the rows mean for actors of this precision, in plain words."""
    by_arm = {(row.precision, row.engine): row for row in rows}
    own = by_arm.get((precision, "litert"))
    base = by_arm.get(("fp32", "litert"))
    if own is None or base is None:
        raise QuarlError(f"the plan needs {precision} and fp32 on litert")
    ratio = setting.samples_per_insert
    gain = own.predicted_updates_per_s / base.predicted_updates_per_s
    torch_gain = own.predicted_speedup_vs_torch_fp32
    beside = "" if torch_gain is None else f" and {torch_gain:.2f} times as many as on torch fp32"
    float_arm = next(arm for arm in parts.arms if (arm.precision, arm.engine) == ("fp32", "litert"))
    limit = even_ratio(parts, float_arm, setting)
    if precision == "fp32":
        yield f"fp32 actors: {own.predicted_updates_per_s:.3g} updates/s, {WAITS[own.bottleneck]}"
    elif gain >= WORTHWHILE:
        yield (
            f"{precision} actors will make {gain:.2f} times as many updates as fp32 ones{beside}: "
            f"at {ratio:g} samples per insert fp32 actors are the bottleneck"
        )
    elif base.bottleneck != "actors":
        yield (
            f"{precision} actors will not help here ({gain:.2f} times fp32's updates{beside}): the learner is the "
            f"bottleneck; they begin to where there are fewer than {limit:.2g} samples per insert (now {ratio:g})"
        )
    else:
        yield (
            f"{precision} actors will not help here ({gain:.2f} times fp32's updates{beside}): "
            "inference is a small part of an actor's step"
        )
    if own.bottleneck == "actors":
        yield f"with {precision} actors too the learner waits for them: raise --actors or --samples-per-insert"
