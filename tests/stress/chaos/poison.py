"""Weights and losses that are not finite, in a learner and a publisher of this process, beside real shared memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from quarl.actorq import wire
from quarl.actorq.build import build
from quarl.actorq.channel import LocalChannel
from quarl.actorq.counters import Actor, Counters, Publisher
from quarl.actorq.learner import LearnerLoop, LearnerSpec
from quarl.actorq.learner_checkpointer import ROLLBACKS
from quarl.actorq.publisher import PublisherLoop, PublisherSpec
from quarl.actorq.segment import segment_dtype
from quarl.actorq.weights import Template
from quarl.config import ActorQConfig
from quarl.errors import QuarlError
from quarl.runs import checkpoint
from stress.chaos.run import SMALL, Laws, Row

KINDS = ("weight before an update", "weight after an update", "reward", "weight before a save")


def poisoned(folder: Path, *, poisons: int) -> Row:
    """Row 8: NaN and infinity in weights and rewards, at every place of the loop in turn."""
    laws, counts = Laws(), {"published": 0, "refused": 0, "rollbacks": 0, "not_finite": 0, "saved_not_finite": 0}
    for first in range(0, poisons, ROLLBACKS):
        with rig(folder / str(first)) as run:
            run.train(10)
            for number in range(first, min(first + ROLLBACKS, poisons)):
                run.poison(KINDS[number % len(KINDS)], float("nan") if number // len(KINDS) % 2 else float("inf"))
                run.train(10)
                found = checkpoint.load_latest(run.folder)
                arrays = (array for name, array in found.arrays.items() if name.startswith("policy/"))
                counts["saved_not_finite"] += not all(np.isfinite(array).all() for array in arrays)
            for name in ("published", "refused", "rollbacks", "not_finite"):
                counts[name] += getattr(run, name)
            laws.hold(f"from poison {first}: weights are sound in the end", run.sound())
    with rig(folder / "last") as run:
        try:
            for _ in range(ROLLBACKS + 1):
                run.poison(KINDS[0], float("nan"))
                run.train(2)
            message = ""
        except QuarlError as error:
            message = str(error)
    laws.hold("the fourth divergence ends the run and names the layer", "diverged 4 times at q_net" in message)
    laws.hold("no version with NaN or infinity is published", counts["not_finite"] == 0)
    laws.hold("nor saved", counts["saved_not_finite"] == 0)
    laws.hold("training goes back for each", counts["rollbacks"] == poisons)
    return {"poisons": poisons, **counts, "fourth": message, "failed": laws.failed}


@contextlib.contextmanager
def rig(folder: Path, **changed: Any) -> Iterator[Rig]:
    """One that has begun and may train."""
    chosen: Row = {"actors": 1, "actor_precision": "fp32", "eval_freq": 0, "publish_interval": 1, "params": SMALL}
    config = ActorQConfig(output=folder, **chosen | changed)
    model = build(config)
    template = Template(model)
    dtype = segment_dtype(model.observation_space, model.action_space)
    channel = LocalChannel.create(1, template.num_floats, dtype, 256)
    try:
        learner = LearnerLoop(LearnerSpec(config=config, channel=channel))
        spec = PublisherSpec(channel=channel, template=template, packer=("fp32", None, "none"))
        learner.begin()
        yield Rig(folder, learner, PublisherLoop(spec), channel.of(0), channel.counters)
    finally:
        channel.remove()


@dataclass
class Rig:
    """A learner, its publisher, and this program as the actor."""

    folder: Path
    learner: LearnerLoop
    publisher: PublisherLoop
    channel: LocalChannel
    counters: Counters
    sent: int = 0
    not_finite: int = 0

    @property
    def rollbacks(self) -> int:
        return self.learner.checkpointer.rollbacks

    @property
    def published(self) -> int:
        return int(self.counters.publisher[Publisher.PUBLISHED])

    @property
    def refused(self) -> int:
        return int(self.counters.publisher[Publisher.REFUSED])

    def train(self, updates: int) -> None:
        """So many updates; the publisher has a look after each step of the loop."""
        goal = self.learner.model._n_updates + updates
        while self.learner.model._n_updates < goal:
            self.send()
            self.learner.step()
            self.publish()

    def publish(self) -> None:
        """What actors would get, if there is something new."""
        before = self.published
        self.publisher.publish()
        if self.published > before:
            snapshot = self.channel.packed.pull()
            assert snapshot is not None
            policy = wire.unpack(snapshot.data)
            arrays = [array for op in policy.linear for array in (op.weight, op.bias)]
            self.not_finite += not all(np.isfinite(np.asarray(array)).all() for array in arrays)

    def poison(self, kind: str, value: float) -> None:
        """One poison; returns when it has been noticed."""
        model, before = self.learner.model, self.rollbacks
        weight = next(iter(model.policy.parameters()))
        if kind == "reward":
            rewards = self.learner.replay.columns["reward"]
            rewards[: self.learner.replay.size() : 4] = value
            while self.rollbacks == before:
                self.train(1)
            rewards[:] = 1.0  # or it would come again with every batch
            return
        with torch.no_grad():
            weight[0, 0] = value
        if kind == "weight after an update":
            self.learner._push()
            self.publish()
        elif kind == "weight before a save":
            self.learner._save()
        while self.rollbacks == before:
            self.train(1)

    def sound(self) -> bool:
        return all(bool(torch.isfinite(p).all()) for p in self.learner.model.policy.parameters())

    def send(self) -> None:
        """One made-up step, where the ring has room."""
        if not self.channel.room():
            return
        length = 20 * (self.sent % 20 == 19)
        head = (self.sent, self.channel.floats.version, 0, 0, 0, length, float(length), 1.0, False, length > 0)
        observation = np.sin(self.sent + np.arange(4))
        self.channel.send(head, self.sent % 2, observation, observation)
        self.sent += 1
        self.counters.actors[0, Actor.STEPS] = self.sent
