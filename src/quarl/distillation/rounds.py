"""Rounds of distillation: updates on the states met so far, a snapshot, its return, and the states that it reaches.

Ross, Gordon and Bagnell 2011, "A Reduction of Imitation Learning and Structured Prediction to No-Regret Online
Learning" (DAgger), with the policy's own float self as the expert: it labels every state, whoever reached it.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quarl import engines, formats, stats
from quarl.arrays import Array
from quarl.calibration import Calibrated, quantize
from quarl.config import DistillConfig
from quarl.distillation.loss import Loss, loss_of
from quarl.distillation.student import Layer, Student
from quarl.engines.reference import as_float
from quarl.evaluation import RECORD_BATCH, evaluate, record
from quarl.policy.graph import QuantizedPolicy
from quarl.quant.spec import EXACT, QuantSpec

RATE, EDGE_RATE = 0.02, 0.15
"""Codes that a weight or bias moves in an update at most: of coarse grids, and of those with at least EDGE_BITS."""
EDGE_BITS = 8
STEP_RATE, NORM_RATE = 1e-3, 1e-3
WARM_UP = 50
FLOOR = 0.02
"""Of the rate, where its cosine ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How long, on what and how often it is looked at; chosen on seeds from 100 on, the same for every agent."""

    rounds: int = 8
    updates: int = 1_000
    """Of a round."""
    states: int = 2_000
    """New ones after a round, evenly from at least ten episodes of the student."""
    batch_size: int = 256
    average: float = 0.995
    """How much of the running mean of all parameters an update keeps; the mean is what snapshots are made of."""
    episodes: int = 40
    """Of a look at a snapshot."""
    margin: float = 5.0
    """Loss in percent that is acceptable: a snapshot that is shown to lose less ends it."""

    @classmethod
    def of(cls, config: DistillConfig) -> Recipe:
        """What the options say."""
        return cls(
            rounds=config.rounds,
            updates=config.updates,
            states=config.states,
            episodes=config.validation,
            margin=config.margin,
        )


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Snapshot:
    """What a round ended with; round 0 is what calibration made."""

    round: int
    updates: int
    states: int
    """That it was trained on."""
    returns: Array
    """float64 [episodes], of validation's seeds."""
    noninferior: bool
    seconds: float
    """Since the beginning, validation included."""
    validation_s: float
    """Of these, what validation has taken, the float policy's included."""
    policy: QuantizedPolicy

    @property
    def mean(self) -> float:
        """Mean return of validation."""
        return float(self.returns.mean())

    @property
    def summary(self) -> stats.Summary:
        """Of validation's returns."""
        return stats.summary(self.returns, np.random.default_rng(0))

    def __str__(self) -> str:
        what = f"round {self.round}" if self.round else "calibrated"
        verdict = ", non-inferior" if self.noninferior else ""
        return f"{what}: return {formats.number(self.mean)}{verdict} ({self.seconds:.0f} s)"


def best(snapshots: Sequence[Snapshot]) -> Snapshot:
    """The last one, where it was shown to be non-inferior, else the one of the highest mean."""
    return snapshots[-1] if snapshots[-1].noninferior else max(snapshots, key=lambda snapshot: snapshot.mean)


def facts(snapshots: Sequence[Snapshot]) -> dict[str, Any]:
    """What rows hold of a distillation beside returns: of the best snapshot, and of what all of them took."""
    chosen, last = best(snapshots), snapshots[-1]
    return {
        "round": chosen.round,
        "updates": chosen.updates,
        "states": chosen.states,
        "validation_mean": chosen.mean,
        "validation_episodes": chosen.returns.size * (1 + len(snapshots)),
        "distillation_s": last.seconds - last.validation_s,
        "validation_s": last.validation_s,
    }


def distill(
    calibrated: Calibrated, spec: QuantSpec, recipe: Recipe, *, seed: int = 0, env_id: str | None = None
) -> Iterator[Snapshot]:
    """Snapshots of the policy in the precision of `spec`, calibration's first; the last is non-inferior, or the end.

    Needs an environment to play in and no reward but to look at snapshots: states are those of the float policy's
    calibration episodes and, before each round, of the newest snapshot's own, on integer kernels. Validation plays a
    stream of seeds of its own.
    """
    begun = time.monotonic()
    rng = np.random.default_rng(seed)
    exact, values = calibrated.rewrite(spec)
    start = calibrated.quantize(spec)

    validation_s = 0.0

    def play(policy: QuantizedPolicy) -> Array:
        nonlocal validation_s
        played = evaluate(policy, episodes=recipe.episodes, seed=seed, env_id=env_id, stream="validation")
        validation_s += played.wall_s
        return played.returns

    wanted = play(quantize(calibrated.policy, EXACT))

    def look(policy: QuantizedPolicy, number: int, updates: int, states: int) -> Snapshot:
        returns = play(policy)
        judged = stats.verdict(wanted, returns, recipe.margin, np.random.default_rng(seed))
        seconds = time.monotonic() - begun
        return Snapshot(
            round=number, updates=updates, states=states, returns=returns, policy=policy,
            noninferior=judged.noninferior, seconds=seconds, validation_s=validation_s,
        )  # fmt: skip

    snapshot = look(start, 0, 0, 0)
    yield snapshot
    if snapshot.noninferior:
        return
    observations = calibrated.observations
    assert observations is not None
    student, states, labels = Student(exact, start), observations, torch.from_numpy(values[exact.output])
    training = Training(student, recipe, loss_of(exact, labels), rng)
    for number in range(1, recipe.rounds + 1):
        engine = engines.load(snapshot.policy, "litert", batch=RECORD_BATCH)
        stream_seed = seed * (recipe.rounds + 1) + number
        new = record(snapshot.policy, "training", seed=stream_seed, env_id=env_id, engine=engine, num=recipe.states)
        states = np.concatenate([states, new])
        labels = torch.cat([labels, torch.from_numpy(as_float(exact, new)[exact.output])])
        training.round(states, labels)
        snapshot = look(training.averaged.policy(), number, training.updates, len(states))
        yield snapshot
        if snapshot.noninferior:
            return


class Training:
    """The student, its optimiser, and the running mean of its parameters."""

    def __init__(
        self,
        student: Student,
        recipe: Recipe,
        loss: Loss,
        rng: np.random.Generator,
    ) -> None:
        self.student, self.averaged = student, copy.deepcopy(student)
        self.recipe, self.loss, self.rng = recipe, loss, rng
        groups: list[dict[str, Any]] = []
        for module in student.learning.values():
            if isinstance(module, Layer):
                rate = EDGE_RATE if module.bits >= EDGE_BITS else RATE
                groups.append({"params": [module.latent, module.bias], "lr": rate})
                groups.append({"params": [module.log_step], "lr": STEP_RATE})
            else:
                groups.append({"params": list(module.parameters()), "lr": NORM_RATE})
        self.rates = [group["lr"] for group in groups]
        self.optimizer = torch.optim.Adam(groups, betas=(0.9, 0.99))
        self.updates = 0

    def round(self, states: Array, labels: Tensor) -> None:
        """Updates on batches of these states."""
        inputs = torch.from_numpy(states)
        for _ in range(self.recipe.updates):
            self.set_rates()
            chosen = torch.from_numpy(self.rng.integers(len(states), size=self.recipe.batch_size))
            cost = self.loss(self.student(inputs[chosen]), labels[chosen])
            self.optimizer.zero_grad()
            cost.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            self.updates += 1
            self._average()

    def set_rates(self) -> None:
        """A warm-up, then a cosine over all rounds."""
        done = self.updates / (self.recipe.rounds * self.recipe.updates)
        factor = max(0.5 * (1 + math.cos(math.pi * done)), FLOOR) * min(1.0, (self.updates + 1) / WARM_UP)
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor

    @torch.no_grad()
    def _average(self) -> None:
        keep = min(self.recipe.average, (self.updates + 1) / (self.updates + 10))
        for mean, parameter in zip(self.averaged.parameters(), self.student.parameters(), strict=True):
            mean.lerp_(parameter, 1 - keep)
