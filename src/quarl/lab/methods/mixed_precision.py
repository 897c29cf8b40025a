"""Milliseconds of a DQN update in float32, bfloat16 and float16, for convolutional policies of several widths.

The precisions of a policy take turns in short blocks, so that a slow moment of the machine meets all of them. They
share the model: how long an update takes does not depend on the weights' values.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.type_aliases import TrainFreq, TrainFrequencyUnit

from quarl import formats
from quarl.algorithms.cpu import threads
from quarl.algorithms.learners import find_device
from quarl.algorithms.precision import Precision
from quarl.config.environment import OPTIONS
from quarl.config.mixed_precision import FIXED, NUM_FRAMES, Dtype, MixedPrecisionConfig, sizes
from quarl.lab.methods.cells import Cell, Cells, Say, turned
from quarl.machine import multiplies, usable_cores
from quarl.rows import Column, Row
from quarl.runs.train import Training
from quarl.stats import as_fields, bootstrap_interval, ratio_interval

ROUNDS = 10
"""Blocks of each precision, in turns."""
MIN_UPDATES, MAX_UPDATES = 3, 2_000
NEVER = 10**9
"""Steps before a policy acts that is never asked."""
PROBES = (2, 4)
"""Rows of the small batches that say whether MIN_UPDATES whole ones fit into the time."""
RESAMPLES = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRow(Row):
    """What rows of one policy in one precision begin with."""

    policy: Annotated[str, Column("policy")]
    filters: Annotated[int, Column("filters")]
    """Of each of the three convolutions."""
    width: Annotated[int, Column("dense")]
    """Of the dense layer."""
    dtype: Annotated[str, Column("updates in")]


def described(policy: str, dtype: Dtype) -> dict[str, Any]:
    """The fields of a PolicyRow."""
    filters, width = sizes(policy)
    return {"policy": policy, "filters": filters, "width": width, "dtype": dtype}


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdatesRow(PolicyRow):
    """One policy in one precision."""

    command = "bench mixed-precision updates"
    parameters: Annotated[int, Column("parameters", lambda count: f"{count / 1e6:.3g} M", before="dtype")]
    native: Annotated[bool, Column("products", lambda native: "native" if native else "emulated")]
    """Whether the device multiplies these numbers; else it emulates them."""
    device: Annotated[str, Column("device", caption="on {}", before="dtype")]
    threads: Annotated[int, Column("threads", caption="{} thread{s}", before="dtype")]
    batch: Annotated[int, Column("batch", caption="batch {}", before="device")]
    updates: Annotated[int, Column("updates")]
    """That were timed; 0 where three did not fit into the time."""
    ms_per_update: Annotated[float, Column("ms an update", _ms, of=("ms_per_update", "updates"))]
    """Median; where no update was timed, extrapolated from small batches."""
    ci_low: Annotated[float | None, Column("95 % interval", _ends, of=("ci_low", "ci_high"))]
    """Ends of the 95 % bootstrap interval of the median."""
    ci_high: float | None
    speedup: Annotated[float | None, Column("× fp32", formats.times, of=("speedup", "speedup_low", "speedup_high"))]
    """Over float32: the ratio of the medians."""
    speedup_low: float | None
    speedup_high: float | None


def _ms(ms: float, updates: int) -> str:
    return formats.three_digits(ms) if updates else f"≈ {formats.three_digits(ms)}"


def _ends(low: float | None, high: float | None) -> str:
    return "" if low is None else f"[{formats.three_digits(low)}, {formats.three_digits(high)}]"


def updates(config: MixedPrecisionConfig, cells: Cells) -> list[UpdatesRow]:
    """A row for every policy, and every precision of it, that is there or could be measured in time."""
    device = find_device(config.device).type
    settings = {name: getattr(config, name) for name in ("dtypes", "env", "batch_size", "seconds", "seed")}
    settings["threads"] = config.threads or usable_cores()
    # cells without any of these are older than these settings
    settings |= {name: value for name in ("params", *OPTIONS) if (value := getattr(config, name))}
    rows: list[UpdatesRow] = []
    for policy in config.chosen():
        name = f"updates-{policy.replace(',', 'x')}-{device}"
        cell = cells.get(name, settings | {"sizes": sizes(policy)}, partial(measure, config, policy, cells.say))
        if cell is not None:
            rows += _rows(config, policy, cell)
    return rows


def measure(config: MixedPrecisionConfig, policy: str, say: Say = lambda line: None) -> Cell:
    """One policy in all its precisions; `say` hears what its updates are of."""
    fixed = tuple(f"{name}:{value}" for name, value in FIXED.items())
    training = config.training(policy, "fp32", config.seed, Path("unused"))
    # a session makes the learner and its environments as training would, and writes nothing before it runs
    session = Training(replace(training, params=(*training.params, *fixed)), say)
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
        timers = {dtype: Updates(model, dtype, config.batch_size) for dtype in config.dtypes}
        for timer in timers.values():
            timer.probe()
        take_turns([timer for timer in timers.values() if timer.fits(config.seconds)], config.seconds)
    gpu = model.device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(model.device) if gpu else model.device.type,
        "native": {dtype: _native(dtype, model.device) for dtype in config.dtypes},
        "parameters": sum(torch.numel(parameter) for parameter in model.q_net.parameters()),
        "estimated_s": {dtype: timer.estimated_s for dtype, timer in timers.items()},
        "seconds": {dtype: [round(took, 7) for took in timer.seconds] for dtype, timer in timers.items()},
        "skipped": {dtype: timer.precision.num_skipped for dtype, timer in timers.items()},
    }


class Updates:
    """One precision's updates, and what they took."""

    def __init__(self, model: DQN, dtype: Dtype, batch_size: int) -> None:
        self.model, self.batch_size = model, batch_size
        self.precision = Precision.of(model, dtype)
        self.estimated_s = 0.0
        """Of a whole batch, from small ones; 0 where batches are small anyway."""
        self.seconds: list[float] = []

    def update(self, batch_size: int) -> float:
        """Seconds of one update on so many rows."""
        start = time.perf_counter()
        with self.precision.update():
            self.model.train(gradient_steps=1, batch_size=batch_size)
        if self.model.device.type == "cuda":
            torch.cuda.synchronize(self.model.device)
        return time.perf_counter() - start

    def probe(self) -> None:
        """Estimates a whole batch from two small ones: what is fixed, and what each row adds."""
        few, more = PROBES
        if self.batch_size <= more:
            return
        self.update(few)  # the first one makes the optimiser's state and chooses kernels
        fewer_s, more_s = self.update(few), self.update(more)
        self.estimated_s = more_s + max(more_s - fewer_s, 0.0) / (more - few) * (self.batch_size - more)

    def fits(self, seconds: float) -> bool:
        """Whether enough updates fit into the time."""
        return MIN_UPDATES * self.estimated_s <= seconds

    def block(self, seconds: float) -> None:
        """Counted updates for about so long, at least one."""
        until = time.perf_counter() + seconds
        while len(self.seconds) < MAX_UPDATES:
            self.seconds.append(self.update(self.batch_size))
            if time.perf_counter() >= until:
                return

    def wants(self, seconds: float) -> bool:
        """Whether it has not had so many seconds yet, nor enough updates."""
        enough = len(self.seconds) >= MIN_UPDATES and sum(self.seconds) >= seconds
        return not enough and len(self.seconds) < MAX_UPDATES


def take_turns(timers: Sequence[Updates], seconds: float) -> None:
    """Updates of each for `seconds` in all."""
    for timer in timers:
        timer.update(timer.batch_size)  # kernels for this batch
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


def _rows(config: MixedPrecisionConfig, policy: str, cell: Cell) -> Iterator[UpdatesRow]:
    # seconds of updates, or the one that stands for them where they were extrapolated, which has no interval
    timed = {d: np.asarray(cell["seconds"][d] or [cell["estimated_s"][d]], np.float64) for d in config.dtypes}
    for dtype in config.dtypes:
        rngs = [np.random.default_rng(0) for _ in range(3)]
        median = bootstrap_interval(timed[dtype], rngs[0], statistic=np.median, num_resamples=RESAMPLES)
        speedup = None
        if dtype != "fp32" and "fp32" in timed:
            speedup = ratio_interval(timed["fp32"], timed[dtype], rngs[1:], statistic=np.median)
        yield UpdatesRow(
            **described(policy, dtype),
            parameters=cell["parameters"],
            native=cell["native"][dtype],
            device=cell["device"],
            threads=cell["settings"]["threads"],
            batch=config.batch_size,
            updates=len(cell["seconds"][dtype]),
            **{name: 1e3 * seconds for name, seconds in as_fields(median, "ms_per_update", "ci").items()},
            **as_fields(speedup, "speedup", "speedup") | ({"speedup": 1.0} if dtype == "fp32" else {}),
        )
