"""Rounds of distillation: updates on the states so far, a snapshot, its return, and the states that it reaches.

Ross, Gordon and Bagnell 2011, "A Reduction of Imitation Learning and Structured Prediction to No-Regret Online
Learning" (DAgger). The expert is the policy's own float version, which labels every state, whichever snapshot reached
it.
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
from quarl.calibration import Calibrated, quantize
from quarl.checkpoint_file import DamagedError
from quarl.distillation.loss import Loss, loss_of
from quarl.distillation.student import Layer, Student
from quarl.distillation.validation import Validation
from quarl.engines.numpy_operators import as_float
from quarl.errors import QuarlError, in_one_line, note_once
from quarl.evaluation import RECORD_BATCH, record, sample_size
from quarl.policy import artifact
from quarl.policy.graph import Policy, QuantizedPolicy
from quarl.quant.spec import EXACT, QuantSpec
from quarl.specs import DistillSpec

RATE, MAX_RATE = 0.02, 0.15
"""Largest change per update in codes, for a weight or bias of 4 bits and for any; the share of the range is the
same."""
STEP_RATE, NORM_RATE = 1e-3, 1e-3
WARM_UP = 50
FLOOR = 0.02
"""Share of the learning rate at which its cosine ends."""
BATCH_SIZE = 256
"""States per update; an eighth of that for images, which takes the same time."""
SPAN = 32
"""Consecutive steps of a sequence, along which the student of a policy with a memory carries its own state."""
PATIENCE = 2
"""Rounds without gain after which training stops, if no snapshot can have a verdict."""
AVERAGE = 0.995
"""Share of the running mean of all parameters that an update keeps; snapshots consist of the mean."""


def recipe_of(recipe: DistillSpec) -> dict[str, Any]:
    """Return the options that determine a distillation's result besides seed and environment, as stored in files."""
    return {
        "updates": recipe.updates,
        "states": recipe.states,
        "margin": recipe.margin,
        "rounds": recipe.bounds()[0],
        "episodes": recipe.validation,
        "batch_size": BATCH_SIZE,
        "average": AVERAGE,
    }


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Snapshot:
    """The result of a round; round 0 is the calibrated policy."""

    round: int
    updates: int
    states: int
    """Number of states that it was trained on."""
    returns: Array
    """Returns in float64 [episodes], on validation's seeds."""
    noninferior: bool
    error: float | None = None
    """Error of actions on held-out observations, if nothing is played.

    It is the share of actions that differ from fp32's; for continuous actions it is the mean absolute difference, as a
    share of the range.
    """
    seconds: float
    """Seconds since the beginning, including validation."""
    validation_s: float
    """Part of `seconds` that validation has taken, including the float policy's."""
    policy: QuantizedPolicy

    @property
    def mean(self) -> float:
        """Mean return of validation."""
        return float(self.returns.mean())

    @property
    def summary(self) -> stats.Summary:
        """Summary of validation's returns."""
        return stats.summary(self.returns, np.random.default_rng(0))

    def __str__(self) -> str:
        what = f"round {self.round}" if self.round else "calibrated"
        verdict = ", non-inferior" if self.noninferior else ""
        seen = f"return {formats.number(self.mean)}" if self.error is None else f"action error {100 * self.error:.2f} %"
        return f"{what}: {seen}{verdict} ({self.seconds:.0f} s)"


def best(snapshots: Sequence[Snapshot]) -> Snapshot:
    """Return the last snapshot if it is non-inferior, otherwise the one with the highest mean or the least error."""
    if snapshots[-1].noninferior:
        return snapshots[-1]
    return max(snapshots, key=lambda snapshot: snapshot.mean if snapshot.error is None else -snapshot.error)


def facts(snapshots: Sequence[Snapshot]) -> dict[str, Any]:
    """Return the columns of a distillation's row besides returns, for the best snapshot and for all together."""
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
    """Yield snapshots of the policy in the precision of `spec`, the calibrated one first.

    It needs an environment to play in, and rewards only to evaluate snapshots. Training states come from the float
    policy's calibration episodes and, before each round, from the newest snapshot's own on integer kernels. Validation
    plays its own stream of seeds.

    Args:
        calibrated: The policy and its calibration.
        spec: Precision of the snapshots.
        validation: Evaluation of snapshots. Pass the same for several precisions, so that the float policy plays once.
            If it has observations, no other states are used for training.
        file: Checkpoint to resume from, written again after each snapshot.
        progress: Called with a label and a number of new updates.

    Yields:
        The snapshots; the last one is non-inferior, or the rounds or the time are over.

    Raises:
        QuarlError: The checkpoint belongs to another run, or the time does not suffice for a round.
    """
    recipe, home, (rounds, minutes) = validation.recipe, validation.environment, validation.recipe.bounds()
    validation_s = 0.0 if validation.observations is not None else validation.exact.wall_s
    begun = time.monotonic() - validation_s
    teacher, start = calibrated.rewrite(spec)[0], calibrated.quantize(spec)
    states = calibrated.observations if validation.observations is None else validation.observations
    span = SPAN if teacher.state.size else 1
    if span > 1 and home is not None:
        states = record(validation.policy, seed=recipe.seed, environment=home, span=span)
    assert states is not None
    states = states[: len(states) // span * span]
    if not len(states):
        raise QuarlError(f"a policy with a memory learns from sequences of {span} observations: give more")
    taught = outputs(teacher, states)
    student, loss = Student(teacher, start), loss_of(teacher, taught)
    training = Training(student, recipe, loss, np.random.default_rng(recipe.seed), states, taught)
    identity = {**recipe_of(recipe), "seed": recipe.seed, "env_id": home.typed if home else None}
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
        # states that the newest snapshot reaches, labeled by the float policy
        if number and validation.observations is None:
            assert home is not None
            engine = engines.load_fitting(snapshots[-1].policy, batch=home.at_once(RECORD_BATCH))
            new = record(
                snapshots[-1].policy,
                "training",
                seed=recipe.seed * (rounds + 1) + number,
                environment=home,
                engine=engine,
                num=max(recipe.states, span),
                span=span,
            )
            training.add(new, outputs(teacher, new))
            since = time.monotonic()
        # the updates of this round
        for done, cost in enumerate(training.round() if number else (), 1):
            now = time.monotonic()
            progress(f"{spec.precision}, round {number}: {done / (now - since):.0f} updates/s, loss {cost:.3g}", 1)
            if number == 1 and now - begun > 60 * minutes:
                raise QuarlError(f"{minutes:g} minutes are too few for a round: raise budget or lower updates")
        # validation, checkpoint
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
    """Return outputs [N, n] of the float policy, computed in batches of the calibration's size.

    A policy with a memory carries its state along sequences of SPAN.
    """
    if teacher.state.size:
        with torch.no_grad():
            return Student(teacher, quantize(teacher, EXACT)).along(_sequences(states))
    size = sample_size(teacher)
    pieces = (states[first : first + size] for first in range(0, len(states), size))
    return torch.from_numpy(np.concatenate([as_float(teacher, piece)[teacher.output] for piece in pieces]))


def _sequences(states: Array) -> Tensor:
    return torch.from_numpy(states).reshape(-1, SPAN, states.shape[1])


class Training:
    """The student, its optimizer, the running mean of its parameters, and the training states."""

    def __init__(
        self,
        student: Student,
        recipe: DistillSpec,
        loss: Loss,
        rng: np.random.Generator,
        states: Array,
        labels: Tensor,
    ) -> None:
        """Prepare the optimizer.

        Args:
            student: Policy to train.
            recipe: Options of the distillation.
            loss: Loss of outputs against the teacher's.
            rng: Generator of the batches.
            states: Training states [N, *shape].
            labels: The teacher's outputs [N, n] on the states.
        """
        self.student, self.averaged = student, copy.deepcopy(student)
        self.recipe, self.loss, self.rng = recipe, loss, rng
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
        """Tensors that every update changes."""
        for index, parameter in enumerate(parameters):
            self.optimizer.state[parameter] = {name: each[index] for name, each in moments.items()}

    def add(self, states: Array, labels: Tensor) -> None:
        """Add states and labels."""
        self.states, self.labels = np.concatenate([self.states, states]), torch.cat([self.labels, labels])

    def round(self) -> Iterator[float]:
        """Make the updates of a round on batches of the states, and yield the loss of each."""
        inputs, network = torch.from_numpy(self.states), self.student.__call__
        if self.student.start.state.size:
            inputs, network = _sequences(self.states), self.student.along
        labels = self.labels.reshape(len(inputs), -1, self.labels.shape[1])
        # a batch of vectors is too small to share: beside other work, threads would wait for each other
        size = BATCH_SIZE if inputs.ndim == 2 else BATCH_SIZE // 8
        most = 1 if inputs.ndim < 4 else torch.get_num_threads()
        with threads(most):
            for _ in range(self.recipe.updates):
                self.set_rates()
                chosen = torch.from_numpy(self.rng.integers(len(inputs), size=size))
                cost = self.loss(network(inputs[chosen]), labels[chosen].flatten(0, 1))
                self.optimizer.zero_grad()
                cost.backward()  # type: ignore[no-untyped-call]
                self.optimizer.step()
                self.updates += 1
                self._average()
                yield float(cost.detach())

    def set_rates(self) -> None:
        """Set the learning rates: a warm-up, then a cosine over all rounds."""
        done = self.updates / (self.recipe.bounds()[0] * self.recipe.updates)
        factor = max(0.5 * (1 + math.cos(math.pi * done)), FLOOR) * min(1.0, (self.updates + 1) / WARM_UP)
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor

    def save(self, file: Path, identity: Mapping[str, Any], snapshots: Sequence[Snapshot]) -> None:
        """Write a checkpoint of numbers and arrays, of which nothing is ever executed.

        Args:
            file: File to write.
            identity: Options that a resumed run must share.
            snapshots: All snapshots so far.
        """
        arrays = {name: parameters_to_vector(each).detach().numpy() for name, each in self.changed.items()}
        arrays |= {"states": self.states, "labels": self.labels.numpy()}
        told = [{name: getattr(each, name) for name in Snapshot.__slots__} for each in snapshots]
        for number, facts in enumerate(told):
            arrays[f"policy/{number}"] = np.frombuffer(artifact.to_bytes(facts.pop("policy")), np.uint8)
        generator = self.rng.bit_generator.state
        checkpoint_file.write(file, {**identity, "generator": generator, "snapshots": told}, arrays)

    def load(self, file: Path, identity: Mapping[str, Any]) -> list[Snapshot]:
        """Restore a checkpoint and return its snapshots.

        Raises:
            QuarlError: The file is damaged, or belongs to a run with other options.
        """
        try:
            facts, arrays = checkpoint_file.read(file)
            for what, here in identity.items():
                if (there := facts[what]) != here:
                    raise QuarlError(
                        f"{file} is from a run whose {what} is {there}, not {here}: resume with its options"
                    )
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
