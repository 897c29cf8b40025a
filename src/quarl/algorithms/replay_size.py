"""Whether a learner's replay fits in memory: numpy takes it row by row, and the system ends who takes too much."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import VecEnv

from quarl.errors import QuarlError
from quarl.machine import free_bytes

SHARE = 0.8
"""Of free memory that a replay may take."""
ROW_BYTES = 16
"""Of a row beside observations and action: reward, end, time limit."""


def check_replay(cls: Any, arguments: Mapping[str, Any], env: VecEnv, steps: int) -> None:
    """Refuses a replay that would not fit in the memory that is free, and names the size of one that does.

    arguments: the constructor's. steps: of the run, which fill no more rows.
    """
    parameter = inspect.signature(cls.__init__).parameters.get("buffer_size")
    free = free_bytes()
    if parameter is None or free is None:
        return
    kinds = [env.observation_space] * (1 if arguments.get("optimize_memory_usage") else 2) + [env.action_space]
    row = ROW_BYTES + sum(math.prod(kind.shape or ()) * np.dtype(kind.dtype).itemsize for kind in kinds)
    wanted, fits = int(arguments.get("buffer_size", parameter.default)), int(free * SHARE / row)
    if min(wanted, steps) > fits:
        size = 10 ** max(len(str(fits)) - 2, 0)  # two digits are enough of it
        raise QuarlError(
            f"a replay of {min(wanted, steps):,} steps takes {min(wanted, steps) * row / 1e9:.3g} GB, and "
            f"{free / 1e9:.3g} GB of memory are free: --params buffer_size:{fits // size * size} fits"
        )
