"""Learners by name: classes of Stable-Baselines3 and of this package, loaded when they are asked for, and made.

Whether a replay fits in memory is asked before: numpy takes it row by row, and the system ends who takes too much.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.utils import get_device
from stable_baselines3.common.vec_env import VecEnv

from quarl.algorithms.zoo_arguments import checked
from quarl.config.learner_options import LearnerOptions
from quarl.errors import QuarlError, first_line
from quarl.machine import free_bytes

CLASSES = {
    "ppo": "stable_baselines3.PPO",
    "a2c": "stable_baselines3.A2C",
    "dqn": "stable_baselines3.DQN",
    "ddpg": "stable_baselines3.DDPG",
    "td3": "stable_baselines3.TD3",
    "sac": "stable_baselines3.SAC",
    "d4pg": "quarl.algorithms.d4pg.D4PG",
}
DOUBLE_DQN = "quarl.algorithms.double_dqn.DoubleDQN"
DOUBLE = "double_q"
"""The hyper-parameter that makes DQN's target that of double DQN."""
SHARE = 0.8
"""Of free memory that a replay may take."""
ROW_BYTES = 16
"""Of a row beside observations and action: reward, end, time limit."""


def learner_class(algo: str, *, double: bool = False) -> Any:
    """The class of the algorithm; double: DQN's with another target."""
    if double and algo != "dqn":
        raise QuarlError(f"--params {DOUBLE}: only dqn has it, and the algorithm is {algo}")
    module, _, name = (DOUBLE_DQN if double else CLASSES[algo]).rpartition(".")
    return getattr(importlib.import_module(module), name)


def constructor(algo: str, hyperparameters: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The class that they make of the algorithm and its constructor's arguments; QuarlError where they are none."""
    given = dict(hyperparameters)
    cls = learner_class(algo, double=bool(given.pop(DOUBLE, False)))
    return cls, checked(cls, given)


def make_learner(
    config: LearnerOptions, cls: Any, policy: str, env: VecEnv, *, steps: int, device: str, **arguments: Any
) -> Any:
    """The seeded model of the class; QuarlError, naming algorithm and environment, where none can be made.

    policy: its name in Stable-Baselines3. steps: of the run. arguments: further ones of the constructor.
    """
    check_replay(cls, arguments, env, steps)
    try:
        return cls(policy, env, seed=config.seed, device=find_device(device), **arguments)
    except (TypeError, ValueError, AssertionError, RuntimeError, NotImplementedError, MemoryError) as error:
        raise QuarlError(f"{config.algo} cannot be made for {config.env}: {first_line(error)}") from None


def find_device(name: str) -> torch.device:
    """The device of that name, auto the GPU where there is one. Stable-Baselines3 takes the CPU without a word instead
    of a GPU that is not there; here that is a QuarlError."""
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise QuarlError(f"--device {name}: PyTorch finds no GPU here; use auto or cpu, or install a build for CUDA")
    device: torch.device = get_device(name)
    return device


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
