"""Chaos-v0: an environment that sleeps, raises, hangs or exits where it is told to, and counts what it did.

Import it by `--env stress.chaos.env:Chaos-v0`. The environment variable QUARL_CHAOS holds JSON:

    folder      where each process counts, in a file named after it: steps, time of the first step, of the last one
    step_s      how long a step sleeps; slow: {process: seconds} for some
    raise_p     chance of a step to raise
    raises      processes whose every step raises; exits: those that leave in the middle of an episode
    hangs       {process: steps} after which it hangs, once in a run

Processes are named as the supervisor names them ("actor 0"); evaluations and the learner are spared. An observation is
(instance, step within the episode, 0, 0), both exact in float32, so that a replay shows which steps belong together.
"""

from __future__ import annotations

import json
import mmap
import multiprocessing
import os
import struct
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

LENGTH = 50
"""Steps of an episode."""
INSTANCE, STEP = 2.0**-23, 2.0**-6
"""Units of the first two numbers of an observation."""
COUNTS = struct.Struct("qqq")


class Chaos(gymnasium.Env[NDArray[np.float32], int]):
    """What the module's docstring says."""

    observation_space = gymnasium.spaces.Box(-2.0, 2.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    _made = 0

    def __init__(self) -> None:
        wanted: dict[str, Any] = json.loads(os.environ.get("QUARL_CHAOS", "{}"))
        self.name = multiprocessing.current_process().name
        self.acts = self.name.startswith("actor")
        self.folder = Path(wanted.get("folder", "."))
        self.sleep_s = wanted.get("slow", {}).get(self.name, wanted.get("step_s", 0.0)) if self.acts else 0.0
        self.raise_p = wanted.get("raise_p", 0.0) if self.acts else 0.0
        self.raises = self.name in wanted.get("raises", ())
        self.exits = self.name in wanted.get("exits", ())
        self.hangs_at = wanted.get("hangs", {}).get(self.name)
        type(self)._made += 1
        self.instance = (os.getpid() % 4096) * 2048 + self._made % 2048
        self.step_number = 0
        self.counts: mmap.mmap | None = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self.step_number = 0
        return self._observation(), {}

    def step(self, action: int) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        if self.raises or self.np_random.random() < self.raise_p:
            (self.folder / f"raised {self.name} {os.getpid()} {self._made}").touch()
            raise RuntimeError("the simulation broke down")
        if self.exits and self.step_number == LENGTH // 2:
            os._exit(9)
        if self.sleep_s:
            time.sleep(self.sleep_s)
        self.step_number += 1
        if self.acts:
            self._count()
        reward = float(action == self.step_number % 2)
        return self._observation(), reward, False, self.step_number == LENGTH, {}

    def _observation(self) -> NDArray[np.float32]:
        return np.array([INSTANCE * self.instance, STEP * self.step_number, 0, 0], np.float32)

    def _count(self) -> None:
        now = time.monotonic_ns()
        if self.counts is None:
            path = self.folder / f"{self.name} {os.getpid()}"
            if not path.exists():
                path.write_bytes(COUNTS.pack(0, now, now))
            with path.open("r+b") as file:
                self.counts = mmap.mmap(file.fileno(), COUNTS.size)
        steps, first, _ = COUNTS.unpack(self.counts)
        self.counts[:] = COUNTS.pack(steps + 1, first, now)
        if self.hangs_at is not None and steps + 1 >= self.hangs_at:
            try:
                (self.folder / f"{self.name} hung").touch(exist_ok=False)
            except FileExistsError:
                return
            time.sleep(3600)


gymnasium.register("Chaos-v0", Chaos)
