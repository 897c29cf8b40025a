"""Milliseconds of a DQN update in several number types, for the training that a policy of a study describes.

The number types take turns in short blocks, so that a slow moment of the machine meets all of them. They share the
model: how long an update takes does not depend on the weights' values.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from stable_baselines3 import DQN
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.type_aliases import TrainFreq, TrainFrequencyUnit

from quarl.algorithms.cpu import threads
from quarl.algorithms.precision import Precision
from quarl.config import TrainConfig
from quarl.lab.cells import turned
from quarl.machine import multiplies
from quarl.runs.train import Training

NUM_FRAMES = 1_000
"""Transitions in the replay buffer, of random actions."""
FIXED = {"buffer_size": NUM_FRAMES, "learning_starts": 0, "optimize_memory_usage": False}
"""Hyper-parameters of every timed learner."""
ROUNDS = 10
"""Blocks of each number type, in turns."""
MIN_UPDATES, MAX_UPDATES = 3, 2_000
NEVER = 10**9
"""Steps before a policy acts that is never used."""
PROBES = (2, 4)
"""Rows of the small batches that tell if MIN_UPDATES whole ones fit into the time."""


def measure(
    config: TrainConfig, dtypes: Sequence[str], seconds: float, say: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Time updates of one training in every number type.

    Args:
        config: The training; its learner_dtype is not used.
        dtypes: fp32, bf16 or fp16.
        seconds: Seconds of updates in each number type.
        say: Receives the training's notes, one line each.

    Returns:
        The device, the network's size, and the seconds of every update by number type.
    """
    fixed = tuple(f"{name}:{value}" for name, value in FIXED.items())
    # a session makes the learner and its environments as in training, and writes nothing before it runs
    session = Training(replace(config, learner_dtype="fp32", params=(*config.params, *fixed)), say)
    session.say_notes()
    model = session.model
    assert isinstance(model, DQN)
    assert model.env is not None
    assert model.replay_buffer is not None
    with threads(session.threads):
        try:  # random actions fill replay
            _, callback = model._setup_learn(NUM_FRAMES)
            steps = TrainFreq(-(-NUM_FRAMES // model.env.num_envs), TrainFrequencyUnit.STEP)
            model.collect_rollouts(model.env, callback, steps, model.replay_buffer, learning_starts=NEVER)
        finally:
            model.env.close()
        model.set_logger(Logger(folder=None, output_formats=[]))
        timers = {dtype: Updates(model, dtype, model.batch_size) for dtype in dtypes}
        for timer in timers.values():
            timer.probe()
        take_turns([timer for timer in timers.values() if timer.fits(seconds)], seconds)
    gpu = model.device.type == "cuda"
    convolutions = [part for part in model.q_net.modules() if isinstance(part, torch.nn.Conv2d)]
    return {
        "filters": convolutions[0].out_channels if convolutions else 0,
        "width": model.q_net.features_extractor.features_dim,
        "batch": model.batch_size,
        "threads": session.threads,
        "device": torch.cuda.get_device_name(model.device) if gpu else model.device.type,
        "native": {dtype: _native(dtype, model.device) for dtype in dtypes},
        "parameters": sum(torch.numel(parameter) for parameter in model.q_net.parameters()),
        "estimated_s": {dtype: timer.estimated_s for dtype, timer in timers.items()},
        "seconds": {dtype: [round(took, 7) for took in timer.seconds] for dtype, timer in timers.items()},
        "skipped": {dtype: timer.precision.num_skipped for dtype, timer in timers.items()},
    }


class Updates:
    """The updates of one precision, with their durations."""

    def __init__(self, model: DQN, dtype: Any, batch_size: int) -> None:
        self.model, self.batch_size = model, batch_size
        self.precision = Precision.of(model, dtype)
        self.estimated_s = 0.0
        """Seconds of a whole batch, estimated from small ones; 0 if batches are small anyway."""
        self.seconds: list[float] = []

    def update(self, batch_size: int) -> float:
        """Return the seconds of one update on that many rows."""
        start = time.perf_counter()
        with self.precision.update():
            self.model.train(gradient_steps=1, batch_size=batch_size)
        if self.model.device.type == "cuda":
            torch.cuda.synchronize(self.model.device)
        return time.perf_counter() - start

    def probe(self) -> None:
        """Estimate a whole batch from two small ones: the fixed time, and the time per row."""
        few, more = PROBES
        if self.batch_size <= more:
            return
        self.update(few)  # the first update creates the optimizer's state and chooses kernels
        fewer_s, more_s = self.update(few), self.update(more)
        self.estimated_s = more_s + max(more_s - fewer_s, 0.0) / (more - few) * (self.batch_size - more)

    def fits(self, seconds: float) -> bool:
        """Return True if enough updates fit into the time."""
        return MIN_UPDATES * self.estimated_s <= seconds

    def block(self, seconds: float) -> None:
        """Time updates for about that long, at least one."""
        until = time.perf_counter() + seconds
        while len(self.seconds) < MAX_UPDATES:
            self.seconds.append(self.update(self.batch_size))
            if time.perf_counter() >= until:
                return

    def wants(self, seconds: float) -> bool:
        """Return True until it has had that many seconds and enough updates."""
        enough = len(self.seconds) >= MIN_UPDATES and sum(self.seconds) >= seconds
        return not enough and len(self.seconds) < MAX_UPDATES


def take_turns(timers: Sequence[Updates], seconds: float) -> None:
    """Time the updates of each for `seconds` in all."""
    for timer in timers:
        timer.update(timer.batch_size)  # chooses kernels for this batch
    number = 0
    while waiting := [timer for timer in timers if timer.wants(seconds)]:
        for timer in turned(waiting, number):
            timer.block(seconds / ROUNDS)
        number += 1


def _native(dtype: str, device: torch.device) -> bool:
    if device.type == "cuda":
        least = {"fp32": (0, 0), "fp16": (7, 0), "bf16": (8, 0)}[dtype]
        return torch.cuda.get_device_capability(device) >= least
    return multiplies(dtype)
