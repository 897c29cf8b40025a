"""ActorQ: a full-precision learner, its quantized actors and all between them; `quarl.actorq(...)` runs one.

>>> run = quarl.actorq("CartPole-v1", n_timesteps=1_000, actors=1, params={"learning_starts": 500}, output="run")
>>> run.agent
Agent(dqn CartPole-v1, fp32, 4-256-256-2, 67,072 weights)
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

from quarl.errors import extras
from quarl.processes.inside import exit_if_imported


class _Callable(ModuleType):
    """A package that is also the function of its name, because importing the package would replace a function."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Call `actorq` of `quarl.commands.actorq_run`, which is above this package and imported when it is called."""
        exit_if_imported()
        with extras("quarl.actorq"):
            module = importlib.import_module("quarl.commands.actorq_run")
        return module.actorq(*args, **options)


sys.modules[__name__].__class__ = _Callable
