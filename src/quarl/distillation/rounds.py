"""Rounds of distillation: updates on the states met so far, a snapshot, its return, and the states that it reaches.

Ross, Gordon and Bagnell 2011, "A Reduction of Imitation Learning and Structured Prediction to No-Regret Online
Learning" (DAgger), with the policy's own float self as the expert: it labels every state, whoever reached it.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from quarl import checkpoint_file, engines, formats, stats
from quarl.algorithms.cpu import threads
from quarl.arrays import Array
from quarl.calibration import Calibrated
from quarl.checkpoint_file import DamagedError
from quarl.config import DistillConfig
from quarl.distillation.loss import Loss, loss_of
from quarl.distillation.student import Layer, Student
from quarl.distillation.validation import Validation
from quarl.engines.numpy_operators import as_float
from quarl.errors import QuarlError, in_one_line, note_once
from quarl.evaluation import RECORD_BATCH, record, sample_size
from quarl.policy import artifact
from quarl.policy.graph import Policy, QuantizedPolicy
from quarl.quant.spec import QuantSpec

RATE, MAX_RATE = 0.02, 0.15
"""Codes that a weight or bias of 4 bits moves in an update at most, and of any: the share of the range is the same."""
STEP_RATE, NORM_RATE = 1e-3, 1e-3
WARM_UP = 50
FLOOR = 0.02
"""Of the rate, where its cosine ends."""
BATCH_SIZE = 256
"""States of an update; of images, which take as long, an eighth."""
PATIENCE = 2
"""Rounds without gain after which training stops, if no snapshot can have a verdict."""
AVERAGE = 0.995
"""How much of the running mean of all parameters an update keeps; the mean is what snapshots are made of."""


def recipe_of(config: DistillConfig) -> dict[str, Any]:
    """What of the options a distillation's result depends on beside seed and environment, as files name it."""
    said = {name: getattr(config, name) for name in ("updates", "states", "margin")}
    said |= {"rounds": config.bounds()[0], "episodes": config.validation}
    return {**said, "batch_size": BATCH_SIZE, "average": AVERAGE}


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
    error: float | None = None
    """Of actions on observations that were held out, where nothing is played: the share that is not fp32's, or where
    continuous the mean absolute difference, in shares of the range."""
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
        seen = f"return {formats.number(self.mean)}" if self.error is None else f"action error {100 * self.error:.2f} %"
        return f"{what}: {seen}{verdict} ({self.seconds:.0f} s)"


def best(snapshots: Sequence[Snapshot]) -> Snapshot:
    """The last one, where it was shown to be non-inferior, else the one of the highest mean or the least error."""
    if snapshots[-1].noninferior:
        return snapshots[-1]
    return max(snapshots, key=lambda snapshot: snapshot.mean if snapshot.error is None else -snapshot.error)


def facts(snapshots: Sequence[Snapshot]) -> dict[str, Any]:
    """What rows hold of a distillation beside returns: of the best snapshot, and of what all of them took."""
    chosen, last = best(snapshots), snapshots[-1]
    return {
        "round": chosen.round,
        "updates": chosen.updates,
        "states": chosen.states,
        "validation_mean": chosen.mean if chosen.returns.size else None,
        "validation_episodes": chosen.returns.size * (1 + len(snapshots)),
        "distillation_s": last.seconds - last.validation_s,
        "validation_s": last.validation_s,
    }


def distill(
    calibrated: Calibrated,
    spec: QuantSpec,
    validation: Validation,
    *,
    file: Path | None = None,
    progress: Callable[[str, int], None] = lambda label, done: None,
) -> Iterator[Snapshot]:
    """Snapshots of the policy in the precision of `spec`, calibration's first; the last is non-inferior, or the end.

    Needs an environment to play in and no reward but to look at snapshots: states are those of the float policy's
    calibration episodes and, before each round, of the newest snapshot's own, on integer kernels. Validation plays a
    stream of seeds of its own.

    validation: says how; of several precisions the same, so that the float policy plays once. With observations, no
    other states are learned from.
    file: what a distillation that was ended goes on from, made anew with each snapshot.
    progress: called with what is going on and how many updates that was.
    """
    config, (rounds, minutes) = validation.config, validation.config.bounds()
    validation_s = 0.0 if validation.observations is not None else validation.exact.wall_s
    begun = time.monotonic() - validation_s
    teacher, start = calibrated.rewrite(spec)[0], calibrated.quantize(spec)
    states = calibrated.observations if validation.observations is None else validation.observations
    assert states is not None
    taught = outputs(teacher, states)
    student, loss = Student(teacher, start), loss_of(teacher, taught)
    training = Training(student, config, loss, np.random.default_rng(config.seed), states, taught)
    identity = {**recipe_of(config), "seed": config.seed, "env_id": config.env}
    identity["policy"] = sha256(artifact.to_bytes(start)).hexdigest()
    snapshots: list[Snapshot] = []
    if file is not None and file.exists():
        snapshots = training.load(file, identity)
        yield from snapshots
        begun, validation_s = time.monotonic() - snapshots[-1].seconds, snapshots[-1].validation_s
        progress(spec.precision, training.updates)
    if why := validation.no_verdict:
        note_once(f"no round can have a verdict ({why}): training stops after {PATIENCE} rounds without gain")
    while not snapshots or (len(snapshots) <= rounds and not snapshots[-1].noninferior):
        if why and len(snapshots) > PATIENCE and best(snapshots) in snapshots[:-PATIENCE]:
            return
        number, since = len(snapshots), time.monotonic()
        if number > 1 and since - begun + snapshots[-1].seconds - snapshots[-2].seconds > 60 * minutes:
            return
        if number and validation.observations is None:
            home = validation.environment
            assert home is not None
            options: dict[str, Any] = {"seed": config.seed * (rounds + 1) + number, "environment": home}
            engine = engines.load_fitting(snapshots[-1].policy, batch=home.at_once(RECORD_BATCH))
            new = record(snapshots[-1].policy, "training", **options, engine=engine, num=config.states)
            training.add(new, outputs(teacher, new))
            since = time.monotonic()
        for done, cost in enumerate(training.round() if number else (), 1):
            now = time.monotonic()
            progress(f"{spec.precision}, round {number}: {done / (now - since):.0f} updates/s, loss {cost:.3g}", 1)
            if number == 1 and now - begun > 60 * minutes:
                raise QuarlError(f"{minutes:g} minutes are too few for a round: raise budget or lower updates")
        progress(f"{spec.precision}, round {number}: playing", 0)
        policy = training.averaged.policy() if number else start
        looked, seconds = validation.look(policy)
        validation_s += seconds
        snapshot = Snapshot(
            round=number, updates=training.updates, states=len(training.states) if number else 0, policy=policy,
            seconds=time.monotonic() - begun, validation_s=validation_s, **looked,
        )  # fmt: skip
        snapshots.append(snapshot)
        if file is not None:
            training.save(file, identity, snapshots)
        yield snapshot


def outputs(teacher: Policy, states: Array) -> Tensor:
    """Of the float policy [N, n], on as many states at a time as calibrate it."""
    size = sample_size(teacher)
    pieces = (states[first : first + size] for first in range(0, len(states), size))
    return torch.from_numpy(np.concatenate([as_float(teacher, piece)[teacher.output] for piece in pieces]))


class Training:
    """The student, its optimizer, the running mean of its parameters, and the states that it learns from."""

    def __init__(
        self,
        student: Student,
        config: DistillConfig,
        loss: Loss,
        rng: np.random.Generator,
        states: Array,
        labels: Tensor,
    ) -> None:
        """labels: the teacher's outputs [N, n] on the states."""
        self.student, self.averaged = student, copy.deepcopy(student)
        self.config, self.loss, self.rng = config, loss, rng
        self.states, self.labels, self.updates = states, labels, 0
        groups: list[dict[str, Any]] = []
        for module in student.learning.values():
            if isinstance(module, Layer):
                rate = min(RATE * 2.0 ** (module.bits - 4), MAX_RATE)
                groups.append({"params": [module.latent, module.bias], "lr": rate})
                groups.append({"params": [module.log_step], "lr": STEP_RATE})
            else:
                groups.append({"params": list(module.parameters()), "lr": NORM_RATE})
        self.rates = [group["lr"] for group in groups]
        self.optimizer = torch.optim.Adam(groups, betas=(0.9, 0.99))
        parameters: list[Tensor] = list(student.parameters())
        means: list[Tensor] = list(self.averaged.parameters())
        moments = {name: list(map(torch.zeros_like, parameters)) for name in ("exp_avg", "exp_avg_sq")}
        moments["step"] = list(torch.zeros(len(parameters)))
        self.changed = {"student": parameters, "averaged": means, **moments}
        """By every update."""
        for index, parameter in enumerate(parameters):
            self.optimizer.state[parameter] = {name: each[index] for name, each in moments.items()}

    def add(self, states: Array, labels: Tensor) -> None:
        """More of both."""
        self.states, self.labels = np.concatenate([self.states, states]), torch.cat([self.labels, labels])

    def round(self) -> Iterator[float]:
        """Makes the updates of a round on batches of the states; the loss of each."""
        inputs = torch.from_numpy(self.states)
        # of vectors a batch is too small to share: where others compute, too, threads wait for each other
        size, most = (BATCH_SIZE, 1) if inputs.ndim == 2 else (BATCH_SIZE // 8, torch.get_num_threads())
        with threads(most):
            for _ in range(self.config.updates):
                self.set_rates()
                chosen = torch.from_numpy(self.rng.integers(len(inputs), size=size))
                cost = self.loss(self.student(inputs[chosen]), self.labels[chosen])
                self.optimizer.zero_grad()
                cost.backward()  # type: ignore[no-untyped-call]
                self.optimizer.step()
                self.updates += 1
                self._average()
                yield float(cost.detach())

    def set_rates(self) -> None:
        """A warm-up, then a cosine over all rounds."""
        done = self.updates / (self.config.bounds()[0] * self.config.updates)
        factor = max(0.5 * (1 + math.cos(math.pi * done)), FLOOR) * min(1.0, (self.updates + 1) / WARM_UP)
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor

    def save(self, file: Path, identity: Mapping[str, Any], snapshots: Sequence[Snapshot]) -> None:
        """Writes what going on takes: numbers and arrays, of which nothing is ever executed."""
        arrays = {name: parameters_to_vector(each).detach().numpy() for name, each in self.changed.items()}
        arrays |= {"states": self.states, "labels": self.labels.numpy()}
        told = [{name: getattr(each, name) for name in Snapshot.__slots__} for each in snapshots]
        for number, facts in enumerate(told):
            arrays[f"policy/{number}"] = np.frombuffer(artifact.to_bytes(facts.pop("policy")), np.uint8)
        generator = self.rng.bit_generator.state
        checkpoint_file.write(file, {**identity, "generator": generator, "snapshots": told}, arrays)

    def load(self, file: Path, identity: Mapping[str, Any]) -> list[Snapshot]:
        """The snapshots in the file, from which this goes on; QuarlError where it is damaged or of another run."""
        try:
            facts, arrays = checkpoint_file.read(file)
            for what, here in identity.items():
                if (there := facts[what]) != here:
                    raise QuarlError(f"{file} is of a run whose {what} is {there}, not {here}: resume with its options")
            for name, tensors in self.changed.items():
                vector_to_parameters(torch.tensor(arrays[name], dtype=torch.float32), tensors)
            self.states = arrays["states"].reshape(-1, *self.states.shape[1:]).astype(self.states.dtype)
            self.labels = torch.tensor(arrays["labels"]).reshape(len(self.states), self.labels.shape[1])
            self.rng.bit_generator.state, snapshots = facts["generator"], []
            for number, told in enumerate(facts["snapshots"]):
                policy = artifact.from_bytes(arrays[f"policy/{number}"].tobytes(), str(file))
                snapshots.append(Snapshot(**told | {"returns": np.array(told["returns"]), "policy": policy}))
            self.updates = snapshots[-1].updates
        except (DamagedError, LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise QuarlError(f"{file} is damaged ({in_one_line(error)[:100]}); start again without it") from None
        return snapshots

    @torch.no_grad()
    def _average(self) -> None:
        keep = min(AVERAGE, (self.updates + 1) / (self.updates + 10))
        for mean, parameter in zip(self.changed["averaged"], self.changed["student"], strict=True):
            mean.lerp_(parameter, 1 - keep)
