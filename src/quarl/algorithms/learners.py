"""Learners by name: the classes of Stable-Baselines3, and those of this package, loaded when they are asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from quarl.algorithms.arguments import checked
from quarl.errors import QuarlError, first_line

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


def instantiate(cls: Any, algo: str, env_id: str, /, *arguments: Any, **options: Any) -> Any:
    """The model cls(*arguments, **options); QuarlError, naming algorithm and environment, where none can be made."""
    try:
        return cls(*arguments, **options)
    except (TypeError, ValueError, AssertionError, RuntimeError, NotImplementedError, MemoryError) as error:
        raise QuarlError(f"{algo} cannot be made for {env_id}: {first_line(error)}") from None
