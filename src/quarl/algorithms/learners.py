"""Learners by name: classes of Stable-Baselines3 and of this package, loaded on demand, and their construction.

The module checks in advance that a replay fits in memory: numpy allocates it row by row, and the system kills a process
that takes too much.
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
"""Hyper-parameter that gives DQN the target of double DQN."""
SHARE = 0.8
"""Share of free memory that a replay may take."""
ROW_BYTES = 16
"""Bytes of a row beside observations and action: reward, end, time limit."""


def learner_class(algo: str, *, double: bool = False) -> Any:
    """Return the class of the algorithm; `double` selects DQN's variant with another target."""
    if double and algo != "dqn":
        raise QuarlError(f"--params {DOUBLE} requires --algo dqn, not {algo}")
    module, _, name = (DOUBLE_DQN if double else CLASSES[algo]).rpartition(".")
    return getattr(importlib.import_module(module), name)


def constructor(algo: str, hyperparameters: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the learner's class and its constructor arguments; raise QuarlError for an invalid hyper-parameter."""
    given = dict(hyperparameters)
    cls = learner_class(algo, double=bool(given.pop(DOUBLE, False)))
    return cls, checked(cls, given)


def make_learner(
    algo: str, env_id: str, cls: Any, policy: str, env: VecEnv, *, steps: int, device: str, **arguments: Any
) -> Any:
    """Return a seeded model of the class.

    Args:
        algo: Algorithm, for the error.
        env_id: Id of the environment, for the error.
        cls: Class of the learner.
        policy: Name of the policy in Stable-Baselines3.
        env: Vectorized environment.
        steps: Environment steps of the run.
        device: Name of the device.
        **arguments: Further arguments of the constructor, `seed` among them.

    Raises:
        QuarlError: If the model cannot be made; it names algorithm and environment.
    """
    check_replay(cls, arguments, env, steps)
    try:
        return cls(policy, env, device=find_device(device), **arguments)
    except (TypeError, ValueError, AssertionError, RuntimeError, NotImplementedError, MemoryError) as error:
        raise QuarlError(f"{algo} cannot be made for {env_id}: {first_line(error)}") from None


def find_device(name: str) -> torch.device:
    """Return the device of that name; auto is the GPU if there is one.

    Raises QuarlError for a missing GPU, for which Stable-Baselines3 silently uses the CPU.
    """
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise QuarlError(f"--device {name}: PyTorch finds no GPU here; use auto or cpu, or install a build for CUDA")
    device: torch.device = get_device(name)
    return device


def check_replay(cls: Any, arguments: Mapping[str, Any], env: VecEnv, steps: int) -> None:
    """Raise QuarlError, with a size that fits, if the replay would not fit in free memory.

    Args:
        cls: Class of the learner.
        arguments: Arguments of its constructor.
        env: Vectorized environment.
        steps: Environment steps of the run, which fill no more rows.
    """
    parameter = inspect.signature(cls.__init__).parameters.get("buffer_size")
    free = free_bytes()
    if parameter is None or free is None:
        return
    kinds = [env.observation_space] * (1 if arguments.get("optimize_memory_usage") else 2) + [env.action_space]
    row = ROW_BYTES + sum(math.prod(kind.shape or ()) * np.dtype(kind.dtype).itemsize for kind in kinds)
    wanted, fits = int(arguments.get("buffer_size", parameter.default)), int(free * SHARE / row)
    if min(wanted, steps) > fits:
        size = 10 ** max(len(str(fits)) - 2, 0)  # two digits are enough
        raise QuarlError(
            f"a replay of {min(wanted, steps):,} steps takes {min(wanted, steps) * row / 1e9:.3g} GB, and "
            f"{free / 1e9:.3g} GB of memory are free: use --params buffer_size:{fits // size * size}"
        )
