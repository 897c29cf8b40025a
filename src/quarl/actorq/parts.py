"""Parts: what the pieces of a run cost on this machine, each measured alone for a few seconds.

The environment plays at random, as actors do before learning starts, and its segments fill the learner's replay.
What an actor spends beside environment and engine (exploration, its ring, its books) is read off a real actor process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from quarl.actorq.build import build, samples_per_insert
from quarl.actorq.environments import world_of
from quarl.actorq.exploration import Explorer
from quarl.actorq.intake import Intake
from quarl.actorq.ledger import CLASSES
from quarl.actorq.pace import Pace
from quarl.actorq.parts_actor import Arm, ArmParts, measure_arms, measure_overhead, median_s, pack
from quarl.actorq.segment import segment_dtype
from quarl.actorq.versions import Versions
from quarl.actorq.weights import Template
from quarl.algorithms.cpu import threads
from quarl.algorithms.precision import Precision, learned
from quarl.arrays import Array
from quarl.config import ActorQConfig
from quarl.envs import make
from quarl.envs.checked import held
from quarl.envs.seeds import episode_seed
from quarl.envs.wrappers import channels_as

ARMS: tuple[Arm, ...] = (
    ("fp32", "torch"),
    ("fp32", "litert"),
    ("fp16", "litert"),
    ("int8", "litert"),
    ("int4", "litert"),
)
SECONDS = 2.0
"""For each part; slow ones take the time of a few calls."""
ROWS, ROWS_BYTES = 4096, 2**26
"""Segments that are recorded, at most."""
MIN_ROWS = 16
"""Of a simulator so slow that the time is over before."""
OBSERVATIONS = 256
MIN_UPDATES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """All that `plan.predict` needs to know about a machine and a learner."""

    batch_size: int
    samples_per_insert: float
    """The ratio of the configuration."""
    env_us: float
    """One step, resets included."""
    overhead_us: float
    """Of an actor's step, what is neither environment nor inference."""
    train_ms: float
    """One update."""
    insert_us: float
    """The learner's time for one segment."""
    push_ms: float
    """The learner's time to put its weights up for the publisher."""
    arms: tuple[ArmParts, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Parts:
        return cls(**{**found, "arms": tuple(ArmParts(**arm) for arm in found["arms"])})


def measure(
    config: ActorQConfig,
    arms: Sequence[Arm] = ARMS,
    *,
    seconds: float = SECONDS,
    say: Callable[[str], None] = lambda line: None,
) -> Parts:
    """The parts of the run that `config` describes; `say` hears what is being measured."""
    with threads(1):
        say("environment")
        model = build(config)
        template = Template.of(model)
        vector = np.empty(template.num_floats, np.float32)
        push_s = median_s(lambda: template.flatten_into(model, vector), seconds / 10)
        dtype = segment_dtype(model.observation_space, model.action_space)
        explorer = Explorer(template.initial.head, model.action_space, 0.0, np.random.default_rng(config.seed))
        most = max(min(ROWS, ROWS_BYTES // dtype.itemsize), MIN_ROWS)
        rows, env_s = _play(config, np.zeros(most, dtype), explorer, seconds)
        say("inference")
        observations = rows["observation"][:OBSERVATIONS]
        measured = measure_arms(config, template, vector, observations, arms, seconds)
        say("actor")
        data, _ = pack(config, template, vector, config.actor_precision, observations)
        overhead_us = measure_overhead(config, template, dtype, data, seconds)
        say("learner")
        ratio = float(config.samples_per_insert or config.max_times_sampled or samples_per_insert(model))
        insert_s = _inserts(model, config, rows, ratio, seconds / 2)
        with threads(config.learner_threads):
            train_s = _updates(model, config, seconds)
    return Parts(
        batch_size=model.batch_size,
        samples_per_insert=ratio,
        env_us=1e6 * env_s,
        overhead_us=overhead_us,
        train_ms=1e3 * train_s,
        insert_us=1e6 * insert_s,
        push_ms=1e3 * push_s,
        arms=measured,
    )


def _play(config: ActorQConfig, rows: Array, explorer: Explorer, seconds: float) -> tuple[Array, float]:
    """(those of `rows` that random play has filled, seconds of a step)."""
    shape, making = rows["observation"].shape[1:], world_of(config).making
    with held(lambda: channels_as(make(config.env, trusted=True, **making), shape)) as env:
        observation = env.reset(seed=episode_seed("probe", config.seed, 0))[0]
        count, spent, deadline = 0, 0.0, time.perf_counter() + seconds
        while count < MIN_ROWS or time.perf_counter() < deadline:
            row = rows[count % len(rows)]
            actions, stored = explorer.random(1)
            start = time.perf_counter()
            following, reward, terminated, truncated, _ = env.step(actions[0])
            spent += time.perf_counter() - start
            row["observation"], row["next_observation"], row["action"] = observation, following, stored[0]
            row["reward"], row["terminated"], row["truncated"] = reward, terminated, truncated
            observation, count = following, count + 1
            if terminated or truncated:
                start = time.perf_counter()
                observation = env.reset()[0]
                spent += time.perf_counter() - start
        return rows[:count], spent / count


def _inserts(model: OffPolicyAlgorithm, config: ActorQConfig, rows: Array, ratio: float, seconds: float) -> float:
    """Seconds that the learner spends on a segment, taken in as many at a time as one update takes.

    Leaves at least four batches in the model's replay.
    """
    model._setup_learn(total_timesteps=10**9)
    model.set_logger(Logger(folder=None, output_formats=[]))
    versions, ages = Versions(config.output), np.zeros(CLASSES, np.int64)
    intake = Intake(model, Pace(config, model).limiter, versions, ages, normalize=config.normalize)
    block = int(np.clip(model.batch_size / ratio, 1, len(rows)))
    inserted, spent = 0, 0.0
    while inserted < 4 * model.batch_size or spent < seconds:
        place = inserted % (len(rows) - block + 1)
        some = rows[place : place + block]
        some["sequence"] = np.arange(inserted, inserted + block)
        start = time.perf_counter()
        intake.take(some)
        spent += time.perf_counter() - start
        inserted += block
    return spent / inserted


def _updates(model: OffPolicyAlgorithm, config: ActorQConfig, seconds: float) -> float:
    """Seconds of one update."""
    precision, what = Precision(config.learner_dtype, model.device), learned(model)

    def update() -> None:
        with precision.update(what):
            model.train(gradient_steps=1, batch_size=model.batch_size)
        if model.device.type == "cuda":
            torch.cuda.synchronize()

    update()  # the first one makes the optimiser's state
    return median_s(update, seconds, MIN_UPDATES)
